"""The profile that a calibration found, in the format of configs/profiles, and the cluster that believes in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...envs import catalog
from ...envs.profiles import Profile
from ..cluster_file import LiveCluster
from ..engine import Engine
from .fits import Fits, PoolFit
from .robust_fit import LinearFit

FASTEST_GB_PER_S = 1e5
"""Egress of engines between which no time per byte was seen."""


TAKEN = "cluster"
"""No profile's name: its file would be that of the cluster, which lies beside it."""


def profile_name(asked: str | None, cluster: str) -> str:
    """The name of the profile.

    Args:
        asked: by a person.
        cluster: name of the cluster, from which it is made otherwise.

    Raises:
        ValueError: it is none that a profile can have.
    """
    if asked is None:
        named = re.sub(r"[^a-z0-9.-]+", "-", cluster.lower()).strip("-.")
        return "calibrated" if named in ("", TAKEN) else named
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", asked):
        raise ValueError(f"name is {asked!r}; it must be lower-case letters, digits, dots and hyphens")
    if asked == TAKEN:
        raise ValueError(f"name is {asked!r}, but {asked}.yaml is the cluster's file beside the profile; name another")
    return asked


@dataclass(frozen=True)
class Constant:
    """One constant that was fitted.

    Attributes:
        name: dotted, as in a profile.
        value: in the unit of its name.
        error: standard error, in the same; NaN where there is none.
    """

    name: str
    value: float
    error: float


def step_constants(prefill: LinearFit, decode: LinearFit) -> list[Constant]:
    """Constants of the step time."""
    found = []
    for names, units, fitted in (
        (("decode_base_ms", "per_sequence_us", "per_context_token_ns"), (1e3, 1e6, 1e9), decode),
        (("prefill_base_ms", "per_prefill_token_us", "per_prefill_token_sq_ns"), (1e3, 1e6, 1e9), prefill),
    ):
        for name, unit, value, error in zip(names, units, fitted.values, fitted.errors, strict=True):
            found.append(Constant(f"step.{name}", float(value) * unit, float(error) * unit))
    return found


def transfer_constants(transfer: LinearFit, block_bytes: int) -> list[Constant]:
    """Egress and latency."""
    latency, per_block = (float(value) for value in transfer.values)
    egress = min(block_bytes / per_block / 1e9, FASTEST_GB_PER_S) if per_block > 0 else FASTEST_GB_PER_S
    relative = float(transfer.errors[1]) / per_block if per_block > 0 else np.nan
    return [
        Constant("transfer.egress_gb_per_s", egress, egress * relative),
        Constant("transfer.latency_ms", latency * 1e3, float(transfer.errors[0]) * 1e3),
    ]


@dataclass(frozen=True)
class Calibrated:
    """Names and facts that are not fitted.

    Attributes:
        name: of the profile.
        gpu: hardware, in words.
        cluster: what was measured.
        engines: as they were met.
        requests: measurements in all, for the notes.
    """

    name: str
    gpu: str
    cluster: LiveCluster
    engines: list[Engine]
    requests: int

    @property
    def believed(self) -> Profile:
        """The cluster's profile so far."""
        return self.cluster.profile_of(self.holder.entry)

    @property
    def holder(self) -> Engine:
        """The decode or mixed engine with the smallest KV cache: its sizes stand in the profile."""
        return min((e for e in self.engines if e.role != "prefill"), key=lambda engine: engine.blocks)

    def kv_bytes(self, fits: Fits) -> int:
        """KV bytes per token, measured or else believed."""
        return fits.kv_bytes or self.believed.memory.kv_bytes_per_token

    def constants(self, fits: Fits) -> list[Constant]:
        """All fitted constants of the pools."""
        found = step_constants(fits.prefill.fit, fits.decode.fit)
        if fits.transfer is not None:
            found += transfer_constants(fits.transfer.fit, self.kv_bytes(fits) * self.holder.block_size)
        return found

    def profile(self, fits: Fits) -> Profile:
        """The pools' profile.

        Raises:
            ValueError: a constant that was fitted is out of the range of profiles; names it.
        """
        return self._profile(self.name, self.constants(fits), fits, fits.prefill, fits.decode)

    def own_profiles(self, fits: Fits) -> dict[str, Profile]:
        """Profiles of engines that deviate from their pool in their step times, by engine.

        Raises:
            ValueError: as for `profile`.
        """
        found = {}
        for engine in self.engines:
            if engine.name not in {*fits.prefill.own, *fits.decode.own}:
                continue
            prefill, decode = fits.prefill.of(engine.name), fits.decode.of(engine.name)
            constants = step_constants(prefill.fit, decode.fit)
            constants += [c for c in self.constants(fits) if c.name.startswith("transfer.")]
            name = f"{self.name}-{engine.name.replace('/', '-').lower()}"
            found[engine.name] = self._profile(name, constants, fits, prefill, decode)
        return found

    def own_transfers(self, fits: Fits) -> dict[str, dict[str, float]]:
        """Overrides of prefill engines that deviate from their pool in their transfers, by engine."""
        if fits.transfer is None:
            return {}
        block_bytes = self.kv_bytes(fits) * self.holder.block_size
        return {
            engine: {c.name.partition(".")[2]: _digits(c.value) for c in transfer_constants(own, block_bytes)}
            for engine, own in fits.transfer.own.items()
        }

    def cluster_document(self, fits: Fits, paths: dict[str, str]) -> dict[str, Any]:
        """The cluster's file with what was found.

        Args:
            fits: of the calibration.
            paths: of the profiles, from where the file is, by engine; that of the pools under "".
        """
        document = self.cluster.model_dump(mode="json", exclude_defaults=True)
        document.pop("launch", None)  # Where the engines are is written; how they were started does not matter here.
        document |= {"name": self.cluster.name, "profile": paths[""]}
        transfers = self.own_transfers(fits)
        for role, index, _ in self.cluster.engines():
            entry = document[role][index]
            entry.pop("profile", None)
            name = self.cluster.engine_name(role, index)
            if name in paths:
                entry["profile"] = paths[name]
            if name in transfers:
                entry["overrides"] = {**entry.get("overrides", {}), **transfers[name]}
        return document

    def _profile(
        self, name: str, constants: list[Constant], fits: Fits, prefill: PoolFit, decode: PoolFit
    ) -> Profile:
        believed, holder = self.believed, self.holder
        spec = holder.spec(self.cluster)
        measured = f"calibration of {self.cluster.name}"
        prefill_words = f"{measured}, prefills of one prompt alone, " + (
            "the engines' own count" if fits.own_count else "as a client sees them, without the HTTP round trip"
        )
        decode_words = "the engines' own count" if fits.own_steps else "as a client sees their tokens"
        transfer_words = (
            "transfers one at a time, the engines' own count"
            if fits.own_transfers
            else "decode legs without their first step and what HTTP adds; errors relative to the leg"
        )
        sources: dict[str, Any] = {
            "step": _source(f"{measured}, decode steps in steady state, {decode_words}", decode),
            **{
                f"step.{key}": _source(prefill_words, prefill)
                for key in ("prefill_base_ms", "per_prefill_token_us", "per_prefill_token_sq_ns")
            },
            "memory": {"text": "the engines' own word"},
            "memory.kv_bytes_per_token": {"text": f"{measured}, bytes of a transfer"}
            if fits.kv_bytes
            else {"text": f"the cluster's profile before, {believed.name}", "assumed": True},
            "limits": {"text": f"the cluster's file and its profile before, {believed.name}", "assumed": True},
            "limits.max_model_len": {"text": "the engines' own word"},
            "transfer": {"text": f"the cluster's profile before, {believed.name}", "assumed": True},
            "transfer.lease_s": {"text": "the cluster's file", "assumed": True},
        }
        own: dict[str, dict[str, float]] = {"step": {}, "transfer": {}}
        for constant in constants:
            group, _, key = constant.name.partition(".")
            own[group][key] = max(_digits(constant.value), _LEAST.get(key, 0.0))
            if group == "transfer" and fits.transfer is not None:
                sources[constant.name] = _source(f"{measured}, {transfer_words}", fits.transfer)
        document = {
            "name": name,
            "gpu": self.gpu,
            "model": self.cluster.model,
            "tensor_parallel": believed.tensor_parallel,
            "step": own["step"],
            "memory": {
                "kv_bytes_per_token": self.kv_bytes(fits),
                "block_size": holder.block_size,
                "kv_tokens": holder.blocks * holder.block_size,
            },
            "limits": {
                "max_num_seqs": spec.max_num_seqs,
                "max_num_batched_tokens": spec.max_num_batched_tokens,
                "max_model_len": spec.max_model_len,
            },
            "transfer": {**dict(believed.transfer), **own["transfer"], "lease_s": self.cluster.lease_s},
            "sources": sources,
            "notes": f"Measured on {len(self.engines)} engines, {self.requests} measurements, by "
            "`disaggroute live calibrate`. Not in it: what a client sees beyond the engines, "
            f"{fits.overhead.values[0] * 1e3:.3g} ms a request.",
        }
        return catalog.validate(Profile, document, f"the calibration of {self.cluster.name}")


_LEAST = {"decode_base_ms": 1e-6, "prefill_base_ms": 1e-6, "egress_gb_per_s": 1e-6}
"""What a profile allows at least."""


def _source(text: str, pool: PoolFit) -> dict[str, Any]:
    aside = f"; {pool.fit.aside} of {len(pool.rows)} set aside" if pool.fit.aside else ""
    return {
        "text": f"{text}, {len(pool.rows)} measurements{aside}",
        "error_mean": round(pool.fit.error_mean, 6),
        "error_max": round(pool.fit.error_max, 6),
    }


def _digits(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")
