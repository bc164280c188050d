"""The router as a server: clients at one port, operators at another, one event loop, and an end that drains."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from .control import admin_app, client_app
from .door import Door
from .proxy import ApiKeys, Proxy
from .service import Service

log = logging.getLogger(__name__)


@dataclass
class Doors:
    """Where clients and operators come in, and what they must show.

    Attributes:
        host: address for clients; loopback unless there are keys.
        port: for clients; 0: any free one.
        admin_host: address for operators.
        admin_port: 0: any free one.
        keys: of clients; none: everybody may come.
        admin_keys: of operators; never none.
        open: whether clients without keys are wanted beyond this machine.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8001
    keys: list[str] = field(default_factory=list)
    admin_keys: list[str] = field(default_factory=list)
    open: bool = False

    def check(self) -> None:
        """Refuses a door that stands open by mistake.

        Raises:
            ValueError: clients of other machines would need no key.
        """
        if not self.keys and not self.open and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host}, which other machines reach, and there are no API keys; "
                "give --api-keys FILE, or --open to serve everybody"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> list[str]:
    """Keys in a file, one per line; empty lines and those that begin with # are left out.

    Raises:
        ValueError: it cannot be read, or holds none or a bad one.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: the keys cannot be read ({error})") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path}: holds no key; it must hold at least one, one per line")
    for key in keys:
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ValueError(f"{path}: a key holds a space or a character that is not ASCII")
    return keys


def new_key() -> str:
    """A random key."""
    return secrets.token_urlsafe(24)


class _Server(uvicorn.Server):
    """A server whose signals are somebody else's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: one handler for both servers stands in `serve`."""
        yield


async def serve(
    service: Service,
    doors: Doors,
    *,
    wait_s: float,
    ready: Callable[[str, str], None],
    stop: asyncio.Event | None = None,
) -> bool:
    """Serves until SIGINT or SIGTERM, or until `stop` is set, then drains.

    A second signal cuts requests in flight off.

    Args:
        service: not started yet.
        doors: addresses and keys.
        wait_s: how long engines may take to answer at the start.
        ready: told the URLs of clients and operators when both can come.
        stop: ends it.

    Returns:
        Whether all requests ended in time.

    Raises:
        ValueError: a door stands open by mistake, or an engine is not what the cluster says.
        OSError: a port is taken, or engines do not answer.
    """
    doors.check()
    sockets = [_bound(doors.host, doors.port, "port"), _bound(doors.admin_host, doors.admin_port, "admin port")]
    ended = stop or asyncio.Event()
    keys, admin_keys = ApiKeys(doors.keys), ApiKeys(doors.admin_keys or [new_key()])
    try:
        await service.start(wait_s)
        apps: list[Any] = [Proxy(service, keys, client_app(service, keys)), admin_app(service, admin_keys)]
        servers = [_Server(_config(app)) for app in apps]
        running = [
            asyncio.create_task(server.serve(sockets=[bound])) for server, bound in zip(servers, sockets, strict=True)
        ]
        with _signals(ended, service), quick_collections():
            while not all(server.started for server in servers):
                if any(task.done() for task in running):
                    raise OSError("a server did not start; the log says why")
                await asyncio.sleep(0.005)
            ready(*(_url(bound) for bound in sockets))
            await ended.wait()
            service.draining = True
            done = await service.close()
        for server in servers:
            server.should_exit = server.force_exit = True
        await asyncio.gather(*running)
        return done
    except BaseException:
        await service.close()
        raise
    finally:
        for bound in sockets:
            bound.close()


def _config(app: Any) -> uvicorn.Config:
    """Clients come through the door, operators through uvicorn alone."""
    return uvicorn.Config(
        app,
        loop="none",
        http=Door if isinstance(app, Proxy) else "httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=60,
        h11_max_incomplete_event_size=65_536,
    )


def _bound(host: str, port: int, what: str) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, proto)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2_048)
    except OSError as error:
        raise ValueError(f"{what} is {host}:{port}, which cannot be listened at ({error.strerror})") from None
    bound.setblocking(False)
    return bound


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """Leaves what was made before out of garbage collections, which otherwise stop requests for tens of ms."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextlib.contextmanager
def _signals(ended: asyncio.Event, service: Service) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def asked() -> None:
        if ended.is_set():
            log.warning("asked twice: requests in flight are cut off")
            service.cut_off()
        ended.set()

    try:
        for number in numbers:
            loop.add_signal_handler(number, asked)
    except (ValueError, RuntimeError, NotImplementedError):  # Not in the main thread.
        yield
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
