"""The comparison and its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from disaggroute.envs.scenario import Scenario
from disaggroute.training.comparison import Comparison, compare
from disaggroute.training.evaluation import Evaluation, evaluate
from disaggroute.training.table import delay_table, goodput_table, number, remarks, table_console, wrapped

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=40, duration_s=20, warmup_s=5)
POLICIES = ("least-loaded", "round-robin")


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluate(CHAT, POLICIES, range(4), out=tmp_path_factory.mktemp("results") / "r", workers=1)


@pytest.fixture(scope="module")
def comparison(evaluation: Evaluation) -> Comparison:
    return compare(evaluation)


def printed(comparison: Comparison) -> str:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in (goodput_table(comparison), delay_table(comparison)):
        console.print(table)
    return console.export_text()


def test_round_robin_is_the_baseline_wherever_it_stands(comparison: Comparison) -> None:
    assert comparison.baseline == "round-robin"
    least, robin = comparison.lines
    assert robin.difference is None and least.difference is not None
    paired = [a - b for a, b in zip(least.goodput.values, robin.goodput.values, strict=True)]
    assert least.difference.values == pytest.approx(paired)
    assert least.difference.mean == pytest.approx(least.goodput.mean - robin.goodput.mean)


def test_without_round_robin_the_first_policy_is_the_baseline(evaluation: Evaluation) -> None:
    assert compare(evaluation, "least-loaded").baseline == "least-loaded"
    with pytest.raises(ValueError, match="baseline is 'random'; it must be one of least-loaded, round-robin"):
        compare(evaluation, "random")


def test_four_seeds_get_intervals_and_three_do_not(evaluation: Evaluation) -> None:
    assert all(line.goodput.has_interval for line in compare(evaluation).lines)
    fewer = Evaluation(
        evaluation.setting,
        evaluation.folder,
        evaluation.labels,
        range(3),
        {label: runs[:3] for label, runs in evaluation.runs.items()},
        evaluation.asked,
    )
    lines = compare(fewer).lines
    assert not any(line.goodput.has_interval for line in lines) and len(lines[0].goodput.values) == 3
    assert "none: 3 seeds" in compare(fewer).interval


def test_one_real_trace_gets_its_interval_from_its_own_blocks(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    rows = "".join(f"{k * 0.05},{50 + k % 90},{5 + k % 40}\n" for k in range(7_000))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    scenario = Scenario.make(workload=str(path), topology="1P2D", warmup_s=10)
    got = compare(evaluate(scenario, POLICIES, range(1), out=tmp_path / "r", workers=1))
    assert "blocks of 60 s of one trace" in got.interval
    assert all(line.goodput.has_interval for line in got.lines)


def test_the_tables_fit_into_eighty_columns_and_show_every_policy(comparison: Comparison) -> None:
    text = printed(comparison)
    assert max(map(len, text.splitlines())) <= 80
    for word in (*POLICIES, "goodput", "TTFT", "TPOT", "tight", "failed"):
        assert word in text
    assert "…" not in text.replace(" … ", "")
    assert f"Ceiling {comparison.ceiling:.3f}" in remarks(comparison)


def test_a_long_policy_is_wrapped_and_no_number_is_cut(comparison: Comparison) -> None:
    label = "marginal-cost(w_q=0.2,tau=single,backlog=committed)"
    line = replace(comparison.lines[0], label=label, ttft_p99=1234.567, stall=1234.5, failed=12_345)
    text = printed(replace(comparison, lines=(line, *comparison.lines[1:])))
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text.replace(" … ", "")
    for word in ("marginal-cost(", "tau=single,", "backlog=committed)", "1234.567", "12345"):
        assert word in text
    assert wrapped(label, 160) == label


def test_a_pipe_gets_wide_tables_and_a_narrow_terminal_still_all_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table_console().width == 160
    monkeypatch.setenv("COLUMNS", "60")
    assert table_console().width == 80


@pytest.mark.parametrize(("value", "text"), [(0.1234, "0.123"), (float("inf"), "∞"), (float("nan"), "–")])
def test_numbers_without_end_or_without_data_have_their_own_signs(value: float, text: str) -> None:
    assert number(value, 3) == text
