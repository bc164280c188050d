"""Driving a live cluster with a trace: what is sent when, what came back, and what is kept of it."""
