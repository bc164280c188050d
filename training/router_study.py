"""What it costs policies that several routers share the requests, each with a ledger of its own."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..envs.scenario import Scenario
from ..envs.setting import Setting
from .description import describe
from .evaluation import OnRun, default_folder, evaluate
from .executors.choice import executor_of
from .executors.executor import Executor
from .runs import RESULTS_SCHEMA, write_atomically
from .scenario_check import rounded
from .statistics import Estimate, mean_over_seeds, paired_difference

COUNTS = (1, 2, 4, 8)
"""Numbers of routers that are tried unless told otherwise."""


@dataclass(frozen=True)
class RouterStudy:
    """Goodput of policies behind different numbers of routers, on the same traces.

    Attributes:
        setting: behind the fewest routers.
        labels: policies, in the order asked for.
        counts: numbers of routers, rising.
        seeds: one trace each.
        goodput: by policy and number of routers.
        change: the same, minus the goodput behind the fewest routers, paired by seed.
    """

    setting: Setting
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    seeds: range
    goodput: dict[str, dict[int, Estimate]]
    change: dict[str, dict[int, Estimate]]

    @property
    def has_intervals(self) -> bool:
        """Whether there are traces enough for intervals."""
        return all(estimate.low is not None for each in self.goodput.values() for estimate in each.values())

    @property
    def title(self) -> str:
        """What was run, in one line."""
        return describe(self.setting).title(self.seeds)

    @property
    def dealing(self) -> str:
        """How requests were dealt to the routers."""
        return self.setting.cluster.dealing


def read_counts(text: str) -> tuple[int, ...]:
    """Numbers of routers from a text such as `1,2,4,8`, rising.

    Raises:
        ValueError: one is no whole number, or stands twice.
    """
    counts = []
    for part in text.split(","):
        if not part.strip().removeprefix("-").isdecimal():
            raise ValueError(f"counts is {text!r}; it must be whole numbers of routers, such as 1,2,4,8")
        counts.append(int(part))
    if len(set(counts)) < len(counts):
        raise ValueError(f"counts is {text!r}; each number of routers must stand once")
    return tuple(sorted(counts))


def with_routers(scenario: Scenario, counts: Sequence[int]) -> dict[int, Scenario]:
    """The scenario behind each number of routers.

    Raises:
        ValueError: a number is not allowed.
    """
    return {count: scenario.make(**(scenario.model_dump() | {"routers": count})) for count in counts}


def folder_of(scenarios: dict[int, Scenario]) -> Path:
    """`results/routers-<workload>-<cluster>-<key>`, for a study without a folder of its own."""
    first = default_folder(Setting.of(next(iter(scenarios.values()))))
    return first.with_name(f"routers-{first.name}")


def study(
    scenarios: dict[int, Scenario],
    policies: Sequence[str],
    seeds: range,
    *,
    out: Path,
    workers: int | Executor | None = None,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> RouterStudy:
    """Evaluates policies behind each number of routers, in the folders `<out>/<count>-routers`.

    Runs that the folders already hold are not repeated.

    Args:
        scenarios: at a known rate, by the number of routers, rising.
        policies: as `evaluate` takes them.
        seeds: one trace each.
        out: results folder.
        workers: processes, None for one per core; or an executor, which is used and kept.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: as `evaluate` says.
        OSError: the folder cannot be written.
    """
    found = {}
    with executor_of(workers) as pool:
        for place, (count, scenario) in enumerate(scenarios.items()):

            def tell(done: int, total: int, before: int = place) -> None:
                if on_run:
                    on_run(before * total + done, len(scenarios) * total)

            found[count] = evaluate(
                scenario,
                policies,
                seeds,
                out=out / f"{count}-routers",
                records="none",
                workers=pool,
                on_run=tell,
                say=say,
            )
    first = found[next(iter(scenarios))]
    values = {
        label: {count: [run.summary.goodput for run in each.runs[label]] for count, each in found.items()}
        for label in first.labels
    }
    return RouterStudy(
        setting=first.setting,
        labels=first.labels,
        counts=tuple(found),
        seeds=seeds,
        goodput={label: {k: mean_over_seeds(v) for k, v in by.items()} for label, by in values.items()},
        change={
            label: {k: paired_difference(v, by[next(iter(by))]) for k, v in by.items()} for label, by in values.items()
        },
    )


def write_study(found: RouterStudy, path: Path) -> Path:
    """Writes one row per policy and number of routers as CSV; goodput and its change as fractions of the requests.

    Raises:
        OSError: it cannot be written.
    """
    setting = found.setting
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scenario = {
        "schema_version": RESULTS_SCHEMA,
        "workload": setting.traffic.name,
        "cluster": setting.cluster.name,
        "rate": setting.scenario.rate,
        "dealing": found.dealing,
        "first_seed": found.seeds[0],
        "seeds": len(found.seeds),
        "duration_s": setting.duration_s,
        "warmup_s": setting.scenario.warmup_s,
    }
    ends = ("mean", "low", "high")
    goodput = ["goodput", "goodput_low", "goodput_high"]
    writer.writerow([*scenario, "policy", "routers", *goodput, "change", "change_low", "change_high"])
    for label in found.labels:
        for count in found.counts:
            estimates = found.goodput[label][count], found.change[label][count]
            numbers = [rounded(getattr(estimate, end)) for estimate in estimates for end in ends]
            writer.writerow([*scenario.values(), label, count, *numbers])
    write_atomically(path, text.getvalue().encode())
    return path
