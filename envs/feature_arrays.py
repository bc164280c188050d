"""Features of one cluster as float32 arrays, from admissions and from decision logs alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import features as F
from .about_instances import about_instances
from .admission import Admission
from .cluster import PS_PER_S, Cluster
from .records import DECODE_VIEW, PREFILL_VIEW
from .router_constants import RouterConstants, from_cluster
from .trace import TIGHT, Trace

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Views = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Moments:
    """Admissions as columns, all of one shape; () for a single one.

    Attributes:
        prompt: p, tokens.
        predicted: ô, tokens.
        slo: index into SLO_CLASSES.
        ttft_target: ps.
        tpot_target: ps.
        now: ps.
        poll_time: ps.
        last: the router's admission before this one, ps; negative if there was none.
    """

    prompt: npt.ArrayLike
    predicted: npt.ArrayLike
    slo: npt.ArrayLike
    ttft_target: npt.ArrayLike
    tpot_target: npt.ArrayLike
    now: npt.ArrayLike
    poll_time: npt.ArrayLike
    last: npt.ArrayLike

    @staticmethod
    def of(admission: Admission, last: int = -1) -> Moments:
        """A single admission; `last` in ps."""
        shared = ("prompt", "predicted", "slo", "ttft_target", "tpot_target", "now", "poll_time")
        return Moments(**{name: getattr(admission, name) for name in shared}, last=last)

    @staticmethod
    def of_decisions(
        decisions: npt.NDArray[Any], trace: Trace, routers: int | npt.NDArray[np.integer[Any]] = 1
    ) -> Moments:
        """Those of a decision log, (n,); `routers` as in `FeatureArrays.of_decisions`."""
        request = decisions["request"]
        router = request % routers if isinstance(routers, int) else routers[request]
        return Moments(
            prompt=trace.prompt[request],
            predicted=decisions["predicted"],
            slo=trace.slo[request],
            ttft_target=trace.ttft_target[request],
            tpot_target=trace.tpot_target[request],
            now=decisions["time"],
            poll_time=decisions["poll_time"],
            last=_before(decisions["time"], router),
        )


@dataclass(frozen=True, eq=False)
class _Columns:
    """Moments in the units of the formulas: tokens and seconds, float64."""

    prompt: Floats
    predicted: Floats
    tight: Floats
    ttft: Floats
    tpot: Floats
    age: Floats
    since: Floats

    @staticmethod
    def of(moments: Moments, *, axes: int) -> _Columns:
        """With `axes` further axes of size 1, for the instances."""
        now, last = np.asarray(moments.now, np.int64), np.asarray(moments.last, np.int64)
        columns = (
            np.asarray(moments.prompt, np.float64),
            np.asarray(moments.predicted, np.float64),
            (np.asarray(moments.slo) == TIGHT).astype(np.float64),
            np.asarray(moments.ttft_target, np.float64) / PS_PER_S,
            np.asarray(moments.tpot_target, np.float64) / PS_PER_S,
            (now - np.asarray(moments.poll_time, np.int64)) / PS_PER_S,
            np.where(last < 0, 0, now - last) / PS_PER_S,
        )
        return _Columns(*(np.reshape(c, c.shape + (1,) * axes) for c in columns))


class FeatureArrays:
    """The features of one cluster as its router believes it to be.

    Args:
        constants: the router's constants.
        block_size: tokens per KV block (polls report blocks).
    """

    def __init__(self, constants: RouterConstants, block_size: int) -> None:
        prefills = constants.prefills
        self.about: Floats = about_instances(constants, block_size)
        """(len(ABOUT), I) what the formulas read of the instances."""
        self.aggregated = prefills == 0
        self._prefill, self._decode = self.about[:, : prefills or None], self.about[:, prefills:]

    @staticmethod
    def of_cluster(cluster: Cluster, constants: RouterConstants | None = None) -> FeatureArrays:
        """With the constants of a perfect calibration unless others are given."""
        return FeatureArrays(constants or from_cluster(cluster), cluster.instances[0].block_size)

    def profile(self) -> Float32s:
        """(I, len(PROFILE)) of every instance, prefill instances first; all are available."""
        return _scaled(F.profile(np.ones(self.about.shape[1]), self.about), F.PROFILE)

    def request(self, moments: Moments) -> Float32s:
        """(…, len(REQUEST)) of admissions of shape (…)."""
        c = _Columns.of(moments, axes=0)
        row = F.request_row(c.prompt, c.predicted, c.tight, c.ttft, c.tpot, c.since)
        return _scaled(row, F.REQUEST)

    def prefill(self, views: Views, moments: Moments) -> Float32s:
        """(…, P, len(PREFILL)) from views (…, P, 7), columns PREFILL_VIEW.

        Raises:
            ValueError: the cluster is aggregated, or the views have another shape.
        """
        self._check_role("prefill", aggregated=False)
        c, view = _Columns.of(moments, axes=1), _columns(views, PREFILL_VIEW, self._prefill)
        return _scaled(F.prefill_row(view, c.prompt, c.ttft, c.age, self._prefill), F.PREFILL)

    def decode(self, views: Views, moments: Moments) -> Float32s:
        """(…, D, len(DECODE)) from views (…, D, 11), columns DECODE_VIEW.

        Raises:
            ValueError: the cluster is aggregated, or the views have another shape.
        """
        self._check_role("decode", aggregated=False)
        c, view = _Columns.of(moments, axes=1), _columns(views, DECODE_VIEW, self._decode)
        return _scaled(F.decode_row(view, c.prompt, c.predicted, c.tpot, c.age, self._decode), F.DECODE)

    def mixed(self, prefill_views: Views, decode_views: Views, moments: Moments) -> Float32s:
        """(…, M, len(MIXED)) from views (…, M, 7) and (…, M, 11).

        Raises:
            ValueError: the cluster is disaggregated, or the views have another shape.
        """
        self._check_role("mixed", aggregated=True)
        c, about = _Columns.of(moments, axes=1), self._decode
        first, view = _columns(prefill_views, PREFILL_VIEW, about), _columns(decode_views, DECODE_VIEW, about)
        row = F.mixed_row(first, view, c.prompt, c.predicted, c.ttft, c.tpot, c.age, about)
        return _scaled(row, F.MIXED)

    def of_admission(self, admission: Admission, last: int = -1) -> dict[str, Float32s]:
        """All features of an admission: `request` with `prefill` and `decode`, or with `mixed`.

        Args:
            admission: the decision that is due.
            last: the router's admission before this one, ps; negative if there was none.
        """
        moments = Moments.of(admission, last)
        found = {"request": self.request(moments)}
        if self.aggregated:
            return found | {"mixed": self.mixed(admission.prefill, admission.decode, moments)}
        prefill = self.prefill(admission.prefill, moments)
        return found | {"prefill": prefill, "decode": self.decode(admission.decode, moments)}

    def of_decisions(
        self, decisions: npt.NDArray[Any], trace: Trace, routers: int | npt.NDArray[np.integer[Any]] = 1
    ) -> dict[str, Float32s]:
        """All features of the chosen pair of each decision of a log, without the axis of instances.

        Args:
            decisions: (n,) dtype DECISION.
            trace: what was routed.
            routers: how many take turns, or (N,) the router of each request of the trace, as its record says.

        Raises:
            ValueError: the log is of another cluster: a chosen instance is outside its pool.
        """
        moments = Moments.of_decisions(decisions, trace, routers)
        c = _Columns.of(moments, axes=0)
        first = [decisions[f"prefill_{name}"].astype(np.float64) for name in PREFILL_VIEW]
        view = [decisions[f"decode_{name}"].astype(np.float64) for name in DECODE_VIEW]
        found = {"request": self.request(moments)}
        about = _chosen(self._decode, "decode", decisions)
        if self.aggregated:
            row = F.mixed_row(first, view, c.prompt, c.predicted, c.ttft, c.tpot, c.age, about)
            return found | {"mixed": _scaled(row, F.MIXED)}
        source = _chosen(self._prefill, "prefill", decisions)
        prefill = _scaled(F.prefill_row(first, c.prompt, c.ttft, c.age, source), F.PREFILL)
        decode = _scaled(F.decode_row(view, c.prompt, c.predicted, c.tpot, c.age, about), F.DECODE)
        return found | {"prefill": prefill, "decode": decode}

    def _check_role(self, role: str, *, aggregated: bool) -> None:
        if self.aggregated != aggregated:
            has = "mixed" if self.aggregated else "prefill and decode"
            raise ValueError(f"role is {role}; this cluster has {has} instances")


def _scaled(row: tuple[F.Number, ...], features: Sequence[F.Feature]) -> Float32s:
    columns = np.broadcast_arrays(*row)
    return (np.stack(columns, axis=-1) / F.scales(features)).astype(np.float32)


def _columns(views: Views, names: tuple[str, ...], about: Floats) -> Floats:
    """(columns, …, instances) float64."""
    expected = (about.shape[1], len(names))
    if views.shape[-2:] != expected:
        raise ValueError(f"views have shape {views.shape}; the last two sizes must be {expected}")
    return np.moveaxis(np.asarray(views, np.float64), -1, 0)


def _chosen(about: Floats, role: str, decisions: npt.NDArray[Any]) -> Floats:
    index = np.asarray(decisions[role], np.int64)
    bad = (index < 0) | (index >= about.shape[1])
    if bad.any():
        raise ValueError(f"decisions: {role} is {index[bad][0]}; allowed are 0 to {about.shape[1] - 1}")
    return np.asarray(about[:, index])


def _before(times: npt.NDArray[np.int64], router: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Time of the same router's decision before each one, −1 at its first."""
    last = np.full(len(times), -1, np.int64)
    for r in np.unique(router):
        mine = np.flatnonzero(router == r)
        last[mine[1:]] = times[mine[:-1]]
    return last
