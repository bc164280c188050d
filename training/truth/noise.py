"""The noise of the live cluster: a run against its repeat, beside the error of the model on the same requests.

Two repeats do not route alike: a policy sees other polls and other timings. So their times differ request by request
for that reason too, and the difference of the distributions is the fairer word on the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import Errors, errors
from .goodput import met
from .live_run import LiveRun
from .quantities import QUANTITIES, Quantity, values
from .replay import Replay

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Repeated:
    """A run and its repeat.

    Attributes:
        label: the policy.
        seed: of the trace.
        requests: finished in both and in the replay.
        alike: share of them that both sent to the same instances.
        measured: by quantity, (requests,) s of the run.
        repeat: of the repeat.
        simulated: of the replay of the run, with the overhead where it is known.
        goodputs: over these requests: of the run, of the repeat, of the replay.
    """

    label: str
    seed: int
    requests: int
    alike: float
    measured: dict[str, Floats]
    repeat: dict[str, Floats]
    simulated: dict[str, Floats]
    goodputs: tuple[float, float, float]


@dataclass(frozen=True)
class Noise:
    """The noise of all runs that were repeated.

    Attributes:
        runs: each with its repeat.
        model: by quantity, the error of the model, all runs together.
        repeats: by quantity, the difference of the repeats to the runs.
        deviation: standard deviation of one run's goodput between repeats: root mean square difference / √2.
    """

    runs: tuple[Repeated, ...]
    model: dict[str, Errors]
    repeats: dict[str, Errors]
    deviation: float


def measure_noise(replays: Sequence[Replay], repeats: Sequence[LiveRun], overhead: int, where: str) -> Noise:
    """The noise between runs and their repeats.

    Args:
        replays: the runs beside their replays.
        repeats: runs of another folder.
        overhead: ps on every simulated TTFT.
        where: the other folder, for messages.

    Raises:
        ValueError: a run has no repeat of its policy and seed, or the repeat is of another trace.
    """
    known = {(run.policy_hash, run.seed): run for run in repeats}
    found = []
    for run in replays:
        other = known.get((run.live.policy_hash, run.live.seed))
        if other is None:
            seeds = sorted({each.seed for each in repeats if each.policy_hash == run.live.policy_hash})
            has = f"of this policy it has seeds {', '.join(map(str, seeds))}" if seeds else "it has not this policy"
            raise ValueError(
                f"repeat is {where}, which has no run of {run.live.label} with seed {run.live.seed}: {has}; "
                "a repeat has the same policies and seeds"
            )
        _check_same_trace(run.live, other, where)
        found.append(_repeated(run, other, overhead))
    pooled = {
        quantity.name: [
            np.concatenate([getattr(each, part)[quantity.name] for each in found])
            for part in ("measured", "simulated", "repeat")
        ]
        for quantity in QUANTITIES
    }
    some = {name: times for name, times in pooled.items() if np.isfinite(times[0]).any()}
    differences = np.array([each.goodputs[1] - each.goodputs[0] for each in found])
    return Noise(
        runs=tuple(found),
        model={name: errors(measured, simulated) for name, (measured, simulated, _) in some.items()},
        repeats={name: errors(measured, repeat) for name, (measured, _, repeat) in some.items()},
        deviation=float(np.sqrt((differences**2).mean() / 2)),
    )


def _check_same_trace(run: LiveRun, other: LiveRun, where: str) -> None:
    one, two = run.stored.trace, other.stored.trace
    what = f"repeat is {where}, whose run of {run.label} with seed {run.seed} is of another trace"
    if len(one) != len(two):
        raise ValueError(f"{what}: it has {len(two)} requests for {len(one)}")
    for name in ("prompt", "output", "slo"):
        differs = getattr(one, name) != getattr(two, name)
        if differs.any():
            k = int(np.argmax(differs))
            raise ValueError(f"{what}: {name} of request {k} is {getattr(two, name)[k]} for {getattr(one, name)[k]}")


def _repeated(run: Replay, other: LiveRun, overhead: int) -> Repeated:
    which = run.compared & other.comparable
    records, again = run.live.stored.records, other.stored.records
    if not which.any():
        raise ValueError(f"{other.label}, seed {other.seed}: no request finished in both the run and its repeat")
    same = (records["prefill"] == again["prefill"]) & (records["decode"] == again["decode"])
    output = run.live.stored.trace.output.astype(np.int64)
    arrival = run.simulated["arrival"] - overhead

    def of(source: npt.NDArray[np.void], quantity: Quantity, start: npt.NDArray[np.int64] | None = None) -> Floats:
        return values(source, output, quantity, start)[which]

    shares = (run.live.stored.met, other.stored.met, met(run, overhead))
    return Repeated(
        label=run.live.label,
        seed=run.live.seed,
        requests=int(which.sum()),
        alike=float(same[which].mean()),
        measured={q.name: of(records, q) for q in QUANTITIES},
        repeat={q.name: of(again, q) for q in QUANTITIES},
        simulated={q.name: of(run.simulated, q, arrival) for q in QUANTITIES},
        goodputs=tuple(float(each[which].mean()) for each in shares),  # type: ignore[arg-type]
    )
