"""The ledger, fed with a stream of events, shows what a plain recount of the same events shows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numba
import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from disaggroute.envs.cluster import Cluster
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator import layout as L
from disaggroute.envs.simulator import ledger
from disaggroute.envs.simulator.batch import settle_fresh
from disaggroute.envs.simulator.memory import ld
from disaggroute.envs.simulator.memory import st as store
from disaggroute.envs.simulator.slots import slot_at
from disaggroute.envs.simulator.state import Tables, new_block
from disaggroute.envs.simulator.warm import tiny_engine

PREFILLS, DECODES, ROUTERS, SLOTS, SEQUENCES = 2, 3, 2, 48, 8
ADMITTED, PREFILL_DONE, FIRST_TOKEN, TOKEN, STREAMS, JOINS, PAUSES, FINISHED, LEAVES, SETTLE, SYNC = range(11)
NEVER = 1 << 62


@numba.njit
def happen(S: int, event: int, k: int, a: int, b: int) -> None:
    """One event of the request in slot k (SETTLE: of instance k; SYNC: router a at time b)."""
    s = slot_at(S, k)
    if event == ADMITTED:
        ledger.admitted(S, s)
    elif event == PREFILL_DONE:
        ledger.prefill_done(S, s)
    elif event == FIRST_TOKEN:
        ledger.first_token(S, s)
    elif event == TOKEN:
        ledger.tokens(S, s, a, 1)
    elif event == STREAMS:
        ledger.streams(S, k, s, a, b)
    elif event == PAUSES:
        ledger.pauses(S, s, a, b)
    elif event == FINISHED:
        ledger.finished(S, s, a)
    elif event == LEAVES:
        ledger.leaves(S, s, a, b)
    elif event == SETTLE:
        settle_fresh(S, a, k)
    else:
        ledger.sync(S, a, b)


@numba.njit
def joined_with_the_leap(S: int, router: int, d: int) -> None:
    """A stream whose first token comes with the first step of the leap that starts now."""
    ledger.bump(ledger.decode_row(S, router, d), L.DEC_FRESH, 1)


@numba.njit
def look(S: int, router: int, out: int) -> None:
    """Writes the ledger's columns: three per prefill row, then seven per decode row."""
    at = 0
    for p in range(PREFILLS):
        for column in (L.PRE_QUEUED, L.PRE_TOKENS, L.PRE_STRICT):
            store(out, at, ld(ledger.prefill_row(S, router, p), column))
            at += 1
    for d in range(DECODES):
        row = ledger.decode_row(S, router, d)
        for column in (L.DEC_IN_FLIGHT, L.DEC_PENDING, L.DEC_COMMITTED, L.DEC_OUTPUT):
            store(out, at, ld(row, column))
            at += 1
        store(out, at, ledger.remaining_output(S, d, row))
        store(out, at + 1, ledger.context(S, d, row))
        store(out, at + 2, ld(row, L.DEC_STRICT))
        at += 3


@dataclass
class Request:
    """A request in the plain account."""

    slot: int
    router: int
    prefill: int
    decode: int
    prompt: int
    output: int
    predicted: int
    tight: bool
    prefilling: bool = True
    streaming: bool = False
    fresh: bool = False
    pending: bool = True
    generated: int = 0
    finish: int = -1


@dataclass
class Leap:
    """Steps of one decode instance with an unchanged batch; times from its start."""

    first: int = NEVER
    growth: int = 0
    steps: int = 0

    def ends(self) -> list[int]:
        """End of every step."""
        return np.cumsum([self.first + j * self.growth for j in range(self.steps)], dtype=int).tolist()

    def made(self, elapsed: int) -> int:
        return sum(end <= elapsed for end in self.ends())


@dataclass
class Story:
    """A block driven by events, and beside it the plain account of the same events."""

    block: npt.NDArray[np.int64] = field(init=False)
    now: int = 0
    start: int = 0
    leaps: list[Leap] = field(default_factory=lambda: [Leap() for _ in range(DECODES)])
    step: list[int] = field(default_factory=lambda: [0] * DECODES)
    requests: list[Request] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        engine = tiny_engine()
        cluster = Cluster(prefill=(engine,) * PREFILLS, decode=(engine,) * DECODES, routers=ROUTERS)
        self.tables = Tables.of(cluster)
        self.block = new_block(cluster, self.tables, SLOTS)

    @property
    def address(self) -> int:
        return int(self.block.ctypes.data)

    def happen(self, event: int, k: int, a: int = 0, b: int = 0) -> None:
        happen(self.address, event, k, a, b)

    def leap_cell(self, vector: int, d: int) -> int:
        return int(self.block[L.H_O_LEAP]) + d // 8 * L.LEAP_GROUP + vector + d % 8

    # --- events -------------------------------------------------------------------------------------

    def admit(self, r: Request) -> None:
        at = int(self.block[L.H_O_SLOTS]) + r.slot * L.SLOT_WORDS
        cells = self.block[at : at + L.SLOT_WORDS].view(np.int32)
        cells[[L.S_PROMPT, L.S_OUTPUT, L.S_PREDICTED]] = r.prompt, r.output, r.predicted
        cells[L.S_CROSS] = -1
        place = r.prefill | r.decode << L.PLACE_BITS | r.router << L.ROUTER_SHIFT
        cells[L.S_PLACE] = place | (0 if r.tight else L.LOOSE_FLAG)
        self.requests.append(r)
        self.happen(ADMITTED, r.slot)

    def end_prefill(self, r: Request, first_token: bool) -> None:
        """On a prefill instance; it may return the first token."""
        r.prefilling = False
        self.happen(PREFILL_DONE, r.slot)
        if first_token:
            self.happen(TOKEN, r.slot, 0)
            r.generated = 1
            if r.output == 1:
                self.leave(r)

    def join(self, r: Request) -> None:
        """Its KV has arrived: it decodes from the next step on."""
        self.stream(r)
        r.fresh = True
        joined_with_the_leap(self.address, r.router, r.decode)

    def stream(self, r: Request) -> None:
        step = self.step[r.decode]
        r.streaming, r.finish = True, step + r.output - r.generated
        self.happen(STREAMS, r.slot, step, r.finish)

    def emit_locally(self, r: Request) -> None:
        """A prefill on the decode (or mixed) instance ends with a token."""
        if r.prefilling:
            self.happen(PREFILL_DONE, r.slot)
        if r.pending:
            self.happen(FIRST_TOKEN, r.slot)
        self.happen(TOKEN, r.slot, r.generated)
        r.prefilling = r.pending = False
        r.generated += 1
        if r.generated == r.output:
            self.leave(r)
        else:
            self.stream(r)

    def preempt(self, r: Request) -> None:
        r.streaming = False
        self.happen(PAUSES, r.slot, self.step[r.decode], r.generated)

    def leave(self, r: Request) -> None:
        """It ends without streaming, well or not."""
        if r.prefilling:
            self.happen(PREFILL_DONE, r.slot)
        self.happen(LEAVES, r.slot, r.generated, int(r.pending))
        self.requests.remove(r)

    def plan(self, leaps: list[Leap]) -> None:
        self.leaps, self.start = leaps, self.now
        for d, leap in enumerate(leaps):
            running = [r for r in self.requests if r.streaming and r.decode == d]
            leap.steps = min([leap.steps, *(r.finish - self.step[d] for r in running)]) if running else 0
            if leap.steps == 0:
                leap.first = NEVER
            values = (self.now, leap.first, leap.growth, leap.steps, self.step[d])
            for vector, value in enumerate(values):
                self.block[self.leap_cell(vector * L.LANES, d)] = value

    def end_leaps(self) -> None:
        """All have made their steps: tokens are out, some finish."""
        self.now = self.start + max((leap.ends()[-1] for leap in self.leaps if leap.steps), default=0)
        for d, leap in enumerate(self.leaps):
            self.step[d] += leap.steps
            self.block[self.leap_cell(L.LEAP_DONE, d)] = self.step[d]
            self.block[self.leap_cell(L.LEAP_STEPS, d)] = 0
            for r in [r for r in self.requests if r.streaming and r.decode == d]:
                r.generated += leap.steps
                if leap.steps:
                    r.pending = r.fresh = False
            for router in range(ROUTERS) if leap.steps else ():
                self.happen(SETTLE, d, router)
            for r in [r for r in self.requests if r.streaming and r.finish == self.step[d]]:
                if r.decode == d:
                    assert r.generated == r.output
                    self.happen(FINISHED, r.slot, self.step[d])
                    self.requests.remove(r)
        self.leaps = [Leap() for _ in range(DECODES)]
        self.start = self.now

    # --- what is seen -------------------------------------------------------------------------------

    def check(self, router: int) -> None:
        """Compares the ledger with a recount."""
        self.looks += 1
        out = np.zeros(3 * PREFILLS + 7 * DECODES, np.int64)
        self.happen(SYNC, 0, router, self.now)
        look(self.address, router, out.ctypes.data)
        got = out[: 3 * PREFILLS].reshape(PREFILLS, 3), out[3 * PREFILLS :].reshape(DECODES, 7)
        for p in range(PREFILLS):
            assert self.prefill_row(router, p) == dict(zip(PREFILL_VIEW[:3], got[0][p].tolist(), strict=True))
        for d in range(DECODES):
            assert self.decode_row(router, d) == dict(zip(DECODE_VIEW[:7], got[1][d].tolist(), strict=True))

    def prefill_row(self, router: int, p: int) -> dict[str, int]:
        mine = [r for r in self.requests if r.router == router and r.prefill == p and r.prefilling]
        return {
            "queued": len(mine),
            "queued_tokens": sum(r.prompt for r in mine),
            "queued_strict": sum(r.tight for r in mine),
        }

    def decode_row(self, router: int, d: int) -> dict[str, int]:
        mine = [r for r in self.requests if r.router == router and r.decode == d]
        made = self.leaps[d].made(self.now - self.start)
        out = {r.slot: r.generated + made * r.streaming for r in mine}
        return {
            "in_flight": len(mine),
            "pending": sum(r.pending and not (r.fresh and made > 0) for r in mine),
            "committed": sum(r.prompt + r.predicted for r in mine),
            "committed_output": sum(r.predicted for r in mine),
            "remaining_output": sum(max(0, r.predicted - out[r.slot]) for r in mine),
            "context": sum(r.prompt + out[r.slot] for r in mine),
            "strict": sum(r.tight for r in mine),
        }


def tell(data: st.DataObject, rounds: int) -> Story:
    """A story of some rounds: events at an instant, then leaps that are looked into."""
    story = Story()
    draw = data.draw
    small = st.integers(1, 12)
    for _ in range(rounds):
        for r in list(story.requests):
            act = draw(st.integers(0, 9))
            running = sum(x.streaming and x.decode == r.decode for x in story.requests)
            if act == 0 and not r.streaming:
                story.leave(r)  # it failed
            elif act == 1 and r.streaming:
                story.preempt(r)
                if draw(st.booleans()):
                    story.leave(r)
            elif r.streaming or act < 4 or running == SEQUENCES:
                pass
            elif r.prefilling and act < 8:
                story.end_prefill(r, draw(st.booleans()))
            elif r.prefilling or r.finish >= 0:
                story.emit_locally(r)
            else:
                story.join(r)
        for _ in range(draw(st.integers(0, 4))):
            add_request(story, draw, small)
        story.plan([Leap(draw(small), draw(st.integers(0, 3)), draw(small)) for _ in range(DECODES)])
        for dt in draw(st.lists(st.integers(0, 25), max_size=3)):
            story.now += dt
            story.check(draw(st.integers(0, ROUTERS - 1)))
            add_request(story, draw, small)
        story.end_leaps()
        for router in range(ROUTERS):
            story.check(router)
    return story


def add_request(story: Story, draw: st.DrawFn, small: st.SearchStrategy[int]) -> None:
    free = sorted(set(range(SLOTS)) - {r.slot for r in story.requests})
    if not free:
        return
    story.admit(
        Request(
            slot=free[0],
            router=draw(st.integers(0, ROUTERS - 1)),
            prefill=draw(st.integers(0, PREFILLS - 1)),
            decode=draw(st.integers(0, DECODES - 1)),
            prompt=draw(small),
            output=draw(small),
            predicted=draw(small),
            tight=draw(st.booleans()),
        )
    )


@given(st.data(), st.integers(1, 12))
@settings(max_examples=100)
def test_every_look_at_the_ledger_equals_a_recount(data: st.DataObject, rounds: int) -> None:
    story = tell(data, rounds)
    assert story.looks >= 2 * rounds


def test_an_empty_ledger_shows_zeros() -> None:
    story = Story()
    story.check(0)
    story.check(1)


def test_a_request_counts_until_its_prefill_ends_and_until_its_last_token() -> None:
    story = Story()
    request = Request(0, 1, 1, 2, prompt=10, output=3, predicted=5, tight=True)
    story.admit(request)
    assert story.prefill_row(1, 1) == {"queued": 1, "queued_tokens": 10, "queued_strict": 1}
    story.check(1)
    story.end_prefill(request, first_token=False)
    story.join(request)
    story.plan([Leap(), Leap(), Leap(first=100, growth=10, steps=50)])
    for now, remaining, pending in (
        (99, 5, 1),
        (100, 4, 0),
        (209, 4, 0),
        (210, 3, 0),
        (329, 3, 0),
        (330, 2, 0),
    ):
        story.now = now
        row = story.decode_row(1, 2)
        assert (row["remaining_output"], row["pending"]) == (remaining, pending)
        story.check(1)
        story.check(0)
    story.end_leaps()
    assert story.requests == []
    story.check(1)


def test_a_request_that_outlives_its_prediction_has_nothing_left() -> None:
    story = Story()
    request = Request(0, 0, 0, 0, prompt=4, output=9, predicted=3, tight=False)
    story.admit(request)
    story.end_prefill(request, first_token=True)
    story.join(request)
    story.plan([Leap(first=1, growth=0, steps=50), Leap(), Leap()])
    for now in range(9):
        story.now = now
        assert story.decode_row(0, 0)["remaining_output"] == max(0, 2 - now)
        story.check(0)


def test_one_router_does_not_see_the_requests_of_another() -> None:
    story = Story()
    story.admit(Request(0, 0, 0, 0, prompt=4, output=9, predicted=3, tight=False))
    assert story.decode_row(1, 0)["in_flight"] == 0
    story.check(1)
