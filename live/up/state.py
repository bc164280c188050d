"""What is written down of engines that `live up` has started: a folder for each cluster.

    state.json          which file they come from, and for each engine what starts it
    cluster.yaml        the cluster with their addresses, as the router takes it
    prefill-0.pid       the kernel's word on an engine's first process, written by that process itself
    prefill-0.log       what the engine has said

state.json is written before the first engine starts, and whatever an engine starts carries the launch's mark. So
`live down` finds everything, at whatever moment `live up` was killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from ...envs.atomic_file import write_atomically
from ..cluster_file import LiveCluster, Role
from ..file_name import file_name
from ..launch_file import LaunchFile
from .processes import MARK, TITLES, Process, every, marks, parse

VARIABLE = "DISAGGROUTE_STATE"
"""Environment variable with the folder in which the clusters' folders lie."""

SCHEMA = 1

LOCK_S = 2.0
"""For which the lock is waited for: what a killed `live up` had begun to start holds it until it is written down."""

MOST_BYTES = 200
"""Of a folder's name: file systems take 255."""


class EngineState(BaseModel):
    """One engine that was or is to be started.

    Attributes:
        role: of it.
        index: within its pool.
        name: of it.
        port: of its HTTP API, on this machine.
        side_channel_port: that KV is pulled from.
        words: the command.
        environment: variables beside those of the process that starts it.
        hidden: variables of that process which it does not get.
        log_from: bytes of its log that are from earlier starts.
    """

    model_config = ConfigDict(extra="forbid")

    role: Role
    index: int
    name: str
    port: int
    side_channel_port: int
    words: list[str]
    environment: dict[str, str]
    hidden: list[str] = []
    log_from: int = 0

    @property
    def stem(self) -> str:
        """How its files begin."""
        return f"{self.role}-{self.index}"


class State(BaseModel):
    """One launch.

    Attributes:
        schema_version: of this file.
        name: of the cluster.
        source: the file or the name that was given.
        definition: fingerprint of what the file said.
        launch: a word of its own, in the mark of all its processes.
        engines: all of them.
    """

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA
    name: str
    source: str
    definition: str
    launch: str
    engines: list[EngineState]

    def differs(self, source: str) -> str:
        """What to say where a file does not say what the launch was started from.

        Args:
            source: that file.
        """
        if source == self.source:
            return f"{source} has changed since `live up`"
        return f"{source} does not say what {self.name} was started from, which is {self.source}"

    def way_out(self, ended: list[str]) -> str:
        """What to do about engines that have ended; nothing without any.

        Args:
            ended: their names.
        """
        if not ended:
            return ""
        have, them = ("has", "it") if len(ended) == 1 else ("have", "them")
        return f"{', '.join(ended)} {have} ended; `disaggroute live up {self.source}` starts {them} again"


def definition(file: LaunchFile) -> str:
    """Fingerprint of what a file says."""
    text = json.dumps(file.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def state_root() -> Path:
    """The folder of all clusters' folders: `$DISAGGROUTE_STATE`, else `.disaggroute/live` where the command runs.

    Raises:
        ValueError: the folder where it runs has been removed.
    """
    try:
        return Path(os.environ.get(VARIABLE) or ".disaggroute/live").absolute()
    except FileNotFoundError:
        raise ValueError(f"the folder in which this runs was removed; go to another one, or set {VARIABLE}") from None


def folder_name(name: str) -> str:
    """The name of a cluster's folder."""
    plain = file_name(name).lstrip(".-") or "live"
    return plain.encode()[:MOST_BYTES].decode(errors="ignore")


def started() -> list[str]:
    """Names of the clusters of which there is a state, sorted; that of its folder where the state is unreadable."""
    names = []
    for file in sorted(state_root().glob("*/state.json")):
        try:
            names.append(str(json.loads(file.read_bytes())["name"]))
        except (OSError, ValueError, KeyError, TypeError):
            names.append(file.parent.name)
    return names


class StateFolder:
    """The folder of one cluster.

    Args:
        name: of the cluster.
        root: the folder of all clusters' folders; None: the usual one.
    """

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self.path = (root or state_root()) / folder_name(name)

    @property
    def _file(self) -> Path:
        return self.path / "state.json"

    @property
    def cluster_file(self) -> Path:
        """The cluster with addresses."""
        return self.path / "cluster.yaml"

    def log(self, engine: EngineState) -> Path:
        """What an engine has said."""
        return self.path / f"{engine.stem}.log"

    def pid_file(self, engine: EngineState) -> Path:
        """The kernel's word on its first process."""
        return self.path / f"{engine.stem}.pid"

    @contextmanager
    def alone(self) -> Iterator[IO[str]]:
        """One process at a time that starts or ends engines.

        Yields:
            The open file of the lock, which is held as long as any process has it open.

        Raises:
            RuntimeError: another one is at it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        limit = monotonic() + LOCK_S
        with (self.path / "lock").open("a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if monotonic() > limit:
                        text = f"{self.name}: another `live up` or `live down` of it runs; wait for it"
                        raise RuntimeError(text) from None
                sleep(0.02)
            yield lock

    def read(self) -> State | None:
        """The launch; None if there is none.

        Raises:
            ValueError: the file is unreadable, of another version or another cluster's.
        """
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"{self._file}: the file cannot be read ({error.strerror})") from None
        try:
            state = State.model_validate_json(content)
        except ValidationError:
            what = "is no state of this version; end its engines by hand, and remove it"
            raise ValueError(f"{self._file} {what}") from None
        if state.name != self.name:
            raise ValueError(f"{self.path} is the state of the cluster {state.name}; give {self.name} another name")
        return state

    def cluster(self, state: State) -> LiveCluster:
        """The cluster of a launch.

        Raises:
            ValueError: its file is unreadable or of other engines.
        """
        try:
            cluster = LiveCluster.load(self.cluster_file)
            if [(role, k) for role, k, _ in cluster.engines()] != [(each.role, each.index) for each in state.engines]:
                raise ValueError(f"{self.cluster_file} has other engines than {self._file}")
        except ValueError as error:
            raise ValueError(f"{error}; `disaggroute live down {self.name}` and `live up` write it anew") from None
        return cluster

    def write(self, state: State, cluster: LiveCluster | None = None) -> None:
        """Writes a launch down, and the cluster that it leads to.

        Raises:
            OSError: it cannot be written.
        """
        if cluster is not None:
            import yaml

            fields = cluster.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
            write_atomically(self.cluster_file, yaml.safe_dump(fields, sort_keys=False).encode())
        write_atomically(self._file, (state.model_dump_json(indent=1) + "\n").encode())

    def close(self) -> None:
        """From here on no process becomes an engine."""
        self._file.unlink(missing_ok=True)

    def forget(self) -> None:
        """Removes what was written down, but the logs."""
        for file in [self._file, self.cluster_file, *self.path.glob("*.pid")]:
            file.unlink(missing_ok=True)

    def first_process(self, engine: EngineState) -> Process | None:
        """An engine's first process, if it runs."""
        try:
            written = parse(self.pid_file(engine).read_text(errors="replace"))
        except OSError:
            return None
        return written if written is not None and written.runs() else None

    def ended(self, state: State) -> list[str]:
        """Names of the engines whose first process has ended."""
        return [engine.name for engine in state.engines if self.first_process(engine) is None]

    def processes(self, state: State, of: list[EngineState] | None = None) -> list[Process]:
        """All processes that run of a launch, or of some of its engines."""
        engines = state.engines if of is None else of
        wanted = {mark(state, engine)[MARK] for engine in engines}
        sessions = {first.pid for engine in engines if (first := self.first_process(engine))}
        return [each for each in every() if each.session in sessions or marks(each) in wanted]


def mark(state: State, engine: EngineState) -> dict[str, str]:
    """The variables by which all processes of an engine are found."""
    return {MARK: f"{state.launch}/{engine.stem}", TITLES: "1"}
