"""One engine that is driven alone, for an emulator that runs it as its clock (docs/model.md)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..cluster import MAX_TIME_PS, PS_PER_S, Cluster, EngineSpec
from ..records import RECORD
from ..time_limits import check_spans
from . import engine_entries as core
from . import layout as L
from .arena import Words
from .state import Tables, grown, new_block

Role = Literal["prefill", "decode", "mixed"]
Kind = Literal["joined", "prefill_done", "reserved", "first_token", "finished", "preempted", "aborted"]
RequestId = Hashable

KINDS: tuple[Kind, ...] = ("joined", "prefill_done", "reserved", "first_token", "finished", "preempted", "aborted")
"""By the numbers that the compiled functions write."""

_FIRST_CAPACITY = 256
_DAY_PS = 86_400 * PS_PER_S


class EngineEvent(NamedTuple):
    """Something that happened to a request.

    Attributes:
        kind: joined (it joined running: its prefill or its decoding starts, with the step that starts now);
            prefill_done (its prompt is done; on a prefill engine its KV is held until `release`); reserved (its
            blocks are reserved and its pull starts); first_token (the first token of this engine is out);
            finished (all tokens are out and its blocks are free); preempted; aborted (its blocks are free).
        request: the id under which it was submitted.
        time: ps.
    """

    kind: Kind
    request: RequestId
    time: int


class Usage(NamedTuple):
    """What an engine reports of itself: used blocks (held and reserved ones included), running and waiting requests."""

    used: int
    running: int
    waiting: int


class Engine:
    """One engine of the compiled core, driven from outside.

    Times are int64 picoseconds and never go back. An instant is run by `advance`: give everything that happens at
    it (`submit`, `pulled`, `release`, `abort`) before. What is given later at the same instant counts as happening
    after the pass that was made there: an idle engine makes another pass, a busy one looks at the end of its step.

    A request on a *prefill* engine joins, its prompt is done and its KV stays held until `release`. On a *decode*
    engine it is offered, its blocks are reserved, and it may join when its pull has ended, at the time that
    `transfer_end` gives or that `pulled` says. On a *mixed* engine both legs are one.

    Args:
        spec: time model and limits; the egress server and the lease belong to the caller.
        role: prefill, decode or mixed.
        first_token: which leg's first token the client sees: with "prefill" a prefill engine gives token 1 and a
            decode engine the others.
        transfer_end: on a decode engine, called with a request id and the time (ps) of its reservation; returns
            when its pull ends (ps, later than that), or None if `pulled` will say so.

    Raises:
        ValueError: the role is unknown.
    """

    def __init__(
        self,
        spec: EngineSpec,
        role: Role,
        first_token: Literal["decode", "prefill"] = "decode",
        transfer_end: Callable[[RequestId, int], int | None] | None = None,
    ) -> None:
        if role not in ("prefill", "decode", "mixed"):
            raise ValueError(f"role is {role!r}; allowed are prefill, decode, mixed")
        self.spec = spec
        self.role = role
        self._transfer_end = transfer_end
        if role == "mixed":
            self._cluster = Cluster(mixed=(spec,))
        else:
            link = np.full((1, 1), core.UNKNOWN_PULL, np.int64)
            self._cluster = Cluster((spec,), (spec,), first_token=first_token, latency=link)
        self._first_from_prefill = role != "mixed" and first_token == "prefill"
        self._engine = 1 if role == "decode" else 0
        self._tables = Tables.of(self._cluster)
        self.reset()

    def reset(self) -> None:
        """Back to an empty engine at time 0."""
        self._block = new_block(self._cluster, self._tables, _FIRST_CAPACITY)
        self._block[L.H_VISIBLE] = L.FOREVER  # no polls
        self._marks = np.zeros(0, np.int64)
        self._records: npt.NDArray[Any] = np.zeros(0, RECORD)
        self._fit_arrays()
        self._now = 0
        self._checked = ((0, 0), 0)  # longest prompt and output for which times stay in int64, and on which day
        self._slots: dict[RequestId, int] = {}
        self._ids: dict[int, RequestId] = {}
        self._aborted: list[RequestId] = []
        self._ended: dict[RequestId, int] = {}  # tokens of those whose end was not told yet
        self._events: list[EngineEvent] = []
        self._first_tokens: tuple[int, list[RequestId]] = (L.FOREVER, [])

    def _fit_arrays(self) -> None:
        capacity = int(self._block[L.H_CAPACITY])
        self._marks = np.concatenate([self._marks, np.zeros(capacity - len(self._marks), np.int64)])
        self._out = np.zeros(6 * capacity, np.int64)
        self._log = np.zeros(capacity, np.int64)
        records = np.zeros(capacity, RECORD)
        records[: len(self._records)] = self._records
        self._records = records
        self._block[L.H_RECORDS] = self._records.ctypes.data
        self._block[L.H_RECORD_STRIDE] = RECORD.itemsize
        self._block[L.H_LOG] = self._log.ctypes.data

    @property
    def _address(self) -> int:
        return int(self._block.ctypes.data)

    @property
    def now(self) -> int:
        """The latest instant that was run or at which something was given, ps."""
        return self._now

    def __len__(self) -> int:
        """Requests that are on the engine, held KV included."""
        return len(self._slots)

    def __contains__(self, request_id: RequestId) -> bool:
        """Whether the request is on the engine."""
        return request_id in self._slots

    # --- what is given --------------------------------------------------------------------------------

    def submit(self, request_id: RequestId, prompt: int, output: int, now: int, *, local: bool = False) -> None:
        """Queues a request at `now` (ps): to be prefilled, or on a decode engine one whose KV is to be pulled.

        Args:
            request_id: names it in events and in the other methods.
            prompt: tokens, ≥ 1.
            output: output tokens of the whole request, ≥ 1.
            now: ps.
            local: a decode engine prefills it itself, since there is nothing to pull.

        Raises:
            ValueError: the id is in use, a length is out of range, the request can never fit or could take too long,
                or time goes back.
        """
        if request_id in self._slots:
            raise ValueError(f"request {request_id!r} is on the engine already; an id may be used again after its end")
        self._run(now, passes=False)
        self.check_fits(request_id, prompt, output, local=local)
        if self._block[L.H_FREE_SLOT] < 0 and self._block[L.H_HIGH] == self._block[L.H_CAPACITY]:
            self._block = grown(self._block)
            self._fit_arrays()
        generated = int(self.role == "decode" and self._first_from_prefill and not local)
        slot = int(core.submit(self._address, self._engine, prompt, output, generated, int(local), now))
        self._marks[slot] = core.WAITING
        self._slots[request_id] = slot
        self._ids[slot] = request_id

    def check_fits(self, request_id: RequestId, prompt: int, output: int, *, local: bool = False) -> None:
        """Whether `submit` would take a request of these lengths.

        Raises:
            ValueError: a length is out of range, the request can never fit, or it could take so long that times
                would leave int64.
        """
        least = 2 if self.role == "decode" and self._first_from_prefill and not local else 1
        for what, tokens, low in (("prompt", prompt, 1), ("output", output, least)):
            if tokens < low:
                raise ValueError(f"request {request_id!r}: {what} is {tokens} tokens; it must be at least {low}")
        if prompt + output > self.spec.max_model_len:
            raise ValueError(
                f"request {request_id!r} has {prompt} prompt + {output} output tokens; "
                f"max_model_len is {self.spec.max_model_len}"
            )
        most = prompt if self.role == "prefill" else prompt + output - 1
        if self.spec.blocks(most) > self.spec.num_blocks:
            raise ValueError(
                f"request {request_id!r} needs {self.spec.blocks(most)} KV blocks; "
                f"the engine has {self.spec.num_blocks}"
            )
        self._check_ends(prompt, output)

    def _check_ends(self, prompt: int, output: int) -> None:
        """Refuses a request with which a planned time could leave int64; looks again once a day."""
        longest, day = self._checked
        if prompt > longest[0] or output > longest[1] or self._now // _DAY_PS > day:
            longest = max(prompt, longest[0]), max(output, longest[1])
            check_spans(Cluster(mixed=(self.spec,)), *(np.array([n]) for n in (self._now, *longest)))
            self._checked = longest, self._now // _DAY_PS

    def pulled(self, request_id: RequestId, end: int) -> None:
        """The pull of a request whose blocks are reserved ends at `end` (ps), now or later.

        Raises:
            ValueError: the request is not in transit, or `end` lies before the engine's time.
        """
        slot = self._slot(request_id)
        if self._marks[slot] != core.RESERVED:
            raise ValueError(f"request {request_id!r} has no blocks reserved; only then its pull can end")
        self._check_time("end", end)
        core.set_pull_end(self._address, slot, end, self._now)

    def release(self, request_id: RequestId, when: int) -> None:
        """A prefill engine no longer needs to hold the KV of a request from `when` (ps) on, now or later.

        Its pull or its lease ends then. The request is forgotten.

        Raises:
            ValueError: the request's KV is not held, or `when` lies before the engine's time.
        """
        slot = self._slot(request_id)
        if self._marks[slot] != core.HELD:
            raise ValueError(f"request {request_id!r} has no KV held; only then it can be released")
        self._check_time("when", when)
        core.release_held(self._address, slot, when)
        self._forget(request_id)

    def abort(self, request_id: RequestId, now: int) -> None:
        """Ends a request at `now` (ps): one that runs when the step in progress ends, any other at once.

        Its blocks are free then, which the event `aborted` tells; if it finishes with that step, it is `finished`.
        Nothing happens to a request that has ended but whose end `advance` has not told yet.

        Raises:
            ValueError: the request is not on the engine, or time goes back.
        """
        self._run(now, passes=False)
        if request_id in self._ended:
            return
        mark = int(self._marks[self._slot(request_id)])
        if mark in (core.CHUNKED, core.DECODING) and self._look()[1]:
            if request_id not in self._aborted:
                self._aborted.append(request_id)
            if self.role != "prefill":
                core.stop_at_boundary(self._address, 0, now)
        else:
            self._drop(request_id, now)

    # --- what comes out -------------------------------------------------------------------------------

    def next_time(self) -> int | None:
        """When the engine has something to do or to tell next (ps), as planned now; None if it idles."""
        if self._events:
            return self._now
        time = min(self._look()[0], self._first_tokens[0])
        return None if time == L.FOREVER else time

    def advance(self, now: int) -> list[EngineEvent]:
        """Runs all instants up to and including `now` (ps).

        Returns:
            What has happened since the last call, by time.

        Raises:
            ValueError: time goes back.
        """
        self._run(now, passes=True)
        self._tell_first_tokens(now)
        events, self._events = self._events, []
        self._ended.clear()
        return events

    def tokens(self, request_id: RequestId, now: int) -> int:
        """Output tokens of a request that are out by `now` (ps), those of the prefill leg included.

        Raises:
            ValueError: the request is not on the engine (any more), or time goes back.
        """
        self._run(now, passes=False)
        if request_id in self._ended:
            return self._ended[request_id]
        return self._tokens(self._slot(request_id), now)

    def _tokens(self, slot: int, now: int) -> int:
        if self._marks[slot] == core.DECODING:
            return int(core.tokens_out(self._address, 0, slot, now))
        return int(self._cells(slot)[L.S_GENERATED])

    def token_times(self, request_id: RequestId) -> npt.NDArray[np.int64]:
        """When the next tokens of a request come out: (n,) ps, later than `now`; one a step of the leap in progress.

        What is given to the engine later may end the leap early; the times up to then stay as they are.

        Raises:
            ValueError: the request is not on the engine.
        """
        slot = self._slot(request_id)
        if self._marks[slot] != core.DECODING:
            return np.zeros(0, np.int64)
        _, _, start, first, growth, steps = self._look()
        k = np.arange(1, steps + 1)
        times = start + k * first + growth * (k * (k - 1) // 2)  # T(k) of arithmetic.py
        return times[times > self._now]

    def next_token_time(self) -> int | None:
        """When the next token of the requests that decode now comes out (ps), later than `now`; None if none does.

        What is given to the engine later does not move it.
        """
        if self.role == "prefill" or not self._look()[1]:
            return None
        time = int(core.next_boundary(self._address, 0, self._now))
        return None if time < 0 else time

    def last_token_time(self) -> int:
        """When the requests that decode now had their last token (ps), at or before `now`, as far as they have one.

        Steps follow one another, so that is the end of the last one.
        """
        _, _, start, first, growth, steps = self._look()
        k = np.arange(steps + 1)
        times = start + k * first + growth * (k * (k - 1) // 2)  # T(k) of arithmetic.py
        return int(times[times <= self._now].max(initial=start))

    def usage(self, now: int) -> Usage:
        """What the engine reports at `now` (ps): as it is before that instant, or after what was run of it."""
        if now > self._now:
            self._run(now - 1, passes=True)
        self._check_time("now", now)
        self._now = now
        core.note_usage(self._address, self._engine, now)
        row = self._row
        return Usage(int(row[L.E_POLL_USED]), int(row[L.E_POLL_RUNNING]), int(row[L.E_POLL_WAITING]))

    # --- the clock ------------------------------------------------------------------------------------

    def _run(self, now: int, *, passes: bool) -> None:
        """Runs all instants before `now`, and of `now` itself the step end and, with `passes`, the pass."""
        self._check_time("now", now)
        while True:
            time, busy, *_ = self._look()
            if time > now:
                break
            self._tell_first_tokens(time)
            if busy:
                self._collect(core.end_step, time)
                for request_id in self._aborted:
                    if request_id in self._slots:  # it did not finish
                        self._drop(request_id, time)
                self._aborted.clear()
            if time == now and not passes:
                break
            self._collect(core.make_pass, time)
        self._now = now

    def _collect(self, entry: Callable[..., int], time: int) -> None:
        """Runs a step end or a pass and notes what happened."""
        count = entry(self._address, self._engine, time, self._marks.ctypes.data, self._out.ctypes.data)
        for event, slot in self._out[: 2 * count].reshape(-1, 2).tolist():
            kind = KINDS[event]
            request_id = self._ids[slot]
            self._events.append(EngineEvent(kind, request_id, time))
            if kind == "finished":
                first_leg = self.role == "prefill"  # it emitted the only token
                self._ended[request_id] = 1 if first_leg else int(self._cells(slot)[L.S_OUTPUT])
                self._forget(request_id)
            elif kind == "joined" and self._marks[slot] == core.DECODING:
                _, _, start, first, _, _ = self._look()
                self._first_tokens = (start + first, [*self._first_tokens[1], request_id])
            elif kind == "reserved":
                end = None if self._transfer_end is None else self._transfer_end(request_id, time)
                core.set_pull_end(self._address, slot, L.FOREVER if end is None else end, time)

    def _tell_first_tokens(self, now: int) -> None:
        """Tells the first tokens that came from the first step of the leap in progress, if it has ended by now."""
        time, ids = self._first_tokens
        if time <= now:
            self._events += [EngineEvent("first_token", request_id, time) for request_id in ids]
            self._first_tokens = (L.FOREVER, [])

    def _drop(self, request_id: RequestId, time: int) -> None:
        """Frees what a request that is not in a step holds."""
        slot = self._slot(request_id)
        self._ended[request_id] = self._tokens(slot, time)
        mark = int(self._marks[slot])
        if mark == core.HELD:
            core.release_held(self._address, slot, time)
        else:
            core.drop(self._address, self._engine, slot, mark, time)
        self._forget(request_id)
        self._events.append(EngineEvent("aborted", request_id, time))

    def _forget(self, request_id: RequestId) -> None:
        del self._ids[self._slots.pop(request_id)]

    # --- the block ------------------------------------------------------------------------------------

    def _check_time(self, name: str, time: int) -> None:
        if not self._now <= time <= MAX_TIME_PS:
            raise ValueError(f"{name} is {time} ps; it must lie between the engine's {self._now} and {MAX_TIME_PS} ps")

    def _slot(self, request_id: RequestId) -> int:
        slot = self._slots.get(request_id)
        if slot is None:
            raise ValueError(f"request {request_id!r} is not on the engine; it was not submitted or has ended")
        return slot

    @property
    def _row(self) -> Words:
        at = int(self._block[L.H_O_ENGINES]) + self._engine * L.ENGINE_WORDS
        return self._block[at : at + L.ENGINE_WORDS]

    def _look(self) -> list[int]:
        """When the engine wakes, whether it is busy, and of its leap start, first step, growth and steps."""
        out = np.empty(6, np.int64)
        core.look(self._address, self._engine, out.ctypes.data)
        return out.tolist()

    def _cells(self, slot: int) -> npt.NDArray[np.int32]:
        at = int(self._block[L.H_O_SLOTS]) + slot * L.SLOT_WORDS
        return self._block[at : at + L.SLOT_WORDS].view(np.int32)
