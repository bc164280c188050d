"""From one decision of an agent to the next, for many environments in one call, with features and rewards.

Every environment has a desk: a row of words (W_…) beside its state block. One hall (T_…) holds what they share: how
many there are, the actions, and the arrays that observations are written to.
"""

from __future__ import annotations

import itertools

from . import feature_rows as F
from . import layout as L
from .admission import send
from .arithmetic import rarely
from .compile import entry, inline
from .deadlines import arrival_of, first_deadline, met_targets, next_deadline, push, record_of, sift_down
from .least_loaded import least_loaded
from .loop import DECIDE, FINISHED, GROW, run_to_decision
from .memory import ld, ld16, ld32, ldc, st, st8
from .slots import engine_at, router_of, slot_at

_count = itertools.count
_w = _count()
W_STATE = next(_w)  # address of the state block
W_TASK = next(_w)  # TASK_…: what to do at the next call
W_STATUS = next(_w)  # how the last call ended: DECIDE, FINISHED or GROW
W_START = next(_w)  # requests that arrive from here on are the agent's, ps
W_HEAP = next(_w)  # address of the heap of deadlines, and its size
W_HEAP_SIZE = next(_w)
W_COUNTED = next(_w)  # address of a word per request: 1 once its miss is counted
W_READ = next(_w)  # how much of the log of ended requests was read
W_LAST = next(_w)  # time of the last decision, ps
W_IN_FLIGHT = next(_w)  # the agent's requests in flight
# what the last step brought
W_MISSED_IDS = next(_w)  # address of the requests whose miss became certain
W_ENDED_IDS = next(_w)  # address of the agent's requests that ended
W_ENDED = next(_w)  # how many these are
W_MISSED = next(_w)  # how many those are
W_MET = next(_w)  # how many that ended met both targets
W_WAITED = next(_w)  # Σ time that the agent's requests spent in the cluster, ps
W_DT = next(_w)  # time that passed, ps
W_REQUEST = next(_w)  # request that awaits a decision, −1 if none
# since the reset
W_SUM_MISSED = next(_w)
W_SUM_ENDED = next(_w)
W_SUM_MET = next(_w)
DESK_WORDS = 24

TASK_NONE, TASK_SEND, TASK_RUN = range(3)
"""Nothing; send the pending request as the action says and run; run (after a reset, or when the block has grown)."""

_t = _count()
T_COUNT = next(_t)  # environments
T_DESKS = next(_t)  # address of the desks
T_ACTIONS = next(_t)  # address of (prefill, decode) pairs of words
T_REQUEST = next(_t)  # addresses of the observations, environment by environment
T_PREFILL = next(_t)
T_DECODE = next(_t)  # or mixed
T_PREFILL_MASK = next(_t)
T_DECODE_MASK = next(_t)
T_PREFILL_ROWS = next(_t)  # rows of an environment, padding included
T_DECODE_ROWS = next(_t)
HALL_WORDS = 16


@inline
def first_bad_action(hall: int) -> int:
    """The first environment whose action names no instance, or one that may not be assigned; −1 if there is none."""
    for i in range(ldc(hall, T_COUNT)):
        desk = ldc(hall, T_DESKS) + i * (DESK_WORDS * 8)
        if ld(desk, W_TASK) == TASK_SEND:
            S = ld(desk, W_STATE)
            action = ldc(hall, T_ACTIONS) + i * 16
            p, d = ld(action, 0), ld(action, 1)
            if p < 0 or p >= ldc(S, L.H_ROUTED) or d < 0 or d >= ldc(S, L.H_DECODES):
                return i
            if ld(engine_at(S, p), L.E_STATE) != L.STATE_UP:
                return i
            if ld(engine_at(S, ldc(S, L.H_PREFILLS) + d), L.E_STATE) != L.STATE_UP:
                return i
    return -1


@entry
def step_all(hall: int) -> int:
    """Does every desk's task.

    Returns how many state blocks must grow before theirs is done; −1 − i, and nothing is done, if the action of
    environment i is bad.
    """
    bad = first_bad_action(hall)
    if bad >= 0:
        return -1 - bad
    full = 0
    for i in range(ldc(hall, T_COUNT)):
        desk = ldc(hall, T_DESKS) + i * (DESK_WORDS * 8)
        task = ld(desk, W_TASK)
        if task == TASK_NONE:
            continue
        S = ld(desk, W_STATE)
        if task == TASK_SEND:
            action = ldc(hall, T_ACTIONS) + i * 16
            send_pending(S, desk, ld(action, 0), ld(action, 1))
        status = run_to_agent(S, ld(desk, W_START))
        st(desk, W_STATUS, status)
        if rarely(status == GROW):
            st(desk, W_TASK, TASK_RUN)
            full += 1
            continue
        st(desk, W_TASK, TASK_NONE)
        account(S, desk, status == FINISHED)
        if status == DECIDE:
            observe(S, hall, i)
    return full


@inline
def send_pending(S: int, desk: int, p: int, d: int) -> None:
    """Sends the pending request; its TTFT deadline begins to count."""
    request = ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_REQUEST)
    again = arrival_of(S, request) != ld(S, L.H_NOW)  # re-routed: it has an entry, or its miss is counted
    send(S, p, d, 1.0)
    if arrival_of(S, request) >= ld(desk, W_START) and not again:
        push(ld(desk, W_HEAP), ld(desk, W_HEAP_SIZE), first_deadline(S, request), request)
        st(desk, W_HEAP_SIZE, ld(desk, W_HEAP_SIZE) + 1)
        st(desk, W_IN_FLIGHT, ld(desk, W_IN_FLIGHT) + 1)


@inline
def run_to_agent(S: int, start: int) -> int:
    """Runs to a decision at `start` or later; earlier ones are made by `least-loaded`."""
    while True:
        status = run_to_decision(S, L.FOREVER)
        if status != DECIDE or ld(S, L.H_NOW) >= start:
            return status
        router = router_of(ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_PLACE))
        p, d, probability = least_loaded(S, router)
        send(S, p, d, probability)


@inline
def account(S: int, desk: int, finished: bool) -> None:
    """Notes what became of the agent's requests since the last decision."""
    now, last = ld(S, L.H_NOW), ld(desk, W_LAST)
    st(desk, W_DT, now - last)
    st(desk, W_LAST, now)
    missed, ended, met, waited = 0, 0, 0, 0
    misses, ends = ldc(desk, W_MISSED_IDS), ldc(desk, W_ENDED_IDS)
    counted, log = ldc(desk, W_COUNTED), ldc(S, L.H_LOG)
    for at in range(ld(desk, W_READ), ld(S, L.H_LOGGED)):
        request = ld(log, at)
        if arrival_of(S, request) < ld(desk, W_START):
            continue
        st(ends, ended, request)
        ended += 1
        if ld16(record_of(S, request), L.R16_STATUS) != 2:  # a rejected one was never in flight
            waited += ld(record_of(S, request), L.R_END) - last
            st(desk, W_IN_FLIGHT, ld(desk, W_IN_FLIGHT) - 1)
        if met_targets(S, request):
            met += 1
        elif ld(counted, request) == 0:
            st(counted, request, 1)
            st(misses, missed, request)
            missed += 1
    st(desk, W_READ, ld(S, L.H_LOGGED))
    heap, size = ldc(desk, W_HEAP), ld(desk, W_HEAP_SIZE)
    while size > 0 and ld(heap, 0) < now:
        request = ld(heap, 1)
        deadline = -1
        if ld(record_of(S, request), L.R_END) < 0 and ld(counted, request) == 0:
            deadline = next_deadline(S, request)
            if deadline < now:
                st(counted, request, 1)
                st(misses, missed, request)
                missed += 1
                deadline = -1
        if deadline >= 0:
            sift_down(heap, size, deadline, request)
        else:
            size -= 1
            if size > 0:
                sift_down(heap, size, ld(heap, 2 * size), ld(heap, 2 * size + 1))
    st(desk, W_HEAP_SIZE, size)
    st(desk, W_MISSED, missed)
    st(desk, W_ENDED, ended)
    st(desk, W_MET, met)
    st(desk, W_WAITED, waited + ld(desk, W_IN_FLIGHT) * (now - last))
    st(desk, W_SUM_MISSED, ld(desk, W_SUM_MISSED) + missed)
    st(desk, W_SUM_ENDED, ld(desk, W_SUM_ENDED) + ended)
    st(desk, W_SUM_MET, ld(desk, W_SUM_MET) + met)
    st(desk, W_REQUEST, -1 if finished else ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_REQUEST))


@inline
def observe(S: int, hall: int, i: int) -> None:
    """Writes features and masks of environment i's pending decision."""
    s = slot_at(S, ld(S, L.H_PENDING))
    router = router_of(ld32(s, L.S_PLACE))
    F.write_request(S, router, s, ldc(hall, T_REQUEST) + i * (F.REQUEST_COLUMNS * 4))
    prefills, decodes = ldc(S, L.H_PREFILLS), ldc(S, L.H_DECODES)
    for p in range(prefills):
        row = i * ldc(hall, T_PREFILL_ROWS) + p
        F.write_prefill(S, router, s, p, ldc(hall, T_PREFILL) + row * (F.PREFILL_FEATURES * 4))
        st8(ldc(hall, T_PREFILL_MASK), row, int(ld(engine_at(S, p), L.E_STATE) == L.STATE_UP))
    for d in range(decodes):
        row = i * ldc(hall, T_DECODE_ROWS) + d
        if ldc(S, L.H_MIXED) != 0:
            F.write_mixed(S, router, s, d, ldc(hall, T_DECODE) + row * (F.MIXED_FEATURES * 4))
        else:
            F.write_decode(S, router, s, d, ldc(hall, T_DECODE) + row * (F.DECODE_FEATURES * 4))
        st8(ldc(hall, T_DECODE_MASK), row, int(ld(engine_at(S, prefills + d), L.E_STATE) == L.STATE_UP))
