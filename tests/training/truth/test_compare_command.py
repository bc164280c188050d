"""`disaggroute live compare`: what it writes, and what it refuses."""

from __future__ import annotations

import csv
import io
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from disaggroute.__main__ import app
from disaggroute.envs import catalog
from disaggroute.training.compare_commands import rich_table
from disaggroute.training.truth.figures import FIGURES
from disaggroute.training.truth.tables import (
    error_table,
    goodput_table,
    noise_table,
    ranking_table,
    residual_table,
)
from disaggroute.training.truth.truth import compare_with_simulator
from disaggroute.training.truth.writing import tables

from .conftest import Make
from .live_folder import POLICIES, Way, made_live

ASKS_ELSEWHERE = re.compile(r"https?://|@import|url\(|<script|<link|<iframe", re.IGNORECASE)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["live", "compare", *map(str, words)], env={"COLUMNS": "200"})


def refused(*words: object) -> str:
    result = run(*words)
    assert result.exit_code == 2 and "Traceback" not in result.output
    return " ".join(result.output.split())


@dataclass(frozen=True)
class Compared:
    """A live folder that was compared, its repeat, and what the command said."""

    folder: Path
    again: Path
    output: str
    before: dict[Path, bytes]

    @property
    def truth(self) -> Path:
        (path,) = self.folder.glob("truth-again-*")
        return path

    @property
    def written(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.truth.iterdir()}


@pytest.fixture(scope="module")
def compared(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    place = tmp_path_factory.mktemp("compared")
    folder, again = (
        made_live(shutil.copytree(base, place / name), Way(1.0, 0.5, after))
        for name, after in (("live", 1.5), ("again", 1.6))
    )
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = run(folder, "--repeat", again)
    assert result.exit_code == 0, result.output
    return Compared(folder, again, result.output, before)


def test_tables_figures_and_the_page_are_written_and_named(compared: Compared) -> None:
    for words in ("Errors request by request", "The model's error beside", "Goodput, measured", "Overhead: 3.00 ms"):
        assert words in compared.output
    truth = compared.truth
    named = {line for line in compared.output.splitlines() if line.startswith(str(truth))}
    assert named == {str(path) for path in truth.iterdir()}
    assert {path.name for path in truth.glob("*.png")} == {f"{kind.name}.png" for kind in FIGURES}
    assert {path.stem for path in truth.glob("*.csv")} == {
        *("errors", "goodput", "ranking", "overhead", "residuals", "noise")
    }
    with (truth / "errors.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["policy"] for row in rows} == {*POLICIES, "all policies"}
    assert {row["seed"] for row in rows} == {"", "2", "3"}
    table = pq.read_table(truth / "requests.parquet")
    assert table.num_rows == sum(pq.read_table(path).num_rows for path in (compared.folder / "records").glob("*/*"))


def test_the_page_is_well_formed_and_needs_nothing_else(compared: Compared) -> None:
    html = compared.written["truth.html"].decode()
    root = ET.fromstring(html.partition("\n")[2])
    assert len(list(root.iter("img"))) == len(FIGURES)
    ids = {node.get("id") for node in root.iter() if node.get("id")}
    assert {node.get("href", "").removeprefix("#") for node in root.iter("a")} <= ids
    tables = {"errors", "noise", "seeds", "goodput", "repeats", "ranking", "residuals", "distributions"}
    assert {f"table-{name}" for name in tables} <= ids
    assert not ASKS_ELSEWHERE.search(re.sub(r"base64,[A-Za-z0-9+/=]+", "", html))
    (command,) = root.iter("pre")
    assert command.text == f"disaggroute live compare {compared.folder} --repeat {compared.again}"


def test_the_same_folder_gives_the_same_bytes_and_is_not_changed_otherwise(compared: Compared) -> None:
    before = compared.written
    assert run(compared.folder, "--repeat", compared.again).exit_code == 0
    assert compared.written == before
    assert {path: path.read_bytes() for path in compared.before} == compared.before


def test_one_policy_needs_no_rank(live: Make) -> None:
    folder = live()
    for other in ("least-loaded", "marginal-cost"):
        for path in (folder / "records").glob(f"{other}-*"):
            shutil.rmtree(path)
    result = run(folder)
    assert result.exit_code == 0 and "Do the policies rank" not in result.output
    assert "Not compared: least-loaded, seed 2: no records." in " ".join(result.output.split())


def spoilt(path: Path, column: str, value: object) -> None:
    """Records with one value in a whole column."""
    table = pq.read_table(path)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, pa.array([value] * table.num_rows)), path)


def test_a_policy_that_broke_down_is_named_and_the_others_are_compared(live: Make) -> None:
    folder = live()
    for path in (folder / "records").glob("least-loaded-*/*"):
        spoilt(path, "status", "failed")
    result = run(folder)
    assert result.exit_code == 0
    assert "Not compared: least-loaded, seed 2: 0 requests finished in the window" in " ".join(result.output.split())
    assert set(compare_with_simulator(folder).labels) == {"round-robin", "marginal-cost"}
    for path in (folder / "records").glob("*/*"):
        spoilt(path, "status", "failed")
    assert "0 requests finished in the window; a comparison needs at least 30" in refused(folder)


def test_records_whose_numbers_are_words_are_refused(live: Make) -> None:
    folder = live()
    spoilt(next((folder / "records").glob("*/2.parquet")), "lateness_ps", "late")
    assert "holds no readable records; delete it and start again" in refused(folder)


def test_another_profile_changes_the_replay(live: Make) -> None:
    folder = live()
    bias = {}
    for name in ("a40-qwen2.5-3b", "h100-qwen2.5-3b"):
        truth = compare_with_simulator(folder, profile=name)
        bias[name] = next(line.errors.bias for line in truth.shown() if line.quantity.name == "tpot")
    assert bias["a40-qwen2.5-3b"] == 0.0 and bias["h100-qwen2.5-3b"] < -0.3


def test_a_comparison_of_something_else_goes_to_another_folder(live: Make, tmp_path: Path) -> None:
    folder = live()
    fields = catalog.read("profiles", "a40-qwen2.5-3b")
    file = tmp_path / "mine.yaml"
    for name, egress in (("ours", 20), ("ours", 25)):
        fields["transfer"]["egress_gb_per_s"] = egress
        file.write_text(yaml.safe_dump(fields | {"name": name}))
        assert run(folder, "--profile", file).exit_code == 0
    assert run(folder, "--profile", "h100-qwen2.5-3b").exit_code == 0
    assert run(folder).exit_code == 0
    found = sorted(path.name for path in folder.glob("truth*"))
    assert [re.sub("-[0-9a-f]{6}$", "", name) for name in found] == [
        *("truth", "truth-h100-qwen2.5-3b", "truth-ours", "truth-ours")
    ]
    pages = [(folder / name / "truth.html").read_text() for name in found]
    for page, words in zip(pages, ("a40-qwen2.5-3b", "h100-qwen2.5-3b", *[f"ours ({file})"] * 2), strict=True):
        assert f"<dd>{words}</dd>" in page
    said = refused(folder, "--out", folder / found[1])
    assert f"out is {folder / found[1]}, which holds a comparison of something else (other profile); name" in said


def test_every_row_of_a_table_has_the_same_columns(live: Make) -> None:
    for rows in tables(compare_with_simulator(live(Way(1.0)))).values():
        assert rows and len({tuple(row) for row in rows}) == 1


def test_a_folder_that_is_no_results_folder_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path} is no results folder: it has no experiment.json" in refused(tmp_path)


def test_a_simulated_evaluation_is_refused(base: Path) -> None:
    assert "is a simulated evaluation: its records have no column lateness_ps" in refused(base)


def test_a_folder_without_records_is_refused(live: Make) -> None:
    folder = live()
    shutil.rmtree(folder / "records")
    assert f"{folder} has no records; evaluate with --records all" in refused(folder)


def test_records_that_are_cut_off_are_refused(live: Make) -> None:
    folder = live()
    path = next((folder / "records").glob("*/2.parquet"))
    path.write_bytes(path.read_bytes()[:1000])
    assert "holds no readable records" in refused(folder)


def test_a_profile_that_is_unknown_or_does_not_fit_is_refused(live: Make, tmp_path: Path) -> None:
    folder = live()
    assert "unknown profile 'a41-qwen2.5-3b'" in refused(folder, "--profile", "a41-qwen2.5-3b")
    fields = catalog.read("profiles", "a40-qwen2.5-3b")
    fields["memory"]["kv_tokens"] = 64
    small = tmp_path / "small.yaml"
    small.write_text(yaml.safe_dump(fields))
    said = refused(folder, "--profile", small)
    assert f"profile is {small}, which does not fit the run: round-robin, seed 2: request" in said
    assert re.search(r"needs \d+ KV blocks; (prefill|decode) instance 0 \(a40-qwen2.5-3b\) has 4", said)


@pytest.mark.parametrize("wrong", ["missing", "simulated"])
def test_a_repeat_that_is_no_live_folder_is_refused(live: Make, base: Path, tmp_path: Path, wrong: str) -> None:
    other = base if wrong == "simulated" else tmp_path / "nothing"
    words = {"simulated": "is a simulated evaluation", "missing": "is no results folder"}
    assert words[wrong] in refused(live(), "--repeat", other)


def test_on_a_narrow_terminal_no_number_is_cut(compared: Compared) -> None:
    truth = compare_with_simulator(compared.folder, repeat=compared.again)
    assert truth.noise is not None
    every = (error_table(truth), goodput_table(truth), ranking_table(truth), noise_table(truth, truth.noise))
    for table in (*every, residual_table(truth)):
        for width in (80, 200):
            console = Console(width=width, file=io.StringIO(), color_system=None)
            console.print(rich_table(table, width))
            text = console.file.getvalue()  # type: ignore[attr-defined]
            assert len(text.splitlines()) == 2 + len(table.rows) and "…\n" not in text
            assert width == 80 or all(name in text for name in table.columns)
