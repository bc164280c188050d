"""Tuning: a policy's parameters by CMA-ES on tuning seeds, chosen on validation seeds, resumable.

All restarts go on side by side. The candidates of a generation meet the same traces (common random numbers: traces
differ far more than candidates), and the next generation meets others, so that nobody is fitted to a few. The policy
as it was named runs along on all of them; the gain over it can be compared between generations, goodput cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..envs.setting import Setting
from .compilation import compile_all
from .evaluation import configuration, policy_card
from .executors.choice import executor_of
from .executors.executor import Executor
from .optimiser import Optimiser, library
from .runs import RESULTS_SCHEMA, ResultsFolder, fingerprint
from .trials import Job, Named, run_trials
from .tuning_log import Candidate, Generation, TuningLog, candidates
from .tuning_plan import Plan

OnEvaluations = Callable[[int, int], None]
"""Told after each generation: candidates evaluated, candidates in all."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Search:
    """A finished search.

    Attributes:
        plan: what was asked for.
        folder: where its log lies.
        tried: all candidates, restart by restart.
        means: of each restart, the (n,) means of its distributions, the last one last.
        default: the default's mean goodput over all traces.
        seeds: all tuning seeds that were used, in the order of their use.
    """

    plan: Plan
    folder: ResultsFolder
    tried: tuple[Candidate, ...]
    means: tuple[tuple[Floats, ...], ...]
    default: float
    seeds: tuple[int, ...]


def default_folder(plan: Plan) -> Path:
    """`results/tune-<policy>-<workload>-<cluster>-<key>`: another configuration gets another folder."""
    name = re.sub(r"[^\w.-]+", "-", f"tune-{plan.default.name}-{plan.setting.name}")[:100]
    return Path("results") / f"{name}-{fingerprint(tuning_configuration(plan))[:6]}"


def tuning_configuration(plan: Plan) -> dict[str, Any]:
    """All that decides a generation; JSON-able. How many there are, and the choice among them, come later."""
    card = policy_card(plan.policy)
    return configuration(Setting.of(plan.tuning_scenario)) | {
        "policy": card,
        "space": [[d.label, d.low, d.high, d.start, d.scale] for d in plan.space],
        "tuning_seeds": plan.traces,
        "first_seed": plan.first_seed,
        "restarts": plan.restarts,
        "population": plan.candidates,
        "seed": plan.seed,
        "optimiser": f"cma {library().__version__}",
    }


def search(
    plan: Plan,
    *,
    out: Path | None = None,
    workers: int | Executor | None = None,
    on_evaluations: OnEvaluations | None = None,
    say: Callable[[str], None] | None = None,
) -> Search:
    """Runs the restarts and stores every generation; what is stored is not run again.

    Args:
        plan: what to tune; its rate must be known.
        out: results folder; by default `default_folder(plan)`.
        workers: processes, None for one per core; or an executor, which is used and kept.
        on_evaluations: told after each generation.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: a bad plan, a request that does not fit, or a folder of another configuration.
        OSError: the folder cannot be written.
    """
    plan.check()
    Setting.of(plan.tuning_scenario).prepare(plan.first_seed)  # Bad input shows here, before a folder exists.
    folder = ResultsFolder.open(out or default_folder(plan), tuning_configuration(plan))
    log = TuningLog(folder)
    optimisers = [Optimiser(plan.start(), plan.candidates, (plan.seed, restart)) for restart in range(plan.restarts)]
    total = plan.restarts * plan.generations * plan.candidates
    done: list[Generation] = []
    compiled = False
    if on_evaluations:
        on_evaluations(0, total)
    with executor_of(workers) as pool:
        for number in range(plan.generations):
            asked = [optimiser.ask() for optimiser in optimisers]
            generation = log.read(number)
            if generation is None:
                if not compiled:
                    compile_all(say or (lambda _: None), interactive=not hasattr(plan.default, "run_compiled"))
                    compiled = True
                generation = _run(plan, number, asked, folder.key, pool)
                log.write(generation)
            elif not (
                np.shape(generation.places) == np.shape(asked)
                and np.allclose(generation.places, asked, rtol=0, atol=1e-9)
            ):
                raise ValueError(
                    f"{folder.path} holds other candidates in generation {number + 1} than the optimiser asks for; "
                    "name another folder"
                )
            for optimiser, values in zip(optimisers, generation.goodput, strict=True):
                optimiser.tell(np.mean(values, axis=1))
            done.append(generation)
            if on_evaluations:
                on_evaluations((number + 1) * plan.restarts * plan.candidates, total)
    tried = tuple(candidates(done))
    log.write_table(tried, [_by_dimension(plan, candidate.places) for candidate in tried])
    return Search(
        plan=plan,
        folder=folder,
        tried=tried,
        means=tuple(tuple(optimiser.means) for optimiser in optimisers),
        default=float(np.mean([generation.default for generation in done])),
        seeds=tuple(seed for generation in done for seed in generation.seeds),
    )


def _run(plan: Plan, number: int, asked: Sequence[Floats], key: str, pool: Executor) -> Generation:
    """Evaluates a generation of all restarts, and the default with it."""
    seeds = plan.seeds(number)
    params = [plan.default.params, *(plan.params(places) for points in asked for places in points)]
    values = run_trials([Job(plan.tuning_scenario, seeds, Named(plan.default.name, params))], pool)[0][:, :, 0]
    shape = (plan.restarts, plan.candidates, len(seeds))
    return Generation.model_validate(
        {
            "schema_version": RESULTS_SCHEMA,
            "experiment": key,
            "number": number,
            "seeds": seeds,
            "default": values[0].tolist(),
            "places": np.array(asked).tolist(),
            "goodput": values[1:].reshape(shape).tolist(),
        }
    )


def _by_dimension(plan: Plan, places: Sequence[float]) -> dict[str, float]:
    return {d.label: d.value(place) for d, place in zip(plan.space, places, strict=True)}
