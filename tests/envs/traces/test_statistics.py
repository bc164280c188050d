from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from disaggroute.envs import traces
from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.traces.drawing import draw, length_line, rate_line
from disaggroute.envs.traces.statistics import Statistics, dispersion


@pytest.mark.parametrize("name", ["azure2023_conv", "azure2023_code"])
def test_statistics_of_the_azure_traces_are_the_known_ones(shared_data: Path, name: str) -> None:
    known = {row["name"]: row for row in json.loads((shared_data / "traces" / "stats.json").read_text())}[
        name
    ]
    file = traces.read(shared_data / "traces" / f"{name}.csv.gz")
    found = Statistics.of(file.arrival, file.prompt, file.output)
    assert found.requests == known["n"]
    assert found.rate == pytest.approx(known["rate"], rel=1e-3)
    assert found.cv == pytest.approx(known["cv"], rel=1e-2)
    for window in (1, 10, 60):
        assert found.dispersion[window] == pytest.approx(known[f"idc{window}"], rel=0.05)
    assert found.prompt.mean == pytest.approx(known["p_mean"], abs=0.1)
    assert found.output.quantiles[2] == known["o_p50"]
    assert found.correlation == pytest.approx(known["pearson"], abs=1e-3)


def test_regular_arrivals_have_no_dispersion() -> None:
    assert dispersion(np.arange(1000) * PS_PER_S // 10, 1) == 0.0


def test_pairs_of_arrivals_have_dispersion_two() -> None:
    pairs = np.sort(np.random.default_rng(0).uniform(0, 10_000, 20_000))
    assert dispersion(np.repeat((pairs * PS_PER_S).astype(np.int64), 2), 10) == pytest.approx(2, abs=0.2)


def test_too_few_requests_have_no_burstiness() -> None:
    one = Statistics.of(np.array([5]), np.array([1], np.int32), np.array([1], np.int32))
    assert (one.rate, one.cv, one.correlation) == (0.0, None, None)
    assert set(one.dispersion.values()) == {None}
    assert rate_line(np.array([5])) == "█"


def test_lines_of_blocks_show_where_the_requests_are() -> None:
    arrival = np.concatenate((np.arange(50), np.full(50, 99))) * PS_PER_S
    line = rate_line(arrival, width=10)
    assert len(line) == 10
    assert line[-1] == "█"
    assert line[7] == " "
    assert length_line(np.array([1, 1000], np.int32), width=5) == "█   █"


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_figure_is_written(tmp_path: Path, ending: str) -> None:
    lengths = np.arange(1, 51, dtype=np.int32)
    path = draw(tmp_path / f"t.{ending}", "title", np.arange(50) * PS_PER_S, lengths, lengths)
    assert path.stat().st_size > 1000


def test_even_one_request_is_drawn(tmp_path: Path) -> None:
    one = np.ones(1, np.int32)
    assert draw(tmp_path / "t.png", "title", np.zeros(1, np.int64), one, one).exists()


def test_a_figure_of_another_kind_or_in_no_folder_is_refused(tmp_path: Path) -> None:
    lengths = np.arange(1, 51, dtype=np.int32)
    with pytest.raises(ValueError, match=r"ends in '\.txt'; a plot is written as \.png, \.pdf or \.svg"):
        draw(tmp_path / "t.txt", "title", np.arange(50) * PS_PER_S, lengths, lengths)
    with pytest.raises(ValueError, match=r"t\.png: cannot be written \(No such file"):
        draw(tmp_path / "none" / "t.png", "title", np.arange(50) * PS_PER_S, lengths, lengths)
