"""Emulated engines: vLLM's HTTP API, metrics and two-leg protocol, timed by a profile (docs/emulator.md).

Nothing is imported here: the command line names this package, and must start at once.
"""
