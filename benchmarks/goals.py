"""Goals: how fast each thing must be, and how fast it should become (one core, but for training)."""

from __future__ import annotations

from typing import NamedTuple

from .measurement import Result

COMPILED = (
    *("best-fit", "card", "least-loaded", "least-ttft", "length-threshold", "linear", "marginal-cost", "min-tpot"),
    *("network", "power-of-two", "random", "round-robin", "simulator-naive", "size-interval"),
)
"""Policies that decide in compiled code."""


class Goal(NamedTuple):
    """A bound that must hold and one to aim at, if there is one, in the unit of the result."""

    must: float
    aim: float | None = None


GOALS = {
    "simulator/2P4D/marginal-cost": Goal(3e6, 6e6),
    "simulator/16P48D/marginal-cost": Goal(1.5e6, 4e6),
    "vector/256": Goal(1e6, 4e6),
    "env": Goal(80e3, 250e3),
    "train/ppo": Goal(30e3),
    "proxy/whole": Goal(300.0, 140.0),
    "proxy/stream": Goal(500.0, 375.0),
    **{f"proxy/decision/16P48D/{policy}": Goal(50.0) for policy in COMPILED},
    "policies/linear/2P4D/episode": Goal(1.0, 0.15),
    "policies/network/2P4D/episode": Goal(2.0, 0.3),
    "policies/network/16P48D/episode": Goal(10.0, 2.0),
    "policies/network/2P4D/route": Goal(100.0, 10.0),
    "policies/network/16P48D/route": Goal(1_000.0, 15.0),
    "clone/300": Goal(5.0, 0.7),
    "startup/import": Goal(0.8, 0.4),
    "startup/import-simulator": Goal(0.8, 0.4),
    "startup/first-step": Goal(2.0, 0.5),
    "startup/cold-compile": Goal(30.0, 10.0),
    "memory/1M": Goal(500.0, 250.0),
}
"""By the name of the result."""


def keeps(result: Result, bound: float) -> bool:
    """Whether a result is at least as good as a bound."""
    return result.value >= bound if result.more_is_better else result.value <= bound
