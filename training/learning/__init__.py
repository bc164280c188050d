"""Training of policies: configurations, runs that resume, methods, and the choice among what was learned."""
