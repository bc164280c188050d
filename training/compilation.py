"""Compiling what an evaluation needs, before any worker would."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from contextlib import suppress

MARKER = "evaluation-compiled"
"""File in the cache folder of this code that says that all is compiled."""


def compile_all(say: Callable[[str], None], *, interactive: bool = False, lookahead: bool = False) -> None:
    """Compiles the episode loop with the policies in it, or loads it from the cache.

    Args:
        say: told once, and only when compiling will take its time.
        interactive: also compile what goes from decision to decision, for policies in Python and for live routers.
        lookahead: also compile what that policy alone needs.
    """
    from ..envs.router_constants import from_cluster
    from ..envs.simulator import Simulator, simulate, warm_up
    from ..envs.simulator.compile import cache_folder
    from ..envs.simulator.warm import tiny_cluster, tiny_trace
    from ..policies import registry

    marker = cache_folder() / (MARKER + "-interactive" * interactive + "-lookahead" * lookahead)
    if marker.exists():
        return
    say("compiling the simulator, once for this version (less than a minute)")
    cluster, trace, policy = tiny_cluster(), tiny_trace(), registry.make("round-robin")
    if interactive:
        warm_up()
        simulator = Simulator(cluster, trace, learns="bucket")
        simulator.run()
        policy.route(simulator.admission())
    simulate(trace, cluster, policy=policy)
    if lookahead:
        simulate(trace, cluster, policy=registry.make("lookahead"), constants=from_cluster(cluster))
    with suppress(OSError):  # Without it the next evaluation says so again, and loads what is there.
        marker.touch()


def compiled_here() -> tuple[str, ...]:
    """What is compiled on this machine, for `compile_like` on another one."""
    from ..envs.simulator.compile import cache_folder

    return tuple(sorted(path.name for path in cache_folder().glob(f"{MARKER}*")))


def compile_like(there: Sequence[str]) -> None:
    """Compiles what another machine has, in one process of this machine at a time: the others find it done.

    Args:
        there: what `compiled_here` says on the other machine.
    """
    from ..envs.simulator.compile import cache_folder

    with (cache_folder() / ".lock").open("w") as lock:
        with suppress(OSError):  # Not every file system has locks.
            fcntl.flock(lock, fcntl.LOCK_EX)
        for mark in there:
            compile_all(lambda _: None, interactive="-interactive" in mark, lookahead="-lookahead" in mark)
