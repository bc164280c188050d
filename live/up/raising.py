"""Bringing a cluster's engines up, and taking them down."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..cluster_file import LiveCluster
from ..engines.ports import is_free
from ..engines.signs_of_life import is_healthy, reason_in
from ..launch_file import EmulatorLaunch, LaunchFile
from .lost import whose
from .plan import plan
from .processes import DOWN_S, Process, end
from .state import EngineState, State, StateFolder, definition, mark

Tell = Callable[[str, str], None]
"""Is told an engine's name and what it does: starting, ready, running or ended."""

WRITE_DOWN = (
    'read -r stat < /proc/$$/stat && printf "%s\\n" "$stat" > "$0" && test -e "${0%/*}/state.json" '
    '&& exec "$@" < /dev/null'
)
"""For a shell that notes what the kernel calls it and then becomes the engine: so there is no moment at which an engine
runs and is not written down. The id and the start of the process stay the same. Its input is the lock, which it lets go
when it has noted itself: until then nobody looks for it in vain. It becomes none where `live down` has come first."""

FREE_S = 2.0
"""For which the port of an engine that was killed may still be taken."""


def up(file: LaunchFile, source: str, tell: Tell, limit_s: float = 600.0) -> LiveCluster:
    """Starts the engines that do not run, and waits until all answer.

    If one ends or does not answer in time, those that this call has started are ended again.

    Args:
        file: the cluster as it is written.
        source: where; for messages.
        tell: is told of the engines.
        limit_s: for all to answer.

    Returns:
        The cluster with addresses.

    Raises:
        ValueError: it cannot be started as it is written, or runs as the file was written before.
        RuntimeError: an engine ended or did not answer in time, with the reason in its log; or another `live up` or
            `live down` runs.
        OSError: the state cannot be written.
    """
    _check_system()
    folder = StateFolder(file.name)
    with folder.alone() as lock:
        state = folder.read()
        if state is not None and state.definition != definition(file) and folder.processes(state):
            raise ValueError(f"{state.differs(source)}; run `disaggroute live down {file.name}` first")
        if state is None or state.definition != definition(file):
            folder.forget()
            state, cluster = plan(file, source, folder.path)
            for engine in state.engines:
                folder.log(engine).unlink(missing_ok=True)
            folder.write(state, cluster)
            fresh = True
        else:
            cluster, fresh = folder.cluster(state), False
        started: list[EngineState] = []
        try:
            missing = [engine for engine in state.engines if folder.first_process(engine) is None]
            _clear(folder, state, missing)
            if missing and isinstance(file.launch, EmulatorLaunch):
                from ..compilation import compile_engine

                compile_engine()  # Compiled once, and not by every engine.
            for engine in state.engines:
                if engine in missing:
                    started.append(engine)
                    tell(engine.name, "starting")
                    _start(folder, state, engine, lock)
                else:
                    tell(engine.name, "running")
            _wait(folder, state, tell, limit_s)
        except BaseException:
            _end(folder, state, started)
            for engine in started:
                tell(engine.name, "ended")
            if fresh:
                folder.forget()
            raise
    return cluster


def down(name: str) -> int:
    """Ends all engines of a cluster, and all that is left of a launch that broke off.

    Args:
        name: of the cluster.

    Returns:
        How many engines had processes.

    Raises:
        RuntimeError: processes do not end, or another `live up` or `live down` runs.
        ValueError: the state is unreadable.
    """
    folder = StateFolder(name)
    if not folder.path.is_dir():
        return 0
    with folder.alone():
        state = folder.read()
        if state is None:
            return 0
        running = sum(bool(folder.processes(state, [engine])) for engine in state.engines)
        _end(folder, state, state.engines)
        folder.close()
        _end(folder, state, state.engines)  # What a killed `live up` was just starting is noted by now, or ends.
        folder.forget()
    return running


def _check_system() -> None:
    if not Path("/proc/self/stat").exists() or not hasattr(os, "pidfd_open"):
        raise RuntimeError("`live up` needs Linux; start engines otherwise and write a cluster by their addresses")


def _clear(folder: StateFolder, state: State, missing: list[EngineState]) -> None:
    """Ends what is left of engines whose first process has ended, and looks whether their ports are free.

    Raises:
        ValueError: somebody else has taken a port.
    """
    if folder.processes(state, missing):
        _end(folder, state, missing)
    for engine in missing:
        for field in ("port", "side_channel_port"):
            port = getattr(engine, field)
            limit = time.monotonic() + FREE_S
            while not is_free(port) and time.monotonic() < limit:
                time.sleep(0.05)
            if not is_free(port):
                what = whose(port) or "end what listens there"
                raise ValueError(f"the {field} of {engine.name} is {port}, which is taken; {what}")


def _start(folder: StateFolder, state: State, engine: EngineState, lock: IO[str]) -> None:
    """Starts an engine as a process that ends with nobody."""
    pid_file, log = folder.pid_file(engine), folder.log(engine)
    pid_file.unlink(missing_ok=True)
    engine.log_from = log.stat().st_size if log.exists() else 0
    folder.write(state)
    ours = {key: value for key, value in os.environ.items() if key not in engine.hidden}
    with log.open("ab") as output:
        subprocess.Popen(
            ["/bin/sh", "-c", WRITE_DOWN, str(pid_file), *engine.words],
            stdin=lock,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ours | engine.environment | mark(state, engine),
            start_new_session=True,
        )
    limit = time.monotonic() + 10
    while not (pid_file.exists() and pid_file.stat().st_size) and time.monotonic() < limit:
        time.sleep(0.002)


def _wait(folder: StateFolder, state: State, tell: Tell, limit_s: float) -> None:
    """Waits until all answer.

    Raises:
        RuntimeError: one ended, or does not answer in time.
    """
    limit = time.monotonic() + limit_s
    waiting = list(state.engines)
    while waiting:
        for engine in list(waiting):
            log = folder.log(engine)
            answers = is_healthy(engine.port)
            if folder.first_process(engine) is None:  # Somebody else may answer at its port.
                said = _reason(folder, engine)
                raise RuntimeError(f"{engine.name} ended before it was ready ({said}); its log is {log}")
            if answers:
                waiting.remove(engine)
                tell(engine.name, "ready")
            elif time.monotonic() > limit:
                said = _reason(folder, engine)
                raise RuntimeError(f"{engine.name} does not answer after {limit_s:g} s ({said}); its log is {log}")
        if waiting:
            time.sleep(0.1)


def _reason(folder: StateFolder, engine: EngineState) -> str:
    log = folder.log(engine)
    return reason_in(log.read_bytes()[engine.log_from :].decode(errors="replace") if log.exists() else "")


def _end(folder: StateFolder, state: State, engines: list[EngineState]) -> None:
    def first() -> list[Process]:
        return [process for engine in engines if (process := folder.first_process(engine))]

    if engines:
        end(lambda: folder.processes(state, engines), first, DOWN_S)
