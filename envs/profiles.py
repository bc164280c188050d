"""Profiles: the time model and limits of one engine on one hardware, in human units.

A profile file gives every constant of `EngineSpec` and says where it comes from. `Profile.engine()`
turns it into integers; the SLO targets and the router's constants are computed from that engine, so
that each has one definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from . import catalog, router_constants
from .cluster import PS_PER_S, EngineSpec

PS_PER_MS = 1_000_000_000
PS_PER_US = 1_000_000
PS_PER_NS = 1_000

SLO_FACTOR = 3
"""Tight = 3 x unloaded, loose = 3 x tight."""

STRICT = ConfigDict(extra="forbid", frozen=True)


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

    decode_base_ms: float = Field(gt=0)
    per_sequence_us: float | None = Field(None, ge=0)
    batch_us: dict[int, float] | None = None
    per_context_token_ns: float = Field(ge=0)
    prefill_base_ms: float = Field(gt=0)
    per_prefill_token_us: float = Field(ge=0)
    per_prefill_token_sq_ns: float = Field(ge=0)
    mixed_base_ms: float | None = Field(None, gt=0)

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

    kv_bytes_per_token: int = Field(ge=1)
    block_size: int = Field(16, ge=1)
    kv_tokens: int | None = Field(None, ge=1)
    gpu_gb: float | None = Field(None, gt=0)
    weights_gb: float | None = Field(None, gt=0)
    share: float = Field(0.9, gt=0, le=1)

    @model_validator(mode="after")
    def _has_a_size(self) -> Memory:
        if self.kv_tokens is None and (self.gpu_gb is None or self.weights_gb is None):
            raise ValueError("the size of the KV cache is missing; give kv_tokens, or gpu_gb and weights_gb")
        return self


class Limits(BaseModel):
    """Scheduler limits, under vLLM's names."""

    model_config = STRICT

    max_num_seqs: int = Field(256, ge=1)
    max_num_batched_tokens: int = Field(8192, ge=1)
    max_model_len: int = Field(ge=2)


class Transfer(BaseModel):
    """Moving KV out of an instance.

    Attributes:
        egress_gb_per_s: 10⁹ bytes per second.
        latency_ms: added to each transfer, does not occupy the egress.
        lease_s: how long KV stays held after a prefill whose decode never comes.
    """

    model_config = STRICT

    egress_gb_per_s: float = Field(gt=0)
    latency_ms: float = Field(1.0, ge=0)
    lease_s: float = Field(30.0, ge=0)


class Slo(BaseModel):
    """Published tight targets, where they replace the rule (loose stays 3 x tight)."""

    model_config = STRICT

    ttft_tight_ms: float = Field(gt=0)
    tpot_tight_ms: float = Field(gt=0)


class EngineOverrides(BaseModel):
    """What a pool may change of its profile; the names are those of Memory, Limits and Transfer."""

    model_config = STRICT

    num_blocks: int | None = Field(None, ge=1)
    kv_tokens: int | None = Field(None, ge=1)
    block_size: int | None = Field(None, ge=1)
    max_num_seqs: int | None = Field(None, ge=1)
    max_num_batched_tokens: int | None = Field(None, ge=1)
    max_model_len: int | None = Field(None, ge=2)
    egress_gb_per_s: float | None = Field(None, gt=0)
    latency_ms: float | None = Field(None, ge=0)
    lease_s: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _one_size(self) -> EngineOverrides:
        if self.num_blocks is not None and self.kv_tokens is not None:
            raise ValueError("num_blocks and kv_tokens both set the size of the KV cache; give one")
        return self


@dataclass(frozen=True)
class SloTargets:
    """Targets by SLO class (tight, loose), ps."""

    ttft: tuple[int, int]
    tpot: tuple[int, int]


class Profile(BaseModel):
    """One engine on one hardware.

    Attributes:
        name: lower-case words joined by hyphens, as in `h100-qwen3-8b`.
        gpu: hardware, in words.
        model: model, in words.
        tensor_parallel: GPUs of one engine.
        step: step time constants.
        memory: KV cache.
        limits: scheduler limits.
        transfer: KV transfer.
        slo: published targets, if any.
        sources: by dotted field name, or by the name of a group for all its fields without an own
            entry; every constant has one.
        notes: what a reader must know before trusting the profile.
    """

    model_config = STRICT

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")
    gpu: str
    model: str
    tensor_parallel: int = Field(1, ge=1)
    step: StepTimes
    memory: Memory
    limits: Limits
    transfer: Transfer
    slo: Slo | None = None
    sources: dict[str, Source]
    notes: str = ""

    @model_validator(mode="after")
    def _every_constant_has_a_source(self) -> Profile:
        constants = self.constants()
        groups = {name.split(".")[0] for name in constants}
        for key in self.sources:
            if key not in constants and key not in groups:
                raise ValueError(catalog.unknown("constant in sources", key, [*constants, *groups]))
        for name in constants:
            if name not in self.sources and name.split(".")[0] not in self.sources:
                raise ValueError(
                    f"{name} has no entry in sources; say where it comes from, or mark it assumed"
                )
        return self

    def constants(self) -> dict[str, Any]:
        """Every constant that is set and used, by dotted name."""
        groups = {key: getattr(self, key) for key in ("step", "memory", "limits", "transfer", "slo")}
        return {
            f"{group}.{key}": value
            for group, fields in groups.items()
            if fields is not None
            for key, value in fields
            if value is not None and not (key == "share" and self.memory.kv_tokens is not None)
        }

    def source(self, constant: str) -> Source:
        """Where a constant (dotted name) comes from."""
        return self.sources.get(constant) or self.sources[constant.split(".")[0]]

    def num_blocks(self, changes: EngineOverrides | None = None) -> int:
        """Usable KV blocks.

        Raises:
            ValueError: the weights leave no room for one block.
        """
        changes = changes or EngineOverrides()
        if changes.num_blocks is not None:
            return changes.num_blocks
        memory, block = self.memory, changes.block_size or self.memory.block_size
        tokens = changes.kv_tokens or memory.kv_tokens
        if tokens is not None:
            blocks = tokens // block
        else:
            assert memory.gpu_gb is not None and memory.weights_gb is not None
            room = (memory.share * self.tensor_parallel * memory.gpu_gb - memory.weights_gb) * 1e9
            blocks = int(room // (block * memory.kv_bytes_per_token))
        if blocks < 1:
            raise ValueError(
                f"{self.name}: the KV cache has room for {blocks} blocks; it must hold at least 1"
            )
        return blocks

    def engine(self, **overrides: Any) -> EngineSpec:
        """The integer form, every time rounded to the nearest picosecond.

        Args:
            **overrides: fields of EngineOverrides.

        Raises:
            ValueError: an unknown override, or a value out of range.
        """
        changes = catalog.validate(EngineOverrides, overrides, f"{self.name}: overrides")
        own = {**dict(self.memory), **dict(self.limits), **dict(self.transfer)}
        own |= {key: value for key, value in changes if value is not None}
        step = self.step
        decode, prefill = step.decode_base_ms, step.prefill_base_ms
        mixed = step.mixed_base_ms if step.mixed_base_ms is not None else max(decode, prefill)
        block_bytes = own["block_size"] * self.memory.kv_bytes_per_token
        try:
            batch = step.batch_table(own["max_num_seqs"])
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        return EngineSpec(
            base_decode=round(decode * PS_PER_MS),
            base_prefill=round(prefill * PS_PER_MS),
            base_mixed=round(mixed * PS_PER_MS),
            batch=batch,
            per_context=round(step.per_context_token_ns * PS_PER_NS),
            per_token=round(step.per_prefill_token_us * PS_PER_US),
            per_token_sq=round(step.per_prefill_token_sq_ns * PS_PER_NS),
            block_size=own["block_size"],
            num_blocks=self.num_blocks(changes),
            max_num_seqs=own["max_num_seqs"],
            max_num_batched_tokens=own["max_num_batched_tokens"],
            max_model_len=own["max_model_len"],
            egress_per_block=round(block_bytes / own["egress_gb_per_s"] * PS_PER_NS),
            latency=round(own["latency_ms"] * PS_PER_MS),
            lease=round(own["lease_s"] * PS_PER_S),
            name=self.name,
        )

    def prefill_time(self, tokens: int) -> float:
        """Seconds to prefill one prompt alone, chunked by the step's token budget."""
        return router_constants.prefill_time(self.engine(), tokens)

    @property
    def tau_prefill(self) -> float:
        """Prefill time per prompt token, s (`router_constants.tau_prefill`)."""
        return router_constants.tau_prefill(self.engine())

    @property
    def tau_decode(self) -> float:
        """Decode time per token under the calibration's concurrency, s (`router_constants.tau_decode`)."""
        return router_constants.tau_decode(self.engine())

    @property
    def tau_decode_single(self) -> float:
        """Decode time per token of a single stream, s (`router_constants.tau_decode_single`)."""
        return router_constants.tau_decode_single(self.engine())

    @property
    def slo_targets(self) -> SloTargets:
        """TTFT and TPOT targets, ps.

        Tight is 3 x unloaded (TTFT: prefill of a prompt of 1,000 tokens; TPOT: single-stream step), or
        what `slo` publishes; loose is 3 x tight.
        """
        if self.slo is not None:
            ttft = round(self.slo.ttft_tight_ms * PS_PER_MS)
            tpot = round(self.slo.tpot_tight_ms * PS_PER_MS)
        else:
            ttft = round(SLO_FACTOR * self.prefill_time(router_constants.CALIBRATION_PROMPT) * PS_PER_S)
            tpot = round(SLO_FACTOR * self.tau_decode_single * PS_PER_S)
        return SloTargets((ttft, SLO_FACTOR * ttft), (tpot, SLO_FACTOR * tpot))


def names() -> tuple[str, ...]:
    """Names of the profiles that ship or are registered."""
    return catalog.names("profiles")


def load(name_or_path: str | Path) -> Profile:
    """The profile of this name, or in this YAML file.

    Raises:
        ValueError: unknown name (with the nearest ones), unreadable file, or a field out of range.
    """
    text = str(name_or_path)
    return _read(text) if text.endswith((".yaml", ".yml")) else _named(text)


def resolve(profile: Profile | str | Path) -> Profile:
    """The profile itself, or the one of this name or path."""
    return profile if isinstance(profile, Profile) else load(profile)


@lru_cache(maxsize=64)
def _named(name: str) -> Profile:
    return _read(name)


def _read(name_or_path: str) -> Profile:
    return catalog.validate(Profile, catalog.read("profiles", name_or_path), name_or_path)
