"""The files of one attempt at a run, and whether they hold all of it.

    attempt-N/client.jsonl    what the client saw, a line per request as it ended; its last line says that all had
    attempt-N/router.jsonl    the router's records
    attempt-N/router.log      what the router said
    attempt-N/cluster.yaml    the cluster as the router was given it

Lines are written as they come, so that nothing is lost in a crash. An attempt that was interrupted stays where it is,
and the run is done anew in the next one; results are made of a whole one alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import record_log
from .observation import Observation

CLIENT, ROUTER, LOG, CLUSTER = "client.jsonl", "router.jsonl", "router.log", "cluster.yaml"

ENDED = "ended"
"""Field of the client's last line."""


@dataclass(frozen=True)
class Attempt:
    """One attempt.

    Attributes:
        path: its folder.
        number: from 1 on.
    """

    path: Path
    number: int

    @property
    def client(self) -> Path:
        """The client's file."""
        return self.path / CLIENT

    @property
    def router(self) -> Path:
        """The router's file."""
        return self.path / ROUTER


@dataclass(frozen=True)
class Kept:
    """What a whole attempt holds.

    Attributes:
        path: its folder.
        client: the first line of the client's file.
        router: the first line of the router's.
        end: the client's last line.
        seen: one observation per request, by index.
        records: the router's record of each request, by index; None where it made none.
    """

    path: Path
    client: dict[str, Any]
    router: dict[str, Any]
    end: dict[str, Any]
    seen: list[Observation]
    records: list[dict[str, Any] | None]


def attempts(place: Path) -> list[Attempt]:
    """Attempts in the folder of a run, the last one first."""
    found = []
    for path in place.glob("attempt-*"):
        number = re.fullmatch(r"attempt-([1-9][0-9]{0,8})", path.name)
        if number:
            found.append(Attempt(path, int(number[1])))
    return sorted(found, key=lambda attempt: -attempt.number)


def new_attempt(place: Path) -> Attempt:
    """A folder for another one.

    Raises:
        OSError: it cannot be made.
    """
    number = max((attempt.number for attempt in attempts(place)), default=0) + 1
    path = place / f"attempt-{number}"
    path.mkdir(parents=True)
    return Attempt(path, number)


def whole(attempt: Attempt, about: dict[str, Any]) -> Kept | None:
    """What an attempt holds, if it holds all of a run; None if it was interrupted.

    Whole means: the client's file says of itself that all requests had ended, each stands in it once, and the router
    has recorded each request that was answered.

    Args:
        attempt: which.
        about: what the client's first line must say, `requests` among it.

    Raises:
        ValueError: a request stands in a file twice, or a file holds something else.
        OSError: a file cannot be read.
    """
    if not (attempt.client.exists() and attempt.router.exists()):
        return None
    try:
        client, seen, end = _client(attempt.client)
        router, records = _router(attempt.router)
    except ValueError as error:
        raise ValueError(f"{error}; delete {attempt.path} and start again") from None
    if end is None or router is None or any(client.get(key) != value for key, value in about.items()):
        return None
    if len(seen) != about["requests"] or sorted(seen) != list(range(len(seen))):
        return None
    ordered = [seen[index] for index in range(len(seen))]
    if any(each.http_status == 200 and each.id not in records for each in ordered):
        return None
    return Kept(attempt.path, client, router, end, ordered, [records.get(each.id) for each in ordered])


def last_whole(place: Path, about: dict[str, Any]) -> Kept | None:
    """The latest whole attempt in the folder of a run; None: it is still to do.

    Raises:
        ValueError: as `whole`.
        OSError: as `whole`.
    """
    return next((kept for attempt in attempts(place) if (kept := whole(attempt, about)) is not None), None)


def run_of(place: Path, about: dict[str, Any], drive: Callable[[Attempt], None]) -> Kept:
    """A whole attempt: the one that is there, or a new one.

    Args:
        place: folder of the run.
        about: what the client's first line says.
        drive: makes an attempt.

    Raises:
        RuntimeError: the new one is not whole either.
        ValueError: as `whole`.
        OSError: as `whole`.
    """
    kept = last_whole(place, about)
    if kept is None:
        attempt = new_attempt(place)
        drive(attempt)
        kept = whole(attempt, about)
        if kept is None:
            raise RuntimeError(f"{attempt.path} lacks records of requests that were answered; start the same again")
    return kept


def _client(path: Path) -> tuple[dict[str, Any], dict[int, Observation], dict[str, Any] | None]:
    """First line, observations by index and last line (None: it is not there) of a client's file."""
    first: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    seen: dict[int, Observation] = {}
    for line in record_log.read(path):
        if "kind" in line:
            first = line
        elif ENDED in line:
            end = line
        else:
            try:
                each = Observation(**line)
            except TypeError:
                raise ValueError(f"{path} is damaged") from None
            if type(each.index) is not int:
                raise ValueError(f"{path} is damaged")
            if each.index in seen:
                raise ValueError(f"{path} holds request {each.index} twice")
            seen[each.index] = each
    return first, seen, end


def _router(path: Path) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """First line and records by id of a router's file."""
    first: dict[str, Any] | None = None
    records: dict[str, dict[str, Any]] = {}
    for line in record_log.read(path):
        if "kind" in line:
            first = line
        elif not isinstance(line.get("id"), str):
            raise ValueError(f"{path} is damaged")
        elif line["id"] in records:
            raise ValueError(f"{path} holds request {line['id']} twice")
        else:
            records[line["id"]] = line
    return first, records


def lateness(seen: Iterable[Observation]) -> list[int]:
    """How late each request was sent, ps, sorted."""
    return sorted(each.lateness for each in seen)
