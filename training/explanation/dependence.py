"""What decisions depend on: inputs, for every policy; features and terms, for those that weigh them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...envs import features as F
from ...envs.feature_arrays import FeatureArrays, Moments
from ...envs.setting import Setting
from ...policies.linear import Linear
from ...policies.policy import Policy
from .probing import Moment, lenders
from .recording import Recording

Floats = npt.NDArray[np.float64]

COLUMNS = {
    "request": F.REQUEST,
    "prefill": F.PREFILL,
    "decode": F.DECODE,
    "mixed": F.MIXED,
}
"""Names of the features, by what they are of."""


class Dependence(NamedTuple):
    """An input or a feature.

    Attributes:
        of: request, or a pool.
        name: of the column.
        changed: by pool, share of the decisions that another value would have changed.
        margin: by pool, how much of the margin of the choice another value takes away, over the mean margin; empty
            where costs are unknown.
        decisions: that were put again.
    """

    of: str
    name: str
    changed: dict[str, float]
    margin: dict[str, float]
    decisions: int


class Term(NamedTuple):
    """A term of `linear`.

    Attributes:
        pool: whose instances it weighs.
        name: of the term.
        weight: of it.
        spread: mean over decisions and instances of |weight · (value − mean of the pool)|.
        chosen: mean over decisions of weight · (value of the chosen − mean of the pool); below 0: it speaks for the
            chosen instance.
    """

    pool: str
    name: str
    weight: float
    spread: float
    chosen: float


@dataclass(frozen=True, eq=False)
class Costs:
    """What the costs of a policy say about sampled decisions.

    Attributes:
        features: by column.
        terms: of `linear`; empty for others.
        agreement: by pool, share of the decisions in which the least cost is the choice: 1 where costs say all.
    """

    features: tuple[Dependence, ...]
    terms: tuple[Term, ...]
    agreement: dict[str, float]


def input_dependence(recordings: Sequence[Recording], pools: Sequence[str]) -> tuple[Dependence, ...] | None:
    """How often a choice changes with each input, over all runs of a policy; None where that cannot be asked."""
    probes = [each.probes for each in recordings if each.probes is not None]
    if not probes or len(probes) < len(recordings):
        return None
    found = []
    for of, name in probes[0]:
        mine = [each[of, name] for each in probes]
        asked = sum(each.asked for each in mine)
        changed = {pool: sum(each.prefill if pool == "prefill" else each.decode for each in mine) for pool in pools}
        found.append(Dependence(of, name, {pool: n / asked for pool, n in changed.items()}, {}, asked))
    return tuple(found)


def cost_dependence(policy: Policy, recordings: Sequence[Recording], setting: Setting) -> Costs | None:
    """What the costs of a policy depend on; None for a policy that offers none."""
    moments = [moment for each in recordings for moment in each.moments]
    if len(moments) < 2:
        return None
    features = _features(moments, setting)
    costs = policy.costs(features)
    if costs is None:
        return None
    may = {pool: features[pool][..., [f.name for f in COLUMNS[pool]].index("available")] > 0 for pool in costs}
    picks = {pool: _masked(costs[pool], may[pool]).argmin(axis=-1) for pool in costs}
    chosen = {
        pool: np.array([moment.prefill if pool == "prefill" else moment.decode for moment in moments]) for pool in costs
    }
    margins = {pool: _margin(costs[pool], may[pool], picks[pool]) for pool in costs}
    donors = lenders(len(moments), recordings[0].seed)
    found = []
    for of in features:
        for k, feature in enumerate(COLUMNS[of]):
            if feature.name == "available":
                continue
            other = dict(features)
            other[of] = features[of].copy()
            other[of][..., k] = features[of][donors, ..., k]
            found.append(_dependence(of, feature.name, policy.costs(other) or {}, may, picks, margins))
    agreement = {pool: float((picks[pool] == chosen[pool]).mean()) for pool in costs}
    return Costs(tuple(found), _terms(policy, features, may, picks), agreement)


def _dependence(
    of: str,
    name: str,
    costs: Mapping[str, Floats],
    may: Mapping[str, npt.NDArray[np.bool_]],
    picks: Mapping[str, npt.NDArray[np.int64]],
    margins: Mapping[str, Floats],
) -> Dependence:
    changed, lost, count = {}, {}, 0
    for pool, cost in costs.items():
        count = len(cost)
        changed[pool] = float((_masked(cost, may[pool]).argmin(axis=-1) != picks[pool]).mean())
        known = np.isfinite(margins[pool])
        mean = float(margins[pool][known].mean()) if known.any() else 0.0
        after = _margin(cost, may[pool], picks[pool])[known]
        lost[pool] = float((margins[pool][known] - after).mean()) / mean if mean > 0 else float("nan")
    return Dependence(of, name, changed, lost, count)


def _terms(
    policy: Policy,
    features: Mapping[str, npt.NDArray[np.float32]],
    may: Mapping[str, npt.NDArray[np.bool_]],
    picks: Mapping[str, npt.NDArray[np.int64]],
) -> tuple[Term, ...]:
    if not isinstance(policy, Linear):
        return ()
    found = []
    for pool, (names, values) in policy.terms(features).items():
        counted = may[pool][..., None]
        mean = (values * counted).sum(axis=-2, keepdims=True) / np.maximum(counted.sum(axis=-2, keepdims=True), 1)
        apart = np.where(counted, values - mean, 0.0)
        spread = np.abs(apart).sum(axis=(0, 1)) / max(int(may[pool].sum()), 1)
        chosen = np.take_along_axis(apart, picks[pool][:, None, None], axis=1)[:, 0].mean(axis=0)
        weights = getattr(policy.parameters, pool)
        found += [
            Term(pool, name, weights[name], float(spread[k]), float(chosen[k])) for k, name in enumerate(names)
        ]
    return tuple(found)


def _features(moments: Sequence[Moment], setting: Setting) -> dict[str, npt.NDArray[np.float32]]:
    """Features of sampled decisions, as policies see them."""
    arrays = FeatureArrays.of_cluster(setting.cluster, setting.constants)
    admissions = [moment.admission for moment in moments]
    shared = ("prompt", "predicted", "slo", "ttft_target", "tpot_target", "now", "poll_time")
    columns = {name: np.array([getattr(each, name) for each in admissions]) for name in shared}
    seen = Moments(**columns, last=np.array([moment.last for moment in moments]))
    prefill, decode = (np.stack([getattr(each, pool) for each in admissions]) for pool in ("prefill", "decode"))
    found = {"request": arrays.request(seen)}
    if arrays.aggregated:
        return found | {"mixed": arrays.mixed(prefill, decode, seen)}
    return found | {"prefill": arrays.prefill(prefill, seen), "decode": arrays.decode(decode, seen)}


def _masked(costs: Floats, may: npt.NDArray[np.bool_]) -> Floats:
    return np.where(may, costs, np.inf)


def _margin(costs: Floats, may: npt.NDArray[np.bool_], picks: npt.NDArray[np.int64]) -> Floats:
    """How far the other instances lie above the picked one, (n,): the least of them; infinite without others."""
    open_costs = _masked(costs, may)
    own = np.take_along_axis(open_costs, picks[:, None], axis=1)[:, 0]
    np.put_along_axis(open_costs, picks[:, None], np.inf, axis=1)
    margin: Floats = open_costs.min(axis=1) - own
    return margin
