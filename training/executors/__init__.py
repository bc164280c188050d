"""Executors: what runs the tasks of a sweep, on one machine or on many."""

PROCESS, RAY = "process", "ray"
EXECUTORS = (PROCESS, RAY)
"""Their names."""
