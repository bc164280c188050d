"""From a file with a `launch` section to what is started and where it will be."""

from __future__ import annotations

import os
import secrets
from collections.abc import Container
from pathlib import Path
from typing import Any

from ...envs import catalog
from ..cluster_file import WAYS_TO_COUNT, YAML, LiveCluster, Role
from ..emulator import options as emulator
from ..emulator.command_line import command_line
from ..engines.installation import engine_python
from ..engines.ports import HOST, free_port, is_free
from ..engines.tiny_model import make_tiny_model
from ..engines.vllm_command import HIDDEN_VARIABLES, EngineOptions, VllmCommand
from ..launch_file import EmulatorLaunch, LaunchEntry, LaunchFile, VllmLaunch
from .devices import check_devices
from .lost import LAUNCH_DIGITS, whose
from .processes import MARK
from .state import EngineState, State, definition

TINY = "tiny"

BLOCK_SIZE = {"cpu": 32, "cuda": 16}
"""Tokens of a KV block, unless the file says it."""

PORT_FIELDS = ("port", "side_channel_port")


def plan(file: LaunchFile, source: str, folder: Path) -> tuple[State, LiveCluster]:
    """What is started, and the cluster that it will be.

    Args:
        file: what a person has written.
        source: where.
        folder: for a model that has to be made.

    Raises:
        ValueError: engines are not installed, a device is not there, a port is taken, or an emulated engine cannot be
            as it is written; says which.
    """
    launch = file.launch
    devices = file.devices()
    check_devices(device for each in devices.values() for device in each)
    program = None if isinstance(launch, EmulatorLaunch) else _python(launch)
    model = None if isinstance(launch, EmulatorLaunch) else _model(file, launch, folder)
    engines = []
    written = {file.port_of(field, role, k) for role, k, _ in file.engines() for field in PORT_FIELDS}
    for role, k, entry in file.engines():
        port, side = (_port(file, field, role, k, written) for field in PORT_FIELDS)
        name = file.engine_name(role, k)
        if isinstance(launch, EmulatorLaunch):
            words, needed, hidden = _emulated(file, launch, entry, role, name, port, side), {}, []
        else:
            assert program is not None and model is not None
            options = _vllm_options(file, launch, entry, devices.get((role, k)))
            command = VllmCommand(role, model, file.model, port, side, options)
            words, needed, hidden = command.words(program, None), command.environment(), list(HIDDEN_VARIABLES)
        words = [*words, *launch.arguments, *entry.arguments]
        environment = needed | launch.environment | entry.environment
        _check_words(name, words, environment)
        engines.append(
            EngineState(
                role=role,
                index=k,
                name=name,
                port=port,
                side_channel_port=side,
                words=words,
                environment=environment,
                hidden=hidden,
            )
        )
    state = State(
        name=file.name,
        source=source,
        definition=definition(file),
        launch=f"{file.name}-{secrets.token_hex(LAUNCH_DIGITS // 2)}",
        engines=engines,
    )
    return state, _cluster(file, engines)


def _cluster(file: LaunchFile, engines: list[EngineState]) -> LiveCluster:
    """The same cluster with addresses."""
    fields = file.model_dump(exclude={"launch", "prefill", "decode", "mixed"}, exclude_none=True)
    fields["profile"] = _from_anywhere(file.profile)
    if file.tokenizer not in WAYS_TO_COUNT:
        fields["tokenizer"] = os.path.abspath(file.tokenizer)
    for engine, (role, _, entry) in zip(engines, file.engines(), strict=True):
        own: dict[str, Any] = {"url": f"http://{HOST}:{engine.port}", "name": engine.name}
        if entry.profile is not None:
            own["profile"] = _from_anywhere(entry.profile)
        if changes := entry.overrides.model_dump(exclude_none=True):
            own["overrides"] = changes
        fields.setdefault(role, []).append(own)
    return LiveCluster.load(fields)


def _from_anywhere(profile: str) -> str:
    """A profile that is found whatever folder a command runs in."""
    return os.path.abspath(profile) if profile.endswith(YAML) else profile


def _port(file: LaunchFile, field: str, role: Role, index: int, written: Container[int | None]) -> int:
    """A port of an engine: its own, or a free one that is not written down for another."""
    own = file.port_of(field, role, index)
    if own is None:
        return next(port for port in iter(free_port, None) if port not in written)
    if not is_free(own):
        what = f"{field} of {file.engine_name(role, index)}"
        way_out = whose(own) or "end what listens there"
        raise ValueError(f"the {what} is {own}, which is taken; {way_out}, or give another")
    return own


def _check_words(name: str, words: list[str], environment: dict[str, str]) -> None:
    """Refuses what no process can be given.

    Raises:
        ValueError: names it.
    """
    for word in (*words, *environment, *environment.values()):
        if "\0" in word:
            raise ValueError(f"{name}: {word!r} holds a null character; neither a command nor a variable can")
    for variable in environment:
        if not variable or "=" in variable or variable == MARK:
            raise ValueError(f"{name}: environment has {variable!r}; that is no name that a variable may be given")


def _python(launch: VllmLaunch) -> Path:
    if launch.python is None:
        return engine_python(launch.device)
    if not (launch.python.is_file() and os.access(launch.python, os.X_OK)):
        raise ValueError(f"launch.python is {launch.python}, which cannot be run")
    return launch.python.absolute()


def _model(file: LaunchFile, launch: VllmLaunch, folder: Path) -> str:
    """What vLLM loads: a folder, or a name on the hub."""
    if launch.model == TINY:
        return str(make_tiny_model(folder / TINY))
    model = launch.model or file.model
    return os.path.abspath(model) if Path(model).is_dir() else model


def _vllm_options(
    file: LaunchFile, launch: VllmLaunch, entry: LaunchEntry, devices: tuple[int, ...] | None
) -> EngineOptions:
    own, on_cpu = entry.overrides, launch.device == "cpu"
    block_size = own.block_size or file.block_size or BLOCK_SIZE[launch.device]
    kv_tokens = own.kv_tokens or launch.kv_tokens
    return EngineOptions(
        block_size=block_size,
        num_blocks=own.num_blocks or (None if kv_tokens is None else max(kv_tokens // block_size, 1)),
        max_model_len=own.max_model_len or file.max_model_len,
        max_num_seqs=own.max_num_seqs or launch.max_num_seqs,
        lease_s=int(file.lease_s),
        kv_load_failure_policy=launch.kv_load_failure_policy,
        dtype=launch.dtype or ("float32" if on_cpu else "bfloat16"),
        device=launch.device,
        gpus=devices,
        tensor_parallel=launch.tensor_parallel,
        enforce_eager=on_cpu if launch.enforce_eager is None else launch.enforce_eager,
        max_num_batched_tokens=own.max_num_batched_tokens,
    )


def _emulated(
    file: LaunchFile, launch: EmulatorLaunch, entry: LaunchEntry, role: Role, name: str, port: int, side: int
) -> list[str]:
    own = entry.overrides.model_dump(exclude_none=True)
    shared = {
        "block_size": file.block_size,
        "max_model_len": file.max_model_len,
        "max_num_seqs": launch.max_num_seqs,
        "lease_s": file.lease_s,
        "kv_tokens": None if "num_blocks" in own else launch.kv_tokens,
    }
    given = {
        "profile": _from_anywhere(launch.profile or entry.profile or file.profile),
        "role": role,
        "model": file.model,
        "port": port,
        "side_channel_port": side,
        "overrides": {key: value for key, value in shared.items() if value is not None} | own,
        "time_scale": file.time_scale,
        "kv_load_failure_policy": launch.kv_load_failure_policy,
        "hazards": launch.hazards,
    }
    options = catalog.validate(emulator.EngineOptions, given, name)
    try:
        options.spec()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return command_line(options)
