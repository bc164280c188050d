"""TCP ports of engines on this machine."""

from __future__ import annotations

import os
import socket

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Where free ports are looked for: below those that Linux gives to outgoing connections, as an engine takes its side
channel only a minute after it was started."""

_given: set[int] = set()


def free_port() -> int:
    """A TCP port that nobody listens on and that this function has not given before.

    Raises:
        RuntimeError: there is none.
    """
    # Processes start at different places, so that two of them seldom look at the same port.
    first = os.getpid() * 37 % len(PORTS)
    for step in range(len(PORTS)):
        port = PORTS[(first + step) % len(PORTS)]
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


def is_free(port: int) -> bool:
    """Whether nobody listens on a port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True
