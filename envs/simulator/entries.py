"""The compiled functions that Python calls. Their machine code is cached on disk."""

from __future__ import annotations

from . import layout as L
from . import ledger
from .admission import send, write_views
from .compile import entry, inline
from .loop import DECIDE, run_to_decision
from .memory import copy_words, ld, ld32, ldc, ldc8, ldc32, ldf, st, st32
from .slots import engine_at, grouped, router_of, slot_at


@entry
def send_pending(S: int, p: int, d: int, probability: float) -> None:
    """Sends the pending request to the pair (p, d)."""
    send(S, p, d, probability)


@inline
def open_from(marks: int, group: int, i: int, count: int) -> int:
    """The first instance from i upwards, cyclically, that may be assigned."""
    while ldf(grouped(marks, group, i), 0) != 0.0:
        i = i + 1 if i + 1 < count else 0
    return i


@entry
def run(S: int, prefills: int, decodes: int, until: int) -> int:
    """Runs to the next decision, or with a given assignment (see `loop.run_to_decision` for what it returns).

    `prefills` and `decodes` are addresses of int64 indices by request, or 0 to stop at every decision. An instance
    that may not be assigned is replaced by the next one upwards, cyclically, that may.
    """
    while True:
        status = run_to_decision(S, until)
        if status != DECIDE or prefills == 0:
            return status
        s = slot_at(S, ld(S, L.H_PENDING))
        request = ld32(s, L.S_REQUEST)
        router = router_of(ld32(s, L.S_PLACE))
        rows = ledger.decode_rows(S, router) + L.DEC_OPEN * 8
        d = open_from(rows, L.DEC_GROUP, ldc(decodes, request), ldc(S, L.H_DECODES))
        p = d
        if ldc(S, L.H_MIXED) == 0:
            rows = ledger.prefill_rows(S, router) + L.PRE_OPEN * 8
            p = open_from(rows, L.PRE_GROUP, ldc(prefills, request), ldc(S, L.H_PREFILLS))
        send(S, p, d, 1.0)


@entry
def write_requests(
    rows: int,
    count: int,
    arrival: int,
    ttft: int,
    tpot: int,
    prompt: int,
    output: int,
    slo: int,
    predicted: int,
    routers: int,
) -> None:
    """Writes trace rows (T_…) from the addresses of a trace's columns.

    `predicted` and `routers` may be 0: then all are 0.
    """
    for k in range(count):
        row = rows + k * (L.TRACE_WORDS * 8)
        st(row, L.T_ARRIVAL, ldc(arrival, k))
        st(row, L.T_TTFT, ldc(ttft, k))
        st(row, L.T_TPOT, ldc(tpot, k))
        st32(row, L.T32_PROMPT, ldc32(prompt, k))
        st32(row, L.T32_OUTPUT, ldc32(output, k))
        st32(row, L.T32_PREDICTED, ldc32(predicted, k) if predicted != 0 else 0)
        router = ldc(routers, k) if routers != 0 else 0
        st32(row, L.T32_WHO, router | (ldc8(slo, k) << L.ROUTER_BITS))


@entry
def view(S: int, prefill_out: int, decode_out: int) -> None:
    """Writes the pending decision's PREFILL_VIEW and DECODE_VIEW rows as int64."""
    write_views(S, router_of(ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_PLACE)), prefill_out, decode_out)


@inline
def copy_state(S: int, to: int) -> None:
    """Makes block `to` a copy of block S: what is in flight, not what is empty.

    Both were built for the same cluster, and `to` has room for as many slots as S has ever used. It keeps its own slot
    capacity, records and logs; what the records of requests in flight hold so far, the caller copies if it is wanted.
    """
    decodes, prefills = ldc(S, L.H_DECODES), ldc(S, L.H_PREFILLS)
    batches, slots = ldc(S, L.H_O_BATCH), ldc(S, L.H_O_SLOTS)
    most = 0  # in either block: what is empty in S is empty in `to` then
    for d in range(decodes):
        most = max(most, ld(engine_at(S, prefills + d), L.E_BATCH), ld(engine_at(to, prefills + d), L.E_BATCH))
        for router in range(ldc(S, L.H_ROUTERS)):
            most = max(most, ld(ledger.decode_row(S, router, d), L.DEC_CROSS_COUNT))
            most = max(most, ld(ledger.decode_row(to, router, d), L.DEC_CROSS_COUNT))
    strips = (most + L.STRIP - 1) >> L.STRIP_SHIFT
    copy_words(to + batches * 8, S + batches * 8, strips * ldc(S, L.H_STRIP_STRIDE))
    capacity, words = ld(to, L.H_CAPACITY), ld(to, L.H_WORDS)
    records, record_stride = ld(to, L.H_RECORDS), ld(to, L.H_RECORD_STRIDE)
    fates, told = ld(to, L.H_FATES), ld(to, L.H_ENTRIES)
    decisions, log = ld(to, L.H_DECISION_LOG), ld(to, L.H_LOG)
    copy_words(to, S, batches)
    copy_words(to + slots * 8, S + slots * 8, ld(S, L.H_HIGH) * L.SLOT_WORDS)
    st(to, L.H_CAPACITY, capacity)
    st(to, L.H_WORDS, words)
    st(to, L.H_RECORDS, records)
    st(to, L.H_RECORD_STRIDE, record_stride)
    st(to, L.H_FATES, fates)
    st(to, L.H_ENTRIES, told)
    st(to, L.H_DECISION_LOG, decisions)
    st(to, L.H_LOG, log)


@entry
def clone_into(S: int, to: int, times: int) -> None:
    """`copy_state`, `times` times over (more than once only to measure it)."""
    for _ in range(times):
        copy_state(S, to)
