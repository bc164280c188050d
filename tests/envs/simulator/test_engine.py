"""One engine, driven alone, does what the same engine does inside the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.cluster import MAX_TIME_PS, Cluster
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator import engine_entries as core
from disaggroute.envs.simulator import simulate
from disaggroute.envs.simulator.engine import Engine, EngineEvent, Role, Usage
from disaggroute.envs.simulator.reference import run_reference
from disaggroute.envs.simulator.reference_instance import Request
from disaggroute.envs.simulator.warm import warm_up_engine
from disaggroute.envs.trace import Trace

from ...differential.cases import random_case
from ...differential.scenarios import engine

TIMES = ("prefill_start", "prefill_end", "reserve", "transfer_start", "transfer_end", "first_token", "last_token")


@dataclass
class Seen:
    """What a driven run showed: times by request and name, preemptions, tokens out at some times, usage at ticks."""

    times: dict[tuple[int, str], int] = field(default_factory=dict)
    preemptions: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    tokens: list[tuple[int, int, int]] = field(default_factory=list)
    usage: dict[int, tuple[Usage, ...]] = field(default_factory=dict)

    def note(self, event: EngineEvent, names: dict[str, str]) -> None:
        """Notes the time of an event under the name of a record's column."""
        assert isinstance(event.request, int)
        if event.kind == "preempted":
            self.preemptions[event.request] += 1
        elif event.kind in names:
            self.times.setdefault((event.request, names[event.kind]), event.time)


def instants(trace: Trace, engines: list[Engine], ticks: list[int], seen: Seen) -> Iterator[tuple[int, list[int]]]:
    """Every instant with the requests that arrive at it; looks at the engines between two of them."""
    arrivals = trace.arrival.tolist()
    due = 0
    last = 0
    while True:
        planned = [t for t in (e.next_time() for e in engines) if t is not None]
        now = min([*arrivals[due : due + 1], *planned], default=-1)
        if now < 0:
            return
        looks = [(last, "tokens"), ((last + now) // 2, "tokens")]
        while ticks and ticks[0] <= now:
            looks.append((ticks.pop(0), "usage"))
        for time, what in sorted(looks):
            if what == "usage":
                seen.usage[time] = tuple(e.usage(time) for e in engines)
            else:
                seen.tokens += [(i, time, e.tokens(i, time)) for e in engines for i in range(len(trace)) if i in e]
        coming = [i for i in range(due, len(arrivals)) if arrivals[i] == now]
        due += len(coming)
        yield now, coming
        last = now


def drive_pair(trace: Trace, cluster: Cluster, ticks: list[int]) -> Seen:
    """Two engines, an egress server between them."""
    seen = Seen()
    source = cluster.prefill[0]
    latency = int(cluster.latency_matrix()[0, 0])
    egress = 0

    def transfer_end(request: object, now: int) -> int:
        nonlocal egress
        assert isinstance(request, int)
        start = max(now, egress)
        egress = start + source.blocks(int(trace.prompt[request])) * source.egress_per_block
        prefill.release(request, egress + latency)
        seen.times[request, "transfer_start"] = start
        seen.times[request, "transfer_end"] = egress + latency
        return egress + latency

    prefill = Engine(source, "prefill", cluster.first_token)
    decode = Engine(cluster.decode[0], "decode", cluster.first_token, transfer_end)
    prefill_names = {"joined": "prefill_start", "prefill_done": "prefill_end"}
    prefill_names |= {"first_token": "first_token", "finished": "last_token"}
    decode_names = {"reserved": "reserve", "finished": "last_token"}
    if cluster.first_token == "decode":
        decode_names["first_token"] = "first_token"
    for now, coming in instants(trace, [prefill, decode], ticks, seen):
        for i in coming:
            prefill.submit(i, int(trace.prompt[i]), int(trace.output[i]), now)
        for event in prefill.advance(now):
            assert event.time == now
            seen.note(event, prefill_names)
            i = int(str(event.request))
            if event.kind == "prefill_done" and not (cluster.first_token == "prefill" and trace.output[i] == 1):
                decode.submit(i, int(trace.prompt[i]), int(trace.output[i]), now)
        for event in decode.advance(now):
            assert event.time == now
            seen.note(event, decode_names)
    assert len(prefill) == len(decode) == 0
    assert prefill.usage(prefill.now) == decode.usage(decode.now) == (0, 0, 0)
    return seen


def drive_mixed(trace: Trace, cluster: Cluster, ticks: list[int]) -> Seen:
    """One mixed engine."""
    seen = Seen()
    alone = Engine(cluster.mixed[0], "mixed")
    names = {"prefill_done": "prefill_end", "first_token": "first_token", "finished": "last_token"}
    for now, coming in instants(trace, [alone], ticks, seen):
        for i in coming:
            alone.submit(i, int(trace.prompt[i]), int(trace.output[i]), now)
        for event in alone.advance(now):
            seen.note(event, names | {"joined": "prefill_start"})
    assert alone.usage(alone.now) == (0, 0, 0)
    return seen


def agrees(trace: Trace, cluster: Cluster, drive: Callable[[Trace, Cluster, list[int]], Seen]) -> None:
    """Compares a driven run with the simulator's records and views and with the reference's tokens."""
    zeros = np.zeros(len(trace), np.int64)
    ones = zeros + 1
    expected = simulate(trace, cluster, assignment=(zeros, zeros), predictor=ones.astype(np.int32), observe=True)
    seen = drive(trace, cluster, sorted(set(expected.poll_times.tolist())))
    for i, row in enumerate(expected.records):
        got = {name: seen.times.get((i, name), -1) for name in TIMES}
        assert got == {name: int(row[name]) for name in TIMES}, i
        assert seen.preemptions[i] == row["preemptions"], i
    for k, tick in enumerate(expected.poll_times.tolist()):
        views = [(expected.decode_views[k, 0], DECODE_VIEW)]
        if not cluster.aggregated:
            views.insert(0, (expected.prefill_views[k, 0], PREFILL_VIEW))
        polled = tuple(tuple(int(view[columns.index(name)]) for name in Usage._fields) for view, columns in views)
        assert seen.usage[tick] == polled, tick
    emitted = tokens_of_the_reference(trace, cluster)
    for i, now, tokens in seen.tokens:
        assert tokens == sum(time <= now for time in emitted[i]), (i, now)


def tokens_of_the_reference(trace: Trace, cluster: Cluster) -> list[list[int]]:
    """When every token of every request comes out."""
    emitted: list[list[int]] = [[] for _ in range(len(trace))]
    emit = Request.emit

    def noting(request: Request, now: int) -> None:
        emitted[request.index].append(now)
        emit(request, now)

    zeros = np.zeros(len(trace), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "emit", noting)
        run_reference(trace, cluster, assignment=(zeros, zeros), predicted=zeros + 1)
    return emitted


@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(1, 25), tiny=st.booleans())
def test_two_engines_give_what_a_cluster_of_two_gives(seed: int, requests: int, tiny: bool) -> None:
    case = random_case(seed, requests=requests, tiny=tiny, aggregated=False, failures=False)
    latency = None if case.cluster.latency is None else case.cluster.latency[:1, :1]
    pair = replace(case.cluster, prefill=case.cluster.prefill[:1], decode=case.cluster.decode[:1], latency=latency)
    agrees(case.trace, pair, drive_pair)


@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(1, 25), tiny=st.booleans())
def test_a_mixed_engine_gives_what_a_cluster_of_one_gives(seed: int, requests: int, tiny: bool) -> None:
    case = random_case(seed, requests=requests, tiny=tiny, aggregated=True, failures=False)
    agrees(case.trace, replace(case.cluster, mixed=case.cluster.mixed[:1]), drive_mixed)


def kinds(events: list[EngineEvent]) -> list[tuple[str, object, int]]:
    return [(event.kind, event.request, event.time) for event in events]


def test_a_prompt_is_prefilled_and_held_until_its_release() -> None:
    alone = Engine(engine(), "prefill")
    alone.submit("a", prompt=6, output=3, now=100)
    assert alone.next_time() == 100
    assert kinds(alone.advance(100)) == [("joined", "a", 100)]
    assert alone.next_time() == 126  # 20 ps and 1 ps a token
    assert kinds(alone.advance(200)) == [("prefill_done", "a", 126)]
    assert alone.next_time() is None
    assert alone.usage(200) == Usage(used=2, running=0, waiting=0)
    alone.release("a", 250)
    assert "a" not in alone
    assert (alone.usage(250).used, alone.usage(251).used) == (2, 0)  # a poll sees the state before its instant


def test_held_blocks_stall_prefill_until_they_are_released() -> None:
    alone = Engine(engine(num_blocks=3), "prefill")
    alone.submit("a", prompt=8, output=2, now=0)
    alone.submit("b", prompt=8, output=2, now=0)
    assert kinds(alone.advance(1000)) == [("joined", "a", 0), ("prefill_done", "a", 28)]
    assert alone.usage(1000) == Usage(used=2, running=0, waiting=1)
    alone.release("a", 1500)
    assert alone.next_time() == 1500
    assert kinds(alone.advance(1500)) == [("joined", "b", 1500)]


def test_the_first_token_may_come_from_prefill() -> None:
    alone = Engine(engine(), "prefill", first_token="prefill")
    alone.submit("short", prompt=4, output=1, now=0)
    alone.submit("long", prompt=4, output=2, now=0)
    done = [("prefill_done", "short", 28), ("first_token", "short", 28), ("prefill_done", "long", 28)]
    done += [("first_token", "long", 28), ("finished", "short", 28)]
    assert kinds(alone.advance(28))[2:] == done
    assert "short" not in alone
    assert (alone.tokens("long", 28), alone.usage(29).used) == (1, 1)


def test_a_decode_engine_pulls_joins_and_streams() -> None:
    alone = Engine(engine(), "decode", transfer_end=lambda request, now: now + 7)
    alone.submit("a", prompt=4, output=3, now=10)
    assert kinds(alone.advance(10)) == [("reserved", "a", 10)]
    assert alone.usage(11) == Usage(used=1, running=0, waiting=1)
    assert kinds(alone.advance(30)) == [("joined", "a", 17), ("first_token", "a", 27)]
    assert alone.token_times("a").tolist() == [37, 47]
    assert [alone.tokens("a", now) for now in (30, 36, 37, 46)] == [1, 1, 2, 2]
    assert alone.usage(46) == Usage(used=2, running=1, waiting=0)
    assert kinds(alone.advance(47)) == [("finished", "a", 47)]
    assert len(alone) == 0


def test_the_end_of_a_pull_may_be_told_when_it_happens() -> None:
    alone = Engine(engine(), "decode")
    alone.submit("a", prompt=4, output=40, now=0)
    alone.submit("b", prompt=4, output=4, now=0)
    assert kinds(alone.advance(100)) == [("reserved", "a", 0), ("reserved", "b", 0)]
    assert alone.next_time() is None
    alone.pulled("a", 100)
    assert kinds(alone.advance(134)) == [("joined", "a", 100), ("first_token", "a", 110)]
    alone.pulled("b", 134)  # within a step, which it waits for
    assert kinds(alone.advance(150)) == [("joined", "b", 140), ("first_token", "b", 150)]


def test_an_overflow_preempts_the_newest() -> None:
    alone = Engine(engine(num_blocks=3), "mixed")
    alone.submit("old", prompt=4, output=8, now=0)
    alone.submit("new", prompt=4, output=8, now=0)
    events = alone.advance(10**6)
    assert [e.request for e in events if e.kind == "preempted"] == ["new"]
    assert [e.request for e in events if e.kind == "finished"] == ["old", "new"]
    assert [e.request for e in events if e.kind == "joined"] == ["old", "new", "new"]


@pytest.mark.parametrize("role", ["prefill", "decode", "mixed"])
@given(seed=st.integers(0, 2**32 - 1))
def test_aborts_free_the_blocks(role: Role, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = iter(range(1000))
    spec = engine(num_blocks=12, max_num_seqs=3, max_num_batched_tokens=5)
    alone = Engine(spec, role, transfer_end=lambda _, now: now + int(rng.integers(1, 60)))
    now = 0
    ended: list[object] = []
    for _ in range(40):
        now += int(rng.integers(0, 30))
        if rng.random() < 0.5:
            alone.submit(next(ids), int(rng.integers(1, 20)), int(rng.integers(1, 20)), now)
        here = [i for i in range(40) if i in alone and i not in ended]
        if here and rng.random() < 0.4:
            alone.abort(int(rng.choice(here)), now)
        if rng.random() < 0.7:
            ended += [e.request for e in alone.advance(now) if e.kind in ("aborted", "finished")]
    for i in range(40):
        if i in alone:
            alone.abort(i, now)
    events = alone.advance(now + 10**6)
    assert len(alone) == 0
    assert alone.usage(alone.now) == (0, 0, 0)
    ended += [e.request for e in events if e.kind in ("aborted", "finished")]
    assert sorted(map(str, ended)) == sorted(map(str, range(next(ids))))
    alone.submit("after", 20, 5, alone.now)
    assert ("joined" if role != "decode" else "reserved") in {e.kind for e in alone.advance(alone.now)}


def test_a_running_request_is_aborted_at_the_end_of_its_step() -> None:
    alone = Engine(engine(num_blocks=4), "mixed")
    alone.submit("a", prompt=4, output=12, now=0)
    alone.advance(27)  # prefilled at 34
    alone.submit("b", prompt=16, output=1, now=50)
    assert "joined" not in {e.kind for e in alone.advance(51) if e.request == "b"}
    alone.abort("a", 51)
    assert alone.next_time() == 54
    assert kinds(alone.advance(54)) == [("aborted", "a", 54), ("joined", "b", 54)]


def test_more_requests_than_slots_make_more_slots() -> None:
    alone = Engine(engine(), "mixed")
    for i in range(1000):
        alone.submit(i, prompt=2, output=2, now=i)
    finished = [e.request for e in alone.advance(10**9) if e.kind == "finished"]
    assert sorted(map(str, finished)) == sorted(map(str, range(1000)))


def test_a_reset_engine_starts_over() -> None:
    alone = Engine(engine(), "mixed")

    def run() -> list[EngineEvent]:
        for i in range(20):
            alone.submit(i, prompt=5, output=5, now=10 * i)
        return alone.advance(10**6)

    events = run()
    alone.submit("left over", prompt=5, output=5, now=10**6)
    alone.reset()
    assert (alone.now, len(alone)) == (0, 0)
    assert run() == events


def test_what_cannot_be_is_refused() -> None:
    decode = Engine(engine(num_blocks=2), "decode", first_token="prefill")
    decode.submit("a", prompt=4, output=2, now=5)
    for message, wrong in (
        ("request 'a' is on the engine already", lambda: decode.submit("a", 4, 2, 5)),
        ("request 'b': prompt is 0 tokens; it must be at least 1", lambda: decode.submit("b", 0, 2, 5)),
        ("request 'b': output is 1 tokens; it must be at least 2", lambda: decode.submit("b", 4, 1, 5)),
        ("request 'b' needs 3 KV blocks; the engine has 2", lambda: decode.submit("b", 8, 2, 5)),
        ("max_model_len is 1000", lambda: decode.submit("b", 1000, 2, 5)),
        ("now is 4 ps; it must lie between the engine's 5", lambda: decode.advance(4)),
        ("request 'a' has no blocks reserved", lambda: decode.pulled("a", 9)),
        ("request 'a' has no KV held", lambda: decode.release("a", 9)),
        ("request 'b' is not on the engine", lambda: decode.abort("b", 9)),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    with pytest.raises(ValueError, match="role is 'both'; allowed are prefill, decode, mixed"):
        Engine(engine(), "both")  # type: ignore[arg-type]


def test_a_decode_engine_prefills_what_it_cannot_pull() -> None:
    alone = Engine(engine(), "decode")
    alone.submit("a", prompt=6, output=3, now=0, local=True)
    twin = Engine(engine(), "mixed")
    twin.submit("a", prompt=6, output=3, now=0)
    assert kinds(alone.advance(1000)) == kinds(twin.advance(1000))


def test_the_next_token_is_told_step_by_step() -> None:
    alone = Engine(engine(), "mixed")
    assert alone.next_token_time() is None
    alone.submit("a", prompt=4, output=4, now=0)
    seen: list[int] = []
    while (time := alone.next_time()) is not None:
        alone.advance(time)
        while (token := alone.next_token_time()) is not None and token <= (alone.next_time() or 0):
            alone.tokens("a", token)
            seen.append(token)
    assert seen == sorted(set(seen)) and len(seen) == 4  # the prompt's step emits the first


def test_the_last_token_came_at_the_end_of_the_last_step_however_late_one_asks() -> None:
    alone, twin = Engine(engine(), "mixed"), Engine(engine(), "mixed")
    for each in (alone, twin):
        each.submit("a", prompt=4, output=6, now=0)
        each.submit("b", prompt=5, output=9, now=0)
    seen: list[int] = []
    while (time := alone.next_time()) is not None:
        alone.advance(time)
        while (token := alone.next_token_time()) is not None and token <= (alone.next_time() or 0):
            alone.tokens("b", token)
            seen.append(token)
    assert len(seen) > 6
    for before, after in pairwise(seen):
        for now in (before, (before + after) // 2, after - 1):
            twin.advance(now)
            assert twin.last_token_time() == before


def test_what_could_outlast_time_is_refused() -> None:
    alone = Engine(engine(base_decode=1 << 58), "mixed")
    with pytest.raises(ValueError, match="a request of 9 output tokens could take 2594073 s; allowed are at most"):
        alone.submit("long", prompt=4, output=9, now=0)
    alone.submit("short", prompt=4, output=2, now=0)
    alone.advance(MAX_TIME_PS // 2)
    with pytest.raises(ValueError, match="a request of 2 output tokens could take 576460 s; allowed are at most"):
        alone.submit("late", prompt=4, output=2, now=MAX_TIME_PS)
    assert len(alone) == 0


def test_warming_up_compiles_every_entry() -> None:
    warm_up_engine()
    compiled = [value for value in vars(core).values() if hasattr(value, "signatures")]
    own = [value for value in compiled if value.__module__ == core.__name__]
    entries = [value for value in own if not value.targetoptions.get("no_cpython_wrapper")]
    assert len(entries) > 8
    assert [value.__name__ for value in entries if not value.signatures] == []
