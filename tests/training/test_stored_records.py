"""Stored records come back as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disaggroute.envs.records import FAILED
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies import registry
from disaggroute.training.metrics import met_targets
from disaggroute.training.record_table import record_table
from disaggroute.training.stored_records import read_records

KILLED = """
name: killed
prefill: {count: 1, profile: a40-qwen2.5-3b}
decode: {count: 2, profile: a40-qwen2.5-3b}
events: [{at_s: 5, instance: decode/0, action: kill}, {at_s: 9, instance: prefill/0, action: kill}]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "killed.yaml"
    path.write_text(KILLED)
    return path


@pytest.mark.parametrize("topology", ["1P2D", "2M", None])
def test_records_and_trace_come_back_from_the_table(topology: str | None, cluster: Path, tmp_path: Path) -> None:
    where = {"topology": topology} if topology else {"cluster": str(cluster)}
    setting = Setting.of(Scenario.make(workload="mixed-bursty-a40", rate=12, duration_s=10, warmup_s=2, **where))
    prepared, policy = setting.prepare(3), registry.parse("least-loaded")
    result = setting.simulate(prepared, policy, 3, log_decisions=True)
    met = met_targets(result.records, prepared.trace)
    card = {"name": policy.name, "params": {}, "hash": policy.hash}
    table = record_table(result, prepared, met, label="least-loaded", policy=card, seed=3)
    pq.write_table(table, tmp_path / "3.parquet")

    got = read_records(tmp_path / "3.parquet")
    assert np.array_equal(got.records, result.records)
    assert (topology is None) == bool((got.records["status"] == FAILED).any())
    for column in ("arrival", "prompt", "output", "slo", "family", "ttft_target", "tpot_target"):
        assert np.array_equal(getattr(got.trace, column), getattr(prepared.trace, column)), column
    assert got.trace.families == prepared.trace.families
    assert np.array_equal(got.met, met)
    assert np.array_equal(got.measured, prepared.window.holds(prepared.trace))
    decided = np.full(len(got.records), -1)
    decided[result.decisions["request"]] = result.decisions["time"]
    assert np.array_equal(got.decided, decided)


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_records_that_cannot_be_read_are_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    if content is None:
        pq.write_table(pa.table({"policy": ["a"]}), path)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"1\.parquet holds no readable records; delete it and start again"):
        read_records(path)
