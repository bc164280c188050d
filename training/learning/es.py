"""Evolution strategies for `linear` and `network`: candidates are whole policies, judged on whole episodes.

All candidates of a generation meet the same traces (common random numbers: traces differ far more than candidates),
and the next generation meets others, so that nobody is fitted to a few. A candidate's value is its rank: ranked in each
scenario by mean score over its traces, ranks averaged by the scenarios' weights, so that no scenario dominates and
outliers count no more than others. The score is goodput, less what `guards` takes off. The present mean and the first
baseline of the validation run along: the learning curve shows gains over the baseline on the same traces, which can be
compared between generations.

What is kept: the means at some checkpoints, and the best samples after all of these have met fresh traces; validation
chooses among them, so never the luckiest sample.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from ...envs.setting import Setting
from ..executors.executor import Executor
from ..trials import Job, run_trials
from .config import TrainingConfig
from .fitness import Guards, measure_of, score
from .run import Candidate, TrainingRun
from .strategies import MOST_FULL, GradientParameters, Mode, Strategy, begin, centred_ranks, usual_candidates
from .vectors import Space, Vectors, space_of

Floats = npt.NDArray[np.float64]

UNIT = "generations"


class Parameters(BaseModel):
    """Hyper-parameters.

    Attributes:
        mode: cma (full covariance matrix, up to some 150 weights), separable (its diagonal), or gradient (antithetic
            pairs and Adam, for thousands of weights).
        population: candidates in a generation; none: by mode and number of weights. Even for gradient.
        step: first standard deviation, in the units of `Space.scale` (1: weights of order 1); gradient keeps it.
        traces: of each scenario in a generation.
        terms: of `linear`: searched (those of `disaggroute tune`) or all.
        columns: of a network, by stage: only their weights in the linear part are searched, products with features of
            the request included; none: all weights.
        hidden_scale: first weights of a network's hidden units, in 1/√(inputs).
        gradient: steps of the mean in that mode.
        guards: what goodput does not say.
        means: means of checkpoints that may be chosen, the last one included.
        samples: best samples that may be chosen beside them.
        check_traces: fresh traces of each scenario that these meet before.
        finalists: of all these, how many go to validation beside the last mean.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mode: Mode = "cma"
    population: int | None = Field(None, ge=4, le=100_000)
    step: float = Field(0.3, gt=0, le=1_000)
    traces: int = Field(8, ge=1, le=10_000)
    terms: Literal["searched", "all"] = "searched"
    columns: dict[str, tuple[str, ...]] | None = None
    hidden_scale: float = Field(1.0, ge=0, le=1_000)
    gradient: GradientParameters = GradientParameters()
    guards: Guards = Guards()
    means: int = Field(6, ge=1, le=1_000)
    samples: int = Field(6, ge=0, le=1_000)
    check_traces: int = Field(32, ge=1, le=10_000)
    finalists: int = Field(4, ge=0, le=1_000)


class Config(TrainingConfig):
    """Configuration of an evolution strategy; the budget counts generations."""

    method: Literal["es"]
    parameters: Parameters = Parameters()

    def check(self) -> None:
        """Looks up all names.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        super().check()
        p = self.parameters
        if self.device != "cpu":
            raise ValueError(f"{self.name}: device is {self.device!r}; es runs episodes on CPUs alone, so use cpu")
        if p.mode == "gradient" and (p.population or 0) % 2:
            raise ValueError(
                f"{self.name}: parameters.population is {p.population}; gradient takes pairs, so it must be even"
            )
        span = self.seeds.last - self.seeds.first + 1
        for name in ("traces", "check_traces"):
            wanted = getattr(p, name)
            if wanted > span:
                raise ValueError(f"{self.name}: parameters.{name} is {wanted}; seeds has {span}, so at most that")
        n = len(self.space(self.training_seed).start)
        if p.mode == "cma" and n > MOST_FULL:
            raise ValueError(
                f"{self.name}: parameters.mode is cma, but {n} weights are free; it takes up to {MOST_FULL}, "
                "so use separable or gradient"
            )
        self.strategy(n, self.training_seed)

    def space(self, seed: int) -> Space:
        """The free weights."""
        p, sizes = self.parameters, []
        for scenario in self.scenarios:
            pools = Setting.of(scenario.plain).pools
            sizes.append((pools.get("prefill", 0), pools.get("decode") or pools["mixed"]))
        return space_of(self.policy, sizes, seed, terms=p.terms, scale=p.hidden_scale, columns=p.columns)

    def strategy(self, n: int, seed: int) -> Strategy:
        """The strategy at its beginning."""
        p = self.parameters
        size = p.population or usual_candidates(p.mode, n)
        return begin(p.mode, n, size, p.step, seed, generations=self.budget, gradient=p.gradient)

    def jobs(self, generation: int, traces: int, space: Space, vectors: Floats) -> list[Job]:
        """The baseline and the policies of some vectors on the traces of a generation."""
        seeds = self.seeds.take(generation * self.parameters.traces, traces)
        return [Job(s.plain, seeds, Vectors(space, vectors, self.baselines(s)[0])) for s in self.scenarios]


class Archive:
    """Points that may be chosen: means at checkpoints and the best samples, each with where it was found.

    Attributes:
        means: (k, n), the last one last.
        samples: (k, n) in the order of their finding.
        gains: (k,) of the samples over the baseline, on their own few traces.
    """

    def __init__(self, n: int) -> None:
        self.means, self.samples = np.zeros((0, n)), np.zeros((0, n))
        self.gains = np.zeros(0)
        self.mean_steps, self.sample_steps = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add_mean(self, step: int, mean: Floats) -> None:
        """A mean after `step` generations."""
        self.means = np.vstack([self.means, mean])
        self.mean_steps = np.append(self.mean_steps, step)

    def add_sample(self, step: int, sample: Floats, gain: float, most: int) -> None:
        """The best sample of a generation; the `most` with the largest gains stay."""
        samples, steps = np.vstack([self.samples, sample]), np.append(self.sample_steps, step)
        gains = np.append(self.gains, gain)
        stay = np.sort(np.argsort(-gains, kind="stable")[:most])
        self.samples, self.sample_steps, self.gains = samples[stay], steps[stay], gains[stay]

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """All of it."""
        return {f"archive/{name}": value for name, value in vars(self).items()}

    def restore(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """The inverse."""
        for name in vars(self):
            setattr(self, name, arrays[f"archive/{name}"])


def train(config: Config, run: TrainingRun) -> list[Candidate]:
    """Trains from the last checkpoint to the end of the budget; the means and the best samples are candidates."""
    space, p = config.space(run.seed), config.parameters
    start, scale = space.start, space.scale
    strategy, archive = config.strategy(len(start), run.seed), Archive(len(start))
    marks = {round(k * config.budget / p.means) for k in range(1, p.means + 1)}
    weights = np.array([scenario.weight for scenario in config.scenarios])
    done = 0
    latest = run.latest()
    if latest is None:
        archive.add_mean(0, strategy.mean)
    else:
        done, content = latest
        arrays = _unpacked(content)
        strategy.resume(arrays)
        archive.restore(arrays)
    run.progress(done)
    episodes, seconds = 0, 0.0
    while done < config.budget:
        began = time.perf_counter()
        asked = strategy.ask()
        points = np.vstack([strategy.mean, asked])
        jobs = config.jobs(done, p.traces, space, start + scale * points)
        numbers = run_trials(jobs, run.workers, measure_of(p.guards))
        values, gains = _values(numbers, weights, p.guards)
        best = int(np.argmax(values[1:]))
        row = _row(numbers, gains, strategy, best, [scenario.label for scenario in config.scenarios])
        done += 1
        if p.samples:
            archive.add_sample(done, asked[best], float(gains[2 + best]), p.samples)
        strategy.tell(centred_values(values[1:]))
        if done in marks:
            archive.add_mean(done, strategy.mean)
        took, ran = time.perf_counter() - began, sum(len(job.policies) * len(job.seeds) for job in jobs)
        episodes, seconds = episodes + ran, seconds + took
        run.log(done, row, {"speed/episodes per second": ran / took})
        if done % config.checkpoint_every == 0 or done == config.budget:
            run.checkpoint(done, _packed(strategy.state() | archive.arrays()))
        run.progress(done)
    if episodes:
        run.say(f"training seed {run.seed}: {episodes:,} episodes, {episodes / seconds:,.0f} a second")
    return _finalists(config, space, archive, run.workers)


def centred_values(values: Floats) -> Floats:
    """Values less their mean, so that they say nothing of the traces."""
    centred: Floats = values - values.mean()
    return centred


def _values(numbers: Sequence[Floats], weights: Floats, guards: Guards) -> tuple[Floats, Floats]:
    """Averaged ranks of the mean and the candidates, and gains of all policies over the baseline, which is the first.

    Args:
        numbers: of each scenario (1 + k, traces, numbers of the measure).
        weights: of the scenarios.
        guards: what is taken off.

    Returns:
        (k,) values between −0.5 and 0.5, and (1 + k,) mean gains in goodput.
    """
    shares = weights / weights.sum()
    scores = [score(of_scenario, guards) for of_scenario in numbers]
    ranks = [centred_ranks(of_scenario[1:]) for of_scenario in scores]
    means = [of_scenario[:, :, 0].mean(axis=1) for of_scenario in numbers]
    gains = [mean - mean[0] for mean in means]
    values: Floats = shares @ np.array(ranks)
    return values, shares @ np.array(gains)


def _row(
    numbers: Sequence[Floats], gains: Floats, strategy: Strategy, best: int, labels: Sequence[str]
) -> dict[str, float]:
    """The learning curve's numbers of a generation."""
    goodputs = [of_scenario[:, :, 0].mean(axis=1) for of_scenario in numbers]
    row = {
        "gain/of the mean": float(gains[1]),
        "gain/of the candidates": float(gains[2:].mean()),
        "gain/of the best-ranked one": float(gains[2 + best]),
        "goodput/of the mean": float(np.mean([values[1] for values in goodputs])),
        "goodput/of the baseline": float(np.mean([values[0] for values in goodputs])),
        "step size": strategy.spread,
        "distance from the start": float(np.sqrt(np.mean(strategy.mean**2))),
    }
    if len(labels) > 1:
        row |= {f"gain by scenario/{label}": float(x[1] - x[0]) for label, x in zip(labels, goodputs, strict=True)}
    return row


def _finalists(config: Config, space: Space, archive: Archive, workers: Executor) -> list[Candidate]:
    """The last mean, and the best of the other means and samples on fresh traces."""
    p = config.parameters
    points = np.vstack([archive.means, archive.samples])
    labels = [f"mean after {step} generations" for step in archive.mean_steps]
    labels += [f"sample of generation {step}" for step in archive.sample_steps]
    last = len(archive.means) - 1
    others = [k for k in range(len(points)) if k != last]
    vectors = space.start + space.scale * points
    if p.finalists < len(others):
        weights = np.array([scenario.weight for scenario in config.scenarios])
        jobs = config.jobs(config.budget, p.check_traces, space, vectors)
        values, _ = _values(run_trials(jobs, workers, measure_of(p.guards)), weights, p.guards)
        others = sorted(others, key=lambda k: -values[k])[: p.finalists]
    return [Candidate(labels[k], space.policy(vectors[k])) for k in (last, *sorted(others))]


def _packed(arrays: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _unpacked(content: bytes) -> dict[str, npt.NDArray[np.generic]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}

