"""A live cluster as a person writes it: where the engines are, what they serve, and what the router knows of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, model_validator

from ..envs import catalog, profiles
from ..envs.cluster import MAX_TIME_PS, PS_PER_S
from ..envs.cluster_config import STRICT
from ..envs.profile_constants import EngineOverrides
from ..envs.profiles import Profile, SloTargets

Role = Literal["prefill", "decode", "mixed"]

ROLES: tuple[Role, ...] = ("prefill", "decode", "mixed")

LAUNCH = "launch"
"""The section of a file that says how its engines are started (`launch_file.py`)."""

WAYS_TO_COUNT = ("engine", "bytes")
"""Of `tokenizer`, what is no folder."""

YAML = (".yaml", ".yml")

MAX_S = MAX_TIME_PS / PS_PER_S


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{url!r} is no address; it must be like http://host:port") from None
    others = parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or others:
        raise ValueError(f"{url!r} is no address; it must be like http://host:port")
    if not url.isascii() or not url.isprintable() or " " in url:  # urlsplit takes line ends out
        raise ValueError(f"{url!r} is no address; it must be printable ASCII characters without spaces")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError(f"{url!r} is no address; it must end before /v1, which the router adds")
    return url.rstrip("/")


class EngineFields(BaseModel):
    """What is said of one engine, wherever it is.

    Attributes:
        name: by default `role/index`.
        profile: name of a profile or path of its YAML file; by default the cluster's.
        overrides: what differs from the profile.
    """

    model_config = STRICT

    name: Annotated[str, AfterValidator(catalog.check_name)] | None = None
    profile: str | None = None
    overrides: EngineOverrides = EngineOverrides()


class EngineEntry(EngineFields):
    """One engine that runs.

    Attributes:
        url: `http://host:port`.
    """

    url: Annotated[str, AfterValidator(_checked_url)]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)


class ClassTargets(BaseModel):
    """SLO targets of a class."""

    model_config = STRICT

    ttft_s: float = Field(gt=0, le=MAX_S)
    tpot_s: float = Field(gt=0, le=MAX_S)


class Targets(BaseModel):
    """SLO targets of both classes."""

    model_config = STRICT

    tight: ClassTargets
    loose: ClassTargets


Entry = TypeVar("Entry", bound=EngineFields)


class ClusterFields(BaseModel, Generic[Entry]):
    """What is said of a cluster, whoever starts its engines.

    Attributes:
        name: for messages and reports.
        model: name under which the engines serve the model.
        tokenizer: how the length of a text prompt is found: `engine` asks an engine (`/tokenize`), `bytes` counts
            UTF-8 bytes (the emulator's tokens), or the folder of the model's `tokenizer.json`.
        profile: what the router believes about every engine; a name or a path.
        block_size: tokens per KV block that every engine must have; by default whatever the first one has.
        max_model_len: prompt and output tokens that an engine takes; by default what the engines say.
        lease_s: for how long a prefill engine keeps a prompt's KV (vLLM's `kv_lease_duration`), s of the engines.
        time_scale: wall seconds of one second of the engines; other than 1 only where they are emulated. Times of the
            ledger, of records and of targets are the engines'.
        first_token: which leg's first token the client sees; vLLM: decode.
        slo: targets by class; by default those of the profile.
        prefill: engines of the prefill pool.
        decode: engines of the decode pool.
        mixed: engines that do both legs in one.
    """

    model_config = STRICT

    name: Annotated[str, AfterValidator(catalog.check_name)] = "live"
    model: str = Field(min_length=1, max_length=1_000)
    tokenizer: str = Field("engine", min_length=1)
    profile: str
    block_size: int | None = Field(None, ge=1, le=1 << 16)
    max_model_len: int | None = Field(None, ge=2, le=1 << 30)
    lease_s: float = Field(30.0, ge=1, le=86_400)
    time_scale: float = Field(1.0, gt=0, le=1e6, allow_inf_nan=False)
    first_token: Literal["decode"] = "decode"
    slo: Targets | None = None
    prefill: list[Entry] = []
    decode: list[Entry] = []
    mixed: list[Entry] = []

    @model_validator(mode="after")
    def _can_serve(self) -> Self:
        if self.mixed and (self.prefill or self.decode):
            raise ValueError("mixed engines stand beside prefill or decode ones; a cluster has either")
        if not self.mixed:
            for role in ("prefill", "decode"):
                if not getattr(self, role):
                    raise ValueError(f"{role} is empty; a cluster has prefill and decode engines, or mixed ones")
        seen: set[str] = set()
        for role, k, _ in self.engines():
            name = self.engine_name(role, k)
            if name in seen:
                raise ValueError(f"the name {name!r} stands twice; each engine needs its own")
            seen.add(name)
        return self

    def engines(self) -> Iterator[tuple[Role, int, Entry]]:
        """Role, index within the pool and entry of every engine: prefill, decode, mixed."""
        for role in ROLES:
            for k, engine in enumerate(getattr(self, role)):
                yield role, k, engine

    def engine_name(self, role: Role, index: int) -> str:
        """The name of an engine."""
        return getattr(self, role)[index].name or f"{role}/{index}"

    def profile_of(self, engine: EngineFields) -> Profile:
        """What the router believes about an engine.

        Raises:
            ValueError: an unknown profile.
        """
        return profiles.load(engine.profile or self.profile)

    def check_profiles(self, label: str) -> None:
        """Looks up every profile, with what each engine changes in it.

        Args:
            label: put in front of the sentence.

        Raises:
            ValueError: an unknown profile, or changes that do not fit it; names the engine.
        """
        where = "profile"
        try:
            profiles.load(self.profile)
            for role, k, engine in self.engines():
                where = self.engine_name(role, k)
                self.profile_of(engine).engine(**engine.overrides.model_dump(exclude_none=True))
        except ValueError as error:
            raise ValueError(f"{label}: {where}: {error}") from None

    @property
    def targets(self) -> SloTargets:
        """TTFT and TPOT targets by class, ps.

        Raises:
            ValueError: an unknown profile.
        """
        if self.slo is None:
            return profiles.load(self.profile).slo_targets
        classes = self.slo.tight, self.slo.loose
        ttft = tuple(round(each.ttft_s * PS_PER_S) for each in classes)
        tpot = tuple(round(each.tpot_s * PS_PER_S) for each in classes)
        return SloTargets((ttft[0], ttft[1]), (tpot[0], tpot[1]))


def read_fields(name_or_path: str | Path | dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What stands in a file, and what to call it.

    Paths in it, of profiles and of a tokenizer, are absolute then: they lie beside the file, else where the command
    runs. So a file is read alike from everywhere.

    Args:
        name_or_path: as for `LiveCluster.load`.

    Raises:
        ValueError: unknown name, or a bad file.
    """
    if isinstance(name_or_path, dict):
        return name_or_path, "live cluster"
    label = str(name_or_path)
    fields = catalog.read("live", name_or_path)
    if not label.endswith(YAML):
        return fields, label
    folder = Path(label).parent
    entries = [entry for role in ROLES if isinstance(fields.get(role), list) for entry in fields[role]]
    for each in (fields, fields.get(LAUNCH), *entries):
        profile = each.get("profile") if isinstance(each, dict) else None
        if isinstance(profile, str) and profile.endswith(YAML):
            each["profile"] = _beside(folder, profile)
    tokenizer = fields.get("tokenizer")
    if isinstance(tokenizer, str) and tokenizer not in ("", *WAYS_TO_COUNT):
        fields["tokenizer"] = _beside(folder, tokenizer)
    return fields, label


def _beside(folder: Path, path: str) -> str:
    """A path in a file of that folder, made absolute; one that leads nowhere stays as it is written."""
    found = next((each for each in (folder / path, path) if os.path.exists(each)), None)
    return path if found is None else os.path.abspath(found)


class LiveCluster(ClusterFields[EngineEntry]):
    """Engines that serve one model, in a prefill and a decode pool or in one pool of mixed ones, and where they are."""

    @model_validator(mode="after")
    def _no_address_twice(self) -> Self:
        addresses: dict[tuple[str, int], str] = {}
        for role, k, engine in self.engines():
            where = f"{role}/{k}"
            if engine.address in addresses:
                other = addresses[engine.address]
                raise ValueError(f"{where} has the address of {other} ({engine.url}); each needs its own")
            addresses[engine.address] = where
        return self

    @staticmethod
    def load(name_or_path: str | Path | dict[str, Any]) -> LiveCluster:
        """Reads a cluster.

        Args:
            name_or_path: a name from `catalog.names("live")`, a path that ends in .yaml, or the fields.

        Raises:
            ValueError: unknown name, a bad file, a bad field or an unknown profile, or a cluster whose engines are not
                up (`running.running` knows where those are that `live up` has started); the message names it.
        """
        fields, label = read_fields(name_or_path)
        if LAUNCH in fields:
            how = "`disaggroute live up`" if isinstance(name_or_path, dict) else f"`disaggroute live up {label}`"
            raise ValueError(f"{label}: its engines have no addresses before {how}")
        cluster = catalog.validate(LiveCluster, fields, label)
        cluster.check_profiles(label)
        return cluster
