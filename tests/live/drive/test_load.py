"""The load: open loop, every answer checked against what was asked for, every request told of once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.trace import Trace
from disaggroute.live.drive.load import Load
from disaggroute.live.drive.observation import Observation
from disaggroute.live.drive.plan import Plan

from ..scripted_engine import Act, ScriptedEngine, after, drop, event, hang, piece, refuse, stream
from ..waiting import run
from .traces import trace


def used(**changes: int) -> bytes:
    """The event with an answer's counts."""
    return event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3} | changes})


WHOLE = (piece("a"), piece("b"), piece("c", "length"), used(), event("[DONE]"))


def loaded(
    asked: Trace,
    *acts: Act,
    timeout_s: float = 30.0,
    drain_s: float = 30.0,
    scale: float = 1.0,
    between: Callable[[ScriptedEngine, Load], object] | None = None,
) -> dict[int, Observation]:
    """Observations of a trace that a scripted router answers, by index."""

    async def story() -> dict[int, Observation]:
        seen: dict[int, Observation] = {}

        def keep(each: Observation) -> None:
            assert each.index not in seen
            seen[each.index] = each

        async with ScriptedEngine() as router:
            router.acts = list(acts)
            router.says["/health"] = 200, b"{}"
            load = Load(router.url, Plan(asked, "tiny", "run", (1,)), scale, timeout_s, keep)
            await load.warm()
            load.start()
            await load.send()
            if between is not None:
                between(router, load)
            await load.drain(drain_s)
            await load.close()
        assert load.ended == len(asked) == len(seen)
        return seen

    return run(story())


ONE = trace((0.0, 5, 3))


def test_an_answer_as_asked_for_is_finished_and_timed() -> None:
    seen = loaded(ONE, stream(*WHOLE))[0]
    assert (seen.status, seen.error, seen.http_status, seen.generated) == ("finished", None, 200, 3)
    assert 0 <= seen.due <= seen.sent < seen.first < seen.last <= seen.end
    assert 0 < seen.max_stall <= seen.last - seen.first


@pytest.mark.parametrize(
    ("act", "status", "error"),
    [
        (stream(*WHOLE[1:]), "finished", None),  # two tokens came in one piece: the count is the engine's word
        (stream(WHOLE[0], used(completion_tokens=2), WHOLE[-1]), "failed", "token contract: 2 output tokens"),
        (stream(*WHOLE[:3], used(prompt_tokens=6), WHOLE[-1]), "failed", "token contract: 6 prompt tokens"),
        (stream(*WHOLE[:3], WHOLE[-1]), "failed", "no number of output tokens, where 3 were asked for"),
        (stream(*WHOLE[:2]), "failed", "the answer ended before its end"),
        (stream(*WHOLE[:2], then="drop"), "failed", "the connection was lost"),
        (stream(WHOLE[0], event({"error": {"message": "out of memory"}}), WHOLE[-1]), "failed", "out of memory"),
        (refuse(500, "boom"), "failed", "boom"),
        (refuse(502), "failed", "no"),
        (refuse(400, "too long"), "rejected", "too long"),
        (refuse(429), "rejected", "no"),
        (drop, "failed", "the connection was lost"),
    ],
)
def test_what_is_not_as_asked_for_is_named(act: Act, status: str, error: str | None) -> None:
    seen = loaded(ONE, act)[0]
    assert seen.status == status and seen.end >= seen.sent >= 0
    assert (seen.error is None) == (error is None) and (error or "") in (seen.error or "")


def test_what_came_of_an_answer_that_broke_off_is_kept() -> None:
    seen = loaded(ONE, stream(*WHOLE[:2], then="drop"))[0]
    assert seen.generated == 2 and seen.http_status == 200
    assert seen.sent < seen.first < seen.last <= seen.end


def test_a_request_without_an_end_fails_in_time() -> None:
    seen = loaded(ONE, hang, timeout_s=0.1)[0]
    assert seen.status == "failed" and seen.error is not None and "no whole answer within 0.1 s" in seen.error
    assert seen.first == -1


def test_what_has_not_ended_after_the_drain_has_failed() -> None:
    seen = loaded(trace((0.0, 5, 3), (0.0, 5, 3)), hang, hang, drain_s=0.05)
    for each in seen.values():
        assert each.status == "failed" and each.end > 0
        assert each.error == "it had not ended 0.05 s after the last one was sent"


def test_the_loop_is_open_nobody_waits_for_an_answer() -> None:
    gate = asyncio.Event()

    def both_are_out(router: ScriptedEngine, load: Load) -> None:
        assert load.ended == 0
        gate.set()

    seen = loaded(
        trace((0.0, 5, 3), (0.01, 5, 3)), after(gate, stream(*WHOLE)), after(gate, stream(*WHOLE)), between=both_are_out
    )
    assert {each.status for each in seen.values()} == {"finished"}


def test_no_request_is_sent_before_its_time_on_the_engines_clock() -> None:
    rows = [(0.1 * k, 5, 3) for k in range(6)]
    seen = loaded(trace(*rows), *[stream(*WHOLE)] * 6, scale=0.2)
    assert [seen[k].due for k in range(6)] == [round(0.1 * k * PS_PER_S) for k in range(6)]
    assert all(seen[k].lateness >= 0 for k in range(6))
    assert [seen[k].sent for k in range(6)] == sorted(seen[k].sent for k in range(6))


@pytest.mark.parametrize("count", [10**30, 2**31, -4])
def test_a_count_beyond_all_reason_breaks_the_contract_and_not_the_file(count: int) -> None:
    said = stream(piece("a"), used(completion_tokens=count), event("[DONE]"))
    (seen,) = loaded(ONE, said).values()
    assert seen.status == "failed" and f"{count} output tokens" in (seen.error or "")
    assert seen.generated == 1
