"""The router in front of real engines: its state, the policy that decides, one that falls in, one that looks on."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..envs.admission import Admission
from ..envs.cluster import PS_PER_S, Cluster
from ..envs.error_text import error_text
from ..envs.profiles import SloTargets
from ..envs.router_constants import RouterConstants
from ..envs.simulator.choices import checked_choice, reset_policy
from ..envs.simulator.router_state import NoInstance, RouterState
from ..envs.trace import LOOSE, MAX_TARGET_PS, TIGHT
from ..policies import registry
from ..policies.policy import Policy
from .compilation import compile_router

__all__ = ["Decision", "LiveRouter", "NoInstance"]

FALLBACK = "least-loaded"
"""Decides where the policy does not."""

ERROR, UNAVAILABLE, LATE = "error", "unavailable", "late"
"""Why a choice was not taken: the policy raised or gave none; the pair may not be chosen; it came too late."""

BUDGET_S = 0.005
"""Time that a policy has for a decision, s, unless said otherwise."""

QUIET_PS = 60 * PS_PER_S
"""Time between two lines in the log about the same policy's failures, ps."""

_log = logging.getLogger(__name__)


class Decision(NamedTuple):
    """Where a request goes.

    Attributes:
        handle: names the request in the events that `LiveRouter.state` is told.
        prefill: index in the prefill pool.
        decode: index in the decode pool; aggregated: both name the same mixed instance.
        probability: of this choice, given what was seen.
        predicted: ô, tokens.
        policy: text of the policy that made it.
        fallback_reason: error, unavailable or late if `least-loaded` made it for the policy, else None.
        shadow: the pair that the shadow policy would have chosen; None without one, or if it failed.
        seconds: that the decision took, the shadow's time included.
        admission: what was seen; it cannot be routed any more.
    """

    handle: int
    prefill: int
    decode: int
    probability: float
    predicted: int
    policy: str
    fallback_reason: str | None
    shadow: tuple[int, int] | None
    seconds: float
    admission: Admission


class _Seat(NamedTuple):
    """A policy in service: how it was given, its text, and what is called at a decision."""

    given: str | Policy
    policy: Policy
    text: str
    choose: Callable[[Admission], Any]


class _Answer(NamedTuple):
    """What came of asking a policy: a pair and how likely it was, or (`reason`, `why`) there is none."""

    pair: tuple[int, int] = (-1, -1)
    probability: float = 0.0
    reason: str | None = None
    why: str = ""


class LiveRouter:
    """Decides where each request goes, and never fails because a policy does.

    One thread (the event loop) uses it. Times are ps of one clock that does not go back.

    Args:
        cluster: the instances.
        constants: what the router believes of them.
        targets: TTFT and TPOT targets by SLO class.
        policy: text of the policy that decides, as `policies.registry.parse` reads it, or the policy itself.
        shadow: text of a policy that decides beside it and moves nothing, or None.
        learns: the predictor that learns from what has finished (`RouterState`).
        budget_s: time that a policy has for a decision, s.
        seed: for what is random in policies.
        clock: seconds, to measure decisions with.

    Raises:
        ValueError: a policy is unknown, malformed or does not fit the pools, the budget is not above 0, or as
            `RouterState`.
        PolicyError: a policy failed as it was reset.
    """

    def __init__(
        self,
        cluster: Cluster,
        constants: RouterConstants,
        targets: SloTargets,
        policy: str | Policy,
        *,
        shadow: str | None = None,
        learns: str = "bucket",
        budget_s: float = BUDGET_S,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not budget_s > 0:
            raise ValueError(f"budget_s is {budget_s}; it must be above 0")
        compile_router()
        self.state = RouterState(cluster, constants, learns=learns)
        """Ledger, polls and learner; another object after `resize`."""
        self.targets = targets
        self.budget_s = budget_s
        self.decisions = 0
        """Decisions made."""
        self.fallbacks: Counter[str] = Counter()
        """Decisions that `least-loaded` made for the policy, by reason."""
        self.shadow_failures: Counter[str] = Counter()
        """Decisions that the shadow did not make, by reason."""
        self.shadow_agreed = 0
        """Decisions for which the shadow chose the same pair."""
        self._clock = clock
        self._seed = seed
        self._quiet_until: dict[str, int] = {}
        self._fallback = self._ready(FALLBACK, seed)
        self._policy = self._ready(policy, seed)
        self._shadow = None if shadow is None else self._ready(shadow, seed)

    @property
    def policy(self) -> str:
        """Text of the policy that decides."""
        return self._policy.text

    @property
    def shadow(self) -> str | None:
        """Text of the policy that looks on."""
        return None if self._shadow is None else self._shadow.text

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        return self.state.in_flight

    def snapshot(self) -> list[dict[str, int | str]]:
        """What decisions see of each instance (`RouterState.snapshot`)."""
        return self.state.snapshot()

    # --- a decision -----------------------------------------------------------------------------------

    def decide(
        self,
        prompt: int,
        slo: int,
        output_hint: int | None,
        now: int,
        *,
        ttft_target: float | None = None,
        tpot_target: float | None = None,
        exclude: Collection[int] = (),
    ) -> Decision:
        """Picks the instances of a request, which counts in the ledger from then on.

        Args:
            prompt: tokens.
            slo: index into SLO_CLASSES.
            output_hint: output tokens that the client expects, or None: the predictor says.
            now: ps.
            ttft_target: s, or None: that of the class.
            tpot_target: s, or None: likewise.
            exclude: instances of the cluster, prefill instances first, that this request must not go to.

        Raises:
            NoInstance: none of a pool may be assigned.
            ValueError: a value is out of range.
        """
        start = self._clock()
        ttft, tpot = self.targets_of(slo, ttft_target, tpot_target)
        state = self.state
        shut = [i for i in exclude if state.is_open(i)]
        for i in shut:
            state.set_open(i, False)
        try:
            admission = state.ask(prompt, slo, ttft, tpot, now, output_hint)
            try:
                seat, answer, reason = self._decided(admission, now)
                looked_on = None if self._shadow is None else self._look_on(self._shadow, admission, answer.pair, now)
                handle = state.send(*answer.pair)
            except BaseException:
                state.withdraw()
                raise
        finally:
            for i in shut:
                state.set_open(i, True)
        self.decisions += 1
        pair, chance, seconds = answer.pair, answer.probability, self._clock() - start
        return Decision(handle, *pair, chance, admission.predicted, seat.text, reason, looked_on, seconds, admission)

    def targets_of(self, slo: int, ttft: float | None = None, tpot: float | None = None) -> tuple[int, int]:
        """TTFT and TPOT target of a request, ps.

        Args:
            slo: index into SLO_CLASSES.
            ttft: its own, s; None: that of the class.
            tpot: likewise.

        Raises:
            ValueError: a value is out of range.
        """
        if slo not in (TIGHT, LOOSE):
            raise ValueError(f"slo is {slo}; it must be 0 (tight) or 1 (loose)")
        return (
            self.targets.ttft[slo] if ttft is None else _target_ps("ttft_target", ttft),
            self.targets.tpot[slo] if tpot is None else _target_ps("tpot_target", tpot),
        )

    def _decided(self, admission: Admission, now: int) -> tuple[_Seat, _Answer, str | None]:
        """Who decides, what, and why it is not the policy."""
        answer = self._answer(self._policy, admission)
        if answer.reason is None:
            return self._policy, answer, None
        self.fallbacks[answer.reason] += 1
        self._tell("policy", self._policy, answer.why, f"{FALLBACK} decides", self.fallbacks, now)
        return self._fallback, self._answer(self._fallback, admission, limited=False), answer.reason

    def _look_on(
        self, shadow: _Seat, admission: Admission, taken: tuple[int, int], now: int
    ) -> tuple[int, int] | None:
        """What the shadow would have chosen."""
        answer = self._answer(shadow, admission)
        if answer.reason is not None:
            self.shadow_failures[answer.reason] += 1
            self._tell("shadow", shadow, answer.why, "it moves nothing", self.shadow_failures, now)
            return None
        self.shadow_agreed += answer.pair == taken
        return answer.pair

    def _answer(self, seat: _Seat, admission: Admission, *, limited: bool = True) -> _Answer:
        """Asks a policy."""
        start = self._clock()
        try:
            prefill, decode, *chance = checked_choice(seat.choose(admission))
        except Exception as error:
            return _Answer(reason=ERROR, why=f"it raised {error_text(error)}")
        seconds = self._clock() - start
        try:
            self.state.check(prefill, decode)
        except ValueError as error:
            return _Answer(reason=UNAVAILABLE, why=f"it chose ({prefill}, {decode}): {error}")
        if limited and seconds > self.budget_s:
            return _Answer(reason=LATE, why=f"it took {seconds * 1e3:.1f} ms; its budget is {self.budget_s * 1e3:g} ms")
        return _Answer((int(prefill), int(decode)), float(chance[0]) if chance else 1.0)

    def _tell(self, role: str, seat: _Seat, why: str, what: str, failures: Counter[str], now: int) -> None:
        """Writes a line into the log, at most once a minute for each role."""
        if now >= self._quiet_until.get(role, 0):
            self._quiet_until[role] = now + QUIET_PS
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(failures.items()))
            _log.warning("%s %s: %s; %s (so far: %s)", role, seat.text, why, what, counts)

    # --- changes --------------------------------------------------------------------------------------

    def switch_policy(self, text: str, seed: int | None = None) -> None:
        """Another policy decides from now on; the ledger stays.

        Args:
            text: of the policy.
            seed: for what is random in it; None: that of the router.

        Raises:
            ValueError: it is unknown, malformed or does not fit the pools; the old one goes on.
            PolicyError: it failed as it was reset; likewise.
        """
        self._policy = self._ready(text, seed)
        self._quiet_until.pop("policy", None)

    def switch_shadow(self, text: str | None, seed: int | None = None) -> None:
        """Another policy, or for None none, decides beside it from now on.

        Raises:
            ValueError: as `switch_policy`.
            PolicyError: likewise.
        """
        self._shadow = None if text is None else self._ready(text, seed)
        self._quiet_until.pop("shadow", None)

    def resize(self, cluster: Cluster, constants: RouterConstants, mapping: Mapping[int, int]) -> None:
        """Another topology (`RouterState.resized`); the policies are reset, since they may remember instances.

        Raises:
            ValueError: a policy does not fit the pools, or as `RouterState.resized`; all is as it was then.
            RuntimeError: as `RouterState.resized`.
            PolicyError: a policy failed as it was reset.
        """
        resized = self.state.resized(cluster, constants, mapping)
        before, self.state = self.state, resized
        try:
            shadow = None if self._shadow is None else self._ready(self._shadow.given, None)
            self._policy, self._shadow = self._ready(self._policy.given, None), shadow
            self._fallback = self._ready(FALLBACK, None)
        except Exception:
            self.state = before
            raise

    def _ready(self, given: str | Policy, seed: int | None) -> _Seat:
        """A policy that fits the pools, reset."""
        policy = registry.parse(given) if isinstance(given, str) else given
        cluster = self.state.cluster
        policy.check_pools(len(cluster.prefill), len(cluster.decode) or len(cluster.mixed))
        seed = self._seed if seed is None else seed
        reset_policy(policy, seed)
        seat = _Seat(given, policy, str(policy), getattr(policy, "choose", policy.route))
        # Its first choice may load or compile code: that is not to make a request's decision late.
        rehearsal = RouterState(cluster, self.state.constants)
        with suppress(Exception):
            seat.choose(rehearsal.ask(1, TIGHT, 0, 0, 0))
        reset_policy(policy, seed)
        return seat


def _target_ps(name: str, seconds: float) -> int:
    if not 0 <= seconds <= MAX_TARGET_PS / PS_PER_S:
        raise ValueError(f"{name} is {seconds} s; it must lie between 0 and {MAX_TARGET_PS // PS_PER_S} s")
    return round(seconds * PS_PER_S)
