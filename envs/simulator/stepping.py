"""From one decision of an agent to the next, for many environments in one call, with features and rewards.

Every environment has a desk: a row of words (W_…) beside its state block. One hall (T_…) holds what they share: how
many there are, the actions, and the arrays that observations are written to.
"""

from __future__ import annotations

import itertools

from ..cluster import PS_PER_S
from . import deadlines as D
from . import feature_rows as F
from . import layout as L
from .admission import send
from .ahead import fetch, fetch_acting, fetch_header, fetch_state
from .arithmetic import pick, rarely
from .compile import entry, inline, rare
from .least_loaded import least_loaded
from .loop import DECIDE, FINISHED, GROW, run_to_decision
from .memory import clear_bytes, copy_words, ld, ld8, ld32, ldc, ldcf, ldf, st, st8, stf
from .slots import engine_at, entry_at, record_at, record_of, router_of, slot_at

_count = itertools.count
_w = _count()
W_STATE = next(_w)  # address of the state block
W_TASK = next(_w)  # TASK_…: what to do at the next call
W_STATUS = next(_w)  # how the last call ended: DECIDE, FINISHED or GROW
W_START = next(_w)  # requests that arrive from here on are the agent's, ps
W_LAST = next(_w)  # time of the last decision, ps
W_IN_FLIGHT = next(_w)  # the agent's requests in flight
# what the last step brought
W_MISSED = next(_w)  # requests whose miss became certain
W_ENDED = next(_w)  # requests that ended
W_MET = next(_w)  # how many that ended met both targets
W_WAITED = next(_w)  # Σ time that the agent's requests spent in the cluster, ps
W_DT = next(_w)  # time that passed, ps
W_REWARD = next(_w)  # weighted sum of missed, met and waited (s), float64
W_REQUEST = next(_w)  # request that awaits a decision, −1 if none
# since the reset
W_SUM_MISSED = next(_w)
W_SUM_ENDED = next(_w)
W_SUM_MET = next(_w)
DESK_WORDS = 16

TASK_NONE, TASK_SEND, TASK_RUN = range(3)
"""Nothing; send the pending request as the action says and run; run (after a reset, or when the block has grown)."""

_t = _count()
T_COUNT = next(_t)  # environments
T_DESKS = next(_t)  # address of the desks
T_ACTIONS = next(_t)  # address of (prefill, decode) pairs of words
T_REQUEST = next(_t)  # addresses of the observations, environment by environment
T_PREFILL = next(_t)
T_DECODE = next(_t)  # or mixed
T_PROFILES = next(_t)  # address of a row of PROFILE per instance
T_PREFILL_MASK = next(_t)
T_DECODE_MASK = next(_t)
T_PREFILL_ROWS = next(_t)  # rows of an environment, padding included
T_DECODE_ROWS = next(_t)
T_DECODE_BYTES = next(_t)  # of a row
T_WHOLE = next(_t)  # 1: observations are written for every environment, not only where there was a task
T_SEND = next(_t)  # 1: whoever has a pending request sends it
T_TOLD = next(_t)  # address of what is told beside observations (TOLD_…), 0: nothing is
T_MISSED = next(_t)  # address of rows (MISSED_…) on the misses of the last step
T_MISSED_ONCE = next(_t)  # environments with one miss
T_MISSED_TWICE = next(_t)  # with two
T_MISSED_OFTEN = next(_t)  # with more
T_WEIGHTS = next(_t)  # of missed, met and waited (s) in the reward, float64
HALL_WORDS = T_WEIGHTS + 3

TOLD_REWARD, TOLD_DT, TOLD_NOW, TOLD_REQUEST, TOLD_DONE = range(5)
"""Rows of what is told, one word per environment (float64, times in s); of the last one byte: whether it has ended."""

MISSED_WHERE, MISSED_TWICE, MISSED_OFTEN, MISSED_ONE, MISSED_FIRST, MISSED_SECOND = range(6)
"""Rows on misses, a word per environment: which environments had one, two and more, in this order; again those with
two, and those with more; the request of those with one; the first and the second of those with two."""
MISSED_ROWS = 6

DESKS_AHEAD = 8
"""Desks are asked for so far ahead: the rest is asked for by what stands in them."""


@inline
def first_bad_action(hall: int) -> int:
    """Hands out the task to send, if that is asked for; the first environment whose action is bad, −1 if there is none.

    A bad action names no instance, or one that may not be assigned, or comes where no request awaits one.
    """
    sends = ld(hall, T_SEND)
    st(hall, T_SEND, 0)
    for i in range(ldc(hall, T_COUNT)):
        desk = ldc(hall, T_DESKS) + i * (DESK_WORDS * 8)
        task = ld(desk, W_TASK)
        if sends != 0 and ld(desk, W_REQUEST) >= 0:
            task = TASK_SEND
            st(desk, W_TASK, task)
        if task == TASK_SEND:
            action = ldc(hall, T_ACTIONS) + i * 16
            if ld(desk, W_REQUEST) < 0 or is_masked(hall, T_DECODE_MASK, T_DECODE_ROWS, i, ld(action, 1)):
                return i
            if ldc(hall, T_PREFILL_ROWS) != 0 and is_masked(hall, T_PREFILL_MASK, T_PREFILL_ROWS, i, ld(action, 0)):
                return i
    return -1


@inline
def is_masked(hall: int, mask: int, rows: int, i: int, index: int) -> bool:
    """Whether environment i's mask of a pool (`mask` and `rows` are fields of the hall) does not allow an index."""
    count = ldc(hall, rows)
    return index < 0 or index >= count or ld8(ldc(hall, mask), i * count + index) == 0


@entry
def step_all(hall: int) -> int:
    """Does every desk's task.

    Returns how many state blocks must grow before theirs is done; −1 − i, and nothing is done, if the action of
    environment i is bad.
    """
    bad = first_bad_action(hall)
    if bad >= 0:
        return -1 - bad
    full = step_range(hall, 0, ldc(hall, T_COUNT))
    gather_missed(hall)
    return full


@entry
def check_all(hall: int) -> int:
    """The first environment whose action is bad; −1 if there is none. For those who step in parts."""
    return first_bad_action(hall)


@entry
def step_part(hall: int, first: int, end: int) -> int:
    """`step_all` for the environments first … end − 1, whose actions are known to be good; parts may run at once."""
    return step_range(hall, first, end)


@entry
def gather_all(hall: int) -> None:
    """What is left of `step_all` when all parts are done."""
    gather_missed(hall)


@inline
def step_range(hall: int, first: int, end: int) -> int:
    """Does the tasks of the environments first … end − 1; returns how many state blocks must grow."""
    full = 0
    for i in range(first, end):
        desk = ldc(hall, T_DESKS) + i * (DESK_WORDS * 8)
        fetch_ahead(desk, end - i)
        task, S = ld(desk, W_TASK), ld(desk, W_STATE)
        if task == TASK_SEND:
            action = ldc(hall, T_ACTIONS) + i * 16
            send_pending(S, desk, ld(action, 0), ld(action, 1))
        if task != TASK_NONE:
            status = run_to_agent(S, ld(desk, W_START))
            st(desk, W_STATUS, status)
            if rarely(status == GROW):
                st(desk, W_TASK, TASK_RUN)
                full += 1
                continue
            st(desk, W_TASK, TASK_NONE)
            account(S, hall, desk, status == FINISHED)
        elif ld(hall, T_WHOLE) == 0:
            continue
        if ldc(hall, T_TOLD) != 0:
            tell(hall, desk, i)
        if rarely(ld(desk, W_STATUS) != DECIDE):
            observe_nothing(hall, i)
        else:
            observe(S, hall, i)
    return full


@inline
def fetch_ahead(desk: int, left: int) -> None:
    """Fetches what the next environments will touch; `left`: how many there are, this one included."""
    fetch(desk + DESKS_AHEAD * (DESK_WORDS * 8), DESK_WORDS * 8)
    for stage in range(3):
        ahead = 3 - stage
        far = desk + ahead * (DESK_WORDS * 8)
        if ahead < left and ld(far, W_TASK) == TASK_SEND:
            S = ld(far, W_STATE)
            if stage == 0:
                fetch_header(S)
            elif stage == 1:
                fetch_state(S)
            else:
                fetch_acting(S)


@inline
def send_pending(S: int, desk: int, p: int, d: int) -> None:
    """Sends the pending request; its deadlines begin to count."""
    k = ld(S, L.H_PENDING)
    arrival = ld(record_at(S, slot_at(S, k)), L.R_ARRIVAL)
    send(S, p, d, 1.0)
    if arrival >= ld(desk, W_START) and arrival == ld(S, L.H_NOW):  # else re-routed: open, or its miss is counted
        D.open_fate(S, k)
        st(desk, W_IN_FLIGHT, ld(desk, W_IN_FLIGHT) + 1)


@inline
def run_to_agent(S: int, start: int) -> int:
    """Runs to a decision at `start` or later; earlier ones are made by `least-loaded`."""
    while True:
        status = run_to_decision(S, L.FOREVER)
        if status != DECIDE or ld(S, L.H_NOW) >= start:
            return status
        if ldc(S, L.H_ROWS) != 0:
            st(S, L.H_LOGGED, 0)  # who has ended by now is none of the agent's
        router = router_of(ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_PLACE))
        p, d, probability = least_loaded(S, router)
        send(S, p, d, probability)


@inline
def account(S: int, hall: int, desk: int, finished: bool) -> None:
    """Notes what became of the agent's requests since the last decision.

    What ended before the first decision (it was rejected) counts in the first step: a reset pays nothing.
    """
    now, last = ld(S, L.H_NOW), ld(desk, W_LAST)
    logged = pick(ld(desk, W_REQUEST) < 0, 0, ld(S, L.H_LOGGED))
    missed, ended, met, waited = 0, 0, 0, 0
    in_flight = ld(desk, W_IN_FLIGHT)
    if finished and logged > 0:  # entries of the failure schedule may follow the end of the last request
        now = max(last, ld(ended_record(S, logged - 1), L.R_END))
    for at in range(ld(S, L.H_READ), logged):
        row = ended_record(S, at)
        if ld(row, L.R_ARRIVAL) < ld(desk, W_START):
            continue
        request = ended_request(S, at)
        st(entry_at(S, ended), L.N_ENDED, request)
        ended += 1
        if D.was_sent(row):
            in_flight -= 1
            waited += ld(row, L.R_END) - last
            if ld(row, D.N_PLACE) == D.SETTLED:
                continue
            D.settle(S, row)
            if D.met_targets(row):
                met += 1
                continue
        st(entry_at(S, missed), L.N_MISSED, request)
        missed += 1
    k = D.first_passed(S, 0, now)
    while k >= 0:
        row = record_at(S, slot_at(S, k))
        deadline = D.next_deadline(row, now)
        if deadline < now:
            D.settle(S, row)
            st(entry_at(S, missed), L.N_MISSED, ld32(slot_at(S, k), L.S_REQUEST))
            missed += 1
        else:
            D.set_deadline(S, k, deadline)
        k = D.first_passed(S, k, now)
    if missed > 1:
        sort_missed(S, missed)
    if ldc(S, L.H_ROWS) == 0:
        st(S, L.H_READ, logged)
    elif logged > 0:  # all was read, and need not be kept
        st(S, L.H_LOGGED, 0)
    st(desk, W_IN_FLIGHT, in_flight)
    st(desk, W_LAST, now)
    st(desk, W_DT, now - last)
    st(desk, W_MISSED, missed)
    st(desk, W_ENDED, ended)
    st(desk, W_MET, met)
    waited += in_flight * (now - last)
    st(desk, W_WAITED, waited)
    weights = hall + T_WEIGHTS * 8
    reward = ldcf(weights, 0) * missed + ldcf(weights, 1) * met + ldcf(weights, 2) * (waited / PS_PER_S)
    stf(desk, W_REWARD, reward)
    st(desk, W_SUM_MISSED, ld(desk, W_SUM_MISSED) + missed)
    st(desk, W_SUM_ENDED, ld(desk, W_SUM_ENDED) + ended)
    st(desk, W_SUM_MET, ld(desk, W_SUM_MET) + met)
    st(desk, W_REQUEST, -1 if finished else ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_REQUEST))


@rare
def sort_missed(S: int, count: int) -> None:
    """Sorts the requests whose miss became certain in this step; they are few."""
    for at in range(1, count):
        request, place = ld(entry_at(S, at), L.N_MISSED), at
        while place > 0 and ld(entry_at(S, place - 1), L.N_MISSED) > request:
            st(entry_at(S, place), L.N_MISSED, ld(entry_at(S, place - 1), L.N_MISSED))
            place -= 1
        st(entry_at(S, place), L.N_MISSED, request)


@inline
def ended_request(S: int, at: int) -> int:
    """The request that entry `at` of the log names."""
    return ld(ldc(S, L.H_LOG), at) if ldc(S, L.H_ROWS) == 0 else ld(entry_at(S, at), L.N_ENDED)


@inline
def ended_record(S: int, at: int) -> int:
    """Address of the record row of the request that entry `at` of the log names."""
    return record_of(S, ended_request(S, at)) if ldc(S, L.H_ROWS) == 0 else entry_at(S, at)


@inline
def tell(hall: int, desk: int, i: int) -> None:
    """Writes what is told of environment i's last step beside its observation."""
    told, count = ldc(hall, T_TOLD), ldc(hall, T_COUNT)
    stf(told, TOLD_REWARD * count + i, ldf(desk, W_REWARD))
    stf(told, TOLD_DT * count + i, ld(desk, W_DT) / PS_PER_S)
    stf(told, TOLD_NOW * count + i, ld(desk, W_LAST) / PS_PER_S)
    st(told, TOLD_REQUEST * count + i, ld(desk, W_REQUEST))
    st8(told, TOLD_DONE * count * 8 + i, int(ld(desk, W_STATUS) == FINISHED))


@inline
def observe(S: int, hall: int, i: int) -> None:
    """Writes features and masks of environment i's pending decision."""
    s = slot_at(S, ld(S, L.H_PENDING))
    router = router_of(ld32(s, L.S_PLACE))
    profiles = ldc(hall, T_PROFILES)
    F.write_request(S, router, s, ldc(hall, T_REQUEST) + i * (F.REQUEST_COLUMNS * 4))
    prefills, decodes = ldc(S, L.H_PREFILLS), ldc(S, L.H_DECODES)
    first, rows = prefill_rows(hall, i), ldc(hall, T_PREFILL_ROWS)
    F.write_prefills(S, router, s, first, profiles)
    for p in range(prefills):
        st8(ldc(hall, T_PREFILL_MASK), i * rows + p, int(ld(engine_at(S, p), L.E_STATE) == L.STATE_UP))
    clear_bytes(first + prefills * F.PREFILL_BYTES, (rows - prefills) * F.PREFILL_BYTES)
    first, rows, size = decode_rows(hall, i), ldc(hall, T_DECODE_ROWS), ldc(hall, T_DECODE_BYTES)
    if ldc(S, L.H_MIXED) == 0:
        F.write_decodes(S, router, s, first, profiles)
    else:
        F.write_mixes(S, router, s, first, profiles)
    for d in range(decodes):
        st8(ldc(hall, T_DECODE_MASK), i * rows + d, int(ld(engine_at(S, prefills + d), L.E_STATE) == L.STATE_UP))
    clear_bytes(first + decodes * size, (rows - decodes) * size)


@inline
def prefill_rows(hall: int, i: int) -> int:
    """Address of environment i's rows of PREFILL."""
    return ldc(hall, T_PREFILL) + i * (ldc(hall, T_PREFILL_ROWS) * F.PREFILL_BYTES)


@inline
def decode_rows(hall: int, i: int) -> int:
    """Address of environment i's rows of DECODE, or MIXED."""
    return ldc(hall, T_DECODE) + i * (ldc(hall, T_DECODE_ROWS) * ldc(hall, T_DECODE_BYTES))


@inline
def gather_missed(hall: int) -> None:
    """Writes where the last step brought misses, and those of environments with one or two (MISSED_…)."""
    count, where = ldc(hall, T_COUNT), ldc(hall, T_MISSED)
    once, twice, often = 0, 0, 0
    for i in range(count):
        desk = ldc(hall, T_DESKS) + i * (DESK_WORDS * 8)
        missed = ld(desk, W_MISSED)
        if missed == 0:
            continue
        S = ld(desk, W_STATE)
        if missed == 1:
            st(where, once, i)
            st(where, MISSED_ONE * count + once, ld(entry_at(S, 0), L.N_MISSED))
            once += 1
        elif missed == 2:
            st(where, MISSED_TWICE * count + twice, i)
            st(where, MISSED_FIRST * count + twice, ld(entry_at(S, 0), L.N_MISSED))
            st(where, MISSED_SECOND * count + twice, ld(entry_at(S, 1), L.N_MISSED))
            twice += 1
        else:
            st(where, MISSED_OFTEN * count + often, i)
            often += 1
    copy_words(where + once * 8, where + MISSED_TWICE * count * 8, twice)
    copy_words(where + (once + twice) * 8, where + MISSED_OFTEN * count * 8, often)
    st(hall, T_MISSED_ONCE, once)
    st(hall, T_MISSED_TWICE, twice)
    st(hall, T_MISSED_OFTEN, often)


@rare
def observe_nothing(hall: int, i: int) -> None:
    """Nothing awaits a decision in environment i: its observation is zero."""
    clear_bytes(ldc(hall, T_REQUEST) + i * (F.REQUEST_COLUMNS * 4), F.REQUEST_COLUMNS * 4)
    clear_bytes(prefill_rows(hall, i), ldc(hall, T_PREFILL_ROWS) * F.PREFILL_BYTES)
    clear_bytes(decode_rows(hall, i), ldc(hall, T_DECODE_ROWS) * ldc(hall, T_DECODE_BYTES))
