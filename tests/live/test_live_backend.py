"""Policies on emulated engines by way of the live backend: the study's protocol, its results, and what may go wrong."""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from disaggroute.envs.backend import Outcome
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Prepared
from disaggroute.live.backend import LiveBackend
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.drive.driving import DriveOptions
from disaggroute.live.drive.quiet import NotIdle
from disaggroute.live.emulated_cluster import EmulatedCluster
from disaggroute.live.http_client import Unreachable
from disaggroute.live.up.state import EngineState, State, StateFolder
from disaggroute.policies import registry
from disaggroute.training.evaluation import configuration, evaluate, policy_card
from disaggroute.training.live_saturation import RESULT, saturate_live
from disaggroute.training.report.writing import write_report
from disaggroute.training.results import read_results
from disaggroute.training.runs import ResultsFolder

PROFILE = "a40-qwen2.5-3b"
SCALE = 0.1
CHAT = {"workload": "chat", "rate": 6.0, "duration_s": 6.0, "warmup_s": 2.0}
SEEDS = range(100, 101)

QUICK = {"watch": {"silent_s": 0.3, "return_polls": 2}, "pause_s": 0.5}
"""A router that soon sees that an engine is gone."""


@pytest.fixture(scope="module")
def engines() -> Iterator[EmulatedCluster]:
    with EmulatedCluster("1P2D", PROFILE, time_scale=SCALE) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(engines: EmulatedCluster) -> LiveCluster:
    return engines.cluster()


def backend(cluster: LiveCluster, scenario: dict[str, Any] | None = None, **options: Any) -> LiveBackend:
    return LiveBackend.meet(Scenario.make(**(CHAT | (scenario or {}))), cluster, DriveOptions(**options))


@dataclass
class Evaluated:
    """An evaluation that was left alone."""

    out: Path
    said: list[str] = field(default_factory=list)


def run(using: LiveBackend, policies: tuple[str, ...], out: Path, **options: Any) -> Evaluated:
    done = Evaluated(out)
    scenario = using.setting.scenario
    evaluate(scenario, policies, SEEDS, out=out, records="all", backend=using, say=done.said.append, **options)
    return done


@pytest.fixture(scope="module")
def whole(cluster: LiveCluster, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    return run(backend(cluster), ("round-robin", "least-loaded"), tmp_path_factory.mktemp("whole") / "r")


def rows(out: Path, policy: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(out / "records.parquet").to_pylist()
    return [row for row in found if row["policy"].startswith(policy)]


def attempts(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out / "live")) for path in out.glob("live/*/*/attempt-*"))


def test_every_request_of_the_trace_is_there_once_with_its_exact_tokens(whole: Evaluated, cluster: LiveCluster) -> None:
    trace = backend(cluster).setting.prepare(100).trace
    for policy in ("round-robin", "least-loaded"):
        found = rows(whole.out, policy)
        assert [row["request"] for row in found] == list(range(len(trace)))
        assert [row["due_ps"] for row in found] == trace.arrival.tolist()
        assert {row["status"] for row in found} == {"finished"} and {row["http_status"] for row in found} == {200}
        assert [row["generated"] for row in found] == trace.output.tolist()


def test_times_of_client_and_router_are_on_one_clock(whole: Evaluated) -> None:
    order = ("due_ps", "arrival_ps", "router_arrival_ps", "decided_ps", "prefill_start_ps", "prefill_end_ps")
    later = ("decode_start_ps", "router_first_token_ps", "first_token_ps", "last_token_ps", "end_ps")
    for row in rows(whole.out):
        times = [row[name] for name in (*order, *later)]
        assert times == sorted(times), row
        assert row["lateness_ps"] == row["arrival_ps"] - row["due_ps"]
        assert row["transfer_start_ps"] is None and row["reserve_ps"] is None


def test_the_policy_decided_and_what_it_saw_is_kept(whole: Evaluated) -> None:
    found = rows(whole.out, "round-robin")
    if all(row["fallback"] is None for row in found):  # On a busy machine a decision may have come too late.
        assert [row["decode"] for row in found] == [k % 2 for k in range(len(found))]
    assert {row["prefill"] for row in found} == {0}
    assert all(row["seen_decode_available"] == 1 and row["probability"] == 1.0 for row in found)
    assert any(row["seen_decode_in_flight"] > 0 for row in found)


def test_a_live_run_is_shown_as_one(whole: Evaluated) -> None:
    results = read_results(whole.out)
    assert results.title.startswith("chat on 1p2d-a40-qwen2.5-3b (live): 6 requests/s")
    assert "--backend live" in results.command and "--warmup 2" in results.command
    page = next(path for path in write_report(results) if path.name == "report.html").read_text()
    assert "<title>chat on 1p2d-a40-qwen2.5-3b (live)</title>" in page
    summary = results.runs["round-robin"][0].summary
    assert summary.requests > 20 and summary.failed == summary.rejected == 0
    assert 0 < summary.ttft.p50 < 60 and summary.preemptions != summary.preemptions  # nobody knows


def test_order_and_lateness_are_told(whole: Evaluated) -> None:
    assert whole.said[0] == "order: round-robin on 100, least-loaded on 100"
    told = [line for line in whole.said if line.startswith("seed 100, ")]
    assert len(told) == 2 and all("0 failed, 0 rejected; sent late by" in line and "(P99)" in line for line in told)


def test_finished_runs_are_not_driven_again_and_need_no_gates(whole: Evaluated, cluster: LiveCluster) -> None:
    async def never(*_: object) -> None:
        raise AssertionError

    again = backend(cluster)
    again._gates = never
    before = {path: path.read_bytes() for path in whole.out.glob("r*/*/*") if path.is_file()}
    run(again, ("round-robin", "least-loaded"), whole.out)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(attempts(whole.out)) == 2


def test_a_run_that_was_driven_but_not_stored_is_assembled(whole: Evaluated, cluster: LiveCluster) -> None:
    (summary,) = whole.out.glob("runs/round-robin-*/100.json")
    (table,) = whole.out.glob("records/round-robin-*/100.parquet")
    kept = summary.read_bytes(), table.read_bytes()
    summary.unlink()
    table.unlink()
    run(backend(cluster), ("round-robin", "least-loaded"), whole.out)
    assert (summary.read_bytes(), table.read_bytes()) == kept
    assert len(attempts(whole.out)) == 2


def test_requests_that_never_reached_the_router_are_held_against_no_policy(
    whole: Evaluated, cluster: LiveCluster, tmp_path: Path
) -> None:
    out = tmp_path / "r"
    shutil.copytree(whole.out, out)
    (attempt,) = out.glob("live/round-robin-*/100/attempt-1")
    next(out.glob("runs/round-robin-*/100.json")).unlink()
    seen = [json.loads(line) for line in (attempt / "client.jsonl").read_text().splitlines()]
    lost = next(line for line in seen if line.get("index") == 3)
    lost |= {"http_status": 0, "status": "failed", "error": "Too many open files", "first": -1, "last": -1}
    (attempt / "client.jsonl").write_text("".join(json.dumps(line) + "\n" for line in seen))
    routed = (attempt / "router.jsonl").read_text().splitlines(keepends=True)
    (attempt / "router.jsonl").write_text("".join(line for line in routed if f'"{lost["id"]}"' not in line))
    again = run(backend(cluster), ("round-robin", "least-loaded"), out)
    assert any(
        "warning: 1 requests never reached the router (Too many open files): no policy is to blame" in line
        for line in again.said
    )


def test_a_folder_of_another_cluster_is_refused(whole: Evaluated, cluster: LiveCluster) -> None:
    for changes in ({"name": "other"}, {"lease_s": 31.0}):
        other = backend(cluster.model_copy(update=changes))
        with pytest.raises(ValueError, match=r"holds runs of another configuration \(other (cluster, )?live_cluster\)"):
            run(other, ("round-robin",), whole.out)


def test_the_configuration_has_the_sizes_that_engines_report(cluster: LiveCluster) -> None:
    using = backend(cluster)
    listed = using.configuration()["live_cluster"]["engines"]
    for (*_, sizes), spec in zip(listed, using.setting.cluster.instances, strict=True):
        told = {"block_size": spec.block_size, "num_blocks": spec.num_blocks, "max_model_len": spec.max_model_len}
        assert told.items() <= sizes.items()


def test_addresses_may_change(whole: Evaluated, cluster: LiveCluster) -> None:
    here = backend(cluster)
    moved = cluster.model_copy(update={"decode": [e.model_copy(update={"url": "http://h:1"}) for e in cluster.decode]})
    assert LiveBackend(moved, here.setting, here.drive_options).configuration() == here.configuration()


def test_hints_hold_requests_left_out_and_targets_of_the_cluster(cluster: LiveCluster, tmp_path: Path) -> None:
    slo = {"tight": {"ttft_s": 3.0, "tpot_s": 0.5}, "loose": {"ttft_s": 4.0, "tpot_s": 0.6}}
    narrow = LiveCluster.load(cluster.model_dump(exclude_none=True) | {"max_model_len": 400, "slo": slo})
    done = run(backend(narrow, {"predictor": "oracle"}), ("least-loaded",), tmp_path / "r")
    found = rows(done.out)
    assert all(row["predicted"] == row["output"] and row["prompt"] + row["output"] <= 400 for row in found)
    assert any("requests (" in line and "do not fit the engines and are left out" in line for line in done.said)
    assert {(row["slo"], row["ttft_target_ps"] / 1e12, row["tpot_target_ps"] / 1e12) for row in found} == {
        ("tight", 3.0, 0.5),
        ("loose", 4.0, 0.6),
    }


def kill_soon(engines: EmulatedCluster, out: Path, name: str) -> threading.Thread:
    """Kills an engine once requests are under way."""

    def story() -> None:
        while not any(path.stat().st_size > 600 for path in out.glob("live/*/*/attempt-1/client.jsonl")):
            time.sleep(0.01)
        engines.kill(name)

    thread = threading.Thread(target=story)
    thread.start()
    return thread


LONG = {"rate": 3.0, "duration_s": 30.0}


def test_an_engine_that_dies_costs_its_requests_and_the_run_goes_on(engines: EmulatedCluster, tmp_path: Path) -> None:
    killer = kill_soon(engines, tmp_path, "decode/1")
    try:
        done = run(backend(engines.cluster(), LONG, router=QUICK), ("least-loaded",), tmp_path)
    finally:
        killer.join()
        engines.restart("decode/1")
    assert any(line.startswith("warning: decode/1 was ejected: ") for line in done.said), done.said
    found = rows(done.out)
    last = max(row["arrival_ps"] for row in found)
    assert next(row["status"] for row in found if row["arrival_ps"] == last) == "finished"
    failed = [row for row in found if row["status"] == "failed"]
    assert all(row["error"] for row in failed)
    (client,) = tmp_path.glob("live/*/*/attempt-1/client.jsonl")
    assert json.loads(client.read_text().splitlines()[-1])["ejected"][0]["name"] == "decode/1"


def test_a_cluster_that_is_not_up_names_who_is_away(engines: EmulatedCluster) -> None:
    with pytest.raises(Unreachable, match=r"1p2d-a40-qwen2\.5-3b is not up \(decode/0: http://127\.0\.0\.1:1: "):
        backend(engines.cluster(decode=[{"url": "http://127.0.0.1:1"}]))


def test_of_engines_that_live_up_has_started_it_is_said_how_they_start_again(
    engines: EmulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISAGGROUTE_STATE", str(tmp_path))
    cluster = engines.cluster(decode=[{"url": "http://127.0.0.1:1"}])
    state = State(name=cluster.name, source="mine.yaml", definition="", launch="x", engines=[])
    for k, port in enumerate((1, 2)):  # The other one is none of this cluster.
        fields = {"role": "decode", "index": k, "name": f"decode/{k}", "port": port, "side_channel_port": 9}
        state.engines.append(EngineState(**fields, words=[], environment={}))
    StateFolder(cluster.name).write(state)
    with pytest.raises(Unreachable, match=r"\); decode/0 has ended; `disaggroute live up mine\.yaml` starts it again$"):
        backend(cluster)
    (tmp_path / cluster.name / "state.json").write_text("{")
    with pytest.raises(Unreachable, match=r"\)$"):
        backend(cluster)


def test_engines_that_others_use_are_refused(cluster: LiveCluster, tmp_path: Path) -> None:
    body = {"prompt": "x", "max_tokens": 3_000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"{cluster.decode[1].url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30), pytest.raises(NotIdle, match=r"decode/1 .* is not idle"):
        run(backend(cluster, idle_s=0.1), ("round-robin",), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_run_that_another_process_does_is_waited_for_by_its_user(cluster: LiveCluster, tmp_path: Path) -> None:
    using = backend(cluster)
    folder = ResultsFolder.open(tmp_path, configuration(using.setting, using))
    run_folder = folder.place("live", policy_card("round-robin"), 100)
    run_folder.mkdir(parents=True)
    with (run_folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match=r"another evaluation does the run in .*/100; wait for it"):
            run(using, ("round-robin",), tmp_path)


class Verdict:
    """Of gates."""

    def __init__(self, *problems: str) -> None:
        self.problems, self.passed = problems, not problems


def test_nothing_is_measured_when_a_gate_fails(cluster: LiveCluster, tmp_path: Path) -> None:
    async def gates(checked: LiveCluster, say: Any) -> Verdict:
        assert checked is cluster
        await asyncio.sleep(0)
        return Verdict("decode/1 answers otherwise than decode/0")

    using = backend(cluster)
    using._gates = gates
    with pytest.raises(RuntimeError, match=r"gates of .* failed, so nothing was measured: decode/1 answers otherwise"):
        run(using, ("round-robin",), tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"observability": "full"}, "observability is full; a live cluster shows what a router sees"),
        ({"constants_scale": 0.5}, "constants_scale is 0.5; on a live cluster the router believes its profile"),
    ],
)
def test_what_only_a_simulator_can_do_is_refused(
    cluster: LiveCluster, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        backend(cluster, changes)


def test_a_search_for_the_saturation_rate_keeps_its_runs_and_goes_on(
    cluster: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engines would give comes from the simulator here: the search, not the driving, is looked at."""
    driven: list[float] = []

    def simulated(using: LiveBackend, prepared: Prepared, policy: str, seed: int, **_: Any) -> Outcome:
        driven.append(using.setting.scenario.rate or 0)
        if len(driven) == 3:
            raise KeyboardInterrupt
        result = using.setting.simulate(prepared, registry.parse(policy), seed, log_decisions=True)
        return Outcome(result.records, result.decisions)

    monkeypatch.setattr(LiveBackend, "run", simulated)
    using = backend(cluster, {"rate": 2.0, "duration_s": 60.0})
    with pytest.raises(KeyboardInterrupt):
        saturate_live(using, out=tmp_path / "s")
    assert json.loads((tmp_path / "s" / RESULT).read_text())["rate"] is None
    found, folder = saturate_live(using, out=tmp_path / "s")
    assert len(set(driven)) == len(driven) - 1, "the one that was interrupted is done again, no other"
    assert abs(found.found.share - found.target) < 0.1
    kept = json.loads((folder / RESULT).read_text())
    assert kept["rate"] == found.rate and [each["rate"] for each in kept["probes"]] == [p.rate for p in found.probes]
    assert ResultsFolder(folder / f"rate-{found.rate:g}", "").runs()[0].label == "round-robin"
