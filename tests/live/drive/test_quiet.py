"""Before a run engines are idle and their caches empty, or somebody is told why not."""

from __future__ import annotations

import asyncio
import re

import pytest

from disaggroute.live.drive.quiet import NotIdle, quieten
from disaggroute.live.engine_metrics import MissingMetric
from disaggroute.live.http_client import Unreachable

from ..scripted_engine import ScriptedEngine
from ..waiting import run

BUSY = b"vllm:kv_cache_usage_perc 0.25\nvllm:num_requests_running 3.0\nvllm:num_requests_waiting 2.0\n"
IDLE = BUSY.replace(b"0.25", b"0").replace(b"3.0", b"0.0").replace(b"2.0", b"0.0")


def quiet(metrics: bytes, reset: tuple[int, bytes] = (200, b""), must: bool = True, idle_s: float = 0.0) -> list[str]:
    """What is said of an engine; raises as `quieten`."""

    async def story() -> list[str]:
        said: list[str] = []
        async with ScriptedEngine() as engine:
            engine.metrics = metrics
            engine.says["/reset_prefix_cache"] = reset
            await quieten([("decode/3", engine.url)], idle_s=idle_s, reset=must, say=said.append)
            assert [path for path, _ in engine.asked] == ["/reset_prefix_cache"]
        return said

    return run(story())


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"success": true}', b"ok"])
def test_an_idle_engine_whose_cache_was_reset_is_quiet(answer: bytes) -> None:
    assert quiet(IDLE, (200, answer)) == []


@pytest.mark.parametrize(
    ("metrics", "what"),
    [
        (BUSY, "3 requests running, 2 waiting, 25.0% of its KV cache in use"),
        (IDLE.replace(b"perc 0", b"perc 0.5"), "0 requests running, 0 waiting, 50.0%"),
        (IDLE.replace(b"waiting 0.0", b"waiting 1"), "0 requests running, 1 waiting, 0.0%"),
    ],
)
def test_an_engine_that_others_use_is_named_with_what_it_does(metrics: bytes, what: str) -> None:
    with pytest.raises(NotIdle, match=re.escape(what)) as raised:
        quiet(metrics)
    assert str(raised.value).startswith("decode/3 (http://127.0.0.1:")
    assert "a run needs the engines for itself" in str(raised.value)


def test_an_engine_that_is_about_to_be_idle_is_waited_for() -> None:
    async def story() -> None:
        async with ScriptedEngine() as engine:
            engine.metrics = BUSY
            engine.says["/reset_prefix_cache"] = 200, b""

            async def end() -> None:
                while engine.polls < 2:
                    await asyncio.sleep(0.002)
                engine.metrics = IDLE

            ending = asyncio.create_task(end())
            await quieten([("decode/0", engine.url)], idle_s=30, reset=True, say=lambda _: None)
            await ending
            assert engine.polls >= 3

    run(story())


@pytest.mark.parametrize("answer", [(404, b""), (500, b"")])
def test_a_cache_that_cannot_be_reset_is_an_error_that_says_how(answer: tuple[int, bytes]) -> None:
    sentence = rf"decode/3 .* cannot reset its prefix cache \(it answers {answer[0]}\); real engines take it with"
    with pytest.raises(RuntimeError, match=sentence) as raised:
        quiet(IDLE, answer)
    assert "VLLM_SERVER_DEV_MODE=1" in str(raised.value) and "--no-reset" in str(raised.value)


def test_or_a_warning_where_that_is_wanted() -> None:
    (said,) = quiet(IDLE, (404, b""), must=False)
    assert said.startswith("warning: decode/3") and "cannot reset its prefix cache" in said


def test_a_cache_that_stays_full_is_told() -> None:
    with pytest.raises(RuntimeError, match="did not reset its prefix cache within 0 s"):
        quiet(IDLE, (200, b'{"success": false}'))


def test_an_engine_that_does_not_say_what_it_does_is_named() -> None:
    with pytest.raises(MissingMetric, match=r"decode/3 .*/metrics\): there is no vllm:num_requests_running"):
        quiet(b"vllm:kv_cache_usage_perc 0\n")


def test_an_engine_that_is_away_is_named() -> None:
    async def story() -> None:
        await quieten([("decode/0", "http://127.0.0.1:1")], idle_s=0, reset=True, say=lambda _: None)

    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:1: "):
        run(story())
