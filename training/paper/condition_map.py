"""The map: where each finding holds, one axis varied at a time from the default condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from ...envs import catalog
from ..evaluation import OnRun
from ..executors.choice import executor_of
from ..executors.executor import Executor
from ..matrix.rates import RATES, Rates
from ..runs import ResultsFolder
from ..seeds import SATURATION, refuse_held_out, seeds_from
from .changes import changed_condition, changed_policy
from .config import Condition, ExperimentConfig, Finding
from .findings import Compared, compare
from .plan import Part, Plan, Wanted, part_of, rate_of
from .points import DEFAULT, Axis, MapConfig, Point
from .runs import Measured, evaluated

State = Literal["holds", "fails", "open", "missing"]

Named = TypeVar("Named", Finding, Axis)


@dataclass(frozen=True)
class Cell:
    """A finding at a point.

    Attributes:
        compared: its comparisons; empty where it cannot be looked at.
        missing: why it cannot.
    """

    compared: tuple[Compared, ...]
    missing: str = ""

    @property
    def state(self) -> State:
        """Holds: all intervals lie inside what the claim says; fails: one lies outside; open: neither."""
        if not self.compared:
            return "missing"
        if all(each.effect.assured for each in self.compared):
            return "holds"
        return "fails" if any(each.effect.excluded for each in self.compared) else "open"

    @property
    def weakest(self) -> Compared:
        """The comparison that bears the claim least."""
        return min(self.compared, key=lambda each: each.effect.room)


@dataclass(frozen=True)
class MapPlan:
    """A map that can be run.

    Attributes:
        config: as written.
        experiment: whose findings are looked at.
        findings: those that are.
        axes: those that are varied.
        points: the default and those of the axes, with what is run at each.
        missing: why a condition is left out at a point, by point and condition.
    """

    config: MapConfig
    experiment: ExperimentConfig
    findings: tuple[Finding, ...]
    axes: tuple[Axis, ...]
    points: tuple[tuple[Point, Plan], ...]
    missing: Mapping[tuple[str, str], str]

    @property
    def seeds(self) -> range:
        """One trace each."""
        return self.points[0][1].seeds

    @property
    def runs(self) -> int:
        """Runs in all."""
        return sum(plan.runs for _, plan in self.points)


@dataclass(frozen=True)
class ConditionMap:
    """A map that has run.

    Attributes:
        plan: what was run.
        cells: by the names of finding and point.
        measured: the runs of each point, by its name.
        command: the command line that makes it again.
    """

    plan: MapPlan
    cells: Mapping[tuple[str, str], Cell]
    measured: Mapping[str, Measured]
    command: str


@dataclass(frozen=True)
class Choice:
    """What of a map is run.

    Attributes:
        findings: that are looked at.
        axes: that are varied.
        seeds: one trace each.
        rate_seeds: those of a search for a rate.
        duration_s: longest window; None: those of the experiment.
    """

    findings: tuple[Finding, ...]
    axes: tuple[Axis, ...]
    seeds: range
    rate_seeds: range
    duration_s: float | None


def chosen(
    config: MapConfig, experiment: ExperimentConfig, wanted: Wanted, axes: Sequence[str] | None = None
) -> Choice:
    """What of a map is run, by its file and what is asked for in its place.

    Args:
        config: the file.
        experiment: whose findings are looked at.
        wanted: what is asked for in place of the file.
        axes: names of those to be varied; None: all.

    Raises:
        ValueError: a name that stands for nothing, or seeds that may not be used.
    """
    quick = config.quick if wanted.quick else None
    seeds = seeds_from(
        config.first_seed if wanted.first_seed is None else wanted.first_seed,
        wanted.seeds if wanted.seeds is not None else quick.seeds if quick else config.seeds,
    )
    refuse_held_out(seeds, "a map of conditions")
    duration = quick.duration_s if quick else config.duration_s
    return Choice(
        findings=_chosen("finding", experiment.findings, wanted.findings or config.findings or None, config.name),
        axes=_chosen("axis", config.axes, axes, config.name),
        seeds=seeds,
        rate_seeds=SATURATION.take(quick.seeds if quick else config.rate_seeds),
        duration_s=duration if wanted.duration_s is None else wanted.duration_s,
    )


def map_plan_of(
    config: MapConfig, experiment: ExperimentConfig, conditions: Mapping[str, Condition], choice: Choice, *, out: Path
) -> MapPlan:
    """Looks up everything that a map names, and writes the files of its points.

    Args:
        config: the file.
        experiment: whose findings are looked at.
        conditions: of the experiment, by name.
        choice: what of it is run.
        out: the map's folder.

    Raises:
        ValueError: a name that stands for nothing, or a point at which no condition can be run; names the point.
        OSError: a file cannot be written.
    """
    longest = choice.duration_s
    if longest is not None:
        conditions = {
            name: each.model_copy(update={"duration_s": min(longest, each.duration_s or longest)})
            for name, each in conditions.items()
        }
    points: list[tuple[Point, Plan]] = []
    missing: dict[tuple[str, str], str] = {}
    for point in (DEFAULT, *(point for axis in choice.axes for point in axis.points)):
        known, parts, reasons = _parts(point, choice.findings, conditions, choice.seeds, out)
        missing |= {(point.name, name): reason for name, reason in reasons.items()}
        plan = Plan(experiment, choice.findings, (), parts, known, choice.seeds, choice.rate_seeds)
        points.append((point, plan))
    return MapPlan(config, experiment, choice.findings, choice.axes, tuple(points), missing)


def _parts(
    point: Point, findings: Sequence[Finding], conditions: Mapping[str, Condition], seeds: range, out: Path
) -> tuple[dict[str, Condition], tuple[Part, ...], dict[str, str]]:
    """The conditions at a point, those that are run, and why others are not."""
    arms = [arm for finding in findings for arm in finding.arms()]
    needed = {arm.condition for arm in arms}
    needed |= {conditions[name].rate_of for name in needed}
    known, parts, reasons = {}, [], {}
    for name, condition in conditions.items():
        if name not in needed:
            continue
        texts = list(dict.fromkeys(arm.policy for arm in arms if arm.condition == name))
        try:
            known[name] = changed_condition(condition, point, out)
            if texts:
                parts.append(part_of(known[name], {text: changed_policy(text, point) for text in texts}, seeds))
        except ValueError as error:
            if texts:
                reasons[name] = str(error)
    if not parts:
        raise ValueError(f"point {point.name}: {next(iter(reasons.values()))}")
    return known, tuple(parts), reasons


def run_map(
    plan: MapPlan,
    *,
    out: Path,
    command: str = "",
    workers: int | Executor | None = None,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> ConditionMap:
    """Runs every point and looks at the findings there. Runs that the folders already hold are not repeated.

    Args:
        plan: what to run.
        out: the map's folder.
        command: the command line that makes it again, to be shown.
        workers: processes, None for one per core; or an executor, which is used and kept.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: what `evaluate` says; names the point.
        OSError: the folder cannot be written.
    """
    tell = say or (lambda _: None)
    rates, missing = Rates(out / RATES), dict(plan.missing)
    cells: dict[tuple[str, str], Cell] = {}
    measured: dict[str, Measured] = {}
    done = 0
    with executor_of(workers) as pool:
        for point, each in plan.points:

            def said(text: str, at: str = point.name) -> None:
                tell(f"{at}: {text}")

            parts = []
            for part in each.parts:
                try:
                    rate = rate_of(part.condition, each, rates, pool, said)
                    parts.append(replace(part, scenario=part.scenario.at_rate(rate)))
                except (ValueError, KeyError) as error:  # A target that no rate reaches, or the rate of one left out.
                    missing[point.name, part.name] = str(error)
                    tell(f"{point.name}: {part.name} is left out: {error}")
            try:
                found = evaluated(
                    tuple(parts),
                    each.seeds,
                    out=out,
                    pool=pool,
                    before=done,
                    total=plan.runs,
                    on_run=on_run,
                    say=tell,
                )
            except ValueError as error:
                raise ValueError(f"point {point.name}: {error}") from error
            measured[point.name], done = found, done + each.runs
            for finding in plan.findings:
                cells[finding.name, point.name] = _cell(finding, point, found, missing)
    return ConditionMap(plan, cells, measured, command)


def open_folder(config: MapConfig, out: Path) -> None:
    """Opens the folder of a map, and creates it if need be.

    Raises:
        ValueError: the folder of another experiment, or of something else.
        OSError: it cannot be read or written.
    """
    ResultsFolder.open(out, {"experiment": config.name}, {"name": config.name, "notes": config.notes})


def _cell(finding: Finding, point: Point, measured: Measured, missing: Mapping[tuple[str, str], str]) -> Cell:
    for arm in finding.arms():
        if (arm.condition, arm.policy) not in measured.summaries:
            return Cell((), missing.get((point.name, arm.condition), f"{arm.condition} was not run"))
    return Cell(compare(finding, measured))


def _chosen(what: str, known: Sequence[Named], names: Sequence[str] | None, where: str) -> tuple[Named, ...]:
    by_name = {each.name: each for each in known}
    for name in names or ():
        if name not in by_name:
            raise ValueError(f"{where}: {catalog.unknown(what, name, by_name)}")
    return tuple(each for each in known if names is None or each.name in names)
