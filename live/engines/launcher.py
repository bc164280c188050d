"""Starting, watching and ending one real engine: vLLM's server with NIXL, on the CPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from .ports import HOST, free_port
from .signs_of_life import is_healthy, reason_in
from .vllm_command import HIDDEN_VARIABLES, EngineOptions, Role, VllmCommand


class RealEngine:
    """One engine; `with` starts it and ends it.

    It is killed when the thread that called `start` ends, with all its processes.

    Args:
        role: prefill and decode engines pass KV through NIXL, a mixed one does not.
        model: folder of the model.
        python: of the environment that vLLM is installed in (`installation.engine_python`).
        log: file for what the engine writes.
        name: under which the model is served.
        port: of the HTTP server; None: a free one.
        side_channel_port: for the other engines' NIXL; None: a free one.
        options: the rest.
    """

    def __init__(
        self,
        role: Role,
        model: Path,
        python: Path,
        log: Path,
        *,
        name: str = "tiny",
        port: int | None = None,
        side_channel_port: int | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        self.role = role
        self.model = model
        self.name = name
        self.log = log
        self.port = port or free_port()
        self.side_channel_port = side_channel_port or free_port()
        self.options = options or EngineOptions()
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        """Where its HTTP server is."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id, which is also that of its group.

        Raises:
            RuntimeError: it was not started.
        """
        return self._running.pid

    @property
    def alive(self) -> bool:
        """Whether its first process runs; that goes when the core has died, but not at once."""
        return self._process is not None and self._process.poll() is None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self} was not started")
        return self._process

    def __str__(self) -> str:
        return f"the {self.role} engine on port {self.port}"

    def __enter__(self) -> RealEngine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def command(self) -> list[str]:
        """The words that start it."""
        return self._command.words(self._python, os.getpid())

    def environment(self) -> dict[str, str]:
        """Its environment variables: those of this process and those that it needs."""
        ours = {key: value for key, value in os.environ.items() if key not in HIDDEN_VARIABLES}
        return ours | self._command.environment()

    @property
    def _command(self) -> VllmCommand:
        return VllmCommand(self.role, str(self.model), self.name, self.port, self.side_channel_port, self.options)

    def start(self) -> None:
        """Starts it and returns at once.

        Raises:
            RuntimeError: it runs already.
        """
        if self.alive:
            raise RuntimeError(f"{self} runs already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,
            )

    def wait_ready(self, limit_s: float = 300.0) -> None:
        """Waits until it answers.

        Raises:
            RuntimeError: it ended, or does not answer within the limit; says why and where its log is.
        """
        end = time.monotonic() + limit_s
        while not self.healthy():
            if not self.alive:
                raise RuntimeError(f"{self} ended before it was ready ({self.reason()}); its log is {self.log}")
            if time.monotonic() > end:
                raise RuntimeError(f"{self} was not ready within {limit_s:g} s; its log is {self.log}")
            time.sleep(0.25)

    def healthy(self, limit_s: float = 5.0) -> bool:
        """Whether /health answers 200."""
        return is_healthy(self.port, limit_s)

    def reason(self) -> str:
        """The first error in the log since the start, or the last line."""
        if not self.log.exists():
            return "it wrote nothing"
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        return reason_in(text)

    def stop(self, limit_s: float = 15.0) -> None:
        """Ends it: asks first, kills after the limit."""
        if self.alive:
            os.kill(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running.wait(limit_s)
        self.kill()

    def kill(self) -> None:
        """Kills it without warning: its first process, with which the kernel kills the others.

        What is left for a moment is Python's tracker of resources, which frees the shared memory (160 MB) that the
        killed ones could not; a signal to the whole group would kill it too.
        """
        if self.alive:
            self._running.kill()
            self._running.wait()


def start_all(engines: list[RealEngine], limit_s: float = 300.0) -> None:
    """Starts engines side by side and waits until each answers; if one does not, all are killed.

    Raises:
        RuntimeError: as `RealEngine.wait_ready` has it.
    """
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_ready(limit_s)
    except BaseException:
        for engine in engines:
            engine.kill()
        raise
