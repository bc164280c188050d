"""docs/workloads.md says of workloads, trace formats and predictors what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disaggroute.envs import predictors, traces, workloads
from disaggroute.envs.traces import formats
from disaggroute.envs.workloads.lengths import LengthLaw

PAGE = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text()


def rows(name: str) -> list[str]:
    """Rows of tables whose first cell is this name."""
    return re.findall(rf"^\| `{re.escape(name)}[`(].*$", PAGE, re.MULTILINE)


def words(law: LengthLaw) -> list[str]:
    """How the page writes a law, part by part, and its bounds."""
    parts = [f"LN({part.median:g}, {part.sigma:g})" for part in law.parts]
    weighted = [f"{part.weight:g}·{text}" for part, text in zip(law.parts, parts, strict=True)]
    return [*(parts if len(parts) == 1 else weighted), f"{law.min} to " if law.min > 1 else "to ", f"{law.max:,}"]


@pytest.mark.parametrize("name", workloads.names())
def test_every_workload_has_a_row_with_its_numbers(name: str) -> None:
    row = rows(name)[0]
    config = workloads.make(name).config
    if config.mix is not None:
        assert all(f"{100 * share:g} % `{family}`" in row for family, share in config.mix.items())
    elif name != "reasoning-stress":
        family = workloads.make(name).families[name]
        cells = row.split("|")
        assert all(text in cells[2] for text in words(family.prompt)), cells[2]
        assert all(text in cells[3] for text in words(family.output)), cells[3]
        assert f"{100 * family.tight_share:g} %" in cells[5]
    for key, value in config.arrivals.model_dump().items():
        if key in ("ratio", "mean_on_s") or (key == "cv" and value != 1):
            assert f"{value:g}" in row, f"{key} of {name}"


@pytest.mark.parametrize("name", traces.FORMATS)
def test_every_trace_format_has_a_row_with_its_columns(name: str) -> None:
    assert all(f"`{column}`" in rows(name)[0] for column in formats.named(name).required)


@pytest.mark.parametrize("name", predictors.names())
def test_every_predictor_has_a_row(name: str) -> None:
    assert rows(name)


@pytest.mark.parametrize("process", ["poisson", "gamma", "on-off", "mmpp"])
def test_every_arrival_process_has_a_row(process: str) -> None:
    assert rows(process)
