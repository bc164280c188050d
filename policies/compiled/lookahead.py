"""Lookahead: each candidate pair is tried in a belief of the cluster, with the same sampled futures for all of them.

With each future comes a belief (envs/simulator/belief.py), in which output lengths are drawn as well. A trial copies
it, sends the pending request to the candidate, lets the requests of the future arrive, routed by the base policy, and
runs until all have ended. Its score is the number of requests that missed a target, in the soft form below; the least
sum over the futures wins.

A future is Poisson at the rate of the last arrivals that this router saw; each of its requests is one of those that it
has seen.

What is large is compiled once and called by its address (W_RUN, W_CHOOSE, W_PREPARE, W_TRY).
"""

from __future__ import annotations

import itertools

import numpy as np

from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.admission import send
from ...envs.simulator.belief import MOST_OUTPUT, believe
from ...envs.simulator.compile import entry, inline
from ...envs.simulator.entries import copy_state
from ...envs.simulator.known import K_LEFT, K_PREDICTED, K_TOKENS, KNOWN_WORDS, write_known
from ...envs.simulator.loop import DECIDE, run_to_decision
from ...envs.simulator.memory import call2, call3, copy_words, ld, ld32, ldc, ldf, st, st32, stf
from ...envs.simulator.slots import engine_at, grouped, region, router_of, slot_at, trace_row
from . import episode
from .projected_latency import project_decode, project_prefill
from .randomness import below, next_word

_count = itertools.count
_w = _count()
# what stays
W_RUN = next(_w)  # addresses of run_on, base_choice, prepare_trials and try_all
W_CHOOSE = next(_w)
W_PREPARE = next(_w)
W_TRY = next(_w)
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
W_SPREAD = next(_w)  # float64
W_SOFTNESS = next(_w)  # float64
W_MARGIN = next(_w)  # float64
# of the last decision
W_COUNT = next(_w)  # candidates
W_AHEAD = next(_w)  # requests of a future
W_KNOWN = next(_w)  # requests in flight in the belief, −1 if there were too many
W_ROUTED = next(_w)  # requests routed in trials
W_RANDOM = next(_w)  # random state
W_CHOICE = next(_w)  # three words: prefill, decode and probability of a choice of the base
DESK_WORDS = 40

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


def run_on(S: int, until: int) -> int:
    """The core's loop, for beliefs and trials."""
    return run_to_decision(S, until)


def base_choice(S: int, policy: int, out: int) -> int:
    """Writes what the base policy picks for the pending request, as `episode.choose_pending` does; returns 0."""
    p, d, probability = episode.choose(S, policy, episode.router_pending(S))
    st(out, 0, p)
    st(out, 1, d)
    stf(out, 2, probability)
    return 0


@inline
def ask_base(S: int, desk: int) -> tuple[int, int]:
    """The base's pick for the pending request of a block."""
    out = desk + W_CHOICE * 8
    call3(ld(desk, W_CHOOSE), S, ld(desk, W_BASE), out)
    return ld(out, 0), ld(out, 1)


def prepare_trials(S: int, desk: int) -> int:
    """Ranks the candidates for the pending request of block S; returns how many futures are to be tried."""
    s = slot_at(S, ld(S, L.H_PENDING))
    router = router_of(ld32(s, L.S_PLACE))
    history = ld(desk, W_HISTORY) + router * (HISTORY_WORDS * 8)
    remember(S, s, history)
    p, d = ask_base(S, desk)
    budget = ld(desk, W_BUDGET)
    count = rank_pairs(S, desk, router, p, d, min(ld(desk, W_MOST), budget))
    for c in range(count):
        stf(ld(desk, W_TOTALS), c, 0.0)
    n = write_known(S, router, ld(desk, W_ROWS), ld(desk, W_ROOM))
    st(desk, W_COUNT, count)
    st(desk, W_ROUTED, 0)
    st(desk, W_KNOWN, n)
    if count == 1 or n < 0:
        return 0
    samples = min(ld(desk, W_SAMPLES), budget // count)
    st(desk, W_AHEAD, budget // (count * samples) - 1)
    mix = np.uint64(ld(S, L.H_DECISIONS)) * np.uint64(0xD1342543DE82EF95)
    st(desk, W_RANDOM, np.int64(np.uint64(ld(history, A_SEED)) ^ mix))
    return samples


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
    B: int, j: int, arrival: int, prompt: int, predicted: int, output: int, loose: int, ttft: int, tpot: int
) -> None:
    """Writes request j of the trace of a belief; it will have `output` tokens, if they fit."""
    row = trace_row(B, j)
    st(row, L.T_ARRIVAL, arrival)
    st(row, L.T_TTFT, ttft)
    st(row, L.T_TPOT, tpot)
    st32(row, L.T32_PROMPT, prompt)
    st32(row, L.T32_OUTPUT, max(1, min(output, MOST_OUTPUT, least_room(B) + 1 - prompt)))
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


def try_all(S: int, desk: int) -> int:
    """Draws one more future and tries all candidates in it; returns 0."""
    B, T = ld(desk, W_BELIEF), ld(desk, W_TRIAL)
    n = ld(desk, W_KNOWN)
    make_belief(S, B, desk, n)
    s = slot_at(S, ld(S, L.H_PENDING))
    history = ld(desk, W_HISTORY) + router_of(ld32(s, L.S_PLACE)) * (HISTORY_WORDS * 8)
    drawn = draw_future(B, desk, history, n + 1, ld(desk, W_AHEAD))
    for c in range(ld(desk, W_COUNT)):
        copy_state(B, T)
        for j in range(n):
            st(record_of(T, j), L.R_END, -1)
        pair = ld(desk, W_PAIRS) + c * 16
        p, d = ld(pair, 0), ld(pair, 1)
        send(T, p, d, 1.0)
        while call2(ld(desk, W_RUN), T, L.FOREVER) == DECIDE:
            p, d = ask_base(T, desk)
            send(T, p, d, 1.0)
        total = ldf(ld(desk, W_TOTALS), c)
        for j in range(n + 1 + drawn):
            total += loss(T, j, ldf(desk, W_SOFTNESS))
        stf(ld(desk, W_TOTALS), c, total)
        st(desk, W_ROUTED, ld(desk, W_ROUTED) + 1 + drawn)
    return 0


@inline
def make_belief(S: int, B: int, desk: int, n: int) -> None:
    """Makes block B the belief of block S, with lengths drawn anew, up to the decision that is due."""
    s = slot_at(S, ld(S, L.H_PENDING))
    router = router_of(ld32(s, L.S_PLACE))
    rows = ld(desk, W_ROWS)
    for j in range(n):
        row = rows + j * (KNOWN_WORDS * 8)
        tokens = ld(row, K_TOKENS)
        left = np.float64(ld(row, K_PREDICTED) - tokens)
        if left <= 0.0:
            left = ldf(desk, W_OVERRUN) * tokens
        st(row, K_LEFT, drawn_length(desk, left))
    copy_state(ld(desk, W_EMPTY), B)
    believe(B, S, router, rows, n, ld(desk, W_SCRATCH))
    copy_words(region(B, L.H_O_POLICY), region(S, L.H_O_POLICY) + router * (L.POLICY_WORDS * 8), L.POLICY_WORDS)
    given = trace_row(S, ld32(s, L.S_REQUEST))
    arrival, ttft, tpot = ldc(given, L.T_ARRIVAL), ldc(given, L.T_TTFT), ldc(given, L.T_TPOT)
    predicted = ld32(s, L.S_PREDICTED)
    output = drawn_length(desk, np.float64(predicted))
    loose = 1 - ledger.is_tight(ld32(s, L.S_PLACE))
    write_request(B, n, arrival, ld32(s, L.S_PROMPT), predicted, output, loose, ttft, tpot)
    st(B, L.H_NEXT, n)
    st(B, L.H_ARRIVAL, ld(B, L.H_NOW))
    call2(ld(desk, W_RUN), B, L.FOREVER)


@inline
def drawn_length(desk: int, mean: float) -> int:
    """A number of tokens of this mean, at least 1: between the mean itself and an exponential one, by the spread."""
    spread = ldf(desk, W_SPREAD)
    if spread > 0.0:
        mean = mean * (1.0 - spread + spread * exponential(desk))
    return max(1, int(np.ceil(mean - 0.5)))


@inline
def exponential(desk: int) -> float:
    """An exponential number of mean 1."""
    word = next_word(desk + W_RANDOM * 8)
    return -np.log((np.float64(np.uint64(word) >> np.uint64(11)) + 0.5) * 2.0**-53)


@inline
def draw_future(B: int, desk: int, history: int, first: int, most: int) -> int:
    """Writes the requests of a future, from number `first` on; returns how many."""
    seen = ld(history, A_SEEN)
    recent = min(seen, ld(desk, W_RECENT))
    t = ld(B, L.H_NOW)
    end = t + ld(desk, W_HORIZON)
    span = t - ld(arrival_at(history, seen - recent), A_TIME)
    drawn = 0
    if recent > 1 and span > 0:
        gap = np.float64(span) / np.float64(recent - 1)
        while drawn < most:
            t += 1 + int(exponential(desk) * gap)
            if t > end:
                break
            row = arrival_at(history, seen - 1 - below(desk + W_RANDOM * 8, min(seen, WINDOW)))
            predicted = ld(row, A_PREDICTED)
            output = drawn_length(desk, np.float64(predicted))
            loose, ttft, tpot = ld(row, A_LOOSE), ld(row, A_TTFT), ld(row, A_TPOT)
            write_request(B, first + drawn, t, ld(row, A_PROMPT), predicted, output, loose, ttft, tpot)
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
    miss = 1.0 if r > 1.0 else 0.0
    if softness > 0.0:
        miss = min(1.0, max(0.0, (r - 1.0 + softness) / (2.0 * softness)))
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


@entry
def run_lookahead(S: int, desk: int, until: int) -> int:
    """Runs with lookahead; returns why it stopped (`loop.run_to_decision`)."""
    while True:
        status = call2(ld(desk, W_RUN), S, until)
        if status != DECIDE:
            return status
        samples = call2(ld(desk, W_PREPARE), S, desk)
        for _ in range(samples):
            call2(ld(desk, W_TRY), S, desk)
        pair = pick_pair(desk, samples)
        send(S, ld(pair, 0), ld(pair, 1), 1.0)


@entry
def begin_pending(S: int, desk: int) -> int:
    """Prepares the decision of the pending request; returns how many futures are to be tried."""
    return call2(ld(desk, W_PREPARE), S, desk)


@entry
def try_pending(S: int, desk: int, times: int) -> None:
    """Tries all candidates in so many more futures."""
    for _ in range(times):
        call2(ld(desk, W_TRY), S, desk)


@entry
def end_pending(desk: int, samples: int, out: int) -> None:
    """Writes the pair that is best after so many futures: prefill, decode."""
    pair = pick_pair(desk, samples)
    st(out, 0, ld(pair, 0))
    st(out, 1, ld(pair, 1))
