"""Whether an engine answers, and what its log says when it does not."""

from __future__ import annotations

import http.client
import re

from .ports import HOST

_ERROR = re.compile(r"((?:\b\w*(?:Error|Exception)|\berror): \S.*)")

_HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b")


def is_healthy(port: int, limit_s: float = 5.0) -> bool:
    """Whether /health of the engine at a port of this machine answers 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=limit_s)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def reason_in(log: str) -> str:
    """The first error in a log, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        found = None if _HARMLESS.search(line) else _ERROR.search(line)
        if found and "validation error" in line:  # of pydantic: what is wrong follows
            return " ".join(lines[number + 1 : number + 2])[:300] or found.group(1)
        if found:
            return found.group(1)
    return lines[-1] if lines else "it wrote nothing"
