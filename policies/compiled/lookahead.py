"""Lookahead: each candidate pair is tried in a belief of the cluster, with the same sampled futures for all of them.

The belief (envs/simulator/belief.py) is made once per decision. A trial copies it, sends the pending request to the
candidate, lets the requests of one sampled future arrive, routed by the base policy, and runs until all have ended.
Its score is the number of requests that missed a target, in the soft form below; the least sum over the futures wins.

A future is Poisson at the rate of the last arrivals that this router saw; each of its requests is one of those that it
has seen, with its ô as its length.
"""

from __future__ import annotations

import itertools

import numpy as np

from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.admission import send
from ...envs.simulator.belief import believe
from ...envs.simulator.compile import entry, inline, rare
from ...envs.simulator.entries import copy_state
from ...envs.simulator.known import write_known
from ...envs.simulator.loop import DECIDE, run_to_decision
from ...envs.simulator.memory import copy_words, ld, ld32, ldc, ldf, st, st32, stf
from ...envs.simulator.slots import engine_at, grouped, region, router_of, slot_at, trace_row
from . import episode
from .projected_latency import project_decode, project_prefill
from .randomness import below, next_word

_count = itertools.count
_w = _count()
# what stays
W_EMPTY = next(_w)  # addresses of three blocks of the believed cluster: an empty one, the belief, the trial
W_BELIEF = next(_w)
W_TRIAL = next(_w)
W_ROWS = next(_w)  # address of what the router knows of each request
W_ROOM = next(_w)  # requests in flight for which there is room
W_SCRATCH = next(_w)  # address of room + 3 words per engine
W_RANKS = next(_w)  # address of 2 · instances words
W_PAIRS = next(_w)  # address of (prefill, decode) of each candidate, the base's own first
W_TOTALS = next(_w)  # address of each candidate's score, float64
W_HISTORY = next(_w)  # address of what each router has seen: HISTORY_WORDS each
W_BASE = next(_w)  # number of the base policy
W_MOST = next(_w)  # most candidates
W_BUDGET = next(_w)  # most requests routed in the trials of one decision
W_SAMPLES = next(_w)  # futures
W_HORIZON = next(_w)  # no request of a future arrives later than this, ps
W_RECENT = next(_w)  # arrivals by which the rate is told
W_OVERRUN = next(_w)  # float64
W_SOFTNESS = next(_w)  # float64
W_MARGIN = next(_w)  # float64
# of the last decision
W_COUNT = next(_w)  # candidates
W_AHEAD = next(_w)  # requests of a future
W_KNOWN = next(_w)  # requests in flight in the belief, −1 if there were too many
W_ROUTED = next(_w)  # requests routed in trials
W_RANDOM = next(_w)  # random state
DESK_WORDS = 32

WINDOW = 128
"""Arrivals that a router remembers."""

_h = _count()
A_SEED = next(_h)  # a random word
A_SEEN = next(_h)  # arrivals seen
A_STAMP = next(_h)  # which decision the last of them belongs to, plus 1
A_FIRST = next(_h)  # where the ring of arrivals begins
(
    A_TIME,
    A_PROMPT,
    A_PREDICTED,
    A_LOOSE,
    A_TTFT,
    A_TPOT,
) = range(6)
ARRIVAL_WORDS = 6
HISTORY_WORDS = A_FIRST + WINDOW * ARRIVAL_WORDS

ENDLESS = 1 << 40
"""Requests in the trace of a belief: more than there ever are; one that arrives never ends it."""

_TIE = 1e-3
"""Weight of lateness beside a miss."""


@rare
def base_choice(S: int, policy: int, router: int) -> tuple[int, int, float]:
    """What the base policy picks for the pending request."""
    return episode.choose(S, policy, router)


@rare
def run_on(S: int, until: int) -> int:
    """The core's loop, compiled once for reality, belief and trials."""
    return run_to_decision(S, until)


@rare
def prepare_trials(S: int, desk: int) -> None:
    """Ranks the candidates for the pending request of block S, makes the belief and draws the futures."""
    s = slot_at(S, ld(S, L.H_PENDING))
    router = router_of(ld32(s, L.S_PLACE))
    history = ld(desk, W_HISTORY) + router * (HISTORY_WORDS * 8)
    remember(S, s, history)
    p, d, _ = base_choice(S, ld(desk, W_BASE), router)
    budget = ld(desk, W_BUDGET)
    count = rank_pairs(S, desk, router, p, d, min(ld(desk, W_MOST), budget))
    st(desk, W_COUNT, count)
    st(desk, W_ROUTED, 0)
    st(desk, W_KNOWN, 0)
    for c in range(count):
        stf(ld(desk, W_TOTALS), c, 0.0)
    if count == 1:
        return
    n = write_known(S, router, ld(desk, W_ROWS), ld(desk, W_ROOM))
    st(desk, W_KNOWN, n)
    if n < 0:
        return
    B = ld(desk, W_BELIEF)
    copy_state(ld(desk, W_EMPTY), B)
    believe(B, S, router, ld(desk, W_ROWS), n, ld(desk, W_SCRATCH), ldf(desk, W_OVERRUN))
    state = region(S, L.H_O_POLICY) + router * (L.POLICY_WORDS * 8)
    copy_words(region(B, L.H_O_POLICY), state, L.POLICY_WORDS)
    given = trace_row(S, ld32(s, L.S_REQUEST))
    loose = 1 - ledger.is_tight(ld32(s, L.S_PLACE))
    ttft, tpot = ldc(given, L.T_TTFT), ldc(given, L.T_TPOT)
    write_request(B, n, ldc(given, L.T_ARRIVAL), ld32(s, L.S_PROMPT), ld32(s, L.S_PREDICTED), loose, ttft, tpot)
    st(B, L.H_NEXT, n)
    st(B, L.H_ARRIVAL, ld(B, L.H_NOW))
    run_on(B, L.FOREVER)
    samples = min(ld(desk, W_SAMPLES), budget // count)
    st(desk, W_AHEAD, budget // (count * samples) - 1)
    mix = np.uint64(ld(S, L.H_DECISIONS)) * np.uint64(0xD1342543DE82EF95)
    st(desk, W_RANDOM, np.int64(np.uint64(ld(history, A_SEED)) ^ mix))


@inline
def remember(S: int, s: int, history: int) -> None:
    """Notes the arrival of the pending request, once."""
    stamp = ld(S, L.H_DECISIONS) + 1
    if ld(history, A_STAMP) == stamp:
        return
    st(history, A_STAMP, stamp)
    seen = ld(history, A_SEEN)
    st(history, A_SEEN, seen + 1)
    row = arrival_at(history, seen)
    given = trace_row(S, ld32(s, L.S_REQUEST))
    st(row, A_TIME, ld(S, L.H_NOW))
    st(row, A_PROMPT, ld32(s, L.S_PROMPT))
    st(row, A_PREDICTED, ld32(s, L.S_PREDICTED))
    st(row, A_LOOSE, 1 - ledger.is_tight(ld32(s, L.S_PLACE)))
    st(row, A_TTFT, ldc(given, L.T_TTFT))
    st(row, A_TPOT, ldc(given, L.T_TPOT))


@inline
def arrival_at(history: int, number: int) -> int:
    """Address of arrival number `number`, one of the last WINDOW."""
    return history + (A_FIRST + (number & (WINDOW - 1)) * ARRIVAL_WORDS) * 8


@inline
def write_request(
    B: int, j: int, arrival: int, prompt: int, predicted: int, loose: int, ttft: int, tpot: int
) -> None:
    """Writes request j of the trace of a belief; it will have as many output tokens as are predicted, if they fit."""
    row = trace_row(B, j)
    st(row, L.T_ARRIVAL, arrival)
    st(row, L.T_TTFT, ttft)
    st(row, L.T_TPOT, tpot)
    st32(row, L.T32_PROMPT, prompt)
    st32(row, L.T32_OUTPUT, max(1, min(predicted, least_room(B) + 1 - prompt)))
    st32(row, L.T32_PREDICTED, predicted)
    st32(row, L.T32_WHO, loose << L.ROUTER_BITS)


@inline
def least_room(B: int) -> int:
    """Tokens that the smallest KV cache of the decode (or mixed) instances holds."""
    least = L.FOREVER
    for d in range(ldc(B, L.H_DECODES)):
        spec = ldc(engine_at(B, ldc(B, L.H_PREFILLS) + d), L.E_SPEC)
        least = min(least, ldc(spec, L.P_BLOCKS) * ldc(B, L.H_BLOCK))
    return least


# --- candidates -----------------------------------------------------------------------------------------------


@inline
def rank_pairs(S: int, desk: int, router: int, p: int, d: int, most: int) -> int:
    """Writes up to `most` pairs, least sum of their ranks in the two pools first; returns how many.

    A pool is ranked by the base's costs, its own pick first; one that leaves none, by projected TTFT and step.
    """
    base = ld(desk, W_BASE)
    if not leaves_costs(base):
        s = slot_at(S, ld(S, L.H_PENDING))
        project_prefill(S, router, s)
        project_decode(S, router, s, 0.0)
    first, second = ld(desk, W_RANKS), ld(desk, W_RANKS) + ldc(S, L.H_ENGINES) * 8
    rows = ledger.decode_rows(S, router)
    decodes = rank_pool(rows, L.DEC_GROUP, L.DEC_COST, L.DEC_OPEN, ldc(S, L.H_DECODES), d, second)
    pairs, count = ld(desk, W_PAIRS), 0
    if ldc(S, L.H_MIXED) != 0:
        for at in range(min(decodes, most)):
            st(pairs, 2 * at, ld(second, at))
            st(pairs, 2 * at + 1, ld(second, at))
        return min(decodes, most)
    rows = ledger.prefill_rows(S, router)
    prefills = rank_pool(rows, L.PRE_GROUP, L.PRE_COST, L.PRE_OPEN, ldc(S, L.H_PREFILLS), p, first)
    for total in range(prefills + decodes - 1):
        for a in range(max(0, total - decodes + 1), min(prefills, total + 1)):
            if count == most:
                return count
            st(pairs, 2 * count, ld(first, a))
            st(pairs, 2 * count + 1, ld(second, total - a))
            count += 1
    return count


@inline
def leaves_costs(base: int) -> bool:
    """Whether a policy leaves a cost of every instance in the ledger's rows."""
    return (
        base == episode.MARGINAL_COST
        or base == episode.SIZE_INTERVAL
        or base == episode.LEAST_LOADED
        or base == episode.LINEAR
    )


@inline
def rank_pool(rows: int, group: int, cost: int, mark: int, n: int, pick: int, out: int) -> int:
    """Writes the instances that may be assigned, the pick first, then by cost; returns how many.

    Counts are ranked by their bits as float64, which order like the counts.
    """
    st(out, 0, pick)
    count = 1
    for i in range(n):
        own = grouped(rows, group, i)
        if i != pick and ld(own, mark) == 0:
            at = count
            while at > 1 and ldf(grouped(rows, group, ld(out, at - 1)), cost) > ldf(own, cost):
                st(out, at, ld(out, at - 1))
                at -= 1
            st(out, at, i)
            count += 1
    return count


# --- futures and trials ---------------------------------------------------------------------------------------


@rare
def try_all(S: int, desk: int) -> None:
    """Draws one more future and tries all candidates in it."""
    B, T = ld(desk, W_BELIEF), ld(desk, W_TRIAL)
    n, ahead = ld(desk, W_KNOWN), ld(desk, W_AHEAD)
    s = slot_at(S, ld(S, L.H_PENDING))
    history = ld(desk, W_HISTORY) + router_of(ld32(s, L.S_PLACE)) * (HISTORY_WORDS * 8)
    drawn = draw_future(B, desk, history, n + 1, ahead)
    for c in range(ld(desk, W_COUNT)):
        copy_state(B, T)
        for j in range(n):
            st(record_of(T, j), L.R_END, -1)
        pair = ld(desk, W_PAIRS) + c * 16
        st(T, L.H_NEXT, n + 1)
        send(T, ld(pair, 0), ld(pair, 1), 1.0)
        while run_on(T, L.FOREVER) == DECIDE:
            p, d, probability = base_choice(T, ld(desk, W_BASE), 0)
            send(T, p, d, probability)
        total = ldf(ld(desk, W_TOTALS), c)
        for j in range(n + 1 + drawn):
            total += loss(T, j, ldf(desk, W_SOFTNESS))
        stf(ld(desk, W_TOTALS), c, total)
        st(desk, W_ROUTED, ld(desk, W_ROUTED) + 1 + drawn)


@inline
def draw_future(B: int, desk: int, history: int, first: int, most: int) -> int:
    """Writes the requests of a future, from number `first` on; returns how many."""
    seen = ld(history, A_SEEN)
    recent = min(seen, ld(desk, W_RECENT))
    t = ld(B, L.H_NOW)
    end = t + ld(desk, W_HORIZON)
    span = t - ld(arrival_at(history, seen - recent), A_TIME)
    rng = desk + W_RANDOM * 8
    drawn = 0
    if recent > 1 and span > 0:
        gap = np.float64(span) / np.float64(recent - 1)
        while drawn < most:
            uniform = (np.float64(np.uint64(next_word(rng)) >> np.uint64(11)) + 0.5) * 2.0**-53
            t += 1 + int(-np.log(uniform) * gap)
            if t > end:
                break
            row = arrival_at(history, seen - 1 - below(rng, min(seen, WINDOW)))
            loose, ttft, tpot = ld(row, A_LOOSE), ld(row, A_TTFT), ld(row, A_TPOT)
            write_request(B, first + drawn, t, ld(row, A_PROMPT), ld(row, A_PREDICTED), loose, ttft, tpot)
            drawn += 1
    st(trace_row(B, first + drawn), L.T_ARRIVAL, L.FOREVER)
    return drawn


@inline
def record_of(T: int, j: int) -> int:
    """Address of the record of request j."""
    return ldc(T, L.H_RECORDS) + j * ldc(T, L.H_RECORD_STRIDE)


@inline
def loss(T: int, j: int, softness: float) -> float:
    """How far request j of a trial missed its targets: 1 for a miss, plus its lateness to break ties.

    r is the larger of TTFT and TPOT over their targets. The miss is softened over r from 1 − softness to 1 + softness.
    """
    record, given = record_of(T, j), trace_row(T, j)
    if ld(record, L.R_END) < 0:
        return 1.0 + _TIE
    first = ld(record, L.R_FIRST_TOKEN)
    r = np.float64(first - ld(given, L.T_ARRIVAL)) / np.float64(max(1, ld(given, L.T_TTFT)))
    steps = ld32(record, L.R32_GENERATED) - 1
    if steps > 0:
        span = np.float64(ld(record, L.R_LAST_TOKEN) - first)
        r = max(r, span / (np.float64(steps) * np.float64(max(1, ld(given, L.T_TPOT)))))
    if softness > 0.0:
        miss = min(1.0, max(0.0, (r - 1.0 + softness) / (2.0 * softness)))
    else:
        miss = np.float64(r > 1.0)
    return miss + _TIE * r / (1.0 + r)


@inline
def pick_pair(desk: int, samples: int) -> int:
    """Address of the pair of least loss over so many futures; the base's unless one is better by the margin."""
    totals = ld(desk, W_TOTALS)
    found, least = 0, ldf(totals, 0) - ldf(desk, W_MARGIN) * samples
    for c in range(1, ld(desk, W_COUNT)):
        if ldf(totals, c) < least:
            found, least = c, ldf(totals, c)
    return ld(desk, W_PAIRS) + found * 16


@inline
def futures(desk: int) -> int:
    """How many futures are to be tried."""
    count = ld(desk, W_COUNT)
    if count == 1 or ld(desk, W_KNOWN) < 0:
        return 0
    return min(ld(desk, W_SAMPLES), ld(desk, W_BUDGET) // count)


@inline
def decide(S: int, desk: int) -> int:
    """Address of the pair for the pending request of block S."""
    prepare_trials(S, desk)
    samples = futures(desk)
    for _ in range(samples):
        try_all(S, desk)
    return pick_pair(desk, samples)


@entry
def run_lookahead(S: int, desk: int, until: int) -> int:
    """Runs with lookahead; returns why it stopped (`loop.run_to_decision`)."""
    while True:
        status = run_on(S, until)
        if status != DECIDE:
            return status
        pair = decide(S, desk)
        send(S, ld(pair, 0), ld(pair, 1), 1.0)


@entry
def begin_pending(S: int, desk: int) -> int:
    """Prepares the decision of the pending request; returns how many futures are to be tried."""
    prepare_trials(S, desk)
    return futures(desk)


@entry
def try_pending(S: int, desk: int, times: int) -> None:
    """Tries all candidates in so many more futures."""
    for _ in range(times):
        try_all(S, desk)


@entry
def end_pending(desk: int, samples: int, out: int) -> None:
    """Writes the pair that is best after so many futures: prefill, decode."""
    pair = pick_pair(desk, samples)
    st(out, 0, ld(pair, 0))
    st(out, 1, ld(pair, 1))
