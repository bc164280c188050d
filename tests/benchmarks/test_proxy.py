"""The router is measured in processes of its own, beside others; what is not whole is no measurement."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("uvloop")

from disaggroute.benchmarks import proxy
from disaggroute.benchmarks.load_generator import Stretch, Taken, cpu_seconds, resident_bytes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CPU times are read on Linux only")


def taken(**changes: Any) -> Taken:
    fields = {"cpu_s": 0.5, "seconds": 1.0, "p50_s": 0.004, "most_open": 3, "rss": 9_000_000, "bad": 0}
    return Taken.model_validate(fields | changes)


def test_the_router_and_a_bare_proxy_are_measured_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(proxy, "HELD_STEP_S", 0.1)
    said: list[str] = []
    results = proxy.measure(requests=40, concurrency=4, held=[8], repeats=2, say=said.append)
    names = ["whole", "whole/bare", "whole/over-bare", "stream", "stream/bare", "stream/over-bare"]
    names += ["added", "added/bare", "idle", "held/8", "held"]
    assert [result.name for result in results] == [f"proxy/{name}" for name in names]
    units = dict.fromkeys(names[:2] + names[3:5], "µs") | {"added": "ms", "added/bare": "ms", "idle": "%"}
    units |= {"whole/over-bare": "×", "stream/over-bare": "×", "held/8": "kB", "held": "requests"}
    assert {result.name.removeprefix("proxy/"): result.unit for result in results} == units
    by_name = {result.name: result for result in results}
    assert by_name["proxy/whole"].repeats == 2 and by_name["proxy/whole"].details["concurrency"] == 4
    assert by_name["proxy/whole"].value > by_name["proxy/whole/bare"].value > 0
    assert by_name["proxy/held"].value == 8 and by_name["proxy/held"].more_is_better
    assert "vllm-router is left out: it is not installed" in said


def test_costs_are_per_request_and_added_time_is_over_an_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [proxy.Kind("whole", 16, False, 1_000, 32), proxy.Kind("added", 16, False, 100, 1)]
    rounds = {
        ("whole", ""): [taken(cpu_s=0.1), taken(cpu_s=0.2), taken(cpu_s=0.3)],
        ("whole", "bare"): [taken(cpu_s=0.05)] * 3,
        ("added", ""): [taken(p50_s=0.004)] * 3,
        ("added", "bare"): [taken(p50_s=0.002)] * 3,
        ("added", "engine"): [taken(p50_s=0.001)] * 3,
    }
    results = list(proxy.costs(kinds, ["", "bare"], rounds))
    values = {result.name: (round(result.value, 6), result.unit) for result in results}
    assert values == {
        "proxy/whole": (200.0, "µs"),
        "proxy/whole/bare": (50.0, "µs"),
        "proxy/whole/over-bare": (0.25, "×"),
        "proxy/added": (3.0, "ms"),
        "proxy/added/bare": (1.0, "ms"),
    }
    assert results[0].details == {"rate": 1_000.0, "core_share": 0.2, "concurrency": 32}


def test_the_first_round_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Stretch] = []

    def drive(plan: Sequence[Stretch]) -> list[Taken]:
        plans.extend(plan)
        return [taken(cpu_s=float(k)) for k in range(len(plan))]

    monkeypatch.setattr(proxy, "drive", drive)
    kinds = [proxy.Kind("whole", 16, False, 10, 32), proxy.Kind("added", 16, False, 5, 1)]
    got = proxy.rounds(kinds, {"": proxy.Server(1, 11), "bare": proxy.Server(2, 22)}, 3, 2)
    assert {key: [one.cpu_s for one in these] for key, these in got.items()} == {
        ("whole", ""): [5, 10],
        ("whole", "bare"): [6, 11],
        ("added", ""): [7, 12],
        ("added", "bare"): [8, 13],
        ("added", "engine"): [9, 14],
    }
    assert [(each.port, each.pid, each.concurrency) for each in plans[:5]] == [
        (1, 11, 10), (2, 22, 10), (1, 11, 1), (2, 22, 1), (3, 0, 1)
    ]


def test_answers_that_are_not_whole_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "drive", lambda plan: [taken(bad=3)] * len(plan))
    with pytest.raises(RuntimeError, match="proxy/whole: 3 answers of bare were not whole"):
        proxy.rounds([proxy.Kind("whole", 16, False, 10, 2)], {"bare": proxy.Server(1, 1)}, 2, 1)


@pytest.mark.parametrize(("open_", "bad"), [(7, 0), (8, 1)])
def test_more_streams_are_not_tried_once_some_were_not_held(
    open_: int, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drive(plan: Sequence[Stretch]) -> list[Taken]:
        count = plan[-1].requests
        return [taken(), taken(most_open=count if count < 8 else open_, bad=bad if count >= 8 else 0)]

    monkeypatch.setattr(proxy, "drive", drive)
    said: list[str] = []
    results = proxy.hold([16, 8, 4], say=said.append)
    assert [(result.name, result.repeats) for result in results] == [("proxy/held/4", 1), ("proxy/held", 1)]
    assert results[-1].value == 4
    assert said[-1] == f"proxy/held/8: {bad} answers were not whole, {open_} streams were open together"


def test_streams_that_need_more_files_than_may_be_open_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_allow_files", lambda wanted: 1_024)
    said: list[str] = []
    assert proxy.hold([1_000], say=said.append) == []
    assert said == [
        "proxy/held/1k is left out: a process may open 1024 files here, and it takes two for each stream"
    ]


def test_a_peer_that_does_not_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="vllm-router did not start"), proxy.peer("/bin/false", [1, 2, 3, 4, 5, 6]):
        pass


def test_a_process_that_fails_is_an_error() -> None:
    failing = proxy.process([sys.executable, "-c", "raise SystemExit(1)"], proxy=False)
    with failing as child, pytest.raises(RuntimeError, match=r"the engines failed \(exit code 1\)"):
        proxy.line_of(child, "the engines")


def test_a_process_ends_with_its_block_and_scheduling_is_as_before() -> None:
    before = os.sched_getaffinity(0), os.sched_getscheduler(0)
    with proxy.engines(0.001) as ports:
        assert len(set(ports)) == 6
    with pytest.raises(OSError), proxy.engines(0.001):
        raise OSError
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == before


def test_cpu_time_and_memory_of_a_process_are_read_from_outside() -> None:
    before = cpu_seconds(os.getpid())
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert 0.04 < cpu_seconds(os.getpid()) - before < 5
    assert resident_bytes(os.getpid()) > 1_000_000 and cpu_seconds(0) == 0


def test_numbers_out_of_range_and_what_is_missing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="requests is 0; it must be at least 1"):
        proxy.measure(requests=0)
    with pytest.raises(ValueError, match="step is 2000 ms; it must be above 0 and at most 1000"):
        proxy.measure(step_s=2.0)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ValueError, match="the system is darwin; CPU times of other processes are read on Linux only"):
        proxy.measure()
    monkeypatch.setattr(proxy, "LIBRARIES", ("no_such_loop",))
    with pytest.raises(ValueError, match="no_such_loop is not installed, and the router needs it; `pip install"):
        proxy.measure()
