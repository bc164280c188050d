"""A fresh router for one run, as a process of its own: `disaggroute live serve`."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any

import orjson
import yaml

from ..cluster_file import LiveCluster
from ..http_client import HttpClient, Unreachable
from .attempt import CLUSTER, LOG, ROUTER, Attempt

START_S = 180.0
"""Wall time within which it must be ready; the first start of a version compiles what a router needs."""

END_S = 40.0
"""Wall time that it has to end: more than it gives requests in flight."""

MOST_IN_FLIGHT = 1_000_000
"""No run is limited by the router: whatever arrives is routed."""

READY = re.compile(r"^serving .* at (http://\S+)/v1 with ", re.MULTILINE)
ADMIN = re.compile(r"^metrics and administration at (http://\S+), key (\S+)$", re.MULTILINE)


class RouterEnded(RuntimeError):
    """The router did not start, or ended in the middle of a run."""


@dataclass(frozen=True)
class Ejected:
    """An engine that the router sends nothing to any more, or did not for a while.

    Attributes:
        name: of the engine.
        times: how often.
        reason: the last one; empty once it has returned.
    """

    name: str
    times: int
    reason: str


class RouterProcess:
    """A router, from entering the context to leaving it. It dies with this process, however that ends.

    Args:
        cluster: its engines.
        policy: text of the policy.
        seed: of the policy.
        learns: predictor that learns.
        attempt: where its files go.
        options: further options of it.
    """

    def __init__(
        self,
        cluster: LiveCluster,
        policy: str,
        seed: int,
        learns: str,
        attempt: Attempt,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.url = ""
        """Where clients come in, once it is ready."""
        self._cluster, self._policy, self._seed, self._learns = cluster, policy, seed, learns
        self._folder, self._options = attempt.path, {"max_in_flight": MOST_IN_FLIGHT, **options}
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: HttpClient | None = None
        self._key = b""

    async def __aenter__(self) -> RouterProcess:
        """Starts it and waits until it serves.

        Raises:
            RouterEnded: it did not start; says its last words.
        """
        folder = self._folder
        fields = self._cluster.model_dump(mode="json", exclude_none=True, exclude={"launch"})  # It is up.
        (folder / CLUSTER).write_text(yaml.safe_dump(fields, sort_keys=False))
        (folder / "options.yaml").write_text(yaml.safe_dump(self._options))
        program = [sys.executable, "-m", __package__.partition(".")[0], "live", "serve", str(folder / CLUSTER)]
        words = ["--policy", self._policy, "--seed", str(self._seed), "--predictor", self._learns]
        words += ["--records", str(folder / ROUTER), "--options", str(folder / "options.yaml")]
        words += ["--port", "0", "--admin-port", "0", "--with-parent"]
        with (folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [*program, *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which ends it in order.
            )
        try:
            await self._ready()
        except BaseException:
            self._kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it: in order, unless something has gone wrong."""
        try:
            if self._admin is not None:
                await self._admin.close()
            if kind is None:
                await self._end()
        finally:
            self._kill()

    @property
    def last_words(self) -> str:
        """The end of what it said, in one line."""
        text = (self._folder / LOG).read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it said nothing"

    def check(self) -> None:
        """Whether it is alive.

        Raises:
            RouterEnded: it is not.
        """
        if self._process is not None and self._process.poll() is not None:
            raise RouterEnded(
                f"the router ended in the middle of the run (exit code {self._process.returncode}): {self.last_words}; "
                f"see {self._folder / LOG}"
            )

    async def ejected(self) -> list[Ejected]:
        """Engines that were ejected so far.

        Raises:
            Unreachable: the router does not say.
        """
        assert self._admin is not None
        answer = await self._admin.fetch("GET", "/admin/engines", headers=self._key, timeout=10.0)
        if answer.status != 200:
            raise Unreachable(f"{self._admin.url}/admin/engines answers {answer.status}")
        states: list[dict[str, Any]] = orjson.loads(answer.body)
        return [Ejected(each["name"], each["ejections"], each["reason"]) for each in states if each["ejections"]]

    async def _ready(self) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + START_S
        while True:
            text = (self._folder / LOG).read_text(errors="replace")
            clients, operators = READY.search(text), ADMIN.search(text)
            if clients and operators:
                break
            if self._process.poll() is not None:
                said = self.last_words.removeprefix("disaggroute: ")
                raise RouterEnded(f"the router did not start: {said}")
            if asyncio.get_running_loop().time() > deadline:
                raise RouterEnded(f"the router was not ready within {START_S:g} s; see {self._folder / LOG}")
            await asyncio.sleep(0.02)
        self.url = clients[1]
        self._admin = HttpClient(operators[1])
        self._key = b"authorization: Bearer %b\r\n" % operators[2].encode()

    async def _end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        deadline = asyncio.get_running_loop().time() + END_S
        while self._process.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.02)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(OSError):
                if self._process.stdin is not None:
                    self._process.stdin.close()
            self._process.wait()
