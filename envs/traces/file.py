"""A trace file that was read: its columns, what was odd about it, and the traces it makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import profiles, targets, unloaded
from ..cluster import MAX_TIME_PS, PS_PER_S, Cluster
from ..profiles import Profile
from ..streams import stream
from ..trace import LOOSE, TIGHT, Trace
from .prefixes import gather
from .preparation import Preparation, fits

Ints = npt.NDArray[np.int64]

Spread = Literal["random", "even", "none"]


@dataclass(frozen=True)
class Oddities:
    """What was accepted and counted.

    Attributes:
        rows: requests in the file.
        failed: rows without prompt or output tokens, dropped.
        unsorted: rows earlier than the one above, sorted on demand.
        duplicates: rows with the timestamp of the row above.
        blank: blank lines.
        byte_order_mark: whether the file began with one.
        crlf: lines that ended in CRLF.
    """

    rows: int
    failed: int = 0
    unsorted: int = 0
    duplicates: int = 0
    blank: int = 0
    byte_order_mark: bool = False
    crlf: int = 0


@dataclass(frozen=True, eq=False)
class TraceFile:
    """Requests as the file gives them, sorted by arrival, failed rows left out.

    Attributes:
        path: the file.
        format: name of its format.
        arrival: (N,) ps; other formats than ours count from their first row.
        prompt: (N,) tokens.
        output: (N,) tokens.
        family: (N,) index into `families`.
        families: labels in the file, or `trace`.
        oddities: what was accepted and counted.
        slo: (N,) SLO class, if the file has it.
        ttft_target: (N,) ps, if the file has it.
        tpot_target: (N,) ps, if the file has it.
        prefix_offsets: (N + 1,) into `prefix_ids`, if the file has them.
        prefix_ids: ids of prompt blocks.
        prefix_tokens: tokens of one prefix block; 0 without.
        quantised: arrivals are rounded down to a coarse grid (Mooncake: about 3 s).
    """

    path: str
    format: str
    arrival: Ints
    prompt: npt.NDArray[np.int32]
    output: npt.NDArray[np.int32]
    family: npt.NDArray[np.int8]
    families: tuple[str, ...]
    oddities: Oddities
    slo: npt.NDArray[np.int8] | None = None
    ttft_target: Ints | None = None
    tpot_target: Ints | None = None
    prefix_offsets: Ints | None = None
    prefix_ids: Ints | None = None
    prefix_tokens: int = 0
    quantised: bool = False

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival)

    @property
    def name(self) -> str:
        """File name without endings, of what can be printed."""
        name = Path(self.path).name
        return "".join(sign if sign.isprintable() else "?" for sign in name.split(".")[0] or name)

    @property
    def rate(self) -> float:
        """Mean requests per second between the first and the last arrival; 0 if they coincide."""
        return mean_rate(self.arrival)

    def spread_arrivals(self, how: Spread = "random", seed: int = 0) -> Ints:
        """Arrivals, (N,) ps, spread over the quantum if they are quantised.

        The requests of one timestamp are laid between it and the next one in the file, at most the
        median such gap later, in their order: at seeded uniform places (`random`, as Poisson arrivals
        would lie), at equal distances (`even`), or not at all (`none`).

        Raises:
            ValueError: another way.
        """
        if how not in ("random", "even", "none"):
            raise ValueError(f"spread is {how!r}; it must be random, even or none")
        stamps, group, counts = np.unique(self.arrival, return_inverse=True, return_counts=True)
        if how == "none" or not self.quantised or len(stamps) < 2:
            return self.arrival
        gaps = np.diff(stamps)
        quantum = np.median(gaps)
        width = np.minimum(np.append(gaps, quantum), quantum)
        if how == "random":
            place = stream(seed, "spread").random(len(self))
            place = place[np.lexsort((place, group))]
        else:
            first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)[:-1]))
            place = (np.arange(len(self)) - first[group] + 0.5) / counts[group]
        later: Ints = np.floor(place * width[group]).astype(np.int64)
        return stamps[group] + later

    def prepare(
        self,
        profile: Profile | str | Path = "a40-qwen2.5-3b",
        cluster: Cluster | None = None,
        *,
        start_s: float = 0.0,
        end_s: float | None = None,
        rate: float | None = None,
        target_kind: targets.Targets | None = None,
        tight_share: float | None = None,
        spread: Spread = "random",
        seed: int = 0,
    ) -> tuple[Trace, Preparation]:
        """Makes a trace, and tells what was left out of it and what no routing could serve in time.

        In this order: spread quantised arrivals; keep [start_s, end_s) and count time from start_s; leave
        out what does not fit an instance's context limit or KV cache; stretch time to the rate; give
        SLO classes and targets. A request's class depends on its row and the seed only.

        Args:
            profile: sets the targets.
            cluster: that must hold the requests and on which they are alone; by default one prefill
                and one decode instance of the profile.
            start_s: seconds in the file's time.
            end_s: seconds in the file's time; the end of the file unless given.
            rate: mean requests per second after filtering; the file's unless given.
            target_kind: `fixed` or `relative`; by default the file's own targets, else fixed.
            tight_share: share of the class tight; by default the file's own classes, else 0.5.
            spread: how to spread quantised arrivals.
            seed: for spreading and classes.

        Raises:
            ValueError: a parameter out of range, or nothing is left.
        """
        _check(start_s, end_s, rate, tight_share)
        chosen = profiles.resolve(profile)
        if cluster is None:
            engine = chosen.engine()
            cluster = Cluster(prefill=(engine,), decode=(engine,), name=chosen.name)
        arrival = self.spread_arrivals(spread, seed)
        begin = round(start_s * PS_PER_S)
        inside = arrival >= begin
        if end_s is not None:
            inside &= arrival < round(end_s * PS_PER_S)
        short, small = fits(self.prompt, self.output, cluster)
        kept = np.flatnonzero(inside & short & small)
        if not len(kept):
            raise ValueError(
                f"{self.path}: no request is left of {len(self)}; "
                f"{int(inside.sum())} lie between start and end, "
                f"{int((inside & short).sum())} of them within the context limit of {cluster.name}"
            )
        arrival = arrival[kept] - begin
        if rate is not None:
            own = mean_rate(arrival)
            if own == 0:
                raise ValueError(
                    f"{self.path}: all requests ({len(kept)}) arrive at one instant; they have no rate to scale"
                )
            if int(arrival[-1]) * own > MAX_TIME_PS * rate:
                raise ValueError(f"rate is {rate:g}; it stretches {self.path} beyond 100 days, the longest trace")
            arrival = np.rint(arrival * (own / rate)).astype(np.int64)
        prompt, output, slo = self.prompt[kept], self.output[kept], self._classes(tight_share, seed)[kept]
        kind, (ttft, tpot) = self._targets(target_kind, kept, slo, chosen, cluster)
        offsets, ids = None, None
        if self.prefix_offsets is not None and self.prefix_ids is not None:
            offsets, ids = gather(self.prefix_offsets, self.prefix_ids, kept)
        trace = Trace(
            arrival,
            prompt,
            output,
            slo,
            self.family[kept],
            ttft,
            tpot,
            self.families,
            self.name,
            offsets,
            ids,
        )
        return trace, Preparation(
            path=self.path,
            format=self.format,
            rows=self.oddities.rows,
            failed=self.oddities.failed,
            outside=len(self) - int(inside.sum()),
            over_context=int((inside & ~short).sum()),
            over_kv=int((inside & short & ~small).sum()),
            kept=len(kept),
            infeasible=int(unloaded.infeasible(trace, cluster).sum()),
            targets=kind,
            rate=mean_rate(arrival),
        )

    def to_trace(self, *args: Any, **options: Any) -> Trace:
        """The trace that `prepare` makes of the same arguments, without the report."""
        return self.prepare(*args, **options)[0]

    def _classes(self, tight_share: float | None, seed: int) -> npt.NDArray[np.int8]:
        if self.slo is not None and tight_share is None:
            return self.slo
        share = 0.5 if tight_share is None else tight_share
        tight = stream(seed, "classes").random(len(self)) < share
        return np.where(tight, TIGHT, LOOSE).astype(np.int8)

    def _targets(
        self,
        kind: targets.Targets | None,
        kept: npt.NDArray[np.intp],
        slo: npt.NDArray[np.int8],
        profile: Profile,
        cluster: Cluster,
    ) -> tuple[str, tuple[Ints, Ints]]:
        if kind is None and self.ttft_target is not None and self.tpot_target is not None:
            return "the file's", (self.ttft_target[kept], self.tpot_target[kept])
        if kind == "relative":
            alone = unloaded.fastest(self.prompt[kept], self.output[kept], cluster)
            return kind, targets.relative(slo, profile, alone.ttft)
        if kind in (None, "fixed"):
            return "fixed", targets.fixed(slo, profile)
        raise ValueError(f"target_kind is {kind!r}; it must be fixed or relative")


def mean_rate(arrival: Ints) -> float:
    """Requests per second between the first and the last arrival; 0 if they coincide."""
    if len(arrival) < 2 or arrival[-1] == arrival[0]:
        return 0.0
    return (len(arrival) - 1) * PS_PER_S / int(arrival[-1] - arrival[0])


def _check(start_s: float, end_s: float | None, rate: float | None, tight_share: float | None) -> None:
    if not start_s >= 0:
        raise ValueError(f"start_s is {start_s}; it must be at least 0 s")
    if end_s is not None and not end_s > start_s:
        raise ValueError(f"end_s is {end_s}; it must be greater than start_s ({start_s})")
    if rate is not None and not 0 < rate < float("inf"):
        raise ValueError(f"rate is {rate}; it must be greater than 0 requests per second, and finite")
    if tight_share is not None and not 0 <= tight_share <= 1:
        raise ValueError(f"tight_share is {tight_share}; it must be between 0 and 1")
