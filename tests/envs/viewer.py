"""Plays a trace-event file as a viewer does: sorted by time, equal times in the order of the file."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

PHASES = {"B", "E", "i", "C", "s", "f", "M"}


@dataclass(eq=False)
class Slice:
    """One slice as a viewer shows it; times in ps."""

    process: str
    thread: str
    name: str
    start: int
    depth: int
    arguments: dict[str, Any]
    end: int = -1

    @property
    def request(self) -> int:
        return int(self.arguments["request"])


@dataclass(eq=False)
class Marker:
    """One marker, and the innermost slice that was open there."""

    process: str
    name: str
    time: int
    request: int
    inside: Slice | None


@dataclass
class Shown:
    """What a viewer shows.

    Attributes:
        processes: their names.
        slices: in the order in which they begin.
        markers: in the order of time.
        arrows: the two slices of each.
        counters: by process and series, the values with their times.
        events: as they stand in the file.
    """

    events: list[dict[str, Any]]
    processes: list[str] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    arrows: list[tuple[Slice, Slice]] = field(default_factory=list)
    counters: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


def show(content: bytes) -> Shown:
    """Plays a file; whatever a viewer would drop or bend fails an assertion."""
    document = json.loads(content, parse_float=Decimal)
    assert document["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = document["traceEvents"]
    assert {event["ph"] for event in events} <= PHASES
    shown = Shown(events)
    processes, threads, timed = {}, {}, []
    for event in events:
        if event["ph"] != "M":
            time = event["ts"] * 1_000_000
            assert time >= 0 and time == int(time), "no digit of a time in ps is lost"
            timed.append((int(time), event))
        elif event["name"] == "process_name":
            assert event["pid"] not in processes
            processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            assert event["tid"] not in threads, "viewers take a thread number for one thread of the whole system"
            threads[event["tid"]] = event["args"]["name"]
    assert not processes.keys() & threads.keys()
    shown.processes = list(processes.values())
    assert len(set(shown.processes)) == len(processes)
    open_slices: dict[int, list[Slice]] = defaultdict(list)
    owners: dict[int, int] = {}
    starts: dict[int, Slice] = {}
    for time, event in sorted(timed, key=lambda pair: pair[0]):
        pid, tid, kind = event["pid"], event.get("tid", -1), event["ph"]
        process = processes[pid]
        if kind == "C":
            for series, value in event["args"].items():
                shown.counters[process, series].append((time, value))
            continue
        assert owners.setdefault(tid, pid) == pid
        stack = open_slices[tid]
        if kind == "B":
            begun = Slice(process, threads[tid], event["name"], time, len(stack), event["args"])
            stack.append(begun)
            shown.slices.append(begun)
        elif kind == "E":
            stack.pop().end = time
        elif kind == "i":
            inside = stack[-1] if stack else None
            shown.markers.append(Marker(process, event["name"], time, event["args"]["request"], inside))
        elif kind == "s":
            assert event["id"] not in starts
            starts[event["id"]] = stack[-1]
        else:
            assert event["bp"] == "e"
            shown.arrows.append((starts[event["id"]], stack[-1]))
    assert not any(open_slices.values()), "every slice that begins ends"
    assert all(one.end > one.start for one in shown.slices)
    for values in shown.counters.values():
        times = [time for time, _ in values]
        assert times == sorted(set(times))
    return shown
