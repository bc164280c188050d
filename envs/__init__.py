"""Workloads, profiles, the simulated cluster, its ledger and features."""
