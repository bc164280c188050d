"""The choice after training: the candidates of all training seeds and the baselines, compared on validation seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...policies import registry
from ...policies.policy_file import PolicyFile
from ...policies.policy_text import PolicyText
from ..comparison import Comparison, compare, mean_over_runs
from ..evaluation import Evaluation, OnRun, evaluate
from ..executors.choice import executor_of
from ..executors.executor import Executor
from ..runs import RESULTS_SCHEMA, ResultsFolder, write_atomically
from ..statistics import Estimate
from ..summary import Summary
from .config import TrainingConfig, TrainingScenario


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
        baseline: what the others are compared with here.
        evaluation: the runs.
        comparison: of all of them.
        texts: under which a policy ran, by the text that names it: equal policies run once.
    """

    name: str
    weight: float
    baseline: Entrant
    evaluation: Evaluation
    comparison: Comparison
    texts: dict[str, str]

    def ran(self, entrant: Entrant) -> bool:
        """Whether a baseline of another scenario took part here too; candidates always do."""
        return entrant.text in self.texts

    def goodput(self, entrant: Entrant) -> Estimate:
        """Mean over the traces."""
        return self.comparison.lines[self._place(entrant)].goodput

    def difference(self, entrant: Entrant) -> Estimate | None:
        """To the baseline, paired by trace; None for that itself."""
        return self.comparison.lines[self._place(entrant)].difference

    def groups(self, entrant: Entrant) -> dict[str, float]:
        """Difference of each class's and family's goodput to the baseline's; those without requests left out."""
        own, first = self._groups(entrant), self._groups(self.baseline)
        return {name: own[name] - first[name] for name in own if not math.isnan(own[name] - first[name])}

    def tail(self, entrant: Entrant, number: Callable[[Summary], float]) -> float:
        """Ratio of a number (mean over the traces that have it) to the baseline's."""
        own, first = (mean_over_runs(self._summaries(each), number) for each in (entrant, self.baseline))
        return own / first if first else math.nan

    def _place(self, entrant: Entrant) -> int:
        return self.evaluation.labels.index(self.texts[entrant.text])

    def _summaries(self, entrant: Entrant) -> list[Summary]:
        return [run.summary for run in self.evaluation.runs[self.texts[entrant.text]]]

    def _groups(self, entrant: Entrant) -> dict[str, float]:
        summaries = self._summaries(entrant)
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
        baselines: of all scenarios.
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
        """Mean goodput of a candidate over the scenarios, by their weights."""
        return _score(self.tested, entrant)

    @property
    def best_of_seeds(self) -> tuple[Entrant, ...]:
        """The best candidate of each training seed."""
        return tuple(
            max((entrant for entrant in self.candidates if entrant.seed == seed), key=self.score)
            for seed in self.seeds
        )


def choose(
    config: TrainingConfig,
    folder: ResultsFolder,
    candidates: Sequence[Entrant],
    seeds: Sequence[int],
    *,
    command: str = "",
    workers: int | Executor | None = None,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> Choice:
    """Evaluates baselines and candidates on the validation seeds of every scenario and stores the best candidate.

    The largest mean goodput, over the scenarios by their weights, wins; the earlier one on a tie. Writes
    `trained.yaml`, `card.md` and `validation.csv`; runs are stored in `validation/` and not repeated.

    Args:
        config: what was trained.
        folder: of all its training seeds.
        candidates: at least one of each training seed.
        seeds: training seeds.
        command: the command that does it all again.
        workers: processes, None for one per core; or an executor, which is used and kept.
        on_run: told after each run, of all scenarios together.
        say: told what takes its time beside the runs.

    Raises:
        OSError: the folder cannot be written.
    """
    from .card import card

    entered = [
        (scenario, _by_policy([*config.baselines(scenario), *(each.text for each in candidates)]))
        for scenario in config.tested
    ]
    total = sum(len(set(texts.values())) for _, texts in entered) * config.validation.seeds
    tested: list[Tested] = []
    done = 0
    with executor_of(workers) as pool:
        for scenario, texts in entered:
            tested.append(_test(config, scenario, texts, folder, pool, _counted(on_run, done, total), say))
            done += len(set(texts.values())) * config.validation.seeds
    baselines = dict.fromkeys(text for scenario in config.tested for text in config.baselines(scenario))
    scores = [_score(tested, entrant) for entrant in candidates]
    choice = Choice(
        config=config,
        command=command,
        seeds=tuple(seeds),
        baselines=tuple(Entrant(text, text) for text in baselines),
        candidates=tuple(candidates),
        tested=tuple(tested),
        chosen=candidates[scores.index(max(scores))],
        file=folder.path / "trained.yaml",
    )
    policy = registry.parse(choice.chosen.text)
    write_atomically(choice.file, PolicyFile.of(policy, _provenance(choice)).yaml().encode())
    write_atomically(folder.path / "card.md", card(choice).encode())
    write_atomically(folder.path / "validation.csv", _table(choice).encode())
    return choice


def _by_policy(texts: Sequence[str]) -> dict[str, str]:
    """For each text the first one that names the same policy: it runs once."""
    first: dict[tuple[str, str], str] = {}
    found = {}
    for text in texts:
        policy = registry.parse(text)
        found[text] = first.setdefault((policy.name, policy.hash), text)
    return found


def _test(
    config: TrainingConfig,
    scenario: TrainingScenario,
    texts: dict[str, str],
    folder: ResultsFolder,
    pool: Executor,
    on_run: OnRun | None,
    say: Callable[[str], None] | None,
) -> Tested:
    plain = scenario.plain
    evaluation = evaluate(
        plain.make(**(plain.model_dump() | {"duration_s": config.validation.duration_s})),
        list(dict.fromkeys(texts.values())),
        config.validation.traces,
        out=folder.path / "validation" / scenario.folder,
        records="none",
        workers=pool,
        on_run=on_run,
        say=say,
    )
    baseline = config.baselines(scenario)[0]
    return Tested(
        name=scenario.label,
        weight=scenario.weight,
        baseline=Entrant(baseline, baseline),
        evaluation=evaluation,
        comparison=compare(evaluation, baseline),
        texts=texts,
    )


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
        "training": config.model_dump(mode="json", exclude={"validation", "training_seed"}),
        "training_seeds": list(choice.seeds),
        "chosen": choice.chosen.label,
        "validation": {
            "seeds": f"{validation.traces[0]} to {validation.traces[-1]}",
            "duration_s": validation.duration_s,
            "candidates": len(choice.candidates),
            "scenarios": {
                each.name: {
                    "goodput": _rounded(each.goodput(choice.chosen).mean),
                    "baseline": each.baseline.text,
                    "baseline_goodput": _rounded(each.goodput(each.baseline).mean),
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
    columns = ["schema_version", "scenario", "baseline", "policy", "training_seed", "found", "chosen"]
    columns += ["goodput", "goodput_low", "goodput_high", "difference", "difference_low", "difference_high", "ceiling"]
    columns += ["ttft_p999_ratio", "slowdown_p999_ratio", "worst_group", "worst_group_difference"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for each in choice.tested:
        for entrant in filter(each.ran, (*choice.baselines, *choice.candidates)):
            goodput, difference, groups = each.goodput(entrant), each.difference(entrant), each.groups(entrant)
            worst = min(groups, key=lambda name: groups[name])
            row = [RESULTS_SCHEMA, each.name, each.baseline.text, entrant.label]
            row += ["" if entrant.seed is None else entrant.seed, entrant.found, int(entrant is choice.chosen)]
            row += [goodput.mean, goodput.low, goodput.high]
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
