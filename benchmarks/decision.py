"""How long the live router takes to decide."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from time import thread_time_ns

import numpy as np

from ..envs import cluster_config, profiles, router_constants
from ..envs.cluster import PS_PER_S
from ..live.router import LiveRouter
from .drive import PROFILE, Say
from .goals import COMPILED
from .measurement import Result, at_least, pinned

TOPOLOGY = "16P48D"

IN_FLIGHT = 512
"""Requests in flight at every decision."""

BUDGET_S = 60.0
"""No decision may be late, also on a machine that is busy with other things: another policy would be measured then."""

GAP_PS = PS_PER_S // 100
"""Between two decisions, ps."""


def measure(
    *,
    topology: str = TOPOLOGY,
    policies: Sequence[str] = COMPILED,
    decisions: int = 5_000,
    repeats: int = 5,
    seed: int = 0,
    say: Say = lambda _: None,
) -> list[Result]:
    """Time of `LiveRouter.decide`: what a policy sees is gathered, it chooses, the ledger counts the request.

    Args:
        topology: of the cluster.
        policies: that decide; by default all compiled ones.
        decisions: per repeat.
        repeats: how often each number is measured.
        seed: of the requests.
        say: told what is being done.

    Returns:
        `proxy/decision/16P48D/POLICY`, µs of CPU time, with 512 requests in flight.

    Raises:
        ValueError: a count below 1, or an unknown policy.
    """
    at_least("decisions", decisions)
    at_least("repeats", repeats)
    cluster = cluster_config.from_topology(topology, PROFILE).build()
    constants, targets = router_constants.from_cluster(cluster), profiles.load(PROFILE).slo_targets
    results = []
    with pinned():
        for policy in policies:
            name = f"proxy/decision/{topology}/{policy}"
            say(name)
            drive = _Drive(LiveRouter(cluster, constants, targets, policy, budget_s=BUDGET_S, seed=seed), seed)
            drive.go(IN_FLIGHT + decisions // 10)
            spent = [drive.go(decisions) for _ in range(repeats)]
            results.append(Result.of(name, "µs", spent, in_flight=IN_FLIGHT, fallbacks=drive.router.fallbacks.total()))
    return results


class _Drive:
    """Requests come and go at one router."""

    def __init__(self, router: LiveRouter, seed: int) -> None:
        self.router = router
        self._random = np.random.default_rng(seed)
        self._prefill: deque[tuple[int, int]] = deque()
        self._decode: deque[tuple[int, int]] = deque()
        self._clock = count(GAP_PS, GAP_PS)

    def go(self, decisions: int) -> float:
        """Makes decisions; µs of CPU time each, without what happens between them."""
        prompts = self._random.integers(1, 4_000, decisions).tolist()
        outputs = self._random.integers(1, 600, decisions).tolist()
        classes = self._random.integers(0, 2, decisions).tolist()
        router, spent = self.router, 0
        for prompt, output, slo in zip(prompts, outputs, classes, strict=True):
            now = next(self._clock)
            started = thread_time_ns()
            decision = router.decide(prompt, slo, None, now)
            spent += thread_time_ns() - started
            self._prefill.append((decision.handle, output))
            if len(self._prefill) > IN_FLIGHT // 2:
                handle, output = self._prefill.popleft()
                router.state.prefill_done(handle)
                router.state.first_token(handle)
                self._decode.append((handle, output))
            if len(self._decode) > IN_FLIGHT // 2:
                router.state.finished(*self._decode.popleft())
        return spent / decisions / 1e3
