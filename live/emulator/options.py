"""What an emulated engine is started with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...envs import profiles
from ...envs.cluster import EngineSpec
from ...envs.profile_constants import EngineOverrides
from .faults import Fault

Role = Literal["prefill", "decode", "mixed"]
KvLoadFailurePolicy = Literal["fail", "recompute"]


class EngineOptions(BaseModel):
    """An emulated engine as a person describes it.

    Attributes:
        profile: name of a profile, or path of its YAML file.
        role: prefill (prefill legs only), decode (decode legs, and whole requests that bring nothing to pull), or
            mixed (whole requests).
        model: name under which the model is served; default: the profile's model.
        host: address to listen at.
        port: of the HTTP API; 0: any free one.
        side_channel_host: address of the side channel, which decode engines pull from.
        side_channel_port: 0: any free one.
        overrides: what differs from the profile, as in a cluster configuration; `lease_s` is `kv_lease_duration`.
        time_scale: wall seconds of one engine second: 10 is ten times slower than life.
        kv_load_failure_policy: what becomes of a request whose KV cannot be pulled.
        hazards: a malformed decode leg does the harm that it does to vLLM; without, it is an error 400.
        faults: faults from the start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    profile: str
    role: Role
    model: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65_535)
    side_channel_host: str = "127.0.0.1"
    side_channel_port: int = Field(0, ge=0, le=65_535)
    overrides: EngineOverrides = EngineOverrides()
    time_scale: float = Field(1.0, gt=0, le=1e6, allow_inf_nan=False)
    kv_load_failure_policy: KvLoadFailurePolicy = "fail"
    hazards: bool = True
    faults: list[Fault] = []

    def spec(self) -> EngineSpec:
        """The engine's time model and limits.

        Raises:
            ValueError: an unknown profile, or a value out of range.
        """
        return self._profile().engine(**self._changes())

    def kv_bytes_per_block(self) -> int:
        """Bytes of one KV block."""
        return self.spec().block_size * self._profile().memory.kv_bytes_per_token

    def served_model(self) -> str:
        """Name of the model in the API."""
        return self.model or self._profile().model

    def _profile(self) -> profiles.Profile:
        return profiles.load(self.profile)

    def _changes(self) -> dict[str, Any]:
        return self.overrides.model_dump(exclude_none=True)
