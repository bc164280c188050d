"""Request routing in disaggregated LLM serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .policies.run import simulate as simulate

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`simulate`, imported when it is first used: importing the package loads no library."""
    if name == "simulate":
        from .policies.run import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
