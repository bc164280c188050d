"""The plain simulator, whose every event is also told to the state of a live router."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from disaggroute.envs import router_constants
from disaggroute.envs.cluster import ClusterEvent
from disaggroute.envs.feature_arrays import FeatureArrays
from disaggroute.envs.simulator import Simulator
from disaggroute.envs.simulator.reference import _Simulation
from disaggroute.envs.simulator.reference_instance import Request
from disaggroute.envs.simulator.reference_outcome import Admission
from disaggroute.envs.simulator.router_state import NoInstance, RouterState
from disaggroute.envs.simulator.simulator import resolve_predictor
from disaggroute.policies import registry
from disaggroute.policies.compiled_policy import CompiledPolicy, initial_state

from ...differential.cases import Case


class Watched(_Simulation):
    """One run in which the plain simulator, the compiled one and a `RouterState` per router see the same decisions.

    Args:
        case: what to run, but with targets of all sizes; the policies decide in turn, not its assignment.
        texts: the policies.
        seed: of the policies, and of what is drawn here.
        bursts: tokens are told when the next decision or the end comes, not one by one.
    """

    def __init__(self, case: Case, texts: tuple[str, ...], seed: int, bursts: bool) -> None:
        super().__init__(case.trace, case.cluster, self.compare, None, case.predicted, True)
        draw = np.random.default_rng(seed)
        ttft, tpot = ((10 ** draw.uniform(1, 12, len(case.trace))).astype(np.int64) for _ in range(2))
        self.trace = replace(case.trace, ttft_target=ttft, tpot_target=tpot)
        self.bursts, self.withdrawn = bursts, draw
        constants = router_constants.from_cluster(case.cluster)
        given, learns = resolve_predictor(case.predicted, case.trace, seed)  # type: ignore[arg-type]
        self.given = given
        self.simulator = Simulator(case.cluster, self.trace, predicted=given, learns=learns, constants=constants)
        routers = range(case.cluster.routers)
        self.states = [RouterState(case.cluster, constants, learns=learns) for _ in routers]
        self.features = FeatureArrays.of_cluster(case.cluster, constants)
        self.last = [-1 for _ in routers]
        self.theirs = [_compiled(text, seed) for text in texts]
        self.ours = [[_compiled(text, seed) for text in texts] for _ in routers]
        for router, policies in enumerate(self.ours):
            for policy in policies:
                policy._state[0] = initial_state(seed)[router]
        self.handles: dict[Request, int] = {}
        self.untold: dict[Request, int] = defaultdict(int)
        self.told: dict[str, int] = defaultdict(int)

    def run(self) -> Any:
        """Runs to the end; every state is empty then."""
        emit = Request.emit

        def noting(request: Request, now: int) -> None:
            self.tell_token(request)
            emit(request, now)

        with patch.object(Request, "emit", noting):
            outcome = super().run()
        assert not self.simulator.run()
        for state in self.states:
            assert state.in_flight == 0
            rows = [{k: v for k, v in row.items() if k in LEDGER} for row in state.snapshot()]
            assert all(not any(row.values()) for row in rows)
        return outcome

    # --- events ---------------------------------------------------------------------------------------

    def poll(self, now: int) -> None:
        before = self.tick
        super().poll(now)
        if self.tick > before:
            for state in self.states:
                for instance, seen in self.polled.items():
                    state.polled(instance.index, *seen)
                state.poll_time(self.tick * self.cluster.poll_interval)

    def end_prefill(self, request: Request, now: int) -> None:
        self.state_of(request).prefill_done(self.handles[request])
        super().end_prefill(request, now)

    def tell_token(self, request: Request) -> None:
        from_prefill = int(self.prefill_emits)
        if request.generated < from_prefill:
            return  # the end of the prefill tells it
        if request.generated == from_prefill:
            self.state_of(request).first_token(self.handles[request])
            self.told["first_token"] += 1
        elif self.bursts:
            self.untold[request] += 1
        else:
            self.state_of(request).token(self.handles[request])

    def tell_bursts(self) -> None:
        for request, count in self.untold.items():
            self.state_of(request).token(self.handles[request], count)
            self.told["bursts"] += count > 1
        self.untold.clear()

    def finish(self, request: Request, now: int) -> None:
        self.tell_bursts()
        self.state_of(request).finished(self.handles.pop(request), request.output)
        self.told["finished"] += 1
        super().finish(request, now)

    def lose(self, request: Request, now: int) -> None:
        self.tell_bursts()
        self.state_of(request).failed(self.handles.pop(request))
        self.told["failed"] += 1
        super().lose(request, now)

    def apply(self, event: ClusterEvent, now: int) -> None:
        super().apply(event, now)
        for state in self.states:
            state.set_open(event.instance, self.instances[event.instance].state == "up")

    def state_of(self, request: Request) -> RouterState:
        return self.states[request.router]

    # --- decisions ------------------------------------------------------------------------------------

    def admit(self, request: Request, now: int) -> None:
        if not all(any(i.state == "up" for i in pool) for pool in (self.prefill, self.decode)):
            try:
                self.ask(self.state_of(request), request, now)
            except NoInstance:
                self.told["no instance"] += 1
            else:
                raise AssertionError("a closed pool was not noticed")
        super().admit(request, now)

    def ask(self, state: RouterState, request: Request, now: int) -> Any:
        i = request.index
        targets = int(self.trace.ttft_target[i]), int(self.trace.tpot_target[i])
        given = None if self.given is None else int(self.given[i])
        return state.ask(request.prompt, request.slo, *targets, now, given, index=i)

    def compare(self, plain: Admission) -> tuple[int, int]:
        """All three see the same; the policies choose the same and remember the same."""
        self.tell_bursts()
        request, state = self.requests[plain.index], self.states[plain.router]
        if self.withdrawn.random() < 0.2:
            self.ask(state, request, plain.now)
            state.withdraw()
        live = self.ask(state, request, plain.now)
        assert self.simulator.run()
        simulated = self.simulator.admission()
        for one in (live, plain):
            for name in ("index", "now", "prompt", "predicted", "slo", "poll_time"):
                assert getattr(one, name) == getattr(simulated, name), (plain.index, name)
        assert (live.ttft_target, live.tpot_target) == (simulated.ttft_target, simulated.tpot_target)
        for pool in ("prefill", "decode"):
            assert np.array_equal(getattr(live, pool), getattr(plain, f"{pool}_view")), (plain.index, pool)
            assert np.array_equal(getattr(live, pool), getattr(simulated, pool)), (plain.index, pool)
        expected = self.features.of_admission(simulated, self.last[plain.router])
        for name, array in self.features.of_admission(live, state.last_admission).items():
            assert np.array_equal(array, expected[name]), (plain.index, name)
        choices = []
        for theirs, ours in zip(self.theirs, self.ours[plain.router], strict=True):
            choices.append(theirs.choose(simulated))
            assert ours.choose(live) == choices[-1], (plain.index, str(ours))
            assert np.array_equal(ours._state[0], theirs._state[plain.router]), (plain.index, str(ours))
        pick = choices[plain.index % len(choices)][:2]
        self.handles[request] = state.send(*pick)
        self.simulator.send(*pick)
        self.last[plain.router] = plain.now
        self.told["decisions"] += 1
        return pick


LEDGER = (
    "queued",
    "queued_tokens",
    "queued_strict",
    "in_flight",
    "pending",
    "committed",
    "committed_output",
    "remaining_output",
    "context",
    "strict",
)
"""Columns of the views that are not polled."""


def _compiled(text: str, seed: int) -> CompiledPolicy:
    policy = registry.parse(text)
    assert isinstance(policy, CompiledPolicy)
    policy.reset(seed)
    return policy
