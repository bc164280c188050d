"""One episode on engines: requests arrive when they are due, and the agent is asked about one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...envs.admission import Admission
from ...envs.cluster import PS_PER_S
from ...envs.simulator.router_state import RouterState
from ..drive.plan import Plan
from ..request import Refused
from ..router import NoInstance
from ..service import Service
from ..story import Story
from .agent_policy import CHOSEN
from .fates import Fates
from .moments import Moment, Observer
from .requests import request_of

T = TypeVar("T")

log = logging.getLogger(__name__)

NO_INSTANCE = "no engine is available"


class Discarded:
    """Where the answers of an agent's requests go: their stories tell all that counts."""

    def __init__(self) -> None:
        self.ended = False
        self.freed: Callable[[], None] | None = None

    def begin(self, status: int, content_type: bytes) -> None:
        """An answer begins."""

    def put(self, data: bytes, last: bool = False) -> bool:
        """A piece of it; more may come."""
        return True

    async def end(self) -> None:
        """It is complete."""

    async def whole(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """A whole answer."""


class Episode:
    """From the first arrival to the end of the last request; lives in one event loop.

    Args:
        service: a router over idle engines, whose policy is an `AgentPolicy`.
        plan: what arrives.
        predicted: (N,) ô of a static predictor, tokens; None: the router learns it.
        observer: what the agent is shown.
        start: requests that arrive from here on are the agent's, ps of the trace.
    """

    def __init__(
        self,
        service: Service,
        plan: Plan,
        predicted: npt.NDArray[np.int32] | None,
        observer: Observer,
        start: int,
    ) -> None:
        self._service, self._plan, self._predicted = service, plan, predicted
        self._observer, self._start = observer, start
        self._origin = service.clock.now()
        self.fates = Fates(plan.trace, self._origin, start)
        self._due: deque[tuple[int, Story]] = deque()
        """The agent's requests that have arrived and were not sent."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._arrivals = asyncio.create_task(self._arrive(), name="arrivals")
        self._arrivals.add_done_callback(lambda _: self._changed.set())

    @property
    def service(self) -> Service:
        """The router."""
        return self._service

    # --- arrivals and their way -----------------------------------------------------------------------

    async def _arrive(self) -> None:
        clock = self._service.clock
        for k, at in enumerate(self._plan.trace.arrival.tolist()):
            due = self._origin + at
            await asyncio.sleep(0)
            while (left := due - clock.now()) > 0:  # A loop may wake a little early.
                await asyncio.sleep(left / PS_PER_S * clock.time_scale)
            hint = None if self._predicted is None else self._predicted.item(k)
            story = Story(request_of(self._plan, k, due, hint))
            self.fates.arrived(k, story)
            if at < self._start:
                self._lead(k, story, None)
            else:
                self._due.append((k, story))
                self._changed.set()

    def _lead(self, k: int, story: Story, pair: tuple[int, int] | None) -> None:
        """A request begins its way."""
        task = asyncio.create_task(self._led(k, story, pair), name=f"request {k}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._changed.set())

    async def _led(self, k: int, story: Story, pair: tuple[int, int] | None) -> None:
        CHOSEN.set(None if pair is None else [pair])
        service = self._service
        service.enter()
        try:
            await service.relay.run(story.request, Discarded(), story)
        except Refused:
            pass  # The story says why.
        except Exception:
            log.exception("request %s", story.request.id)
        finally:
            service.leave()
            self.fates.has_ended(k)

    # --- decisions ------------------------------------------------------------------------------------

    async def next(self) -> Moment:
        """Waits for the next decision, or for the end of everything."""
        while True:
            while self._due:
                try:
                    return self.look(self._observer.see)
                except NoInstance:
                    self._reject(*self._due.popleft())
            if self._arrivals.done():
                self._arrivals.result()
                if not self._tasks:
                    now = max(self.fates.now + self._origin, self.fates.last_end)
                    return self._observer.end(now, self._service.router.state)
            self._changed.clear()
            await self._changed.wait()

    def look(self, see: Callable[[Admission, RouterState], T], opened: Sequence[bool] | None = None) -> T:
        """Shows what the router knows now of the request that is due; nothing is decided.

        Args:
            see: is called with the admission and the state that gave it.
            opened: which instances it shall take for available, prefill instances first; None: those that are.

        Raises:
            NoInstance: none of a pool may be assigned.
            RuntimeError: no request is due.
        """
        if not self._due:
            raise RuntimeError("no request awaits a decision")
        k, story = self._due[0]
        service, request = self._service, story.request
        service.relay.try_again()
        state = service.router.state
        ttft, tpot = service.router.targets_of(request.slo, request.ttft_target_s, request.tpot_target_s)
        now, hint = service.clock.now(), request.output_hint
        with _taken_for(state, opened):
            admission = state.ask(request.prompt, request.slo, ttft, tpot, now, hint, index=k)
            try:
                return see(admission, state)
            finally:
                state.withdraw()

    async def send(self, pair: tuple[int, int]) -> str | None:
        """Sends the request that is due.

        Args:
            pair: prefill and decode instance.

        Returns:
            Why the router sent it elsewhere (`Decision.fallback_reason`); None: it did as it was told.
        """
        k, story = self._due.popleft()
        self._lead(k, story, pair)
        await asyncio.sleep(0)  # Its task, which began before this goes on, has decided.
        return story.decision.fallback_reason if story.decision else None

    def _reject(self, k: int, story: Story) -> None:
        """A request for which there is no instance fails without a decision."""
        error = Refused(NO_INSTANCE, status=503, kind="service_unavailable")
        story.status, story.error, story.http_status = "rejected", str(error), error.status
        story.end = self._service.clock.now()
        self._service.relay.reject(story.request, error)
        self.fates.has_ended(k)

    # --- the end --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Aborts what is in flight, and closes the router."""
        pending = [self._arrivals, *self._tasks]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await self._service.close()


@contextmanager
def _taken_for(state: RouterState, opened: Sequence[bool] | None) -> Iterator[None]:
    """Instances are taken for open or not as said, for a while."""
    others = [] if opened is None else [i for i, may in enumerate(opened) if state.is_open(i) != may]
    for i in others:
        state.set_open(i, not state.is_open(i))
    try:
        yield
    finally:
        for i in others:
            state.set_open(i, not state.is_open(i))
