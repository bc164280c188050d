"""A cluster in the integer form that both simulators run.

People write `ClusterConfig` and `Profile` files; these are what they turn into. All
times are int64 picoseconds, lengths are tokens, KV quantities are blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import index
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from .digest import LATER

PS_PER_S = 1_000_000_000_000
"""Picoseconds in a second."""

MAX_TIME_PS = 100 * 86_400 * PS_PER_S
"""Longest trace: 100 days, so that sums of times stay inside int64."""

MAX_SPAN_PS = 1 << 58
"""Largest time constant: 3.3 days."""

MAX_TOKENS = 1 << 30
"""Largest context limit and step budget, tokens."""

MAX_BLOCKS = (1 << 31) - 1
"""Largest KV cache, blocks: the decision log counts them in 32 bits."""

MAX_BLOCK_SIZE = 1 << 16
"""Largest KV block, tokens."""

MAX_SEQS = 1 << 17
"""Largest running limit: every decode instance has tables of this length."""

MAX_ROUTERS = 8
"""Most routers: the core keeps a request's router in 3 bits."""

Action = Literal["kill", "drain", "return"]

Dealing = Literal["round-robin", "random"]
"""How requests are dealt to several routers."""

Tokens = TypeVar("Tokens", int, npt.NDArray[np.int64])


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
        for key, (low, high) in _RANGES.items():
            value = _whole(f"{self.name}: {key}", getattr(self, key))
            _between(f"{self.name}: {key}", value, low, high)
            object.__setattr__(self, key, value)
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
        if self.batch.dtype.kind not in "iu" or not 0 <= int(self.batch.min()) <= int(self.batch.max()) <= MAX_SPAN_PS:
            raise ValueError(
                f"{self.name}: batch has dtype {self.batch.dtype} and reaches from {self.batch.min()} to "
                f"{self.batch.max()}; it must hold integers between 0 and {MAX_SPAN_PS} ps"
            )

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

    def prompt_time(self, tokens: Tokens) -> Tokens:
        """Time to prefill a prompt alone, in chunks of `max_num_batched_tokens`, ps.

        The chunks telescope: ⌈n / budget⌉·base_prefill + c1·n + c2·n².

        Args:
            tokens: n, a number or an array.
        """
        steps = -(-tokens // self.max_num_batched_tokens)
        return steps * self.base_prefill + self.per_token * tokens + self.per_token_sq * tokens * tokens

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
        routers: number of router replicas, each with its own ledger, learner and policy state.
        dealing: which router gets a request: the next in turn, or one at random.
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
    dealing: Dealing = field(default="round-robin", metadata=LATER)
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
        for key, high in (("poll_interval", MAX_SPAN_PS), ("routers", MAX_ROUTERS)):
            value = _whole(f"{self.name}: {key}", getattr(self, key))
            _between(f"{self.name}: {key}", value, 1, high)
            object.__setattr__(self, key, value)
        for key, words in _WORDS.items():
            if getattr(self, key) not in words:
                raise ValueError(f"{self.name}: {key} is {getattr(self, key)!r}; allowed are {' and '.join(words)}")
        if not self.mixed:
            if self.latency is not None and np.asarray(self.latency).dtype.kind not in "iu":
                kind = np.asarray(self.latency).dtype
                raise ValueError(f"{self.name}: latency has dtype {kind}; it must hold integers, in ps")
            matrix = self.latency_matrix()
            if matrix.shape != (len(self.prefill), len(self.decode)) or not (
                0 <= int(matrix.min()) <= int(matrix.max()) <= MAX_SPAN_PS
            ):
                raise ValueError(
                    f"{self.name}: latency has shape {matrix.shape}; it must be ({len(self.prefill)}, "
                    f"{len(self.decode)}) with entries between 0 and {MAX_SPAN_PS} ps"
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
            _between(f"{self.name}: time of the event on instance {event.instance}", event.time, 0, MAX_TIME_PS)
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


_RANGES = {
    "base_decode": (1, MAX_SPAN_PS),
    "base_prefill": (1, MAX_SPAN_PS),
    "base_mixed": (1, MAX_SPAN_PS),
    "per_context": (0, MAX_SPAN_PS),
    "per_token": (0, MAX_SPAN_PS),
    "per_token_sq": (0, MAX_SPAN_PS),
    "block_size": (1, MAX_BLOCK_SIZE),
    "num_blocks": (1, MAX_BLOCKS),
    "max_num_seqs": (1, MAX_SEQS),
    "max_num_batched_tokens": (1, MAX_TOKENS),
    "max_model_len": (1, MAX_TOKENS),
    "egress_per_block": (0, MAX_SPAN_PS),
    "latency": (0, MAX_SPAN_PS),
    "lease": (0, MAX_SPAN_PS),
}
"""Least and largest value of each whole-numbered field of an engine."""


_WORDS = {
    "first_token": ("decode", "prefill"),
    "on_kill": ("fail", "reroute"),
    "dealing": ("round-robin", "random"),
}
"""What each field of a cluster that is a word may be."""


def _whole(what: str, value: object) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{what} is {value!r}; it must be a whole number") from None


def _between(what: str, value: int, low: int, high: int) -> None:
    if value < low:
        raise ValueError(f"{what} is {value}; it must be at least {low}")
    if value > high:
        shown = value if value < 10**30 else f"about 1e{len(str(value)) - 1}"
        raise ValueError(f"{what} is {shown}; it must be at most {high}")
