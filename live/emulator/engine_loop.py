"""An emulated engine's day: the engine model runs in step with the clock, and requests are told what happened."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from ...envs.cluster import MAX_TIME_PS, EngineSpec
from ...envs.simulator import Engine
from ...envs.simulator.engine import EngineEvent, Usage
from .clock import EngineClock
from .generation import Generation
from .measurements import Measurements
from .options import Role

_RESTART_PS = MAX_TIME_PS // 2
"""An idle engine starts again at time 0 after this long, so that it never ends."""


class Timer(Protocol):
    """What wakes the loop at a set time."""

    def set(self, seconds: float) -> None:
        """Calls `turn` in this many wall seconds."""

    def unset(self) -> None:
        """Calls it no more."""


class Legs(Protocol):
    """What the loop tells of requests whose KV comes from elsewhere or goes elsewhere."""

    def joined(self, generation: Generation, time: int) -> None:
        """Its prefill starts."""

    def prefilled(self, generation: Generation, time: int) -> None:
        """Its prompt is done, on a prefill engine."""

    def reserved(self, generation: Generation, time: int) -> None:
        """Its blocks are reserved, on a decode engine."""

    def ended(self, generation: Generation, time: int) -> None:
        """It left the engine before its KV did what it was for."""

    @property
    def in_transit(self) -> int:
        """Requests whose blocks are reserved and that do not run yet."""

    def idle(self) -> bool:
        """Whether nothing is held or under way."""

    def restart(self) -> None:
        """Time starts again at 0."""


class EngineLoop:
    """Drives `Engine` by a clock.

    Args:
        spec: time model and limits.
        role: prefill, decode or mixed.
        clock: engine time.
        soon: calls a function when what is being done is done.
        timer: makes the timer that calls a function.
        measurements: told of what happened.
    """

    legs: Legs

    def __init__(
        self,
        spec: EngineSpec,
        role: Role,
        clock: EngineClock,
        soon: Callable[[Callable[[], None]], object],
        timer: Callable[[Callable[[], None]], Timer],
        measurements: Measurements,
    ) -> None:
        self.engine = Engine(spec, role)
        self.clock = clock
        self.measurements = measurements
        self._soon = soon
        self._timer = timer(self.turn)
        self._woken = False
        self._keys = 0
        self._running: dict[int, Generation] = {}
        self._streams: dict[int, Generation] = {}
        self._agenda: list[tuple[int, int, Callable[[int], None]]] = []
        self._entries = 0
        self._turns = {
            "joined": self._joined,
            "prefill_done": self._prefill_done,
            "reserved": self._reserved,
            "first_token": self._first_token,
            "finished": self._finished,
            "preempted": self._preempted,
            "aborted": self._aborted,
        }

    def __len__(self) -> int:
        """Requests on the engine."""
        return len(self._running)

    # --- what is given --------------------------------------------------------------------------------

    def submit(self, generation: Generation, *, local: bool = False) -> None:
        """Brings a request to the engine now; `local`: a decode engine prefills it itself.

        Raises:
            ValueError: it can never fit.
        """
        self._keys += 1
        generation.key = self._keys
        now = self.clock.now()
        self.engine.submit(generation.key, generation.prompt_tokens, generation.output, now, local=local)
        if generation.submitted < 0:
            generation.submitted = now
        self._running[generation.key] = generation
        self.wake()

    def abort(self, generation: Generation) -> None:
        """Ends a request; nobody is told any more. A prefill leg that is done stays as it is."""
        generation.listener = None
        if generation.hold and generation.first >= 0:
            return
        self._streams.pop(generation.key, None)
        if generation.key in self.engine:
            self.engine.abort(generation.key, self.clock.now())
            self.wake()

    def restart_locally(self, generation: Generation) -> None:
        """A request whose KV cannot be pulled is prefilled here instead."""
        del self._running[generation.key]
        self.engine.abort(generation.key, self.clock.now())
        generation.remote = None
        self.submit(generation, local=True)

    def release(self, generation: Generation, when: int) -> None:
        """A prefill engine holds the KV of a request no longer, from `when` (ps) on."""
        if generation.key in self.engine:  # Its client may have gone in the turn in which its prefill ended.
            self.engine.release(generation.key, max(when, self.engine.now))
        self._running.pop(generation.key, None)
        self.wake()

    def pulled(self, generation: Generation, end: int) -> None:
        """The pull of a request ends at `end`, ps."""
        self.engine.pulled(generation.key, max(end, self.engine.now))
        self.wake()

    def at(self, when: int, action: Callable[[int], None]) -> None:
        """Calls a function at an engine time (ps), with that time, before what the engine does at it."""
        self._entries += 1
        heappush(self._agenda, (when, self._entries, action))
        self.wake()

    def usage(self) -> Usage:
        """What the engine reports of itself now."""
        usage = self.engine.usage(self.clock.now())
        self.wake()
        return usage

    def wake(self) -> None:
        """Looks at the engine as soon as what is being done is done."""
        if not self._woken:
            self._woken = True
            self._soon(self.turn)

    # --- a turn ---------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Does everything that is due, and sets the timer to what is next."""
        self._woken = False
        if self.clock.stopped:
            return
        now = self.clock.now()
        while self._agenda and self._agenda[0][0] <= now:
            time, _, action = heappop(self._agenda)
            action(time)
        now = max(now, self.engine.now)  # An action takes its time, and may have told the engine of it.
        for event in self.engine.advance(now):
            generation = self._running.get(event.request)  # type: ignore[call-overload]
            if generation is not None:
                self._turns[event.kind](generation, event)
        for generation in list(self._streams.values()):
            if generation.key in self._streams:  # Who is told of a token may end other requests.
                now = max(now, self.engine.now)
                count = self.engine.tokens(generation.key, now)
                self._tell(generation, count, self.engine.last_token_time())
        self._plan(now)

    def next_time(self) -> int | None:
        """When something is due next, ps."""
        times = [self.engine.next_time(), self.engine.next_token_time() if self._streams else None]
        if self._agenda:
            times.append(self._agenda[0][0])
        return min((time for time in times if time is not None), default=None)

    def _plan(self, now: int) -> None:
        time = self.next_time()
        if time is None and not len(self.engine) and self.legs.idle():
            if now > _RESTART_PS:
                self.engine.reset()
                self.clock.restart()
                self.legs.restart()
            time = _RESTART_PS + 1
        if time is None:
            self._timer.unset()
        else:
            self._timer.set(self.clock.seconds_until(time))

    def _tell(self, generation: Generation, count: int, time: int) -> None:
        """Tells the tokens that are out; the last of them came at `time`, ps."""
        new = generation.bring_to(count)
        if new:
            self.measurements.tokens(generation, len(new), time)
            if generation.watched and generation.listener is not None:
                generation.listener.came(new)

    def _joined(self, generation: Generation, event: EngineEvent) -> None:
        if generation.joined < 0:
            generation.joined = event.time
            self.legs.joined(generation, event.time)

    def _prefill_done(self, generation: Generation, event: EngineEvent) -> None:
        if self.engine.role == "prefill":
            generation.first = generation.last = event.time
            generation.bring_to(1)
            self.measurements.finished(generation, event.time)
            self.legs.prefilled(generation, event.time)

    def _reserved(self, generation: Generation, event: EngineEvent) -> None:
        self.legs.reserved(generation, event.time)

    def _first_token(self, generation: Generation, event: EngineEvent) -> None:
        if generation.first < 0:
            generation.first = event.time
            self.measurements.first_token(generation)
        if generation.watched and generation.listener is not None:
            self._streams[generation.key] = generation

    def _finished(self, generation: Generation, event: EngineEvent) -> None:
        del self._running[generation.key]
        self._streams.pop(generation.key, None)
        self._tell(generation, generation.output, event.time)
        generation.last = event.time
        self.measurements.finished(generation, event.time)
        if generation.listener is not None:
            generation.listener.finished(generation.reason)

    def _preempted(self, generation: Generation, event: EngineEvent) -> None:
        generation.preemptions += 1
        self.measurements.preemptions += 1
        if generation.first >= 0 and generation.key in self.engine:
            self._tell(generation, self.engine.tokens(generation.key, self.engine.now), event.time)
        generation.recomputed()

    def _aborted(self, generation: Generation, event: EngineEvent) -> None:
        del self._running[generation.key]
        self.measurements.aborted(generation)
        self.legs.ended(generation, event.time)
