"""The dashboard that ships: every panel asks Prometheus for something that the router exports."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from .proxy_client import routed, until

DASHBOARD = Path(__file__).parents[2] / "configs" / "grafana" / "disaggroute.json"

ENGINE = {"engine", "role"}

METRICS: dict[str, set[str]] = {
    "disaggroute_requests_total": {"status", "slo"},
    "disaggroute_slo_met_total": {"slo"},
    "disaggroute_assigned_total": {"engine"},
    "disaggroute_policy_fallbacks_total": {"reason"},
    "disaggroute_shadow_decisions_total": {"same"},
    "disaggroute_retries_total": set(),
    "disaggroute_prefill_again_total": set(),
    "disaggroute_tokens_total": {"kind"},
    "disaggroute_ttft_seconds_bucket": {"slo", "le"},
    "disaggroute_tpot_seconds_bucket": {"slo", "le"},
    "disaggroute_e2e_seconds_bucket": {"slo", "le"},
    "disaggroute_decision_seconds_bucket": {"le"},
    "disaggroute_in_flight": set(),
    "disaggroute_records_waiting": set(),
    "disaggroute_records_lost_total": set(),
    "disaggroute_engine_up": ENGINE,
    "disaggroute_engine_legs": ENGINE,
    "disaggroute_engine_connections": ENGINE,
    "disaggroute_engine_poll_age_seconds": ENGINE,
    "disaggroute_engine_kv_usage": ENGINE,
    "disaggroute_engine_running": ENGINE,
    "disaggroute_engine_waiting": ENGINE,
    "disaggroute_engine_ejections_total": ENGINE,
    "disaggroute_engine_breaker_opened_total": ENGINE,
}
"""What the router exports, by the names that Prometheus stores, with the labels of each."""

PANELS: list[dict[str, Any]] = [
    panel for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"] if panel["type"] != "row"
]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def labels(text: str) -> set[str]:
    """Names of labels in `a, b`."""
    return {name.strip() for name in text.split(",") if name.strip()}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_says_what_it_shows_and_asks_for_it(panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"].endswith(".") and panel["targets"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        assert target["expr"] and target["legendFormat"]
        by = labels(",".join(re.findall(r"by \(([^)]*)\)", target["expr"])))
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= by


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_names_metrics_of_the_router_with_labels_that_they_have(query: str) -> None:
    names = re.findall(r"\bdisaggroute_\w+", query)
    assert names and set(names) <= METRICS.keys()
    for name, chosen in re.findall(r"\b(disaggroute_\w+){([^}]*)}", query):
        assert set(re.findall(r'(\w+)(?:=~|!=|=)"', chosen)) <= METRICS[name] | {"job"}
        for by in re.findall(rf"by \(([^)]*)\) \((?:\w+\()?{name}\b", query):
            assert labels(by) <= METRICS[name]
    assert query.count('{job=~"$job"') == len(names)
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}")


@pytest.mark.parametrize("query", QUERIES)
def test_counters_are_asked_for_as_rates_and_gauges_are_not(query: str) -> None:
    for name in re.findall(r"\bdisaggroute_\w+", query):
        counts = name.endswith(("_total", "_bucket")) and name != "disaggroute_records_lost_total"
        assert (re.search(rf"(rate|increase)\({name}\{{", query) is not None) == counts


def test_every_metric_of_the_router_is_shown() -> None:
    assert {name for query in QUERIES for name in re.findall(r"\bdisaggroute_\w+", query)} == METRICS.keys()


def test_panels_stand_beside_each_other_and_not_upon_each_other() -> None:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (place["x"] + i, place["y"] + j)
        for place in (panel["gridPos"] for panel in panels)
        for i in range(place["w"])
        for j in range(place["h"])
    ]
    assert len(set(cells)) == len(cells) and all(0 <= x < 24 for x, _ in cells)


def test_the_router_exports_all_of_them() -> None:
    """And with these labels, once something has happened."""

    async def main() -> str:
        async with routed(shadow="least-loaded") as setup:
            await setup.ask({"prompt": [1, 2], "max_tokens": 2, "stream": True})
            setup.service.metrics._fallbacks["late"] += 1
            await until(lambda: all(engine.poll for engine in setup.service.engines))
            return setup.service.metrics.text().decode()

    text = asyncio.run(main())
    exported: dict[str, set[str]] = {}
    for line in text.splitlines():
        found = re.match(r"(\w+)(?:\{(.*)\})? ", line)
        if found and not line.startswith("#"):
            exported[found[1]] = set(re.findall(r'(\w+)="', found[2] or ""))
    assert {name: exported.get(name) for name in METRICS} == METRICS
