"""The event loop: from one decision to the next (docs/model.md, "Order within an instant").

Events are ends of prefill steps and of decode leaps. A step end and the pass that follows it are run together,
engine by engine, which equals the order of the rules as long as nothing arrives at that instant: passes depend on
other engines' step ends only through offers, and prefill instances come first; a transfer started at this instant
ends later.
"""

from __future__ import annotations

from . import layout as L
from .admission import arrive, see_poll
from .arithmetic import rarely
from .compile import inline, merged
from .decode import decode_pass, end_decode_step
from .failures import apply_events
from .memory import ld, ldc, st
from .polls import before_change
from .prefill import end_prefill_step, prefill_pass
from .slots import earliest_engine, earliest_wake, engine_at, wake_of

FINISHED, DECIDE, GROW, PAUSED = range(4)
"""Why the loop stopped: all has ended, a decision is due, the slots are full, the time limit came."""


@merged
def run_to_decision(S: int, until: int) -> int:
    """Runs until a request awaits a decision, everything has ended, or all instants ≤ `until` are done."""
    prefills = ldc(S, L.H_PREFILLS)
    while True:
        i = earliest_engine(S)
        t = earliest_wake(S)
        outside = min(ld(S, L.H_ARRIVAL), ld(S, L.H_EVENT_TIME))
        if t < outside and ldc(S, L.H_STRICT) == 0:
            if rarely(t > until):
                return PAUSED
            st(S, L.H_NOW, t)
            ends, passes = ld(engine_at(S, i), L.E_BUSY), 1
        else:  # phase by phase: all step ends, then the failure schedule, then arrivals, then passes
            t = min(t, outside)
            if rarely(ld(S, L.H_LOST) >= 0):
                t = ld(S, L.H_NOW)
            if rarely(t == L.FOREVER):
                return FINISHED
            if rarely(t > until):
                return PAUSED
            if rarely(is_full(S)):
                return GROW
            st(S, L.H_NOW, t)
            if rarely(ldc(S, L.H_STRICT) != 0):
                see_poll(S, t)
            ending = step_ending(S, t) if earliest_wake(S) == t else -1
            ends, passes = int(ending >= 0), 0
            if rarely(ending >= 0):
                i = ending
            elif rarely(ld(S, L.H_EVENT_TIME) == t):
                apply_events(S, t)
                continue
            elif ld(S, L.H_LOST) >= 0 or ld(S, L.H_ARRIVAL) == t:
                if arrive(S, t) != 0:
                    return DECIDE
                continue
            else:
                passes = 1
        before_change(S, i, engine_at(S, i), t)
        if i < prefills:
            if ends != 0:
                end_prefill_step(S, i, t)
            if passes != 0:
                prefill_pass(S, i, t)
        else:
            if ends != 0:
                end_decode_step(S, i - prefills, t)
            if passes != 0:
                decode_pass(S, i - prefills, t)


@inline
def step_ending(S: int, t: int) -> int:
    """The lowest engine whose step ends at t, −1 if none is left."""
    for i in range(ldc(S, L.H_ENGINES)):
        if wake_of(S, i) == t and ld(engine_at(S, i), L.E_BUSY) != 0:
            return i
    return -1


@inline
def is_full(S: int) -> bool:
    """Whether the slots may not suffice for what can happen at one instant; a lost request needs a second one."""
    if rarely(ldc(S, L.H_STRICT) != 0):
        return 2 * ld(S, L.H_LIVE) + 1 > ldc(S, L.H_CAPACITY)
    return ld(S, L.H_FREE_SLOT) < 0 and ld(S, L.H_HIGH) == ldc(S, L.H_CAPACITY)
