"""Engines that run and of which nothing is written down here: their state was removed, or is that of another folder."""

from __future__ import annotations

from dataclasses import dataclass

from .processes import DOWN_S, PROC, Process, end, every, marks, words
from .state import StateFolder, started

LAUNCH_DIGITS = 16
"""Of the word that makes the launch of a cluster its own (`plan`)."""


@dataclass(frozen=True)
class Lost:
    """A process of an engine.

    Attributes:
        launch: of its cluster.
        engine: which of its engines, as `prefill-0`.
        process: the process.
    """

    launch: str
    engine: str
    process: Process

    @property
    def cluster(self) -> str:
        """Name of its cluster."""
        return self.launch[: -LAUNCH_DIGITS - 1]

    @property
    def first(self) -> bool:
        """Whether the engine began with it."""
        return self.process.session == self.process.pid


def lost(name: str | None = None) -> list[Lost]:
    """Processes of engines of launches that stand in no state of this state folder, in the order of their start.

    Args:
        name: of a cluster; None: of all.
    """
    if not PROC.is_dir():  # As on systems other than Linux, where `live up` starts none.
        return []
    known = _launches()
    processes = sorted(every(), key=lambda process: (process.started, process.pid))
    marked = ((process, (marks(process) or "").rpartition("/")) for process in processes)
    found = [Lost(launch, engine, process) for process, (launch, _, engine) in marked if launch not in known]
    return [each for each in found if each.cluster and name in (None, each.cluster)]


def whose(port: int) -> str:
    """Who listens at a port, if it is a lost engine, and what ends it; empty otherwise."""
    found = next((each for each in lost() if str(port) in words(each.process)), None)
    if found is None:
        return ""
    what = f"{found.engine} of {found.cluster} (pid {found.process.pid}), which is not written down here"
    return f"it is {what}; `disaggroute live down {found.cluster} --lost` ends it"


def in_words(found: list[Lost]) -> list[str]:
    """A sentence for each cluster that has lost engines."""
    sentences = []
    for cluster in dict.fromkeys(each.cluster for each in found):
        mine = [each for each in found if each.cluster == cluster]
        shown = [each for each in mine if each.first] or mine
        engines = ", ".join(f"{each.engine} (pid {each.process.pid})" for each in shown)
        sentences.append(
            f"not written down here, but running: {engines} of {cluster}; where `live up` was given, `live down` ends "
            f"them, and if that folder is no more, `disaggroute live down {cluster} --lost`"
        )
    return sentences


def end_lost(name: str) -> int:
    """Ends all lost engines of a cluster; returns how many there were.

    Raises:
        RuntimeError: processes do not end.
    """
    found = lost(name)
    first = [each.process for each in found if each.first]
    end(
        lambda: [each.process for each in lost(name)],
        lambda: [process for process in first if process.runs()],
        DOWN_S,
    )
    return len({(each.launch, each.engine) for each in found})


def _launches() -> set[str]:
    """Launches that are written down in this state folder; nothing of a state that cannot be read."""
    found = set()
    for name in started():
        try:
            state = StateFolder(name).read()
        except ValueError:
            continue
        if state is not None:
            found.add(state.launch)
    return found
