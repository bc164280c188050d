"""docs/results.md explains every column that an evaluation writes."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pyarrow.parquet as pq

from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.scenario import Scenario
from disaggroute.training.evaluation import evaluate

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
PLACES = {
    "QUANTILE": r"p\d+",
    "SCALE": r"[\d.]+",
    "FAMILY": r"[a-z]+",
    "COLUMN": "|".join((*PREFILL_VIEW, *DECODE_VIEW)),
}


def explained(column: str) -> bool:
    names = re.findall(r"`([A-Za-z0-9_]+)`", PAGE.read_text())
    patterns = []
    for name in names:
        for place, pattern in PLACES.items():
            name = name.replace(place, f"(?:{pattern})")
        patterns.append(name)
    column = column.replace("decode_count", "prefill_count").replace("decode_token", "prefill_token")
    return any(re.fullmatch(pattern, column) for pattern in patterns)


def test_every_column_is_explained(tmp_path: Path) -> None:
    scenario = Scenario.make(workload="mixed-bursty-a40", topology="1P2D", rate=10, duration_s=20, warmup_s=5)
    evaluate(scenario, ("round-robin",), range(100, 101), out=tmp_path / "r", workers=1)
    with open(tmp_path / "r" / "summary.csv", newline="") as file:
        columns = next(csv.reader(file))
    columns += pq.read_schema(tmp_path / "r" / "records.parquet").names
    assert [column for column in columns if not explained(column)] == []


def test_a_column_that_the_page_does_not_name_would_be_noticed() -> None:
    assert not explained("goodput_per_mile_per_s")
