"""A request alone on the empty cluster: its TTFT, TPOT and E2E in closed form.

Follows docs/model.md with nobody else there, exactly, in integers. It gives the `relative` targets, the
denominator of the slowdown, and the ceiling: the share of requests that any routing could serve in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .cluster import Cluster, EngineSpec
from .time_limits import check_alone
from .trace import Trace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Unloaded:
    """Times of N requests, each alone.

    Attributes:
        ttft: (N,) ps from arrival to the first token.
        span: (N,) ps from the first token to the last; 0 for one token.
        output: (N,) tokens.
    """

    ttft: Ints
    span: Ints
    output: Ints

    @property
    def e2e(self) -> Ints:
        """(N,) ps from arrival to the last token."""
        return self.ttft + self.span

    @property
    def tpot(self) -> npt.NDArray[np.float64]:
        """(N,) ps per output token after the first; 0 for one token."""
        return self.span / np.maximum(self.output - 1, 1)

    def misses(self, trace: Trace) -> npt.NDArray[np.bool_]:
        """(N,) whether each request misses a target of its own."""
        late = self.ttft > trace.ttft_target
        return late | (self.span > (self.output - 1) * trace.tpot_target)


def disaggregated(
    prompt: npt.ArrayLike,
    output: npt.ArrayLike,
    prefill: EngineSpec,
    decode: EngineSpec,
    first_token: Literal["decode", "prefill"] = "decode",
    latency: int | None = None,
) -> Unloaded:
    """Requests alone on one prefill and one decode instance.

    The prompt takes `EngineSpec.prompt_time`, the transfer blocks(p)·egress + latency. Decode step j of those that
    follow feeds token c + j, so m steps from context c on take m·(base + A[1] + C·c) + C·m(m−1)/2.

    Args:
        prompt: (N,) tokens.
        output: (N,) tokens.
        prefill: the prefill instance.
        decode: the decode instance.
        first_token: which leg's first token the client sees.
        latency: ps of the pair; `prefill.latency` unless given.
    """
    p, o = np.asarray(prompt, np.int64), np.asarray(output, np.int64)
    check_alone(prefill, p, np.zeros(1, np.int64))
    check_alone(decode, p, o)
    computed = prefill.prompt_time(p)
    moved = -(-p // prefill.block_size) * prefill.egress_per_block
    moved = moved + (prefill.latency if latency is None else latency)
    if first_token == "decode":
        first = _steps(np.ones_like(p), p, decode)
        return Unloaded(computed + moved + first, _steps(o - 1, p + 1, decode), o)
    return Unloaded(computed, np.where(o > 1, moved + _steps(o - 1, p + 1, decode), 0), o)


def aggregated(prompt: npt.ArrayLike, output: npt.ArrayLike, engine: EngineSpec) -> Unloaded:
    """Requests alone on one mixed instance; the last chunk of the prompt yields the first token."""
    p, o = np.asarray(prompt, np.int64), np.asarray(output, np.int64)
    check_alone(engine, p, o)
    return Unloaded(engine.prompt_time(p), _steps(o - 1, p + 1, engine), o)


def fastest(prompt: npt.ArrayLike, output: npt.ArrayLike, cluster: Cluster) -> Unloaded:
    """Least TTFT and least span of each request over the choices of instances (of equal ones, one).

    In a cluster of unlike instances the two may come from different choices.
    """
    choices = list(_choices(prompt, output, cluster))
    ttft = np.minimum.reduce([c.ttft for c in choices])
    return Unloaded(ttft, np.minimum.reduce([c.span for c in choices]), choices[0].output)


def infeasible(trace: Trace, cluster: Cluster) -> npt.NDArray[np.bool_]:
    """(N,) whether each request misses alone, whatever the choice of instances."""
    missed = np.ones(len(trace), np.bool_)
    for choice in _choices(trace.prompt, trace.output, cluster):
        missed &= choice.misses(trace)
    return missed


def ceiling(trace: Trace, cluster: Cluster) -> float:
    """1 − share of requests that miss even alone on the empty cluster; 1 for an empty trace."""
    return 1.0 - float(infeasible(trace, cluster).mean()) if len(trace) else 1.0


def _choices(prompt: npt.ArrayLike, output: npt.ArrayLike, cluster: Cluster) -> Iterator[Unloaded]:
    if cluster.aggregated:
        for engine in {id(e): e for e in cluster.mixed}.values():
            yield aggregated(prompt, output, engine)
        return
    latency = cluster.latency_matrix()
    seen = set()
    for i, prefill in enumerate(cluster.prefill):
        for j, decode in enumerate(cluster.decode):
            key = (id(prefill), id(decode), int(latency[i, j]))
            if key not in seen:
                seen.add(key)
                yield disaggregated(prompt, output, prefill, decode, cluster.first_token, key[2])


def _steps(count: Ints, context: Ints, engine: EngineSpec) -> Ints:
    """Time of `count` decode steps of a batch of one, the first with K = `context`."""
    step = engine.base_decode + int(engine.batch[1]) + engine.per_context * context
    total: Ints = count * step + engine.per_context * (count * (count - 1) // 2)
    return total
