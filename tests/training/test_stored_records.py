"""Stored records give back what they were made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from disaggroute.envs.cluster import ClusterEvent
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies import make
from disaggroute.training.metrics import met_targets
from disaggroute.training.record_table import record_table
from disaggroute.training.runs import parquet_bytes
from disaggroute.training.stored_records import read_records

MIXED = Scenario.make(workload="mixed-bursty-a40", topology="1P2D", rate=10, duration_s=20, warmup_s=5)


def test_records_and_trace_come_back_as_they_were(tmp_path: Path) -> None:
    from dataclasses import replace

    setting = Setting.of(MIXED)
    killed = replace(setting.cluster, events=(ClusterEvent(10**13, 1, "kill"), ClusterEvent(15 * 10**12, 2, "kill")))
    setting = replace(setting, cluster=killed)
    prepared = setting.prepare(7)
    policy = make("round-robin")
    result = setting.simulate(prepared, policy, 7, log_decisions=True)
    met = met_targets(result.records, prepared.trace)
    assert set(result.records["status"].tolist()) == {0, 1, 2}
    card = {"name": policy.name, "params": {}, "hash": policy.hash}
    table = record_table(result, prepared, met, label="round-robin", policy=card, seed=7)
    (tmp_path / "7.parquet").write_bytes(parquet_bytes(table))

    stored = read_records(tmp_path / "7.parquet")
    assert (stored.records == result.records).all()
    for column in ("arrival", "prompt", "output", "slo", "ttft_target", "tpot_target"):
        assert (getattr(stored.trace, column) == getattr(prepared.trace, column)).all()
    names = [[of.families[k] for k in of.family] for of in (stored.trace, prepared.trace)]
    assert names[0] == names[1]
    assert (stored.met == met).all() and (stored.measured == prepared.window.holds(prepared.trace)).all()
    decided = np.full(len(met), -1)
    decided[result.decisions["request"]] = result.decisions["time"]
    assert (stored.decided == decided).all() and (decided < 0).any()


def test_a_request_of_a_live_run_is_due_before_it_is_sent(tmp_path: Path) -> None:
    setting = Setting.of(MIXED)
    prepared, policy = setting.prepare(7), make("round-robin")
    result = setting.simulate(prepared, policy, 7, log_decisions=True)
    card = {"name": policy.name, "params": {}, "hash": policy.hash}
    met = met_targets(result.records, prepared.trace)
    table = record_table(result, prepared, met, label="round-robin", policy=card, seed=7)
    path = tmp_path / "7.parquet"
    path.write_bytes(parquet_bytes(table))
    assert (read_records(path).due == prepared.trace.arrival).all()
    due = prepared.trace.arrival - 10**9
    path.write_bytes(parquet_bytes(table.append_column("due_ps", pa.array(due))))
    stored = read_records(path)
    assert (stored.due == due).all() and (stored.trace.arrival == prepared.trace.arrival).all()


@pytest.mark.parametrize("content", [b"PAR1", parquet_bytes(pa.table({"arrival_ps": [1]}))])
def test_unreadable_records_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "7.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"7\.parquet holds no readable records; delete it and start again"):
        read_records(tmp_path / "7.parquet")
