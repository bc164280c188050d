"""Policies behind one and several routers: what is compared, and what is written."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training import router_picture
from disaggroute.training.evaluation import evaluate
from disaggroute.training.picture import drawing
from disaggroute.training.router_picture import draw_study, router_figure
from disaggroute.training.router_study import RouterStudy, folder_of, read_counts, study, with_routers, write_study
from disaggroute.training.table import router_table

SCENARIO = Scenario.make(workload="mixed-bursty-a40", rate=14, duration_s=30, warmup_s=5)
LABELS = ["round-robin", "least-loaded"]
SEEDS = range(10_000, 10_004)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> RouterStudy:
    folder = tmp_path_factory.mktemp("study")
    return study(with_routers(SCENARIO, (1, 3)), LABELS, SEEDS, out=folder, workers=1)


def test_each_number_of_routers_is_evaluated_on_the_same_traces(found: RouterStudy, tmp_path: Path) -> None:
    three = evaluate(SCENARIO.make(**(SCENARIO.model_dump() | {"routers": 3})), LABELS, SEEDS, out=tmp_path, workers=1)
    for label in LABELS:
        values = tuple(run.summary.goodput for run in three.runs[label])
        assert found.goodput[label][3].values == values
        alone = found.goodput[label][1].values
        assert found.change[label][3].values == pytest.approx([v - a for v, a in zip(values, alone, strict=True)])
        assert set(found.change[label][1].values) == {0.0}
    assert found.goodput["least-loaded"][3].values != found.goodput["least-loaded"][1].values


def test_the_dealing_is_that_of_the_scenario() -> None:
    at_random = Scenario.make(**(SCENARIO.model_dump() | {"dealing": "random"}))
    assert [s.dealing for s in with_routers(at_random, (1, 2)).values()] == ["random"] * 2


def test_the_table_has_a_row_per_policy_and_number_of_routers(found: RouterStudy, tmp_path: Path) -> None:
    with write_study(found, tmp_path / "routers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["routers"]) for row in rows] == [(p, n) for p in LABELS for n in ("1", "3")]
    for row in rows:
        goodput, change = (kind[row["policy"]][int(row["routers"])] for kind in (found.goodput, found.change))
        assert float(row["goodput"]) == pytest.approx(goodput.mean, abs=1e-7)
        assert float(row["change_low"]) == pytest.approx(change.low, abs=1e-7)
        assert (row["dealing"], row["rate"], row["seeds"]) == ("round-robin", "14.0", "4")
    shown = router_table(found)
    assert shown.row_count == 2 and [str(c.header) for c in shown.columns][1:] == [
        "goodput\n1 router",
        "change\n3 routers",
    ]


def test_the_same_study_gives_the_same_picture(found: RouterStudy, tmp_path: Path) -> None:
    one, two = (draw_study(found, tmp_path / f"{k}.png").read_bytes() for k in range(2))
    assert one == two and one.startswith(b"\x89PNG")


def test_counts_are_read_in_rising_order() -> None:
    assert read_counts("8, 1,2") == (1, 2, 8)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "counts is ''; it must be whole numbers of routers, such as 1,2,4,8"),
        ("1,two", "counts is '1,two'; it must be whole numbers"),
        ("1,1.5", "counts is '1,1.5'; it must be whole numbers"),
        ("1,--2", "counts is '1,--2'; it must be whole numbers"),
        ("2,2", "counts is '2,2'; each number of routers must stand once"),
    ],
)
def test_bad_counts_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_counts(text)


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (0, "routers is 0; it must be greater than or equal to 1"),
        (-1, "routers is -1; it must be greater than or equal to 1"),
        (9, "routers is 9; it must be less than or equal to 8"),
    ],
)
def test_a_number_of_routers_out_of_range_is_refused(count: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        with_routers(SCENARIO, (1, count))


def test_another_scenario_gets_another_folder() -> None:
    names = {folder_of(with_routers(SCENARIO.at_rate(rate), (1, 2))).name for rate in (14, 15)}
    assert len(names) == 2 and all(name.startswith("routers-mixed-bursty-a40-") for name in names)


@pytest.mark.parametrize(("seeds", "bands"), [(4, "95 % intervals"), (3, "from the lowest to the highest trace")])
def test_the_picture_says_what_its_bands_are(
    seeds: int, bands: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(router_picture, "set_legend", lambda _, title, *__: titles.append(title))
    few = study(with_routers(SCENARIO, (1, 3)), LABELS, SEEDS[:seeds], out=tmp_path, workers=1)
    assert few.has_intervals == (seeds == 4)
    with drawing():
        router_figure(few)
    assert titles[0].endswith(f"; bands: {bands}")
