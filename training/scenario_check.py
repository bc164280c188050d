"""Whether a scenario can tell routers apart in both of their decisions.

The rule: where round robin reaches `TARGET` of the ceiling, smart routing of prefill alone and of decode alone (the
other stage in turn) each gain at least `LEAST_GAIN` of goodput on round robin, with an interval above zero.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .comparison import BASELINE, Comparison, Line, compare
from .evaluation import Evaluation
from .runs import RESULTS_SCHEMA, write_atomically
from .saturation import TARGET
from .statistics import Estimate

PREFILL = "least-ttft(decode=round-robin)"
DECODE = "min-tpot(prefill=round-robin)"
BOTH = "least-ttft(decode=min-tpot)"

JUDGED = {BASELINE: "neither", PREFILL: "prefill", DECODE: "decode", BOTH: "both"}
"""The policies that are run, and the stages that each routes by what the router knows."""

LEAST_GAIN = 0.02
"""Goodput that each stage must gain alone: 2 points."""

SHARE_TOLERANCE = 0.01
"""How far from `TARGET` round robin may be: other seeds than those of the rate move it a little."""


@dataclass(frozen=True)
class MissShares:
    """Shares of the requests that missed a target; means over the seeds.

    Attributes:
        ttft: the TTFT target alone.
        tpot: the TPOT target alone.
        both: both, failed and rejected requests included.
    """

    ttft: float
    tpot: float
    both: float


@dataclass(frozen=True)
class Criterion:
    """One part of the rule.

    Attributes:
        holds: whether the scenario fulfils it.
        text: what was asked and what was found, as a sentence.
    """

    holds: bool
    text: str


@dataclass(frozen=True)
class ScenarioCheck:
    """What was found out about a scenario.

    Attributes:
        evaluation: the runs.
        comparison: the policies side by side.
        misses: by policy.
        criteria: the rule, part by part.
    """

    evaluation: Evaluation
    comparison: Comparison
    misses: dict[str, MissShares]
    criteria: tuple[Criterion, ...]

    @property
    def holds(self) -> bool:
        """Whether the scenario fulfils the whole rule."""
        return all(criterion.holds for criterion in self.criteria)


def policies(also: Sequence[str] = ()) -> list[str]:
    """The policies to run: those that are judged, and others to show beside them."""
    return [*JUDGED, *also]


def check_of(evaluation: Evaluation) -> ScenarioCheck:
    """Judges a scenario by the runs of at least the policies in `JUDGED`.

    Raises:
        ValueError: the cluster has no two stages to route.
    """
    check_stages(evaluation.setting.pools)
    comparison = compare(evaluation, BASELINE)
    lines = {line.label: line for line in comparison.lines}
    return ScenarioCheck(
        evaluation=evaluation,
        comparison=comparison,
        misses={label: _misses(evaluation, label) for label in evaluation.labels},
        criteria=judge(
            share=lines[BASELINE].goodput.mean / comparison.ceiling if comparison.ceiling > 0 else 0.0,
            prefill=_difference(lines[PREFILL]),
            decode=_difference(lines[DECODE]),
        ),
    )


def check_stages(pools: dict[str, int]) -> None:
    """Refuses a cluster whose stages cannot be routed apart.

    Args:
        pools: instances per role.

    Raises:
        ValueError: mixed instances.
    """
    if "mixed" in pools:
        raise ValueError(
            f"the cluster has {pools['mixed']} mixed instances; a check of both decisions needs prefill and decode "
            "instances"
        )


def judge(share: float, prefill: Estimate, decode: Estimate) -> tuple[Criterion, ...]:
    """The rule, part by part.

    Args:
        share: of the ceiling, that round robin reached.
        prefill: gain in goodput of smart prefill routing alone.
        decode: of smart decode routing alone.
    """
    return (
        Criterion(
            abs(share - TARGET) <= SHARE_TOLERANCE,
            f"round robin reaches {TARGET:g} ± {SHARE_TOLERANCE:g} of the ceiling: {share:.4f}",
        ),
        _gain("prefill", prefill),
        _gain("decode", decode),
    )


def write_table(check: ScenarioCheck, path: Path) -> Path:
    """Writes one row per policy as CSV; shares and gains as fractions of the requests.

    Raises:
        OSError: it cannot be written.
    """
    evaluation, comparison = check.evaluation, check.comparison
    setting, seeds = evaluation.setting, evaluation.seeds
    common = {
        "schema_version": RESULTS_SCHEMA,
        "workload": setting.traffic.name,
        "cluster": setting.cluster.name,
        "rate": setting.scenario.rate,
        "first_seed": seeds[0],
        "seeds": len(seeds),
        "duration_s": setting.duration_s,
        "warmup_s": setting.scenario.warmup_s,
        "ceiling": rounded(comparison.ceiling),
    }
    text = io.StringIO()
    writer = None
    for line in comparison.lines:
        gain, missed = line.difference, check.misses[line.label]
        row = common | {
            "policy": line.label,
            "smart": JUDGED.get(line.label, ""),
            "goodput": rounded(line.goodput.mean),
            "goodput_low": rounded(line.goodput.low),
            "goodput_high": rounded(line.goodput.high),
            "gain": rounded(gain.mean if gain else None),
            "gain_low": rounded(gain.low if gain else None),
            "gain_high": rounded(gain.high if gain else None),
            "missed_ttft": rounded(missed.ttft),
            "missed_tpot": rounded(missed.tpot),
            "missed_both": rounded(missed.both),
        }
        if writer is None:
            writer = csv.DictWriter(text, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    write_atomically(path, text.getvalue().encode())
    return path


def _gain(stage: str, gain: Estimate) -> Criterion:
    text = f"{stage} alone gains at least {100 * LEAST_GAIN:g} points, interval above 0: {100 * gain.mean:+.2f}"
    if gain.low is None or gain.high is None:
        return Criterion(False, text + " without an interval")
    holds = gain.mean >= LEAST_GAIN and gain.low > 0
    return Criterion(holds, text + f" ({100 * gain.low:+.2f} … {100 * gain.high:+.2f})")


def _difference(line: Line) -> Estimate:
    assert line.difference is not None  # Only the baseline has none.
    return line.difference


def _misses(evaluation: Evaluation, label: str) -> MissShares:
    summaries = [run.summary for run in evaluation.runs[label]]

    def share(name: str) -> float:
        return math.fsum(getattr(s.missed, name) / s.requests for s in summaries) / len(summaries)

    return MissShares(ttft=share("ttft"), tpot=share("tpot"), both=share("both"))


def rounded(value: float | None) -> float | str:
    """Seven digits after the point, so that rounding again gives what is printed; empty without a value."""
    return "" if value is None else round(value, 7)
