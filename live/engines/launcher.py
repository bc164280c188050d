"""Starting, watching and ending one real engine: vLLM's server with NIXL, on the CPU."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

Role = Literal["prefill", "decode", "mixed"]

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Where free ports are looked for: below those that Linux gives to outgoing connections, as an engine takes its side
channel only a minute after it was started."""

_given: set[int] = set()


@dataclass(frozen=True)
class EngineOptions:
    """What may differ between engines.

    Attributes:
        block_size: tokens in a KV block; a multiple of 32 on the CPU.
        num_blocks: KV blocks that requests can use; vLLM keeps one more for itself.
        max_model_len: tokens of a prompt and its output together.
        max_num_seqs: requests that run at the same time.
        lease_s: seconds that a prefill engine keeps KV blocks for a decode leg, whole.
        kv_load_failure_policy: what a decode engine does when a pull fails: answer with an error, or prefill itself.
        dtype: of weights and KV. With float32 engines of all kinds choose the same tokens.
        arguments: further arguments of vLLM.
    """

    block_size: int = 32
    num_blocks: int = 128
    max_model_len: int = 2048
    max_num_seqs: int = 64
    lease_s: int = 30
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    dtype: str = "float32"
    arguments: tuple[str, ...] = ()


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
        options = self.options
        words = [str(self._python), str(Path(__file__).with_name("engine_process.py")), str(os.getpid())]
        words += ["--model", str(self.model), "--served-model-name", self.name, "--dtype", options.dtype]
        words += ["--host", HOST, "--port", str(self.port), "--enforce-eager"]
        words += ["--max-model-len", str(options.max_model_len), "--max-num-seqs", str(options.max_num_seqs)]
        words += ["--block-size", str(options.block_size), "--num-gpu-blocks-override", str(options.num_blocks + 1)]
        words += ["--enable-request-id-headers", "--enable-prompt-tokens-details"]
        if self.role != "mixed":
            transfer = {
                "kv_connector": "NixlConnector",
                "kv_role": "kv_producer" if self.role == "prefill" else "kv_consumer",
                "kv_buffer_device": "cpu",
                "kv_load_failure_policy": options.kv_load_failure_policy,
                "kv_connector_extra_config": {"kv_lease_duration": options.lease_s},
            }
            words += ["--kv-transfer-config", json.dumps(transfer)]
        return [*words, *options.arguments]

    def environment(self) -> dict[str, str]:
        """Its environment variables: those of this process and those that it needs."""
        ours = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return ours | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            "VLLM_SLEEP_WHEN_IDLE": "1",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_channel_port),
            "UCX_TLS": "tcp,self,sm",
            "UCX_NET_DEVICES": "lo",
        }

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
        connection = http.client.HTTPConnection(HOST, self.port, timeout=limit_s)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def reason(self) -> str:
        """The first error in the log since the start, or the last line."""
        if not self.log.exists():
            return "it wrote nothing"
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for number, line in enumerate(lines):
            found = None if _HARMLESS.search(line) else _ERROR.search(line)
            if found and "validation error" in line:  # of pydantic: what is wrong follows
                return " ".join(lines[number + 1 : number + 2])[:300] or found.group(1)
            if found:
                return found.group(1)
        return lines[-1] if lines else "it wrote nothing"

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


_ERROR = re.compile(r"((?:\b\w*(?:Error|Exception)|\berror): \S.*)")

_HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b")


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


def free_port() -> int:
    """A TCP port that nobody listens on and that this function has not given before.

    Raises:
        RuntimeError: there is none.
    """
    # Processes start at different places, so that two of them seldom look at the same port.
    first = os.getpid() * 37 % len(PORTS)
    for step in range(len(PORTS)):
        port = PORTS[(first + step) % len(PORTS)]
        if port not in _given and _free(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


def _free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True
