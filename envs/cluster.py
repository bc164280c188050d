"""A cluster in the integer form that both simulators run.

People write `ClusterConfig` and `Profile` files; these are what they turn into. All
times are int64 picoseconds, lengths are tokens, KV quantities are blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

PS_PER_S = 1_000_000_000_000
"""Picoseconds in a second."""

MAX_TIME_PS = 100 * 86_400 * PS_PER_S
"""Longest trace: 100 days, so that sums of times stay inside int64."""

Action = Literal["kill", "drain", "return"]


@dataclass(frozen=True, eq=False)
class EngineSpec:
    """Time model and limits of one engine.

    A step lasts `base + batch[B] + per_context*K + per_token*n + per_token_sq*s` (docs/model.md).

    Attributes:
        base_decode: constant part of a decode-only step, ps, > 0.
        base_prefill: constant part of a prefill-only step, ps, > 0.
        base_mixed: constant part of a step with both, ps, > 0.
        batch: A[0 … max_num_seqs], ps, A[0] = 0.
        per_context: C, ps per token of context in the decode batch.
        per_token: c1, ps per prefill token.
        per_token_sq: c2, ps per squared prefill token.
        block_size: tokens per KV block.
        num_blocks: usable KV blocks.
        max_num_seqs: running limit.
        max_num_batched_tokens: token budget of a step, ≥ max_num_seqs.
        max_model_len: context limit, tokens (prompt + output).
        egress_per_block: ps to send one block out of this instance.
        latency: ps, default latency of a transfer out of this instance.
        lease: ps for which KV stays held after a prefill whose decode never comes.
        name: profile name, for messages.
    """

    base_decode: int
    base_prefill: int
    base_mixed: int
    batch: npt.NDArray[np.int64]
    per_context: int
    per_token: int
    per_token_sq: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    egress_per_block: int
    latency: int
    lease: int
    name: str = "custom"

    def __post_init__(self) -> None:
        """Checks ranges.

        Raises:
            ValueError: a field is out of range; the message names it.
        """
        for key in ("base_decode", "base_prefill", "base_mixed", "block_size", "num_blocks"):
            _at_least(f"{self.name}: {key}", getattr(self, key), 1)
        for key in ("max_num_seqs", "max_model_len"):
            _at_least(f"{self.name}: {key}", getattr(self, key), 1)
        for key in ("per_context", "per_token", "per_token_sq", "egress_per_block", "latency"):
            _at_least(f"{self.name}: {key}", getattr(self, key), 0)
        _at_least(f"{self.name}: lease", self.lease, 0)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"{self.name}: max_num_batched_tokens is {self.max_num_batched_tokens}; "
                f"it must be at least max_num_seqs ({self.max_num_seqs})"
            )
        if self.batch.shape != (self.max_num_seqs + 1,) or self.batch[0] != 0:
            raise ValueError(
                f"{self.name}: batch has shape {self.batch.shape}; "
                f"it must be ({self.max_num_seqs + 1},) and start with 0"
            )
        if int(self.batch.min()) < 0:
            raise ValueError(f"{self.name}: batch has a negative time")

    def step_time(self, decodes: int, context: int, tokens: int = 0, squares: int = 0) -> int:
        """Duration of one step in ps (docs/model.md, "Step time").

        Args:
            decodes: B, sequences that decode.
            context: K, Σ(prompt + generated) over them, tokens.
            tokens: n, prefill tokens in the step.
            squares: s, Σ(end² − start²) over the prefill chunks.
        """
        if tokens == 0:
            base = self.base_decode
        elif decodes == 0:
            base = self.base_prefill
        else:
            base = self.base_mixed
        return (
            base
            + int(self.batch[decodes])
            + self.per_context * context
            + self.per_token * tokens
            + self.per_token_sq * squares
        )

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold this many tokens."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True)
class ClusterEvent:
    """One entry of a failure schedule: at `time` ps, `action` on instance `instance` (global index)."""

    time: int
    instance: int
    action: Action


@dataclass(frozen=True, eq=False)
class Cluster:
    """Instances, links and rules of one simulated cluster.

    Either `prefill` and `decode` are both non-empty, or only `mixed` is.

    Attributes:
        prefill: engines 0 … P−1.
        decode: engines P … P+D−1.
        mixed: engines 0 … M−1 of an aggregated cluster.
        first_token: which leg's first token the client sees.
        poll_interval: ps between polls, ≥ 1.
        on_kill: what happens to requests that a kill loses.
        events: failure schedule, sorted by time.
        routers: number of router replicas, each with its own ledger.
        latency: (P, D) ps, overrides the prefill engines' `latency`.
        name: for messages and reports.
    """

    prefill: tuple[EngineSpec, ...] = ()
    decode: tuple[EngineSpec, ...] = ()
    mixed: tuple[EngineSpec, ...] = ()
    first_token: Literal["decode", "prefill"] = "decode"
    poll_interval: int = 50_000_000_000
    on_kill: Literal["fail", "reroute"] = "fail"
    events: tuple[ClusterEvent, ...] = ()
    routers: int = 1
    latency: npt.NDArray[np.int64] | None = None
    name: str = "custom"
    instances: tuple[EngineSpec, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Checks that the cluster can run.

        Raises:
            ValueError: an empty pool, mixed beside disaggregated instances, a transfer that takes no
                time, block sizes that differ, or an event that names no instance.
        """
        if self.mixed and (self.prefill or self.decode):
            raise ValueError(
                f"{self.name}: mixed instances stand beside prefill or decode instances; "
                "a cluster is either disaggregated (prefill + decode) or aggregated (mixed only)"
            )
        if not self.mixed and not (self.prefill and self.decode):
            empty = "prefill" if not self.prefill else "decode"
            raise ValueError(f"{self.name}: the {empty} pool is empty; it needs at least one instance")
        object.__setattr__(self, "instances", self.mixed or self.prefill + self.decode)
        if len({e.block_size for e in self.instances}) > 1:
            raise ValueError(f"{self.name}: block_size differs between instances; KV moves block by block")
        _at_least(f"{self.name}: poll_interval", self.poll_interval, 1)
        _at_least(f"{self.name}: routers", self.routers, 1)
        if not self.mixed:
            matrix = self.latency_matrix()
            if matrix.shape != (len(self.prefill), len(self.decode)) or int(matrix.min()) < 0:
                raise ValueError(
                    f"{self.name}: latency has shape {matrix.shape}; it must be "
                    f"({len(self.prefill)}, {len(self.decode)}) with no negative entry"
                )
            for i, engine in enumerate(self.prefill):
                if engine.egress_per_block + int(matrix[i].min()) < 1:
                    raise ValueError(
                        f"{self.name}: a transfer from prefill instance {i} takes no time; "
                        "egress_per_block + latency must be at least 1 ps"
                    )
        last = 0
        for event in self.events:
            if not 0 <= event.instance < len(self.instances):
                raise ValueError(
                    f"{self.name}: event at {event.time} ps names instance {event.instance}; "
                    f"allowed are 0 to {len(self.instances) - 1}"
                )
            if event.action not in ("kill", "drain", "return"):
                raise ValueError(
                    f"{self.name}: event action {event.action!r}; allowed are kill, drain, return"
                )
            if event.time < last:
                raise ValueError(f"{self.name}: events are not sorted by time ({event.time} ps after {last} ps)")
            last = event.time

    @property
    def aggregated(self) -> bool:
        """Whether the cluster has mixed instances only."""
        return bool(self.mixed)

    def latency_matrix(self) -> npt.NDArray[np.int64]:
        """Latency of each (prefill, decode) pair, shape (P, D), ps."""
        if self.latency is not None:
            return np.asarray(self.latency, np.int64)
        own = np.array([e.latency for e in self.prefill], np.int64)
        return np.repeat(own[:, None], len(self.decode), axis=1)


def _at_least(what: str, value: int, low: int) -> None:
    if value < low:
        raise ValueError(f"{what} is {value}; it must be at least {low}")
