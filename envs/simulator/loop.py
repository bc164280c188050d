"""The event loop: from one decision to the next (docs/model.md, "Order within an instant").

Events are ends of prefill steps and of decode leaps. A step end and the pass that follows it are run together, engine by
engine, which equals the order of the rules as long as nothing arrives at that instant: passes depend on other engines'
step ends only through offers, and prefill instances come first; a transfer started at this instant ends later.
"""

from __future__ import annotations


from . import layout as L
from .admission import arrive, arrive_again, see_poll, show_next_arrival
from .compile import inline, rare
from .decode import decode_pass, end_decode_step
from .failures import apply_events
from .memory import ld, st
from .prefill import end_prefill_step, prefill_pass
from .slots import engine_at, region

FINISHED, DECIDE, GROW, PAUSED = range(4)
"""Why the loop stopped: all has ended, a decision is due, the slots are full, the time limit came."""


@inline
def run_to_decision(S: int, until: int) -> int:
    """Runs until a request awaits a decision, everything has ended, or all instants ≤ `until` are done."""
    while True:
        if ld(S, L.H_STRICT) != 0:
            status = strict_instant(S, until)
        else:
            i = earliest(S)
            t = ld(region(S, L.H_O_WAKE), i)
            outside = min(ld(S, L.H_ARRIVAL), ld(S, L.H_EVENT_TIME))
            if outside > t:
                if t > until:
                    return PAUSED
                st(S, L.H_NOW, t)
                run_engine(S, i, t)
                continue
            if outside > until:
                return PAUSED
            if outside == L.FOREVER:
                return FINISHED
            if outside == t:
                end_steps(S, t)
            status = take_outside(S, outside)
        if status >= 0:
            return status


@inline
def earliest(S: int) -> int:
    """Engine that wakes first; of several the lowest index."""
    wake = region(S, L.H_O_WAKE)
    pad = ld(S, L.H_WAKE_PAD)
    soonest = L.FOREVER
    for i in range(pad):
        soonest = min(soonest, ld(wake, i))
    found = pad
    for i in range(pad):
        found = min(found, i if ld(wake, i) == soonest else pad)
    return found


@inline
def run_engine(S: int, i: int, t: int) -> None:
    """Engine i wakes at t: its step ends, if it has one, and it makes a pass."""
    busy = ld(engine_at(S, i), L.E_BUSY)
    prefills = ld(S, L.H_PREFILLS)
    if i < prefills:
        if busy != 0:
            end_prefill_step(S, i, t)
        prefill_pass(S, i, t)
    else:
        if busy != 0:
            end_decode_step(S, i - prefills, t)
        decode_pass(S, i - prefills, t)


@rare
def end_steps(S: int, t: int) -> None:
    """Ends all steps that are due at t, by instance index; their passes come later."""
    prefills = ld(S, L.H_PREFILLS)
    for i in range(ld(S, L.H_ENGINES)):
        if ld(region(S, L.H_O_WAKE), i) == t and ld(engine_at(S, i), L.E_BUSY) != 0:
            if i < prefills:
                end_prefill_step(S, i, t)
            else:
                end_decode_step(S, i - prefills, t)


@rare
def make_pass(S: int, i: int, t: int) -> None:
    """Scheduling pass of engine i, its step having ended."""
    if i < ld(S, L.H_PREFILLS):
        prefill_pass(S, i, t)
    else:
        decode_pass(S, i - ld(S, L.H_PREFILLS), t)


@inline
def take_outside(S: int, t: int) -> int:
    """Events of the failure schedule at t, else one arrival; −1 to go on, else why to stop."""
    st(S, L.H_NOW, t)
    if ld(S, L.H_EVENT_TIME) == t:
        apply_events(S, t)
        return -1
    if ld(S, L.H_FREE_SLOT) < 0 and ld(S, L.H_HIGH) == ld(S, L.H_CAPACITY):
        return GROW
    if arrive(S, t) != 0:
        return DECIDE
    show_next_arrival(S)
    return -1


@rare
def strict_instant(S: int, until: int) -> int:
    """One phase of an instant in a run that may route lost requests again: nothing is fused."""
    i = earliest(S)
    t = min(ld(region(S, L.H_O_WAKE), i), ld(S, L.H_ARRIVAL))
    t = min(t, ld(S, L.H_EVENT_TIME))
    if ld(S, L.H_LOST) >= 0:
        return DECIDE if arrive_again(S, ld(S, L.H_NOW)) != 0 else -1
    if t == L.FOREVER:
        return FINISHED
    if t > until:
        return PAUSED
    if 2 * ld(S, L.H_LIVE) + 1 > ld(S, L.H_CAPACITY):
        return GROW
    st(S, L.H_NOW, t)
    see_poll(S, t)
    end_steps(S, t)
    if ld(S, L.H_EVENT_TIME) == t:
        apply_events(S, t)
    elif ld(S, L.H_LOST) < 0:
        if ld(S, L.H_ARRIVAL) == t:
            return take_outside(S, t)
        make_pass(S, i, t)
    return -1
