"""Compares the fast core with the reference on one case and says where they part."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW, RECORD
from disaggroute.envs.simulator import simulate
from disaggroute.envs.simulator.reference import ReferenceRun, run_reference

from .cases import Case


def compare(case: Case) -> ReferenceRun:
    """Runs both; fails with the first difference."""
    expected = run_reference(
        case.trace,
        case.cluster,
        assignment=case.assignment,
        predicted=case.predicted,
        observe=True,
        seed=case.seed,
    )
    got = simulate(
        case.trace,
        case.cluster,
        assignment=case.assignment,
        predictor=case.predicted,
        observe=True,
        seed=case.seed,
    )
    difference = first_difference(expected, got)
    assert difference is None, f"{case.label}: {difference}"
    return expected


def first_difference(expected: ReferenceRun, got: Any) -> str | None:
    """The earliest difference in words, or None.

    Of the decisions the first one that differs, of the records the one whose differing time is earliest:
    later differences follow from it.
    """
    found = [_records(expected.records, got.records), _decisions(expected, got)]
    return "; ".join(text for text in found if text) or None


def _records(expected: npt.NDArray[np.void], got: npt.NDArray[np.void]) -> str | None:
    if len(got) != len(expected):
        return f"{len(got)} records instead of {len(expected)}"
    wrong: list[tuple[int, int, str]] = []
    for name in RECORD.names or ():
        for i in np.flatnonzero(expected[name] != got[name]).tolist():
            instants = [
                int(v) for v in (expected[name][i], got[name][i]) if v >= 0 and RECORD[name].itemsize == 8
            ]
            wrong.append((min(instants, default=int(expected["end"][i])), i, name))
    if not wrong:
        return None
    _, i, _ = min(wrong)
    names = [name for _, k, name in wrong if k == i]
    parts = ", ".join(f"{name} is {got[name][i]}, not {expected[name][i]}" for name in names)
    others = len({k for _, k, _ in wrong}) - 1
    return f"request {i}: {parts} (and {others} other requests differ; reference {expected[i]})"


def _decisions(expected: ReferenceRun, got: Any) -> str | None:
    for k in range(max(len(expected.decisions), len(got.decisions))):
        if k >= len(got.decisions) or k >= len(expected.decisions):
            return f"{len(got.decisions)} decisions instead of {len(expected.decisions)}"
        where = f"decision {k} (request {expected.decisions[k]})"
        for name in ("decisions", "predicted", "poll_times"):
            want, have = int(getattr(expected, name)[k]), int(getattr(got, name)[k])
            if want != have:
                return f"{where}: {name} is {have}, not {want}"
        for name, columns in (("prefill_views", PREFILL_VIEW), ("decode_views", DECODE_VIEW)):
            ours, theirs = getattr(expected, name)[k], np.asarray(getattr(got, name)[k])
            if ours.shape != theirs.shape:
                return f"{where}: {name} has shape {theirs.shape}, not {ours.shape}"
            if (ours != theirs).any():
                instance, column = np.argwhere(ours != theirs)[0].tolist()
                values = f"{theirs[instance, column]}, not {ours[instance, column]}"
                return f"{where}: {name} of instance {instance}: {columns[column]} is {values}"
    return None
