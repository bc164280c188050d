"""What becomes of an agent's requests: which misses are certain, which requests have ended, and what that pays.

The rules are those of the simulated environment (`envs/simulator/deadlines.py`), by the router's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
from ...envs.records import FAILED, FINISHED, RECORD, REJECTED
from ...envs.rewards import Outcome
from ...envs.trace import Trace
from ..story import Story


@dataclass(slots=True)
class _Fate:
    """A request whose outcome is not settled."""

    story: Story
    paid: int
    missed: bool = False


class Fates:
    """Follows the requests of an episode.

    Args:
        trace: the requests.
        origin: when the trace begins, ps of the router's clock, as all times of stories are.
        start: requests that arrive from here on are the agent's, ps of the trace.
    """

    def __init__(self, trace: Trace, origin: int, start: int) -> None:
        self.trace, self._origin = trace, origin
        self._start = self._last = origin + start
        self._open: dict[int, _Fate] = {}
        self._arrived: dict[int, Story] = {}
        self._latest_end = -1
        self.ended = self.missed = self.met = 0
        """Of the agent's requests so far."""
        self.records: npt.NDArray[np.void] = np.zeros(len(trace), RECORD)
        """(N,) by request; rows are complete for those that have ended. Times are ps of the trace."""
        for name in RECORD.names or ():
            self.records[name] = -1
        self.records["arrival"] = trace.arrival

    @property
    def now(self) -> int:
        """Time of the last account, ps of the trace."""
        return self._last - self._origin

    @property
    def last_end(self) -> int:
        """When the last request of the agent ended, ps of the router's clock; −1: none has."""
        return self._latest_end

    def arrived(self, k: int, story: Story) -> None:
        """A request has come; its story goes on."""
        self._arrived[k] = story
        if story.request.arrival >= self._start:
            self._open[k] = _Fate(story, story.request.arrival)

    def has_ended(self, k: int) -> None:
        """A request's story is over: writes its record."""
        story = self._arrived.pop(k)
        self.records[k] = self._record(k, story)
        if k in self._open:
            self._latest_end = max(self._latest_end, story.end)

    def begin(self, now: int) -> float:
        """The first decision is due: what was before pays nothing; seconds since the warm start ended."""
        dt, self._last = now - self._last, now
        return dt / PS_PER_S

    def account(self, now: int) -> Outcome:
        """What came about since the last account.

        Args:
            now: ps of the router's clock.
        """
        missed: list[int] = []
        ended: list[int] = []
        met = waited = 0
        for k, fate in list(self._open.items()):
            story = fate.story
            over = story.end >= 0
            until = max(story.end if over else now, fate.paid)
            waited += until - fate.paid
            fate.paid = until
            if not fate.missed and self._is_missed(k, story, now):
                fate.missed = True
                missed.append(k)
            if over:
                ended.append(k)
                met += not fate.missed
                del self._open[k]
        dt, self._last = now - self._last, now
        self.missed, self.ended, self.met = self.missed + len(missed), self.ended + len(ended), self.met + met
        return Outcome(
            dt=dt / PS_PER_S,
            missed=np.array(missed, np.int64),
            ended=np.array(ended, np.int64),
            met=met,
            waited=waited / PS_PER_S,
            records=self.records,
            trace=self.trace,
        )

    def totals(self) -> dict[str, float]:
        """Requests that ended, how many certainly missed, goodput of those that ended."""
        goodput = self.met / self.ended if self.ended else float("nan")
        return {"requests": self.ended, "missed": self.missed, "goodput": goodput}

    def _is_missed(self, k: int, story: Story, now: int) -> bool:
        """Whether a miss is certain: by what a story tells up to `now`, or by the whole of it."""
        output, first = self.trace.output.item(k), story.first_token
        by = story.request.arrival + self.trace.ttft_target.item(k)
        span = (output - 1) * self.trace.tpot_target.item(k)
        if story.end >= 0 and not self._served(k, story):
            return True
        if first < 0:
            return now > by
        latest = story.last_token if story.end >= 0 else now
        return first > by or (output > 1 and latest - first > span)

    def _served(self, k: int, story: Story) -> bool:
        """Whether all tokens came, and no more or fewer than were asked for."""
        return story.status == "finished" and story.generated == self.trace.output.item(k) and story.first_token >= 0

    def _record(self, k: int, story: Story) -> npt.NDArray[np.void]:
        row = np.full((), -1, np.int64).astype(RECORD)
        for name in ("prefill_start", "prefill_end", "first_token", "last_token", "end"):
            at = getattr(story, name)
            row[name] = at - self._origin if at >= 0 else -1
        row["arrival"] = self.trace.arrival[k]
        row["max_stall"], row["predicted"] = story.max_stall, story.predicted
        row["generated"], row["preemptions"] = max(story.generated, 0), 0
        row["reroutes"], row["router"] = max(story.attempts - 1, 0), 0
        decision = story.decision
        if decision is not None:
            row["prefill"], row["decode"] = decision.prefill, decision.decode
        refused = decision is None and story.status == "rejected"
        row["status"] = FINISHED if self._served(k, story) else REJECTED if refused else FAILED
        return row
