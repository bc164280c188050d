"""Client and router, joined: one row per request, on the clock of the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs.backend import Outcome
from disaggroute.envs.records import FAILED, FINISHED, REJECTED
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.drive.assembly import assemble
from disaggroute.live.drive.attempt import whole
from disaggroute.live.drive.observation import Observation

from .files import CLUSTER, about, attempt, observation, record, write


def joined(path: Path, seen: list[Observation], records: list[dict[str, Any]]) -> Outcome:
    write(attempt(path), seen, records)
    kept = whole(attempt(path), about(len(seen)))
    assert kept is not None
    return assemble(kept, CLUSTER)


def test_a_record_has_the_clients_ends_and_the_routers_middle(tmp_path: Path) -> None:
    outcome = joined(tmp_path, [observation(0)], [record(0)])
    (row,) = outcome.records
    times = ("arrival", "prefill_start", "prefill_end", "first_token", "last_token", "end")
    assert [int(row[name]) for name in times] == [1_000, 1_200, 2_000, 5_000, 9_000, 9_500]
    assert [int(row[name]) for name in ("reserve", "transfer_start", "transfer_end")] == [-1] * 3
    assert (row["max_stall"], row["generated"], row["predicted"], row["status"]) == (700, 4, 7, FINISHED)
    assert (row["prefill"], row["decode"], row["reroutes"], row["preemptions"]) == (0, 1, 0, -1)
    own = {name: values[0] for name, values in outcome.columns.items()}
    assert (own["due_ps"], own["lateness_ps"], own["decode_start_ps"]) == (900, 100, 2_100)
    assert (own["router_arrival_ps"], own["router_first_token_ps"]) == (1_100, 4_900)
    assert (own["http_status"], own["attempts"], own["error"], own["fallback"]) == (200, 1, None, None)


def test_a_decision_has_what_the_router_saw_of_the_pair(tmp_path: Path) -> None:
    (row,) = joined(tmp_path, [observation(0)], [record(0)]).decisions
    assert (row["time"], row["poll_time"], row["request"], row["predicted"]) == (1_150, 50, 0, 7)
    assert (row["prefill_queued"], row["prefill_available"]) == (0, 6)
    assert (row["decode_in_flight"], row["decode_available"]) == (10, 20)
    assert (row["probability"], row["prefill"], row["decode"]) == (0.5, 0, 1)


def test_the_engines_time_passes_more_slowly_where_they_are_emulated_so(tmp_path: Path) -> None:
    said = about(1) | {"time_scale": 0.5}
    write(attempt(tmp_path), [observation(0)], [record(0)], said=said)
    kept = whole(attempt(tmp_path), said)
    assert kept is not None
    once = joined(tmp_path / "b", [observation(0)], [record(0)]).records["prefill_start"][0]
    # The router began 3 ms of wall time before the trace: 3e9 ps of its clock at scale 1, 6e9 at 0.5.
    assert assemble(kept, CLUSTER).records["prefill_start"][0] == once - 3_000_000_000


@pytest.mark.parametrize(
    ("seen", "recorded", "status"),
    [
        ({"status": "failed", "http_status": 502}, {"status": "failed"}, FAILED),
        ({"status": "failed", "http_status": 503}, {"status": "rejected"}, REJECTED),
        ({"status": "rejected", "http_status": 400}, {"status": "rejected"}, REJECTED),
        ({"status": "rejected", "http_status": 429}, None, REJECTED),
        ({"status": "failed", "http_status": 0}, None, FAILED),
        ({"status": "failed", "http_status": 200}, {"status": "cancelled"}, FAILED),
        ({"status": "failed", "http_status": 200}, {"status": "finished"}, FAILED),  # more or fewer tokens than asked
    ],
)
def test_how_a_request_ended(
    tmp_path: Path, seen: dict[str, Any], recorded: dict[str, Any] | None, status: int
) -> None:
    lines = [] if recorded is None else [record(0, **recorded)]
    outcome = joined(tmp_path, [observation(0, error="why", **seen)], lines)
    assert outcome.records["status"][0] == status
    assert outcome.columns["error"] == ["why"]


def test_a_request_that_was_never_routed_has_no_decision_and_no_instances(tmp_path: Path) -> None:
    never = record(0, status="rejected", prefill=None, decode=None, prefill_start=-1, prefill_end=-1)
    never |= {"decode_start": -1, "first_token": -1, "predicted": -1, "attempts": 0}
    for name in ("decided", "polled", "seen_prefill", "seen_decode"):
        del never[name]
    refused = observation(0, status="rejected", http_status=400, first=-1, last=-1, error="no")
    outcome = joined(tmp_path, [refused, observation(1)], [record(1), never])
    row = outcome.records[0]
    assert [int(row[name]) for name in ("prefill", "decode", "prefill_start", "first_token")] == [-1] * 4
    assert outcome.decisions["request"].tolist() == [1]


def test_on_a_mixed_engine_the_first_token_ends_the_prefill(tmp_path: Path) -> None:
    mixed = LiveCluster.load({"model": "tiny", "profile": "a40-qwen2.5-3b", "mixed": [{"url": "http://127.0.0.1:1"}]})
    line = record(0, prefill="mixed/0", decode="mixed/0", prefill_end=-1)
    write(attempt(tmp_path), [observation(0)], [line])
    kept = whole(attempt(tmp_path), about(1))
    assert kept is not None
    (row,) = assemble(kept, mixed).records
    assert (row["prefill_end"], row["prefill"], row["decode"]) == (4_900, 0, 0)


def test_a_request_that_was_tried_again_counts_that(tmp_path: Path) -> None:
    assert joined(tmp_path, [observation(0)], [record(0, attempts=3)]).records["reroutes"][0] == 2


def test_an_engine_of_another_cluster_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="request run-0 went to decode/7, which the cluster does not have"):
        joined(tmp_path, [observation(0)], [record(0, decode="decode/7")])
