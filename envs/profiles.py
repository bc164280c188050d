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

from pydantic import BaseModel, Field, model_validator

from . import catalog, router_constants
from .cluster import PS_PER_S, EngineSpec
from .profile_constants import (
    GROUPS,
    PS_PER_MS,
    PS_PER_NS,
    PS_PER_US,
    STRICT,
    EngineOverrides,
    Limits,
    Memory,
    Slo,
    Source,
    StepTimes,
    Transfer,
)

SLO_FACTOR = 3
"""Tight = 3 x unloaded, loose = 3 x tight."""


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
    tensor_parallel: int = Field(1, ge=1, le=1024)
    step: StepTimes
    memory: Memory
    limits: Limits
    transfer: Transfer
    slo: Slo | None = None
    sources: dict[str, Source]
    notes: str = ""

    @model_validator(mode="after")
    def _every_constant_has_a_source(self) -> Profile:
        known = {f"{group}.{key}" for group, model in GROUPS.items() for key in model.model_fields}
        for key in self.sources:
            if key not in known and key not in GROUPS:
                raise ValueError(catalog.unknown("constant in sources", key, [*known, *GROUPS]))
        for name in self.constants():
            if name not in self.sources and name.split(".")[0] not in self.sources:
                raise ValueError(
                    f"{name} has no entry in sources; say where it comes from, or mark it assumed"
                )
        return self

    def constants(self) -> dict[str, Any]:
        """Every constant that is set and used, by dotted name."""
        groups = {key: getattr(self, key) for key in GROUPS}
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


def register(name: str, path: str | Path) -> None:
    """Adds a profile's YAML file under a name, for this process.

    Raises:
        ValueError: the name is taken.
    """
    catalog.register("profiles", name, path)


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
