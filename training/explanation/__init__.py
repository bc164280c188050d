"""What did a policy learn, and where does it win? `disaggroute explain POLICY WORKLOAD`."""
