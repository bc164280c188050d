"""The constants of a profile, by group, in human units, as a person writes them in YAML."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from .cluster import MAX_BLOCK_SIZE, MAX_BLOCKS, MAX_SEQS, MAX_TOKENS

PS_PER_MS = 1_000_000_000
PS_PER_US = 1_000_000
PS_PER_NS = 1_000

MAX_MS = 1e6
MAX_US = 1e9
MAX_NS = 1e12
"""No constant of a step is above 1,000 s; larger ones are errors of the unit."""

MAX_LEASE_S = 86_400.0
MAX_GB = 1e6

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Source(BaseModel):
    """Where a constant comes from.

    Attributes:
        text: the source, in words.
        error_mean: mean relative error of the fit.
        error_max: largest relative error of the fit.
        assumed: no source states the value; it is a default of ours.
    """

    model_config = STRICT

    text: str = Field(min_length=1)
    error_mean: float | None = Field(None, ge=0)
    error_max: float | None = Field(None, ge=0)
    assumed: bool = False


class StepTimes(BaseModel):
    """Step time, docs/model.md: base + A[B] + C·K + c1·n + c2·s.

    Attributes:
        decode_base_ms: constant part of a decode step.
        per_sequence_us: b of the affine A[B] = b·B.
        batch_us: A by batch size instead, for engines that pad to captured batch sizes: a size that
            is not listed costs what the next larger listed one does.
        per_context_token_ns: C.
        prefill_base_ms: constant part of a prefill step.
        per_prefill_token_us: c1.
        per_prefill_token_sq_ns: c2.
        mixed_base_ms: constant part of a step with both; the larger of the other two unless given.
    """

    model_config = STRICT

    decode_base_ms: float = Field(gt=0, le=MAX_MS)
    per_sequence_us: float | None = Field(None, ge=0, le=MAX_US)
    batch_us: dict[Annotated[int, Field(le=MAX_SEQS)], Annotated[float, Field(le=MAX_US)]] | None = None
    per_context_token_ns: float = Field(ge=0, le=MAX_NS)
    prefill_base_ms: float = Field(gt=0, le=MAX_MS)
    per_prefill_token_us: float = Field(ge=0, le=MAX_US)
    per_prefill_token_sq_ns: float = Field(ge=0, le=MAX_NS)
    mixed_base_ms: float | None = Field(None, gt=0, le=MAX_MS)

    @model_validator(mode="after")
    def _one_batch_form(self) -> StepTimes:
        if (self.per_sequence_us is None) == (self.batch_us is None):
            raise ValueError("per_sequence_us and batch_us are two forms of A[B]; give exactly one")
        if self.batch_us is not None and (not self.batch_us or min(self.batch_us) < 1):
            raise ValueError("batch_us lists no batch size or one below 1; list sizes from 1 on")
        if self.batch_us is not None and min(self.batch_us.values()) < 0:
            raise ValueError("batch_us has a negative time; times are at least 0")
        return self

    def batch_table(self, max_num_seqs: int) -> npt.NDArray[np.int64]:
        """A[0 … max_num_seqs], ps, each entry rounded to the nearest integer.

        Raises:
            ValueError: `batch_us` ends below `max_num_seqs`.
        """
        if self.batch_us is None:
            assert self.per_sequence_us is not None
            exact = np.arange(max_num_seqs + 1) * (self.per_sequence_us * PS_PER_US)
        else:
            sizes = np.array(sorted(self.batch_us))
            if sizes[-1] < max_num_seqs:
                raise ValueError(
                    f"step.batch_us ends at batch size {sizes[-1]}; "
                    f"it must reach max_num_seqs ({max_num_seqs})"
                )
            times = np.array([self.batch_us[int(size)] for size in sizes]) * PS_PER_US
            exact = times[np.searchsorted(sizes, np.arange(max_num_seqs + 1))]
            exact[0] = 0.0
        table: npt.NDArray[np.int64] = np.rint(exact).astype(np.int64)
        return table


class Memory(BaseModel):
    """KV cache: its size is given, or follows from the memory of the GPUs.

    Attributes:
        kv_bytes_per_token: of the whole model, 4·layers·kv_heads·head_dim in bf16.
        block_size: tokens per block.
        kv_tokens: size of the KV cache; else
            num_blocks = ⌊(share·tensor_parallel·gpu_gb − weights_gb) / (block_size·kv_bytes_per_token)⌋.
        gpu_gb: memory of one GPU, 10⁹ bytes.
        weights_gb: weights of the whole model, 10⁹ bytes.
        share: part of the GPU memory that the engine may use.
    """

    model_config = STRICT

    kv_bytes_per_token: int = Field(ge=1, le=1_000_000_000)
    block_size: int = Field(16, ge=1, le=MAX_BLOCK_SIZE)
    kv_tokens: int | None = Field(None, ge=1, le=MAX_BLOCKS)
    gpu_gb: float | None = Field(None, gt=0, le=MAX_GB)
    weights_gb: float | None = Field(None, gt=0, le=MAX_GB)
    share: float = Field(0.9, gt=0, le=1)

    @model_validator(mode="after")
    def _has_a_size(self) -> Memory:
        if self.kv_tokens is None and (self.gpu_gb is None or self.weights_gb is None):
            raise ValueError("the size of the KV cache is missing; give kv_tokens, or gpu_gb and weights_gb")
        return self


class Limits(BaseModel):
    """Scheduler limits, under vLLM's names."""

    model_config = STRICT

    max_num_seqs: int = Field(256, ge=1, le=MAX_SEQS)
    max_num_batched_tokens: int = Field(8192, ge=1, le=MAX_TOKENS)
    max_model_len: int = Field(ge=2, le=MAX_TOKENS)


class Transfer(BaseModel):
    """Moving KV out of an instance.

    Attributes:
        egress_gb_per_s: 10⁹ bytes per second.
        latency_ms: added to each transfer, does not occupy the egress.
        lease_s: how long KV stays held after a prefill whose decode never comes.
    """

    model_config = STRICT

    egress_gb_per_s: float = Field(ge=1e-6, le=1e6)
    latency_ms: float = Field(1.0, ge=0, le=MAX_MS)
    lease_s: float = Field(30.0, ge=0, le=MAX_LEASE_S)


class Slo(BaseModel):
    """Published tight targets, where they replace the rule (loose stays 3 x tight)."""

    model_config = STRICT

    ttft_tight_ms: float = Field(gt=0, le=MAX_MS)
    tpot_tight_ms: float = Field(gt=0, le=MAX_MS)


GROUPS: dict[str, type[BaseModel]] = {
    "step": StepTimes,
    "memory": Memory,
    "limits": Limits,
    "transfer": Transfer,
    "slo": Slo,
}
"""Groups of constants in a profile."""


class EngineOverrides(BaseModel):
    """What a pool may change of its profile; the names are those of Memory, Limits and Transfer."""

    model_config = STRICT

    num_blocks: int | None = Field(None, ge=1, le=MAX_BLOCKS)
    kv_tokens: int | None = Field(None, ge=1, le=MAX_BLOCKS)
    block_size: int | None = Field(None, ge=1, le=MAX_BLOCK_SIZE)
    max_num_seqs: int | None = Field(None, ge=1, le=MAX_SEQS)
    max_num_batched_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_model_len: int | None = Field(None, ge=2, le=MAX_TOKENS)
    egress_gb_per_s: float | None = Field(None, ge=1e-6, le=1e6)
    latency_ms: float | None = Field(None, ge=0, le=MAX_MS)
    lease_s: float | None = Field(None, ge=0, le=MAX_LEASE_S)

    @model_validator(mode="after")
    def _one_size(self) -> EngineOverrides:
        if self.num_blocks is not None and self.kv_tokens is not None:
            raise ValueError("num_blocks and kv_tokens both set the size of the KV cache; give one")
        return self
