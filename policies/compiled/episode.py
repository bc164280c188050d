"""The compiled episode: the simulator's loop with a policy inside, picked by number within one signature."""

from __future__ import annotations

from ...envs.simulator import layout as L
from ...envs.simulator.admission import send
from ...envs.simulator.compile import entry, inline
from ...envs.simulator.least_loaded import least_loaded
from ...envs.simulator.loop import DECIDE, run_to_decision
from ...envs.simulator.memory import ld, ld32, ldc, st, stf
from ...envs.simulator.slots import region, router_of, slot_at
from .baselines import length_threshold, power_of_two, random_pair, round_robin
from .best_fit import best_fit
from .card import card
from .linear import linear
from .marginal_cost import marginal_cost
from .network import network
from .projected_latency import projected_latency
from .size_interval import size_interval

(
    ROUND_ROBIN,
    RANDOM,
    LEAST_LOADED,
    POWER_OF_TWO,
    LENGTH_THRESHOLD,
    MARGINAL_COST,
    PROJECTED_LATENCY,
    SIZE_INTERVAL,
    CARD,
    BEST_FIT,
    LINEAR,
    NETWORK,
) = range(12)
"""Numbers of the compiled policies."""


@inline
def choose(S: int, policy: int, router: int) -> tuple[int, int, float]:
    """What the policy picks for the pending request: prefill, decode, probability of that choice."""
    state = region(S, L.H_O_POLICY) + router * (L.POLICY_WORDS * 8)
    parameters = ldc(S, L.H_PARAMETERS)
    if policy == MARGINAL_COST:
        return marginal_cost(S, router, state, parameters)
    if policy == ROUND_ROBIN:
        return round_robin(S, router, state)
    if policy == LEAST_LOADED:
        return least_loaded(S, router)
    if policy == POWER_OF_TWO:
        return power_of_two(S, router, state)
    if policy == LENGTH_THRESHOLD:
        return length_threshold(S, router, state, parameters)
    if policy == PROJECTED_LATENCY:
        return projected_latency(S, router, state, parameters)
    if policy == SIZE_INTERVAL:
        return size_interval(S, router, parameters)
    if policy == CARD:
        return card(S, router, parameters)
    if policy == BEST_FIT:
        return best_fit(S, router, parameters)
    if policy == LINEAR:
        return linear(S, router, state, parameters)
    if policy == NETWORK:
        return network(S, router, state, parameters)
    return random_pair(S, router, state)


@inline
def router_pending(S: int) -> int:
    """Router of the pending request."""
    return router_of(ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_PLACE))


@entry
def run_episode(S: int, policy: int, until: int) -> int:
    """Runs with a compiled policy; returns why it stopped (`loop.run_to_decision`)."""
    while True:
        status = run_to_decision(S, until)
        if status != DECIDE:
            return status
        p, d, probability = choose(S, policy, router_pending(S))
        send(S, p, d, probability)


@entry
def choose_pending(S: int, policy: int, out: int) -> None:
    """Writes the policy's pick for the pending request to `out`: prefill, decode, probability (float64)."""
    p, d, probability = choose(S, policy, router_pending(S))
    st(out, 0, p)
    st(out, 1, d)
    stf(out, 2, probability)
