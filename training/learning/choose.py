"""The choice after training: the candidates of all training seeds and the baselines, compared on validation seeds."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...policies import registry
from ...policies.policy_file import PolicyFile
from ...policies.policy_text import PolicyText
from ..comparison import Comparison, compare, mean_over_runs
from ..evaluation import Evaluation, OnRun, evaluate
from ..runs import RESULTS_SCHEMA, ResultsFolder, write_atomically
from ..statistics import Estimate
from ..summary import Summary
from ..workers import Workers
from .config import TrainingConfig


@dataclass(frozen=True)
class Entrant:
    """A policy that is validated.

    Attributes:
        label: for tables.
        text: names the policy.
        seed: training seed; None: a baseline.
        found: where training found it; empty: a baseline.
    """

    label: str
    text: str
    seed: int | None = None
    found: str = ""

    @staticmethod
    def of(seed: int, found: str, policy: str, file: Path) -> Entrant:
        """A candidate of a training seed, in its policy file."""
        return Entrant(f"seed {seed}, {found}", str(PolicyText(policy, str(file))), seed, found)


@dataclass(frozen=True)
class Tested:
    """One scenario's validation.

    Attributes:
        name: of the scenario.
        weight: of it.
        evaluation: the runs.
        comparison: with the first baseline.
    """

    name: str
    weight: float
    evaluation: Evaluation
    comparison: Comparison

    def goodput(self, entrant: Entrant) -> Estimate:
        """Mean over the traces."""
        return self.comparison.lines[self.evaluation.labels.index(entrant.text)].goodput

    def difference(self, entrant: Entrant) -> Estimate | None:
        """To the first baseline, paired by trace; None for that itself."""
        return self.comparison.lines[self.evaluation.labels.index(entrant.text)].difference

    def groups(self, entrant: Entrant) -> dict[str, float]:
        """Difference of each class's and family's goodput to the first baseline's; those without requests left out."""
        own, first = self._groups(entrant.text), self._groups(self.evaluation.labels[0])
        return {name: own[name] - first[name] for name in own if not math.isnan(own[name] - first[name])}

    def tail(self, entrant: Entrant, number: Callable[[Summary], float]) -> float:
        """Ratio of a number (mean over the traces that have it) to the first baseline's."""
        own, first = (
            mean_over_runs([run.summary for run in self.evaluation.runs[text]], number)
            for text in (entrant.text, self.evaluation.labels[0])
        )
        return own / first if first else math.nan

    def _groups(self, text: str) -> dict[str, float]:
        summaries = [run.summary for run in self.evaluation.runs[text]]
        found = {}
        for kind in ("by_class", "by_family"):
            for name in getattr(summaries[0], kind):
                found[name] = mean_over_runs(summaries, _goodput_of(kind, name))
        return found


@dataclass(frozen=True)
class Choice:
    """What validation said.

    Attributes:
        config: what was trained.
        command: the command that does it all again.
        seeds: training seeds.
        baselines: the first one is compared with.
        candidates: seed by seed, in the order of training.
        tested: scenario by scenario.
        chosen: the best candidate.
        file: its policy file.
    """

    config: TrainingConfig
    command: str
    seeds: tuple[int, ...]
    baselines: tuple[Entrant, ...]
    candidates: tuple[Entrant, ...]
    tested: tuple[Tested, ...]
    chosen: Entrant
    file: Path

    def score(self, entrant: Entrant) -> float:
        """Mean goodput over the scenarios, by their weights."""
        return _score(self.tested, entrant)

    @property
    def best_of_seeds(self) -> tuple[Entrant, ...]:
        """The best candidate of each training seed."""
        return tuple(
            max((entrant for entrant in self.candidates if entrant.seed == seed), key=self.score)
            for seed in dict.fromkeys(entrant.seed for entrant in self.candidates)
        )


def choose(
    config: TrainingConfig,
    folder: ResultsFolder,
    candidates: Sequence[Entrant],
    seeds: Sequence[int],
    *,
    command: str = "",
    workers: int | Workers | None = None,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> Choice:
    """Evaluates baselines and candidates on the validation seeds of every scenario and stores the best candidate.

    The largest mean goodput, over the scenarios by their weights, wins; the earlier one on a tie. Writes
    `trained.yaml`, `card.md` and `validation.csv`; runs are stored in `validation/` and not repeated.

    Args:
        config: what was trained.
        folder: of all its training seeds.
        candidates: at least one.
        seeds: training seeds.
        command: the command that does it all again.
        workers: processes, None for one per core; or workers that are to be used and kept.
        on_run: told after each run, of all scenarios together.
        say: told what takes its time beside the runs.

    Raises:
        OSError: the folder cannot be written.
    """
    from .card import card

    # One policy may have several names: it runs once, under the first one.
    baselines = tuple(Entrant(text, text) for text in config.validation.baselines)
    known: dict[str, str] = {}
    for entrant in (*baselines, *candidates):
        policy = registry.parse(entrant.text)
        known.setdefault(f"{policy.name} {policy.hash}", entrant.text)
    entrants = []
    for entrant in candidates:
        policy = registry.parse(entrant.text)
        text = known[f"{policy.name} {policy.hash}"]
        entrants.append(Entrant(entrant.label, text, entrant.seed, entrant.found))
    labels, validation, tested = list(known.values()), config.validation, []
    runs = len(labels) * validation.seeds
    with Workers.of(workers) as pool:
        for k, scenario in enumerate(config.tested):
            plain = scenario.plain
            evaluation = evaluate(
                plain.make(**(plain.model_dump() | {"duration_s": validation.duration_s})),
                labels,
                validation.traces,
                out=folder.path / "validation" / re.sub(r"[^\w.-]+", "-", scenario.label),
                records="none",
                workers=pool,
                on_run=_counted(on_run, k * runs, len(config.tested) * runs),
                say=say,
            )
            tested.append(Tested(scenario.label, scenario.weight, evaluation, compare(evaluation, labels[0])))
    scores = [_score(tested, entrant) for entrant in entrants]
    chosen = entrants[scores.index(max(scores))]
    file = folder.path / "trained.yaml"
    choice = Choice(
        config, command, tuple(seeds), baselines, tuple(entrants), tuple(tested), chosen, file
    )
    policy = registry.parse(chosen.text)
    write_atomically(file, PolicyFile.of(policy, _provenance(choice)).yaml().encode())
    write_atomically(folder.path / "card.md", card(choice).encode())
    write_atomically(folder.path / "validation.csv", _table(choice).encode())
    return choice


def _goodput_of(kind: str, name: str) -> Callable[[Summary], float]:
    return lambda summary: float(getattr(summary, kind)[name].goodput)


def _counted(on_run: OnRun | None, before: int, total: int) -> OnRun | None:
    if on_run is None:
        return None
    return lambda done, _: on_run(before + done, total)


def _score(tested: Sequence[Tested], entrant: Entrant) -> float:
    weights = math.fsum(each.weight for each in tested)
    return math.fsum(each.weight * each.goodput(entrant).mean for each in tested) / weights


def _provenance(choice: Choice) -> dict[str, object]:
    config, validation = choice.config, choice.config.validation
    return {
        "command": choice.command,
        "version": __version__,
        "training": config.model_dump(mode="json", exclude={"validation", "training_seed"}, exclude_defaults=True),
        "training_seeds": list(choice.seeds),
        "chosen": choice.chosen.label,
        "validation": {
            "seeds": f"{validation.traces[0]} to {validation.traces[-1]}",
            "duration_s": validation.duration_s,
            "candidates": len(choice.candidates),
            "baseline": choice.baselines[0].text,
            "scenarios": {
                each.name: {
                    "goodput": _rounded(each.goodput(choice.chosen).mean),
                    "baseline_goodput": _rounded(each.goodput(choice.baselines[0]).mean),
                    "difference": _interval(each.difference(choice.chosen)),
                    "ceiling": _rounded(each.comparison.ceiling),
                }
                for each in choice.tested
            },
        },
    }


def _table(choice: Choice) -> str:
    """One row per scenario and policy, chosen or not."""
    text = io.StringIO()
    columns = ["schema_version", "scenario", "policy", "training_seed", "found", "chosen", "goodput", "low", "high"]
    columns += ["difference", "difference_low", "difference_high", "ceiling", "ttft_p999_ratio", "slowdown_p999_ratio"]
    columns += ["worst_group", "worst_group_difference"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for each in choice.tested:
        for entrant in (*choice.baselines, *choice.candidates):
            goodput, difference, groups = each.goodput(entrant), each.difference(entrant), each.groups(entrant)
            worst = min(groups, key=lambda name: groups[name])
            row = [RESULTS_SCHEMA, each.name, entrant.label, "" if entrant.seed is None else entrant.seed]
            row += [entrant.found, int(entrant is choice.chosen), goodput.mean, goodput.low, goodput.high]
            row += [difference.mean, difference.low, difference.high] if difference else ["", "", ""]
            row += [each.comparison.ceiling, each.tail(entrant, lambda s: s.ttft.p999)]
            row += [each.tail(entrant, lambda s: s.slowdown.p999), worst, groups[worst]]
            writer.writerow(row)
    return text.getvalue()


def _interval(difference: Estimate | None) -> dict[str, float | None] | None:
    if difference is None:
        return None
    return {name: _rounded(getattr(difference, name)) for name in ("mean", "low", "high")}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
