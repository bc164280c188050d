"""The watch over engines: who is ejected, why, and how it comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from disaggroute.live.clock import Clock
from disaggroute.live.cluster_file import EngineEntry, LiveCluster
from disaggroute.live.engine import Engine
from disaggroute.live.engine_metrics import Reported
from disaggroute.live.engine_watch import EngineWatch, WatchLimits
from disaggroute.live.http_client import Unreachable

from .scripted_engine import ScriptedEngine, hang, metrics
from .waiting import run, until

NEVER_S = 3_600.0


@dataclass
class Scene:
    """One scripted engine, watched."""

    scripted: ScriptedEngine
    engine: Engine
    watch: EngineWatch
    polls: list[Reported | None] = field(default_factory=list)
    """What was told to `on_poll`."""
    changes: list[str] = field(default_factory=list)
    """The engine's health whenever `on_change` was told."""
    reasons: list[str] = field(default_factory=list)
    """And why."""
    asked: int = 0
    """Polls that were begun."""
    missed: int = 0
    """Polls that were not answered."""
    fails: Callable[[], Any] | None = None
    """What those who are told do."""

    async def up(self) -> None:
        await until(lambda: self.engine.health == "up")

    async def ejected(self) -> None:
        await until(lambda: self.engine.health == "ejected")

    async def polled(self, times: int = 2) -> None:
        """Whole polls have begun and ended since."""
        wanted = len(self.polls) + times
        await until(lambda: len(self.polls) >= wanted)


@asynccontextmanager
async def watched(clock: Clock | None = None, **limits: Any) -> AsyncIterator[Scene]:
    async with ScriptedEngine() as scripted:
        of = LiveCluster.load(
            {"model": "tiny", "profile": "a40-qwen2.5-3b", "mixed": [{"url": scripted.url, "name": "one"}]}
        )
        engine = Engine.of("mixed", "one", EngineEntry(url=scripted.url), faults=3, pause_s=NEVER_S)

        def on_poll(engine: Engine) -> None:
            scene.polls.append(engine.poll)

        def on_change(engine: Engine) -> None:
            scene.changes.append(engine.health)
            scene.reasons.append(engine.reason)
            if scene.fails is not None:
                scene.fails()

        async def ask_poll(timeout: float) -> Reported:
            scene.asked += 1
            try:
                return await Engine.ask_poll(engine, timeout)
            except Unreachable:
                scene.missed += 1
                raise

        engine.ask_poll = ask_poll  # type: ignore[method-assign]
        settings = WatchLimits(**{"poll_interval_s": 0.005, "silent_s": 20.0, "stalled_s": NEVER_S} | limits)
        watch = EngineWatch(of, clock or Clock(), settings, on_poll, on_change)
        scene = Scene(scripted, engine, watch)
        watch.watch(engine)
        try:
            yield scene
        finally:
            await watch.close()
            await engine.client.close()


def hanging_leg(scene: Scene) -> asyncio.Task[Any]:
    """A leg that the engine has taken and will never answer."""
    scene.scripted.always = hang
    scene.engine.leg_begins(asyncio.get_running_loop().time(), True)
    return asyncio.create_task(scene.engine.client.fetch("POST", "/v1/completions", b"{}"))


def test_an_engine_that_nobody_has_seen_is_met_and_then_up() -> None:
    async def story() -> None:
        async with watched() as scene:
            await scene.up()
            assert (scene.engine.block_size, scene.engine.blocks, scene.engine.version) == (16, 100, (0, 32, 0))
            assert scene.engine.reason == "" and scene.changes == ["up"] and scene.engine.ejections == 0
            assert len(scene.polls) >= 2  # return_polls, less the one that has not been told yet

    run(story())


def test_each_poll_that_is_answered_is_told_with_its_time() -> None:
    async def story() -> None:
        async with watched() as scene:
            await scene.up()
            await scene.polled()
            at = scene.engine.polled_at
            assert at >= 0 and scene.polls[-1] == Reported(0.25, 3, 2)
            scene.scripted.metrics = metrics(value=0.75)
            await until(lambda: scene.polls[-1] == Reported(0.75, 3, 2))
            assert scene.engine.polled_at > at and scene.engine.poll == Reported(0.75, 3, 2)

    run(story())


def test_an_engine_that_is_up_already_is_not_met_again() -> None:
    async def story() -> None:
        async with watched() as scene:
            await scene.watch.forget(scene.engine)
            scene.engine.health = "up"
            scene.scripted.asked.clear()
            scene.watch.watch(scene.engine)
            await scene.polled(5)
            assert scene.scripted.asked == [] and scene.changes == []

    run(story())


def test_an_engine_that_stops_answering_is_ejected_and_its_hanging_legs_fail() -> None:
    async def story() -> None:
        async with watched(silent_s=0.4) as scene:
            await scene.up()
            leg = hanging_leg(scene)
            await until(lambda: scene.scripted.legs)
            scene.scripted.silent = True
            await scene.ejected()
            with pytest.raises(Unreachable):
                await leg
            assert "no whole answer within 0.4 s" in scene.engine.reason
            assert scene.changes[-1] == "ejected" and scene.engine.ejections >= 1
            assert not scene.engine.may_send(NEVER_S)

    run(story())


def test_an_engine_that_has_gone_is_ejected_and_returns_when_it_is_back() -> None:
    async def story() -> None:
        async with watched(silent_s=0.4) as scene:
            await scene.up()
            port = scene.scripted.port
            await scene.scripted.kill()
            await scene.ejected()
            for _ in range(3):
                scene.engine.breaker.failed(0.0)
            assert scene.engine.breaker.tripped
            scene.scripted.asked.clear()
            scene.scripted.metrics = metrics(value=0.5)
            await scene.scripted.listen(port)
            await scene.up()
            assert [path for path, _ in scene.scripted.asked] == ["/v1/models", "/version"]  # met anew
            assert scene.changes[:2] == ["up", "ejected"] and scene.changes[-1] == "up"
            assert scene.engine.reason == "" and scene.engine.ejections >= 1
            assert not scene.engine.breaker.tripped

    run(story())


def test_an_ejected_engine_must_answer_several_polls_before_it_returns() -> None:
    async def story() -> None:
        async with watched(silent_s=0.4, return_polls=8) as scene:
            await scene.up()
            port = scene.scripted.port
            await scene.scripted.kill()
            await scene.ejected()
            seen = len(scene.polls)
            await scene.scripted.listen(port)
            await scene.up()
            assert len(scene.polls) - seen >= 7

    run(story())


def test_an_engine_that_returns_with_another_model_stays_ejected_with_the_reason() -> None:
    async def story() -> None:
        async with watched(silent_s=0.4) as scene:
            await scene.up()
            port = scene.scripted.port
            await scene.scripted.kill()
            await scene.ejected()
            scene.scripted.model = "other"
            await scene.scripted.listen(port)
            await until(lambda: "serves other; the cluster's model is tiny" in scene.engine.reason)
            await scene.polled(6)
            assert scene.engine.health == "ejected"
            scene.scripted.model = "tiny"
            await scene.up()

    run(story())


def test_an_engine_that_returns_with_other_blocks_stays_ejected_with_the_reason() -> None:
    async def story() -> None:
        async with watched(silent_s=0.4) as scene:
            await scene.up()
            port = scene.scripted.port
            await scene.scripted.kill()
            await scene.ejected()
            scene.scripted.metrics = metrics(block_size=64)
            await scene.scripted.listen(port)
            await until(lambda: "has KV blocks of 64 tokens; the cluster's have 16" in scene.engine.reason)
            assert scene.engine.health == "ejected"

    run(story())


def test_an_engine_that_was_away_for_a_moment_only_is_met_anew_too() -> None:
    """It may be another process: nobody has to be silent for long to serve another model."""

    async def story() -> None:
        async with watched() as scene:  # silent_s is long: it is not ejected for being away
            await scene.up()
            port = scene.scripted.port
            await scene.scripted.kill()
            scene.scripted.model = "other"
            await until(lambda: scene.missed)
            await scene.scripted.listen(port)
            await scene.ejected()
            assert "serves other" in scene.engine.reason and scene.changes == ["up", "ejected"]

    run(story())


def test_a_poll_that_fails_now_and_then_ejects_nobody() -> None:
    async def story() -> None:
        async with watched() as scene:
            await scene.up()
            scene.scripted.says["/metrics"] = 503, b""
            await until(lambda: scene.missed)
            seen = len(scene.polls)
            del scene.scripted.says["/metrics"]
            await until(lambda: len(scene.polls) > seen + 1)
            assert scene.engine.health == "up" and scene.changes == ["up"]

    run(story())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda scripted: setattr(scripted, "metrics", scripted.metrics.replace(b"waiting{", b"queued{")),
            "there is no vllm:num_requests_waiting",
        ),
        (
            lambda scripted: setattr(scripted, "metrics", metrics(value=float("nan"))),
            "vllm:kv_cache_usage_perc is no number from 0 to 1: ",
        ),
        (lambda scripted: scripted.says.update({"/metrics": (404, b"")}), "/metrics) answers 404"),
    ],
)
def test_an_engine_whose_metrics_fail_later_is_ejected_by_the_metrics_name(
    spoil: Callable[[ScriptedEngine], Any], reason: str
) -> None:
    async def story() -> None:
        async with watched() as scene:
            await scene.up()
            good, says = scene.scripted.metrics, dict(scene.scripted.says)
            spoil(scene.scripted)
            await scene.ejected()
            assert reason in scene.engine.reason and scene.engine.ejections == 1
            scene.scripted.metrics, scene.scripted.says = good, says
            await scene.up()

    run(story())


def test_an_engine_whose_legs_stall_is_ejected_though_it_answers_polls() -> None:
    async def story() -> None:
        async with watched(stalled_s=0.2) as scene:
            await scene.up()
            leg = hanging_leg(scene)
            await until(lambda: "ejected" in scene.changes)
            with pytest.raises(Unreachable):
                await leg
            assert scene.reasons[1] == "1 streams and not a byte for 0.2 s"

    run(story())


def test_an_engine_that_is_emulated_slower_than_life_has_its_own_time_to_send_a_byte() -> None:
    async def story() -> None:
        async with watched(clock=Clock(NEVER_S), stalled_s=0.01) as scene:
            await scene.up()
            leg = hanging_leg(scene)
            await until(lambda: bool(scene.scripted.legs))
            scene.engine.progress -= 1.0  # s without a byte: much less than so slow an engine may take
            await scene.polled(5)
            assert scene.engine.health == "up" and scene.changes == ["up"]
            leg.cancel()

    run(story())


def test_an_engine_without_legs_never_stalls_and_bytes_are_progress() -> None:
    async def story() -> None:
        async with watched(stalled_s=0.5) as scene:
            await scene.up()
            scene.engine.progress = -NEVER_S
            await scene.polled(5)
            assert scene.engine.health == "up"
            loop = asyncio.get_running_loop()
            scene.engine.leg_begins(loop.time() + NEVER_S, True)  # its last byte is yet to come
            await scene.polled(5)
            assert scene.engine.health == "up" and scene.changes == ["up"]

    run(story())


def test_an_engine_that_makes_whole_answers_does_not_stall() -> None:
    """Nothing of such an answer comes before its end, however long it takes."""

    async def story() -> None:
        async with watched(stalled_s=0.5) as scene:
            await scene.up()
            scene.engine.leg_begins(-NEVER_S)
            await scene.polled(5)
            assert scene.engine.health == "up" and scene.changes == ["up"]

    run(story())


def test_a_stalled_engine_that_returns_must_still_satisfy_its_breaker() -> None:
    """It answers polls all the time, so answering them does not show that it is well."""

    async def story() -> None:
        async with watched(stalled_s=0.2) as scene:
            await scene.up()
            leg = hanging_leg(scene)
            await until(lambda: "ejected" in scene.changes)
            for _ in range(3):
                scene.engine.breaker.failed(0.0)
            with pytest.raises(Unreachable):
                await leg
            scene.engine.leg_ends(True)
            await scene.up()
            assert scene.engine.breaker.tripped

    run(story())


def test_who_is_told_may_fail_and_the_watch_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ValueError("decode/0: num_blocks does not fit")

    async def story() -> None:
        async with watched() as scene:
            await scene.up()
            scene.fails = fails
            scene.scripted.says["/metrics"] = 404, b""
            await scene.ejected()
            del scene.scripted.says["/metrics"]
            await until(lambda: "ValueError: decode/0: num_blocks does not fit" in scene.engine.reason)
            await until(lambda: len(scene.changes) > 6)  # it tries to return again and again
            assert not scene.engine.may_send(0.0)
            scene.fails = None
            await scene.up()
            await scene.polled()

    with caplog.at_level(logging.CRITICAL):
        run(story())


def test_somebody_else_may_eject_an_engine_and_it_returns() -> None:
    async def story() -> None:
        async with watched() as scene:
            await scene.up()
            await scene.watch.eject(scene.engine, "by hand")
            assert (scene.engine.health, scene.engine.reason) == ("ejected", "by hand")
            await scene.watch.eject(scene.engine, "again")
            assert scene.engine.reason == "again" and scene.engine.ejections == 1
            await scene.up()
            assert scene.changes == ["up", "ejected", "up"]

    run(story())


def test_an_engine_that_is_forgotten_is_not_asked_any_more() -> None:
    async def story() -> None:
        async with watched() as scene:
            await scene.up()
            scene.watch.watch(scene.engine)  # twice is once
            await scene.watch.forget(scene.engine)
            await scene.watch.forget(scene.engine)
            asked = scene.asked
            await asyncio.sleep(0.05)
            assert scene.asked == asked

    run(story())


@pytest.mark.parametrize(
    "limits", [{"poll_interval_s": 0}, {"silent_s": float("nan")}, {"stalled_s": -1}, {"return_polls": 0}, {"polls": 1}]
)
def test_limits_that_cannot_be_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WatchLimits(**limits)
