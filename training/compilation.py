"""Compiling what an evaluation needs, before any worker would."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

MARKER = "evaluation-compiled"
"""File in the cache folder of this code that says that all is compiled."""


def compile_all(say: Callable[[str], None], *, interactive: bool = False) -> None:
    """Compiles the episode loop with the policies in it, or loads it from the cache.

    Args:
        say: told once, and only when compiling will take its time.
        interactive: also compile what steps from decision to decision, for policies in Python.
    """
    from ..envs.cluster import Cluster
    from ..envs.simulator import simulate, warm_up
    from ..envs.simulator.compile import cache_folder
    from ..envs.simulator.warm import tiny_engine, tiny_trace
    from ..policies import registry

    marker = cache_folder() / (MARKER + "-interactive" * interactive)
    if marker.exists():
        return
    say("compiling the simulator, once for this version (less than a minute)")
    if interactive:
        warm_up()
    cluster = Cluster(prefill=(tiny_engine(),), decode=(tiny_engine(),))
    simulate(tiny_trace(), cluster, policy=registry.make("round-robin"))
    with suppress(OSError):  # Without it the next evaluation says so again, and loads what is there.
        marker.touch()
