"""Errors of other people's code in words."""

from __future__ import annotations


def error_text(error: Exception) -> str:
    """Such as `KeyError: 'x'`, on one line."""
    said = " ".join(str(error).split())
    return type(error).__name__ + (f": {said}" if said else "")
