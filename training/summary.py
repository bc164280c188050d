"""The summary of a run: its numbers, stored as JSON and as a row of summary.csv."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

SEGMENT_S = 10.0
"""Length of the contiguous segments whose counts are kept for the block bootstrap, seconds."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Quantiles(_Frozen):
    """Nearest-rank quantiles; infinite where that many requests never got there, NaN without requests."""

    p50: float
    p90: float
    p99: float
    p999: float

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> Quantiles:
        """Quantiles of (N,) values."""
        if len(values) == 0:
            return cls(p50=np.nan, p90=np.nan, p99=np.nan, p999=np.nan)
        # Nearest rank: interpolation between a finite delay and infinity means nothing.
        p50, p90, p99, p999 = np.quantile(values, (0.5, 0.9, 0.99, 0.999), method="inverted_cdf")
        return cls(p50=float(p50), p90=float(p90), p99=float(p99), p999=float(p999))


class Share(_Frozen):
    """`met` of `requests`."""

    requests: int
    met: int

    @property
    def goodput(self) -> float:
        """Share of requests that met both targets; NaN without requests."""
        return self.met / self.requests if self.requests else float("nan")


class Misses(_Frozen):
    """Requests that missed a target.

    Attributes:
        ttft: those that missed their TTFT target alone.
        tpot: those that missed their TPOT target alone.
        both: those that missed both; failed and rejected requests are among them.
    """

    ttft: int
    tpot: int
    both: int


class Balance(_Frozen):
    """How evenly a pool was used: 0 and 1 when every instance got the same.

    Attributes:
        count_cv: coefficient of variation of the requests per instance.
        count_max: largest number of requests on an instance, over the mean.
        token_cv: as `count_cv`, of tokens (prompt tokens on prefill instances, output tokens elsewhere).
        token_max: as `count_max`, of tokens.
    """

    count_cv: float
    count_max: float
    token_cv: float
    token_max: float


class Summary(_Frozen):
    """What one run did in its measurement window.

    Attributes:
        requests: arrivals in the window.
        met: those that met both targets.
        failed: those that failed.
        rejected: those that were rejected.
        missed: those that missed a target, by target.
        ceiling: share that meets both targets alone on the empty cluster (NaN when not given).
        by_class: met and requests per SLO class.
        by_family: met and requests per workload family.
        ceilings: `ceiling` of each SLO class and workload family (NaN without requests; empty when not given).
        ttft: first token − arrival, s.
        tpot: (last token − first token)/(output tokens − 1), s; requests of one token are left out.
        e2e: last token − arrival, s.
        slowdown: E2E over E2E alone on the empty cluster.
        slowdown_mean: mean of the same.
        itl_p99: P99 of the gaps between tokens, s, see `inter_token_p99`.
        max_stall: longest gap between two tokens of a request, s.
        beyond_3x: share of requests that missed 3 × their targets.
        max_delay: largest TTFT of a request that got a first token, s.
        scaled: goodput with both targets multiplied by 0.5 … 3, key is the factor.
        balance: use of each pool, by role.
        goodput_per_gpu: requests that met their targets, per second of the window and GPU.
        preemptions: mean number per request (NaN where engines do not tell).
        segment_requests: arrivals in each contiguous segment of `SEGMENT_S` seconds.
        segment_met: those of them that met both targets.
    """

    requests: int
    met: int
    failed: int
    rejected: int
    missed: Misses
    ceiling: float
    by_class: dict[str, Share]
    by_family: dict[str, Share]
    ceilings: dict[str, float]
    ttft: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    slowdown: Quantiles
    slowdown_mean: float
    itl_p99: float
    max_stall: float
    beyond_3x: float
    max_delay: float
    scaled: dict[str, float]
    balance: dict[str, Balance]
    goodput_per_gpu: float
    preemptions: float
    segment_requests: tuple[int, ...]
    segment_met: tuple[int, ...]

    @property
    def goodput(self) -> float:
        """Share of requests that met both targets."""
        return Share(requests=self.requests, met=self.met).goodput

    def row(self) -> dict[str, float]:
        """One flat row for summary.csv; column names end in their unit."""
        row: dict[str, float] = {"requests": self.requests, "met": self.met}
        row |= {"failed": self.failed, "rejected": self.rejected}
        row |= {f"missed_{name}": count for name, count in self.missed}
        row |= {"goodput": self.goodput, "ceiling": self.ceiling}
        row |= {f"goodput_{name}": share.goodput for name, share in self.by_class.items()}
        row |= {f"goodput_{name}": share.goodput for name, share in self.by_family.items()}
        row |= {f"ceiling_{name}": value for name, value in self.ceilings.items()}
        units = {"ttft": "_s", "tpot": "_s", "e2e": "_s", "slowdown": ""}
        for name, unit in units.items():
            quantiles: Quantiles = getattr(self, name)
            row |= {f"{name}_{q}{unit}": value for q, value in quantiles}
        row |= {"slowdown_mean": self.slowdown_mean, "itl_p99_s": self.itl_p99}
        row |= {"max_stall_s": self.max_stall, "max_delay_s": self.max_delay, "beyond_3x": self.beyond_3x}
        row |= {f"goodput_at_{scale}x": value for scale, value in self.scaled.items()}
        for role, balance in self.balance.items():
            row |= {f"{role}_{name}": value for name, value in balance}
        row |= {"goodput_per_gpu_per_s": self.goodput_per_gpu, "preemptions": self.preemptions}
        return row
