"""The timeline of a run, for ui.perfetto.dev: what every request did on every instance, and when.

One process per instance. Its requests lie on lanes (threads), so that what overlaps stays legal and readable: a
request takes the lowest lane that is free when it comes and keeps it until it leaves. On the lane its phases follow
each other (`phases.PHASES`). Arrows lead from prefill to decode, markers show when a miss became certain, and
counters tell how many requests were in each phase and how many tokens of KV the instance held.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .cluster import Cluster
from .occupancy import Occupancy, in_flight, occupancy
from .phases import PHASES, Ints, Leg, certain_misses, legs
from .records import FAILED, FINISHED, REJECTED, SCHEMA_VERSION
from .trace import SLO_CLASSES, Trace
from .trace_events import TraceEvents, encode

ROUTER = 1
"""Process of the router; instances have the numbers after it."""

_FIRST_LANE = 10_001
"""Thread number of the first lane; above those of the processes, since viewers take equal numbers for main threads."""

_CHUNK = 16_384
"""Requests that are turned into Python numbers at a time."""

STATUS = {FINISHED: "finished", FAILED: "failed", REJECTED: "rejected"}

Names = Mapping[str, Sequence[str]]
"""Names of the instances by role: prefill and decode, or mixed."""


def instance_names(cluster: Cluster) -> Names:
    """Names of a cluster's instances, with the profile of each."""
    pools = {"prefill": cluster.prefill, "decode": cluster.decode, "mixed": cluster.mixed}
    return {
        role: [f"{role} {i} ({engine.name})" for i, engine in enumerate(pool)] for role, pool in pools.items() if pool
    }


def write_timeline(
    stream: BinaryIO,
    records: npt.NDArray[Any],
    trace: Trace,
    names: Names,
    *,
    routed: Ints | None = None,
    window: tuple[int, int] | None = None,
    about: Mapping[str, Any] | None = None,
) -> int:
    """Writes the timeline of a run whose requests have all ended; the same run gives the same bytes.

    Memory is what the arrays of the largest instance take, a few hundred bytes per request; events are streamed.

    Args:
        stream: a binary file; the caller compresses it if it is to be.
        records: (N,) of dtype RECORD.
        trace: (N,) the requests.
        names: by role, as `instance_names` gives them.
        routed: (N,) ps, the last decision about each request, which differs from its arrival where it was re-routed.
        window: ps; only requests that were in flight between the two times, whole, and counters between them.
        about: what the file is to say of the run, JSON-able.

    Returns:
        The number of events written.

    Raises:
        ValueError: lengths that differ, a request that has not ended, an instance that `names` lacks, a window that
            ends before it starts.
    """
    _check(records, trace, names, window)
    chosen = np.arange(len(records))
    if window is not None:
        inside = (records["arrival"] <= window[1]) & (records["end"] >= window[0])
        chosen, records, trace = np.flatnonzero(inside), records[inside], trace.select(inside)
        routed = None if routed is None else routed[inside]
    parts = legs(records, trace, aggregated="mixed" in names, routed=routed)
    with TraceEvents(stream, {"schema_version": SCHEMA_VERSION} | dict(about or {})) as out:
        timeline = _Timeline(out, chosen, records, trace, window)
        timeline.router(parts[0], routed)
        for leg in parts:
            for index, name in enumerate(names[leg.role]):
                timeline.instance(leg, index, name)
        return out.events


class _Timeline:
    """What all instances of a file share: the numbers of processes and lanes, and the requests' texts."""

    def __init__(
        self,
        out: TraceEvents,
        requests: npt.NDArray[np.intp],
        records: npt.NDArray[Any],
        trace: Trace,
        window: tuple[int, int] | None,
    ) -> None:
        self.out = out
        self.requests, self.records, self.trace, self.window = requests, records, trace, window
        self.pid = ROUTER
        self.next_lane = _FIRST_LANE
        self.ttft_miss, self.tpot_miss = certain_misses(records, trace)
        # Whether a decode instance has a slice for the request.
        self.goes_on = (records["prefill_end"] >= 0) & (records["prefill_end"] < records["end"])
        self.families = [encode(name) for name in trace.families]

    def router(self, first: Leg, routed: Ints | None) -> None:
        """The router's process: requests in flight, and markers of what happened to requests on no instance."""
        out, tid = self.out, self._lane()
        out.name(ROUTER, "router")
        out.name(ROUTER, "requests", tid)
        marks = [(self.records["end"], self.records["status"] == REJECTED, "rejected")]
        if routed is not None:
            marks.append((routed, routed > self.records["arrival"], "re-routed"))
        marks.append((self.ttft_miss, (self.ttft_miss >= 0) & (self.ttft_miss < first.edges[0]), "TTFT missed"))
        for times, which, name in marks:
            for row in np.flatnonzero(which).tolist():
                out.instant(ROUTER, tid, int(times[row]), name, f'{{"request":{self.requests[row]}}}')
        self._counters(in_flight(self.records))

    def instance(self, leg: Leg, index: int, name: str) -> None:
        """One instance: its lanes and its counters."""
        self.pid += 1
        self.out.name(self.pid, name, place=self.pid)
        here = np.flatnonzero((leg.instance == index) & (leg.end > leg.edges[0]))
        order = here[np.argsort(leg.edges[0, here], kind="stable")]
        first = self.next_lane
        free: list[int] = []
        taken: list[tuple[int, int]] = []  # (when it is left, lane)
        for row in self._rows(leg, order):
            while taken and taken[0][0] <= row[1][0]:
                heapq.heappush(free, heapq.heappop(taken)[1])
            lane = heapq.heappop(free) if free else self._lane()
            heapq.heappush(taken, (row[1][-1], lane))
            self._request(leg, lane, *row)
        for lane in range(first, self.next_lane):
            self.out.name(self.pid, f"lane {lane - first + 1:03d}", lane, lane - first)
        self._counters(occupancy(leg, here))

    def _rows(self, leg: Leg, order: npt.NDArray[np.intp]) -> Iterator[tuple[int, list[int], list[int], list[Any]]]:
        """Row, edges, sending and markers of each request, in this order."""
        for at in range(0, len(order), _CHUNK):
            part = order[at : at + _CHUNK]
            edges, sending = leg.edges[:, part].T.tolist(), leg.sending[:, part].T.tolist()
            yield from zip(part.tolist(), edges, sending, self._markers(leg, part), strict=True)

    def _markers(self, leg: Leg, part: npt.NDArray[np.intp]) -> list[list[tuple[int, str]]]:
        """Markers of requests on this leg, by time. A miss is shown where the request was then."""
        start, end = leg.edges[0, part], leg.end[part]
        if leg.role == "prefill":  # from the end of prefill on, the request is on the decode instance
            end = np.where(self.goes_on[part], leg.edges[2, part] - 1, end)
        failed = np.where(self.records["status"][part] == FAILED, self.records["end"][part], -1)
        found: list[list[tuple[int, str]]] = [[] for _ in part]
        for times, name in (
            (self.ttft_miss[part], "TTFT missed"),
            (self.tpot_miss[part], "TPOT missed"),
            (failed, "failed"),
        ):
            for row in np.flatnonzero((times >= start) & (times <= end)).tolist():
                found[row].append((int(times[row]), name))
        return [sorted(markers) for markers in found]

    def _request(
        self, leg: Leg, lane: int, row: int, edges: list[int], sending: list[int], markers: list[tuple[int, str]]
    ) -> None:
        """The phases of one request on one lane."""
        out, pid, request = self.out, self.pid, int(self.requests[row])
        short = f'{{"request":{request}}}'
        arrow = leg.role == "decode"
        for phase, start, end in zip(PHASES[leg.role], edges, edges[1:], strict=False):
            if end == start:
                continue
            out.begin(pid, lane, start, phase, self._arguments(row) if phase in ("prefill", "decode") else short)
            if arrow:
                out.flow(pid, lane, start, request, start=False)
                arrow = False
            inner = _within(phase, start, end, sending)
            if inner is not None:
                out.begin(pid, lane, inner[0], inner[2], short)
                out.end(pid, lane, inner[1])
            while markers and markers[0][0] <= end:
                time, name = markers.pop(0)
                out.instant(pid, lane, time, name, short)
            if phase == "prefill" and leg.role == "prefill" and self.goes_on[row]:
                out.flow(pid, lane, end, request, start=True)
            out.end(pid, lane, end)

    def _arguments(self, row: int) -> str:
        """What a viewer shows of a request."""
        record, trace = self.records[row], self.trace
        arrival, first, last = int(record["arrival"]), int(record["first_token"]), int(record["last_token"])
        output = int(trace.output[row])
        finished = int(record["status"]) == FINISHED
        met = finished and self.ttft_miss[row] < 0 and self.tpot_miss[row] < 0
        values = {
            "request": int(self.requests[row]),
            "class": f'"{SLO_CLASSES[trace.slo[row]]}"',
            "family": self.families[trace.family[row]],
            "p": int(trace.prompt[row]),
            "o": output,
            "predicted": int(record["predicted"]),
            "prefill": int(record["prefill"]),
            "decode": int(record["decode"]),
            "ttft_ms": _ms(first - arrival) if first >= 0 else "null",
            "ttft_target_ms": _ms(int(trace.ttft_target[row])),
            "tpot_ms": _ms((last - first) // (output - 1)) if finished and output > 1 else "null",
            "tpot_target_ms": _ms(int(trace.tpot_target[row])),
            "status": f'"{STATUS[int(record["status"])]}"',
            "met": "true" if met else "false",
            "preemptions": int(record["preemptions"]),
        }
        return "{" + ",".join(f'"{key}":{value}' for key, value in values.items()) + "}"

    def _counters(self, levels: Occupancy) -> None:
        """The counters of the process at hand, cut to the window; a value is written when it changes."""
        for counter, series, values in levels.counters:
            times = levels.times
            if self.window is not None:
                times, values = _cut(times, values, self.window)
            changed = np.ones(len(times), np.bool_)
            changed[1:] = (values[1:] != values[:-1]).any(axis=1)
            keys = [f'"{name}":' for name in series]
            for at in range(0, len(times), _CHUNK):
                kept = np.flatnonzero(changed[at : at + _CHUNK]) + at
                for time, row in zip(times[kept].tolist(), values[kept].tolist(), strict=True):
                    text = ",".join([f"{key}{value}" for key, value in zip(keys, row, strict=True)])
                    self.out.counter(self.pid, time, counter, "{" + text + "}")

    def _lane(self) -> int:
        self.next_lane += 1
        return self.next_lane - 1


def _within(phase: str, start: int, end: int, sending: list[int]) -> tuple[int, int, str] | None:
    """The slice inside a phase: the transfer proper while KV is held, the egress queue before it."""
    if phase == "held" and sending[1] > sending[0]:
        return max(start, sending[0]), min(end, sending[1]), "transfer"
    if phase == "transfer" and sending[0] > start:
        return start, min(end, sending[0]), "egress queue"
    return None


def _cut(times: Ints, values: Ints, window: tuple[int, int]) -> tuple[Ints, Ints]:
    """Levels inside a window; the first row is the level at its start."""
    low, high = np.searchsorted(times, window, side="right")
    inside, rows = times[low:high], values[low:high]
    before = values[low - 1 : low] if low > 0 else np.zeros((1, values.shape[1]), np.int64)
    return np.concatenate([[window[0]], inside]), np.concatenate([before, rows])


def _ms(time: int) -> str:
    """A time in ps as milliseconds, to the microsecond."""
    return f"{time / 1e9:.3f}"


def _check(records: npt.NDArray[Any], trace: Trace, names: Names, window: tuple[int, int] | None) -> None:
    if len(records) != len(trace):
        raise ValueError(f"{trace.name}: {len(records)} records for {len(trace)} requests; they must match")
    going = records["end"] < 0
    if going.any():
        k = int(np.argmax(going))
        raise ValueError(f"{trace.name}: request {k} has not ended; a timeline needs all of them to have")
    if set(names) not in ({"prefill", "decode"}, {"mixed"}):
        raise ValueError(f"names has the roles {', '.join(names) or 'none'}; it must have prefill and decode, or mixed")
    for role, pool in names.items():
        most = int(records["decode" if role == "mixed" else role].max(initial=-1))
        if most >= len(pool):
            raise ValueError(f"{trace.name}: a request went to {role} instance {most}; names has {len(pool)} of them")
    if window is not None and not 0 <= window[0] < window[1]:
        raise ValueError(f"window is {window[0]} to {window[1]} ps; it must start at 0 or later and end after that")
