"""The comparison as a whole: a live results folder, replayed, measured against itself and against the simulator."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...envs import profiles
from ..policy_style import Style, policy_styles
from ..results import Results, read_note, read_results
from ..runs import fingerprint
from .errors import Errors, errors
from .goodput import Goodputs, goodputs
from .live_run import read_live_runs
from .noise import Noise, measure_noise
from .overhead import Overhead, measure_overhead
from .quantities import QUANTITIES, TPOT, TTFT, Quantity, values
from .ranking import Ranking, rank
from .replay import Replay, TooFew, replay
from .residuals import DRIVERS, Residuals, residuals
from .twin import twin

Floats = npt.NDArray[np.float64]

ALL = "all policies"
"""Stands where a policy would, for all of them together."""


@dataclass(frozen=True)
class ErrorLine:
    """Errors of a quantity over some runs.

    Attributes:
        label: the policy, or `ALL`.
        seed: of the run, or None for all seeds together.
        quantity: what is compared.
        overhead: whether the overhead was added to what was simulated.
        errors: the numbers.
    """

    label: str
    seed: int | None
    quantity: Quantity
    overhead: bool
    errors: Errors


@dataclass(frozen=True, eq=False)
class Truth:
    """Everything that tables, figures and the page are made from.

    Attributes:
        results: of the live evaluation.
        profile: of the replay, in words.
        given: what else than the run this is made of: its profile by content, where the repeat lies; by option.
        replays: by policy, in the order of the seeds.
        overhead: of the client's way.
        errors: by policy and by seed, each quantity with and without the overhead.
        goodputs: run by run.
        ranking: of the policies.
        residuals: of TTFT and TPOT against each driver.
        noise: between repeats, or None.
        repeat: the folder of the repeats, or None.
        not_compared: runs that are not, each with its reason, in words.
        styles: how each policy looks.
    """

    results: Results
    profile: str
    given: dict[str, str]
    replays: dict[str, tuple[Replay, ...]]
    overhead: Overhead
    errors: tuple[ErrorLine, ...]
    goodputs: tuple[Goodputs, ...]
    ranking: Ranking
    residuals: tuple[Residuals, ...]
    noise: Noise | None
    repeat: Path | None
    not_compared: tuple[str, ...]
    styles: dict[str, Style]

    @property
    def labels(self) -> tuple[str, ...]:
        """Policies that are compared, in the order asked for."""
        return tuple(self.replays)

    def shown(self, *, seeds: bool = False) -> tuple[ErrorLine, ...]:
        """The errors with the overhead where it is known and belongs to them.

        Args:
            seeds: those of each seed instead of those of all together.
        """
        return tuple(
            line
            for line in self.errors
            if (line.seed is not None) is seeds
            and line.overhead is (self.overhead.known and line.quantity.overhead)
        )

    @property
    def runs(self) -> tuple[Replay, ...]:
        """All runs, policy by policy."""
        return tuple(run for runs in self.replays.values() for run in runs)


def compare_with_simulator(folder: Path, *, profile: str | None = None, repeat: Path | None = None) -> Truth:
    """Replays the runs of a live results folder and compares.

    Args:
        folder: of a live evaluation.
        profile: name or file of the engines' profile; None: what the router believed.
        repeat: folder of a second evaluation of the same policies and seeds.

    Raises:
        ValueError: no live results folder, no records, a profile that is unknown or does not fit, too few finished
            requests, or a repeat of something else.
        OSError: a file cannot be read.
    """
    results = read_results(folder)
    runs, without = read_live_runs(results)
    cluster = twin(results.description, dict(read_note(folder)["configuration"]), profile)
    replays: dict[str, tuple[Replay, ...]] = {}
    few: list[TooFew] = []
    for run in runs:
        try:
            replays[run.label] = (*replays.get(run.label, ()), replay(run, cluster))
        except TooFew as error:  # A policy that broke down is no reason to say nothing of the others.
            few.append(error)
        except ValueError as error:
            if profile is not None:
                raise ValueError(f"profile is {profile}, which does not fit the run: {error}") from None
            raise
    if not replays:
        raise few[0]
    every = [each for some in replays.values() for each in some]
    overhead = measure_overhead(every, aggregated=results.description.aggregated)
    noise = None
    if repeat is not None:
        if repeat.resolve() == folder.resolve():
            raise ValueError(f"repeat is {repeat}, the run itself; name the folder of another evaluation")
        repeats, _ = read_live_runs(read_results(repeat))
        noise = measure_noise(every, repeats, overhead.total, str(repeat))
    return Truth(
        results=results,
        profile=_in_words(profile) or ", ".join(dict.fromkeys(engine.name for engine in cluster.instances)),
        given=_given(folder, profile, repeat),
        replays=replays,
        overhead=overhead,
        errors=tuple(_error_lines(replays, overhead)),
        goodputs=tuple(goodputs(run, overhead.total) for run in every),
        ranking=rank(replays, overhead.total, noise=noise.deviation if noise else None),
        residuals=tuple(
            each for quantity in (TTFT, TPOT) for each in residuals(every, quantity, overhead.total, DRIVERS)
        ),
        noise=noise,
        repeat=repeat,
        not_compared=(*without, *map(str, few)),
        styles=policy_styles(results.labels),
    )


def _in_words(profile: str | None) -> str:
    """A profile by its name, and by its file where it has one of its own."""
    if profile is None:
        return ""
    name = profiles.load(profile).name
    return name if name == profile else f"{name} ({profile})"


def _given(folder: Path, profile: str | None, repeat: Path | None) -> dict[str, str]:
    found = {}
    if profile is not None:
        content = profiles.load(profile)
        found["profile"] = f"{content.name} {fingerprint(content.model_dump(mode='json'))}"
    if repeat is not None:
        found["repeat"] = Path(os.path.relpath(repeat.resolve(), folder.resolve())).as_posix()
    return found


def pairs_of(runs: list[Replay] | tuple[Replay, ...], quantity: Quantity, overhead: int) -> tuple[Floats, Floats]:
    """Measured and simulated times of the compared requests of these runs, s; those of one token have no TPOT."""
    measured, simulated = [], []
    for run in runs:
        records, output = run.live.stored.records, run.live.stored.trace.output.astype(np.int64)
        measured.append(values(records, output, quantity)[run.compared])
        simulated.append(values(run.simulated, output, quantity, run.simulated["arrival"] - overhead)[run.compared])
    a, b = np.concatenate(measured), np.concatenate(simulated)
    both = np.isfinite(a) & np.isfinite(b)
    return a[both], b[both]


def _error_lines(replays: dict[str, tuple[Replay, ...]], overhead: Overhead) -> list[ErrorLine]:
    groups: list[tuple[str, int | None, tuple[Replay, ...]]] = []
    for label, runs in replays.items():
        groups.append((label, None, runs))
        groups += [(label, run.live.seed, (run,)) for run in runs]
    if len(replays) > 1:
        groups.append((ALL, None, tuple(run for runs in replays.values() for run in runs)))
    lines = []
    for label, seed, runs in groups:
        for quantity in QUANTITIES:
            for added in (False, True) if overhead.known and quantity.overhead else (False,):
                measured, simulated = pairs_of(runs, quantity, overhead.total if added else 0)
                if len(measured):  # Where all answers have one token there is no TPOT.
                    lines.append(ErrorLine(label, seed, quantity, added, errors(measured, simulated)))
    return lines
