"""Training, evaluation, statistics, experiments and their results."""
