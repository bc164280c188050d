"""What a router, or an emulated engine, needs compiled; said where it takes its time."""

from __future__ import annotations

from ..envs.compilation import announce
from ..envs.simulator import engine_entries, router_entries
from ..envs.simulator.warm import warm_up_engine, warm_up_router


def compile_router() -> None:
    """Compiles what a router needs, or loads it from the cache."""
    announce("the router", router_entries.take_over)
    warm_up_router()


def compile_engine() -> None:
    """Compiles what an emulated engine needs, or loads it from the cache."""
    announce("the emulated engine", engine_entries.note_usage)
    warm_up_engine()
