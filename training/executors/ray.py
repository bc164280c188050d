"""Workers of a Ray cluster: one on this machine for this program alone, or one by its address."""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from .executor import Executor, Lost
from .process import check_count, core_count
from .ray_worker import FAILED, REFUSED, Origin, origin

ANSWER_S = 60.0
"""How long a cluster may take to let this process in."""

CONNECT_S = 5.0
"""How long a port may take to answer."""

IDLE_S = 60.0
"""How long a cluster may be without a CPU."""

LOOK_S = 2.0
"""How often it is asked how many CPUs it has: nodes come and go."""

STORE_BYTES = 256 * 1024**2
"""Memory for results under way, of a cluster on this machine."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Without it Ray warns of a change to come.
}
"""Of this process, unless set otherwise."""

ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
}
"""Of the workers: there is one per CPU."""

WORKER = f"{__package__}.ray_worker"
"""What a node must be able to import."""

OPTIONS: dict[str, Any] = {
    "log_to_driver": False,
    "logging_level": logging.CRITICAL,
    "runtime_env": {"env_vars": ONE_THREAD},
}
"""Of `ray.init`."""

TRIAL = """
import logging, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except Exception as error:
    print(" ".join(str(error).split()))
    sys.exit(1)
"""
"""Enters a cluster and leaves it. Ray goes on trying for many minutes, and cannot be told not to."""


class RayExecutor(Executor):
    """Tasks on a Ray cluster, each on one CPU; a task of a lost node is done again on another.

    Every node must have the same version of this package; a worker checks that before its first task, and compiles
    the simulator's core for its node if need be. No code is sent.
    """

    def __init__(self, count: int | None = None, address: str | None = None) -> None:
        """Checks what can be checked without starting anything.

        Args:
            count: tasks at a time; None: one per core, of this machine or of the cluster.
            address: HOST:PORT of the cluster's head; this machine must be one of its nodes. None: a cluster on this
                machine, which ends with the executor.

        Raises:
            ValueError: the count is below 1, the address is none, or Ray is not installed.
            OSError: nothing listens at the address.
        """
        check_count(count)
        if importlib.util.find_spec("ray") is None:
            raise ValueError(
                "executor is ray, but the library ray is not installed; `pip install 'disaggroute[scale]'`, or use "
                "process"
            )
        if address is not None:
            _check_address(address)
        self._given, self._address = count, address
        self._ray: Any = None
        self._call: Any = None
        self._entered = False
        self._cpus, self._looked = 0, 0.0

    @property
    def count(self) -> int:
        """Tasks that run at a time: as given, or the CPUs that the cluster has now.

        Raises:
            OSError: no cluster answers at the address, or it does not let this process in.
            RuntimeError: Ray does not start on this machine.
        """
        if self._given is not None:
            return self._given
        self._connect()
        return max(self._look(), 1)

    @property
    def most_under_way(self) -> int:
        """Tasks handed over at a time: some wait, unless the count is a limit to keep on a larger cluster."""
        limited = self._given is not None and self._address is not None
        return self.count if limited else 2 * self.count

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leaves the cluster, or ends the one on this machine; what runs there for this process ends."""
        if self._entered:
            self._ray.shutdown()
        self._ray, self._call, self._entered = None, None, False

    def _submit(self, payload: bytes) -> Any:
        self._connect()
        return self._call(payload, origin())

    def _ended(self, handles: Collection[Any]) -> Collection[Any]:
        waiting, without = list(handles), time.monotonic()
        while not self._ray.wait(waiting, num_returns=1, timeout=LOOK_S)[0]:
            if self._look():
                without = time.monotonic()
            elif time.monotonic() - without > IDLE_S:
                raise RuntimeError(
                    f"the Ray cluster{self._where} has had no CPU for {IDLE_S:g} s; the same command goes on from what "
                    "is finished"
                )
        ended: list[Any] = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        return ended

    def _result(self, handle: Any) -> Any:
        try:
            how, content = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            raise Lost(f"a worker of the Ray cluster{self._where} was lost ({type(error).__name__})") from None
        if how == REFUSED:
            node, unlike = content
            raise ValueError(
                f"the node {node} of the Ray cluster{self._where} has {unlike}; install the same version of "
                "disaggroute on every node"
            )
        if how == FAILED:
            own, traceback = pickle.loads(content[0]), content[1]
            own.add_note(traceback)
            raise own
        return pickle.loads(content)

    def _cancel(self, handles: Collection[Any]) -> None:
        for handle in handles:
            with suppress(Exception):
                self._ray.cancel(handle, force=True)

    def _look(self) -> int:
        """CPUs of the cluster, looked at now and then."""
        if time.monotonic() - self._looked > LOOK_S:
            self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
            self._looked = time.monotonic()
        return self._cpus

    @property
    def _where(self) -> str:
        return "" if self._address is None else f" at {self._address}"

    def _connect(self) -> None:
        """Enters the cluster, or starts one; nothing if that is done."""
        if self._ray is not None:
            return
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import ray

        if not ray.is_initialized():
            # Ray prints what happens to nodes and workers on the standard output; its own debugger stops it like this.
            ray._private.worker._worker_logs_enabled = False
            if self._address is None:
                self._start(ray)
            else:
                _enter(ray, self._address)
            self._entered = True
        self._ray = ray
        self._call = _remote(ray)

    def _start(self, ray: Any) -> None:
        """Starts a cluster on this machine."""
        store = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        try:
            ray.init(address="local", num_cpus=self._given or core_count(), **store, **OPTIONS)
        except Exception as error:  # On a busy machine its parts do not come up in the 30 s it gives them.
            ray.shutdown()
            raise RuntimeError(f"Ray cannot be started on this machine: {' '.join(str(error).split())}") from error


def _remote(ray: Any) -> Callable[[bytes, Origin], Any]:
    """Hands a payload to a worker of the cluster, and says where it comes from."""
    module = WORKER

    def call(payload: bytes, sender: Any) -> Any:
        import importlib

        node = ray.util.get_node_ip_address()
        try:
            worker = importlib.import_module(module)
            how, content = worker.answer(payload, sender)
        except ImportError as error:
            how, content = "refused", f"no disaggroute of this version ({error})"
        return how, (node, content) if how == "refused" else content

    # This much is sent by value, to say so where a node has no such package. Lost tasks are handed over again by us.
    remote: Callable[[bytes, Origin], Any] = ray.remote(num_cpus=1, max_retries=0)(call).remote
    return remote


def _check_address(address: str) -> None:
    """Refuses an address of another form, or at which nothing listens."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            f"ray_address is {address}; it must be HOST:PORT of the head of a Ray cluster, such as 10.0.0.1:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        raise ConnectionError(
            f"ray_address is {address}, where nothing answers ({reason}); `ray start --head` starts a cluster, and "
            "without --ray-address there is one on this machine"
        ) from None


def _enter(ray: Any, address: str) -> None:
    """Enters a cluster; first in a process of its own, which can be ended.

    Raises:
        OSError: no cluster answers in time, or it does not let this process in.
    """
    try:
        tried = subprocess.run(
            [sys.executable, "-c", TRIAL, address], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConnectionError(
            f"ray_address is {address}, where no Ray cluster answers within {ANSWER_S:g} s; it must be the address "
            "that `ray start --head` told, and this machine one of the cluster's nodes"
        ) from None
    said = tried.stdout.strip() or "Ray ended without a word"
    if not tried.returncode:
        try:
            ray.init(address=address, **OPTIONS)
            return
        except Exception as error:
            said = " ".join(str(error).split())
    raise ConnectionError(f"ray_address is {address}, which does not let this machine in: {said}")
