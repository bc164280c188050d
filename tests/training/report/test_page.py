"""The page and its tables: complete, self-contained, escaped, the same every time."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from disaggroute.training.report.figures import FIGURES, draw_figures
from disaggroute.training.report.material import Material
from disaggroute.training.report.page import facts, page, page_remarks
from disaggroute.training.report.tables import (
    Table,
    balance_table,
    delay_tables,
    goodput_table,
    group_table,
    miss_table,
    scale_table,
    tail_table,
)

TABLES = ("goodput", "misses", "scales", "groups", "ttft", "tpot", "e2e", "slowdown", "tail", "balance", "policies")
ASKS_ELSEWHERE = re.compile(r"https?://|@import|url\(|<script|<link|<iframe", re.IGNORECASE)


@pytest.fixture(scope="module")
def images(material: Material) -> dict[str, bytes]:
    return draw_figures(material)


@pytest.fixture(scope="module")
def html(material: Material, images: dict[str, bytes]) -> str:
    return page(material, images)


def parsed(html: str) -> ET.Element:
    doctype, _, rest = html.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ET.fromstring(rest)


def cells(table: Table, label: str) -> dict[str, str]:
    return dict(zip(table.columns, dict(table.rows)[label], strict=True))


def renamed(material: Material, label: str) -> Material:
    """The same with another name for the first policy."""
    first, results = material.labels[0], material.results
    runs = {label if key == first else key: value for key, value in results.runs.items()}
    policies = {label if key == first else key: value for key, value in results.policies.items()}
    lines = tuple(replace(x, label=label) if x.label == first else x for x in material.comparison.lines)
    styles = {label if key == first else key: value for key, value in material.styles.items()}
    records = {label if key == first else key: value for key, value in material.records.items()}
    return Material(
        replace(results, runs=runs, policies=policies), replace(material.comparison, lines=lines), records, styles
    )


def test_the_page_is_well_formed_and_has_every_figure_and_table(html: str, images: dict[str, bytes]) -> None:
    root = parsed(html)
    assert {node.get("id", "").removeprefix("table-") for node in root.iter("table")} == set(TABLES)
    shown = [base64.b64decode(node.get("src", "").partition("base64,")[2]) for node in root.iter("img")]
    assert shown == list(images.values()) and len(shown) == len(FIGURES) == 6
    captions = ["".join(node.itertext()) for node in root.iter("figcaption")]
    assert captions == [kind.reading for kind in FIGURES]
    assert all(node.get("alt") for node in root.iter("img"))


def test_every_link_leads_to_a_part_of_the_page(html: str) -> None:
    root = parsed(html)
    ids = [node.get("id") for node in root.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    targets = {node.get("href", "") for node in root.iter("a")}
    assert targets and {target.removeprefix("#") for target in targets} <= set(ids)


def test_the_page_asks_for_nothing_from_elsewhere(html: str) -> None:
    assert not ASKS_ELSEWHERE.search(re.sub(r"base64,[A-Za-z0-9+/=]+", "", html))
    assert {node.get("src", "")[:22] for node in parsed(html).iter("img")} == {"data:image/png;base64,"}


def test_the_page_fits_a_telephone_and_the_dark(html: str) -> None:
    assert 'name="viewport"' in html and "prefers-color-scheme: dark" in html
    for node in parsed(html).iter("div"):
        assert node.get("class") == "wide"  # What is wider than the screen scrolls by itself.


def test_the_page_says_what_was_run_and_how_to_run_it_again(html: str, material: Material) -> None:
    root = parsed(html)
    text = "".join(root.itertext())
    for words in (
        *("mixed-bursty-a40", "12 requests per second", "40 s measured after 5 s", "4: seeds 0 to 3"),
        *("1 prefill (a40-qwen2.5-3b), 2 decode (a40-qwen2.5-3b); 3 GPUs", "bucket"),
        "fixed; tight: TTFT 0.175 s, TPOT 39.7 ms; loose: TTFT 0.525 s, TPOT 119.1 ms",
        f"{material.comparison.ceiling:.4f}",
        *material.results.versions.values(),
    ):
        assert words in text
    (command,) = root.iter("pre")
    assert command.text == material.results.command


def test_the_same_material_gives_the_same_page(material: Material, html: str) -> None:
    assert page(material, draw_figures(material)) == html
    assert not re.search(r"\d\d:\d\d:\d\d", re.sub(r"base64,[A-Za-z0-9+/=]+", "", html))


def test_what_comes_from_outside_is_escaped(material: Material, images: dict[str, bytes]) -> None:
    evil = "<script>alert('x')</script>&\"'"
    root = parsed(page(renamed(material, evil), images))
    assert not list(root.iter("script"))
    assert evil in {"".join(node.itertext()).strip() for node in root.iter("th")}


def test_without_records_their_figures_are_left_out_and_the_page_says_so(material: Material) -> None:
    bare = replace(material, records={})
    images = draw_figures(bare)
    assert list(images) == ["goodput", "slo-scale", "groups"]
    root = parsed(page(bare, images))
    assert len(list(root.iter("img"))) == 3
    assert {node.get("id", "").removeprefix("table-") for node in root.iter("table")} == set(TABLES)
    assert "Records of the first seed were kept of no policy" in "".join(root.itertext())


def test_a_policy_without_records_and_runs_that_are_missing_are_named(material: Material) -> None:
    records = {label: material.records[label] for label in material.labels[1:]}
    results = replace(material.results, missing="6 of 8 runs are shown: the evaluation has not finished")
    said = page_remarks(replace(material, records=records, results=results))
    assert any("not of least-loaded:" in text for text in said)
    assert "6 of 8 runs are shown: the evaluation has not finished." in said


def test_with_more_policies_than_a_timeline_has_room_for_the_page_says_which_it_shows(material: Material) -> None:
    some = material.records["round-robin"]
    many = replace(material, records={f"policy-{k}": some for k in range(5)})
    assert any("is shown for 4 policies" in text for text in page_remarks(many))
    assert not any("is shown for" in text for text in page_remarks(material))


def test_what_was_evaluated_from_python_has_no_command_and_says_so(material: Material) -> None:
    description = material.results.description.model_copy(update={"observability": "full", "constants_scale": 0.135})
    results = replace(material.results, command="", description=description)
    root = parsed(page(replace(material, results=results), {}))
    text = "".join(root.itertext())
    assert not list(root.iter("pre")) and "It was evaluated from Python" in text
    assert "Observability" in text and "all times multiplied by 0.135" in text


def test_the_page_names_several_routers(material: Material) -> None:
    several = material.results.description.model_copy(update={"routers": 4, "dealing": "random"})
    assert facts(replace(material, results=replace(material.results, description=several)))["Routers"] == (
        "4 routers (random dealing)"
    )
    assert "Routers" not in facts(material)


def test_the_goodput_table_holds_the_comparison_and_what_it_rests_on(material: Material) -> None:
    table, comparison = goodput_table(material), material.comparison
    for line in comparison.lines:
        row = cells(table, line.label)
        summaries = [run.summary for run in material.results.runs[line.label]]
        assert row["goodput"] == f"{line.goodput.mean:.4f}"
        assert row["met"] == f"{sum(s.met for s in summaries):,}"
        assert row["requests"] == f"{comparison.requests:,}"
        rate = sum(s.met for s in summaries) / len(summaries) / 40 / 3
        assert float(row["met per second and GPU"]) == pytest.approx(rate, abs=5e-4)
    assert cells(table, "round-robin")["points to round-robin"] == "–"
    best = max(comparison.lines, key=lambda line: line.goodput.mean)
    assert table.best is not None and table.rows[table.best][0] == best.label


def test_groups_have_their_ceilings_first(material: Material) -> None:
    table = group_table(material)
    assert table.columns == ("class tight", "class loose", "family chat", "family document", "family reasoning")
    assert table.rows[0][0] == "ceiling" and [label for label, _ in table.rows[1:]] == list(material.labels)
    tight = cells(table, "round-robin")["class tight"]
    line = next(line for line in material.comparison.lines if line.label == "round-robin")
    assert tight.startswith(f"{line.tight:.3f} (")


def test_delays_are_means_over_the_seeds_in_the_unit_of_the_title(material: Material) -> None:
    tables = {table.name: table for table in delay_tables(material)}
    summaries = [run.summary for run in material.results.runs["round-robin"]]
    row = cells(tables["ttft"], "round-robin")
    assert list(row) == ["P50", "P90", "P99", "P99.9"]
    assert float(row["P99.9"]) == pytest.approx(sum(s.ttft.p999 for s in summaries) / 4, abs=5e-4)
    tpot = float(cells(tables["tpot"], "round-robin")["P50"])
    assert tpot == pytest.approx(1e3 * sum(s.tpot.p50 for s in summaries) / 4, abs=5e-3)


def test_the_far_end_takes_the_worst_of_all_runs(material: Material) -> None:
    summaries = [run.summary for run in material.results.runs["least-loaded"]]
    row = cells(tail_table(material), "least-loaded")
    assert float(row["longest stall, s"]) == pytest.approx(max(s.max_stall for s in summaries), abs=5e-3)
    assert float(row["largest TTFT, s"]) == pytest.approx(max(s.max_delay for s in summaries), abs=5e-3)
    assert float(row["beyond 3 × the targets"]) == pytest.approx(sum(s.beyond_3x for s in summaries) / 4, abs=5e-5)


def test_misses_are_counted_by_target_and_add_up(material: Material) -> None:
    for label, cell in miss_table(material).rows:
        summaries = [run.summary for run in material.results.runs[label]]
        ttft, tpot, both, failed, rejected = (int(text.replace(",", "")) for text in cell)
        assert ttft + tpot + both == sum(s.requests - s.met for s in summaries) > 0
        assert failed == rejected == 0


def test_balance_is_told_for_every_pool(material: Material) -> None:
    table = balance_table(material)
    assert len(table.columns) == 8 and table.columns[0] == "prefill requests, CV"
    value = float(cells(table, "round-robin")["decode tokens, max/mean"])
    expected = [run.summary.balance["decode"].token_max for run in material.results.runs["round-robin"]]
    assert value == pytest.approx(sum(expected) / 4, abs=5e-4)


def test_the_table_of_scales_has_the_goodput_at_one(material: Material) -> None:
    table = scale_table(material)
    for line in material.comparison.lines:
        assert cells(table, line.label)["× 1"] == f"{line.goodput.mean:.3f}"


def test_the_template_ships_with_the_package() -> None:
    from disaggroute.training.report.page import TEMPLATE

    assert isinstance(TEMPLATE, Path) and TEMPLATE.is_file()
