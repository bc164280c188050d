from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from disaggroute.envs import traces, workloads
from disaggroute.envs.trace import Trace

COLUMNS = ("arrival", "prompt", "output", "slo", "ttft_target", "tpot_target")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return workloads.make("mixed-bursty-a40").generate(rate=5, duration_s=100, seed=0)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.csv.gz"])
def test_a_trace_that_is_written_is_read_back_exactly(tmp_path: Path, trace: Trace, name: str) -> None:
    file = traces.read(traces.write(trace, tmp_path / name))
    assert file.format == "disaggroute"
    again, report = file.prepare()
    assert report.targets == "the file's"
    for column in COLUMNS:
        assert (getattr(again, column) == getattr(trace, column)).all()
    labels = np.array(trace.families)[trace.family]
    assert (np.array(again.families)[again.family] == labels).all()


def test_another_ending_is_refused(tmp_path: Path, trace: Trace) -> None:
    with pytest.raises(
        ValueError, match=r"ends in '\.txt'; a trace is written as \.parquet, \.csv or \.csv\.gz"
    ):
        traces.write(trace, tmp_path / "t.txt")


def test_a_parquet_file_holds_our_format_only(tmp_path: Path, trace: Trace) -> None:
    path = traces.write(trace, tmp_path / "t.parquet")
    assert len(traces.read(path, "disaggroute")) == len(trace)
    with pytest.raises(ValueError, match="is a Parquet file; of the formats only disaggroute is kept in one"):
        traces.read(path, "azure")


def test_a_damaged_parquet_file_is_refused(tmp_path: Path, trace: Trace) -> None:
    path = traces.write(trace, tmp_path / "t.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"t\.parquet: is a damaged Parquet file; write it again"):
        traces.read(path)


def test_a_parquet_file_without_a_column_is_refused(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "t.parquet"
    pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [1]}).to_parquet(path)
    with pytest.raises(
        ValueError, match="column 'output_tokens' is missing; there are 'arrival_s', 'prompt_tokens'"
    ):
        traces.read(path)


def test_a_bad_value_in_a_parquet_file_names_its_row(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "t.parquet"
    pd.DataFrame({"arrival_s": [0.0, 1.0], "prompt_tokens": [1, -1], "output_tokens": [1, 1]}).to_parquet(
        path
    )
    with pytest.raises(ValueError, match="line 2: prompt_tokens is -1; it must not be negative"):
        traces.read(path)
