"""Before and after: goodput by class and family, and the tails, of a policy against another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...envs.trace import SLO_CLASSES
from ..comparison import mean_over_runs
from ..report.groups import in_segments
from ..statistics import BLOCK_S, Estimate, mean_over_seeds, paired_difference, share_in_blocks
from ..summary import SEGMENT_S, Share, Summary
from .recording import Recording


@dataclass(frozen=True)
class Effect:
    """Goodput of a group.

    Attributes:
        kind: all, class or family.
        name: of the group.
        requests: measured, all runs together.
        ceiling: share that meets its targets alone on the empty cluster, mean over the runs.
        before: of the other policy.
        after: of the policy that is explained.
        difference: after − before, paired by trace.
    """

    kind: str
    name: str
    requests: int
    ceiling: float
    before: Estimate
    after: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Tail:
    """A number of the far end.

    Attributes:
        name: with its unit.
        before: of the other policy.
        after: of the policy that is explained.
        digits: that are shown.
    """

    name: str
    before: float
    after: float
    digits: int


def effects(after: Sequence[Recording], before: Sequence[Recording], *, single: bool) -> list[Effect]:
    """Goodput of all requests, of each SLO class and of each family, before and after.

    Args:
        after: runs of the policy that is explained.
        before: runs of the other one on the same traces, in the same order.
        single: whether there is one recorded trace, whose interval comes from its own segments.
    """
    summaries = [each.summary for each in after]
    names = [("all", "all"), *(("class", name) for name in SLO_CLASSES)]
    families = dict.fromkeys(name for summary in summaries for name in summary.by_family)
    names += [("family", name) for name in families if len(families) > 1]
    found = []
    for kind, name in names:
        mine, other = _shares(after, kind, name), _shares(before, kind, name)
        requests = sum(share.requests for share in mine)
        if not requests:
            continue
        if single:
            one, two, change = _in_blocks(after[0], before[0], kind, name)
        else:
            values, base = ([share.goodput for share in some if share.requests] for some in (mine, other))
            one, two, change = mean_over_seeds(values), mean_over_seeds(base), paired_difference(values, base)
        ceiling = mean_over_runs(summaries, _ceiling(kind, name))
        found.append(Effect(kind, name, requests, ceiling, two, one, change))
    return found


def tails(after: Sequence[Recording], before: Sequence[Recording]) -> list[Tail]:
    """The far end of the delays, before and after."""
    numbers: list[tuple[str, int, Callable[[list[Summary]], float]]] = [
        ("TTFT P99, s", 3, lambda runs: mean_over_runs(runs, lambda s: s.ttft.p99)),
        ("TTFT P99.9, s", 3, lambda runs: mean_over_runs(runs, lambda s: s.ttft.p999)),
        ("longest TTFT, s", 2, lambda runs: max(s.max_delay for s in runs)),
        ("TPOT P99, ms", 1, lambda runs: 1e3 * mean_over_runs(runs, lambda s: s.tpot.p99)),
        ("slowdown P99.9", 2, lambda runs: mean_over_runs(runs, lambda s: s.slowdown.p999)),
        ("longest stall, s", 2, lambda runs: max(s.max_stall for s in runs)),
        ("beyond 3 × the targets, %", 2, lambda runs: 100 * mean_over_runs(runs, lambda s: s.beyond_3x)),
        ("failed and rejected", 0, lambda runs: float(sum(s.failed + s.rejected for s in runs))),
    ]
    runs = [[each.summary for each in some] for some in (before, after)]
    return [Tail(name, read(runs[0]), read(runs[1]), digits) for name, digits, read in numbers]


def _shares(recordings: Sequence[Recording], kind: str, name: str) -> list[Share]:
    found = []
    for each in recordings:
        summary = each.summary
        if kind == "all":
            found.append(Share(requests=summary.requests, met=summary.met))
        else:
            groups = summary.by_class if kind == "class" else summary.by_family
            found.append(groups.get(name, Share(requests=0, met=0)))
    return found


def _ceiling(kind: str, name: str) -> Callable[[Summary], float]:
    return lambda summary: summary.ceiling if kind == "all" else summary.ceilings.get(name, float("nan"))


def _in_blocks(after: Recording, before: Recording, kind: str, name: str) -> tuple[Estimate, Estimate, Estimate]:
    block = round(BLOCK_S / SEGMENT_S)
    if kind == "all":
        requests = list(after.summary.segment_requests)
        met = [list(each.summary.segment_met) for each in (after, before)]
    else:
        counted = [in_segments(each.stored, kind, name, each.window) for each in (after, before)]
        requests, met = counted[0][0], [hits for _, hits in counted]
    with np.errstate(invalid="ignore"):  # A resample without a request of the group has no goodput.
        found = [
            share_in_blocks(met[0], requests, block=block),
            share_in_blocks(met[1], requests, block=block),
            share_in_blocks(met[0], requests, baseline=met[1], block=block),
        ]
    one, two, change = (e if e.low is None or np.isfinite(e.low) else _without(e) for e in found)
    return one, two, change


def _without(estimate: Estimate) -> Estimate:
    return Estimate(estimate.mean, None, None, estimate.values)
