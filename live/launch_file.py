"""A live cluster whose engines `disaggroute live up` starts: how many, and how each is started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from ..envs import catalog
from ..envs.cluster import MAX_BLOCKS, MAX_SEQS
from ..envs.cluster_config import STRICT
from .cluster_file import LAUNCH, ClusterFields, EngineFields, LiveCluster, Role, read_fields

MOST_ENGINES = 1_024
"""Of a pool that is started on one machine."""

Port = Annotated[int, Field(ge=1, le=65_535)]

Devices = Annotated[list[Annotated[int, Field(ge=0, le=1_023)]], Field(min_length=1)]


class LaunchEntry(EngineFields):
    """One engine to start; `overrides` are the engine's as well as the router's.

    Attributes:
        port: of its HTTP API; by default the next of `launch.port`, or a free one.
        side_channel_port: that KV is pulled from; likewise.
        devices: GPUs that it sees; by default the next of `launch.devices`.
        arguments: further arguments, after those of `launch`.
        environment: further variables, instead of those of `launch`.
    """

    port: Port | None = None
    side_channel_port: Port | None = None
    devices: Devices | None = None
    arguments: list[str] = Field([])
    environment: dict[str, str] = Field({})


def _entries(written: Any) -> Any:
    """A number stands for so many engines with nothing of their own."""
    if isinstance(written, int) and not isinstance(written, bool):
        if not 0 <= written <= MOST_ENGINES:
            raise ValueError(f"{written} engines; there may be 0 to {MOST_ENGINES}")
        return [{} for _ in range(written)]
    if not isinstance(written, list | tuple):
        raise ValueError(f"{written!r} is no pool; give a number of engines, or a list of them")
    return written


Pool = Annotated[list[LaunchEntry], BeforeValidator(_entries)]


class LaunchFields(BaseModel):
    """How all engines are started, whatever they are.

    Attributes:
        port: of the first engine's HTTP API, the others follow; by default free ones.
        side_channel_port: that KV is pulled from, of the first engine; likewise.
        kv_tokens: tokens of an engine's KV cache.
        max_num_seqs: requests that an engine runs at a time.
        kv_load_failure_policy: what a decode engine does when it cannot pull: answer with an error, or prefill itself.
        arguments: further arguments of the command.
        environment: further variables.
    """

    model_config = STRICT

    port: Port | None = None
    side_channel_port: Port | None = None
    kv_tokens: int | None = Field(None, ge=1, le=MAX_BLOCKS)
    max_num_seqs: int | None = Field(None, ge=1, le=MAX_SEQS)
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    arguments: list[str] = Field([])
    environment: dict[str, str] = Field({})


class EmulatorLaunch(LaunchFields):
    """Emulated engines.

    Attributes:
        profile: that times them, when it is another than the one which the router believes in.
        hazards: whether malformed decode legs do the harm that they do to vLLM.
    """

    kind: Literal["emulator"]
    profile: str | None = None
    hazards: bool = True


class VllmLaunch(LaunchFields):
    """vLLM with NIXL.

    Attributes:
        device: what computes.
        model: folder of the model, its name on the hub, or `tiny`, the small random model of the tests; by default
            the name under which it is served.
        python: of an environment with vLLM and NIXL; by default what `live install-engines` has installed.
        dtype: of weights and KV; by default float32 on the CPU and bfloat16 on GPUs.
        enforce_eager: no graphs of the step are captured; by default so on the CPU.
        tensor_parallel: GPUs of one engine.
        devices: GPUs, from which engines take theirs in order; by default from 0 on.
        share_devices: several engines may have the same GPU.
    """

    kind: Literal["vllm"]
    device: Literal["cpu", "cuda"]
    model: str | None = Field(None, min_length=1)
    python: Path | None = None
    dtype: str | None = None
    enforce_eager: bool | None = None
    tensor_parallel: int = Field(1, ge=1, le=64)
    devices: Devices | None = None
    share_devices: bool = False


Launch = Annotated[EmulatorLaunch | VllmLaunch, Field(discriminator="kind")]


class LaunchFile(ClusterFields[LaunchEntry]):
    """A cluster with a `launch` section.

    Attributes:
        launch: how engines are started.
        prefill: how many prefill engines, or a list of them.
        decode: the same of decode engines.
        mixed: the same of mixed ones.
    """

    launch: Launch
    prefill: Pool = Field([])
    decode: Pool = Field([])
    mixed: Pool = Field([])

    @model_validator(mode="after")
    def _can_be_started(self) -> Self:
        if isinstance(self.launch, EmulatorLaunch):
            for role, k, entry in self.engines():
                if entry.devices is not None:
                    raise ValueError(f"{role}.{k}.devices is {entry.devices}; emulated engines have none")
        else:
            _check_vllm(self, self.launch)
        taken: dict[int, str] = {}
        for role, k, _ in self.engines():
            for field in ("port", "side_channel_port"):
                port, where = self.port_of(field, role, k), f"{field} of {self.engine_name(role, k)}"
                if port is None:
                    continue
                if port > 65_535:
                    raise ValueError(f"the {where} would be {port}; ports go up to 65535")
                if port in taken:
                    raise ValueError(f"the {where} is {port}, which is the {taken[port]}; each needs its own")
                taken[port] = where
        return self

    def port_of(self, field: str, role: Role, index: int) -> int | None:
        """A port of an engine as written, `port` or `side_channel_port`; None: any free one."""
        own: int | None = getattr(getattr(self, role)[index], field)
        first: int | None = getattr(self.launch, field)
        if own is not None or first is None:
            return own
        place = [(r, k) for r, k, _ in self.engines()].index((role, index))
        # Engines of several GPUs take one port of the side channel for each.
        each = getattr(self.launch, "tensor_parallel", 1) if field == "side_channel_port" else 1
        return first + place * each

    def devices(self) -> dict[tuple[Role, int], tuple[int, ...]]:
        """GPUs of each engine by role and index; empty where they compute on the CPU.

        Raises:
            ValueError: there are too few.
        """
        launch = self.launch
        if isinstance(launch, EmulatorLaunch) or launch.device == "cpu":
            return {}
        engines = list(self.engines())
        without = [(role, k) for role, k, entry in engines if entry.devices is None]
        given = {device for _, _, entry in engines for device in entry.devices or ()}
        need = launch.tensor_parallel * len(without)
        free = launch.devices
        if free is None:
            free = [device for device in range(need + len(given)) if device not in given]
        if len(free) < need and not launch.share_devices:
            each = f", {launch.tensor_parallel} each" if launch.tensor_parallel > 1 else ""
            raise ValueError(f"launch.devices is {free}; {len(without)} engines need {need} of them{each}")
        found = {(role, k): tuple(entry.devices) for role, k, entry in engines if entry.devices is not None}
        for number, place in enumerate(without):
            first = number * launch.tensor_parallel
            # Where they are shared, round and round.
            found[place] = tuple(free[k % len(free)] for k in range(first, first + launch.tensor_parallel))
        return {(role, k): found[role, k] for role, k, _ in engines}


def _check_vllm(file: LaunchFile, launch: VllmLaunch) -> None:
    """What vLLM does not take, or what would stand unused.

    Raises:
        ValueError: names the field.
    """
    if file.time_scale != 1:
        raise ValueError(f"time_scale is {file.time_scale:g}; it must be 1 for real engines")
    if file.lease_s != int(file.lease_s):
        raise ValueError(f"lease_s is {file.lease_s:g}; vLLM takes whole seconds")
    if launch.device == "cpu":
        if launch.devices is not None:
            raise ValueError(f"launch.devices is {launch.devices}; engines on the CPU have none")
        if launch.tensor_parallel != 1:
            raise ValueError(f"launch.tensor_parallel is {launch.tensor_parallel}; it must be 1 on the CPU")
    owners: dict[int, str] = {}
    for role, k, entry in file.engines():
        if entry.devices is not None and launch.device == "cpu":
            raise ValueError(f"{role}.{k}.devices is {entry.devices}; engines on the CPU have none")
        if entry.devices is not None and len(entry.devices) != launch.tensor_parallel:
            count = launch.tensor_parallel
            raise ValueError(f"{role}.{k}.devices is {entry.devices}; it must name {count}, launch.tensor_parallel")
    for (role, k), devices in file.devices().items():
        name = file.engine_name(role, k)
        for device in devices:
            other = owners.get(device)
            if other == name:
                raise ValueError(f"{name} has device {device} twice; the GPUs of one engine differ")
            if other is not None and not launch.share_devices:
                raise ValueError(f"{name} has device {device} of {other}; share_devices: true in launch allows it")
            owners[device] = name


def read(name_or_path: str | Path | dict[str, Any]) -> LiveCluster | LaunchFile:
    """A cluster as it is written: with addresses, or with a `launch` section.

    Args:
        name_or_path: as for `LiveCluster.load`.

    Raises:
        ValueError: as for `LiveCluster.load`.
    """
    fields, label = read_fields(name_or_path)
    if LAUNCH not in fields:
        return LiveCluster.load(name_or_path)
    file = catalog.validate(LaunchFile, fields, label)
    file.check_profiles(label)
    return file
