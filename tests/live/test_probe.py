"""The probe reads every token with its time, and says what an engine did wrong."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from disaggroute.live import clock as clock_module
from disaggroute.live import probe as probe_module
from disaggroute.live.http_client import Unreachable
from disaggroute.live.probe import Busy, Probe
from disaggroute.live.reply import Failed, read_stream

from .scripted_engine import ScriptedEngine, Writer, event, stream, whole, without
from .speaking_engine import follows, load, speaking
from .waiting import run

PROMPT = list(range(100, 120))
ENDS = event({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 2}}) + event("[DONE]")


def token(*ids: int) -> bytes:
    return event({"choices": [{"index": 0, "text": "x" * len(ids), "token_ids": list(ids)}]})


@pytest.mark.parametrize("streamed", [True, False])
def test_a_whole_request_gives_its_tokens_counts_and_times(streamed: bool) -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines), Probe(cluster) as probe:
            reply = await probe.whole(probe.mixed[0], PROMPT, 5, stream=streamed)
            assert reply.tokens == tuple(follows({"prompt": PROMPT, "max_tokens": 5})) == reply.said
            assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (20, 5, 0)
            assert len(reply.times) == 5 and list(reply.times) == sorted(reply.times) and reply.first_s > 0
            body = engines[0].legs[0]
            assert body["max_tokens"] == body["min_tokens"] == 5 and body["ignore_eos"] and body["temperature"] == 0
            assert "kv_transfer_params" not in body

    run(story())


def test_two_legs_hand_over_what_came_under_one_request_id() -> None:
    async def story() -> None:
        async with speaking({"prefill": 1, "decode": 1}) as (cluster, (prefill, decode)), Probe(cluster) as probe:
            first, second = await probe.two_legs(probe.prefill[0], probe.decode[0], PROMPT, 3)
            assert first.parameters == decode.legs[0]["kv_transfer_params"] != {}
            assert len(second.times) == 3
            assert prefill.legs[0]["max_tokens"] == 1 and prefill.legs[0]["stream"] is False
            heads = [head.split(b"\r\n") for head in (prefill.headers[0], decode.headers[0])]
            ids = [[line for line in head if line.startswith(b"x-request-id: probe-")] for head in heads]
            assert ids[0] == ids[1] and len(ids[0]) == 1

    run(story())


def test_times_are_those_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}, time_scale=0.01) as (cluster, _), Probe(cluster) as probe:
            ticks = itertools.count(probe.clock.started_ns, 1_000_000)  # 1 ms of life with every look at the clock
            monkeypatch.setattr(clock_module.time, "monotonic_ns", lambda: next(ticks))
            reply = await probe.whole(probe.mixed[0], PROMPT, 2, stream=False)
            assert reply.first_s == pytest.approx(0.1)

    run(story())


def test_an_event_in_two_pieces_has_the_time_of_its_end_and_a_bundle_one_time_for_all() -> None:
    pieces = [(1.0, token(1) + token(2)[:20]), (2.0, token(2)[20:] + token(3, 4)), (3.0, ENDS)]
    reply = read_stream("mixed/0", pieces, 0.5)
    assert reply.tokens == (1, 2, 3, 4) and reply.times == (1.0, 2.0, 2.0, 2.0) and reply.first_s == 0.5


NO_COUNT = event({"choices": [], "usage": {"prompt_tokens": 2}}) + event("[DONE]")
LOST = event({"error": {"message": "KV lost"}})


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (stream(token(1), LOST, event("[DONE]")), "breaks off after 1 tokens: KV lost"),
        (stream(token(1), token(2)), "breaks off after 2 tokens, without the end of its stream"),
        (stream(ENDS), "breaks off after 0 tokens"),
        (stream(event({"choices": "none"})), "streams what is no event of a completion"),
        (stream(token(1), NO_COUNT), "does not count tokens"),
    ],
)
def test_a_stream_that_is_no_whole_answer_is_named(act: Any, words: str) -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines), Probe(cluster) as probe:
            engines[0].always = act
            with pytest.raises(Failed, match=f"^mixed/0 {words}"):
                await probe.whole(probe.mixed[0], PROMPT, 2)

    run(story())


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{}], "usage": {}}'])
def test_an_answer_that_is_no_completion_is_named(content: bytes) -> None:
    async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
        await whole(writer, 200, content)

    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines), Probe(cluster) as probe:
            engines[0].always = act
            with pytest.raises(Failed, match=r"^mixed/0 answers with no completion"):
                await probe.whole(probe.mixed[0], PROMPT, 2, stream=False)

    run(story())


def test_a_prefill_leg_that_hands_over_nothing_usable_goes_no_further() -> None:
    async def story() -> None:
        async with speaking({"prefill": 1, "decode": 1}) as (cluster, (prefill, decode)), Probe(cluster) as probe:
            prefill.always = without(remote_port=None)
            with pytest.raises(Failed, match="prefill/0: remote_port is missing"):
                await probe.two_legs(probe.prefill[0], probe.decode[0], PROMPT, 3)
            assert decode.legs == []

    run(story())


def test_an_engine_that_goes_away_is_named() -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines), Probe(cluster) as probe:
            engines[0].always = stream(token(1), then="drop")
            with pytest.raises(Unreachable, match=r"^mixed/0: "):
                await probe.whole(probe.mixed[0], PROMPT, 2)

    run(story())


def test_the_context_is_what_fits_every_engine() -> None:
    async def story() -> None:
        async with speaking({"mixed": 2}) as (cluster, _), Probe(cluster) as probe:
            assert probe.context == 1_000  # what both say; their KV cache holds 1,600
            probe.engines[1].blocks = 50
            assert probe.context == 800
        async with speaking({"mixed": 1}, max_model_len=300) as (cluster, _), Probe(cluster) as probe:
            assert probe.context == 300

    run(story())


def test_prompts_are_new_and_a_seed_gives_the_same() -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, _):
            one, same, other = Probe(cluster, 1), Probe(cluster, 1), Probe(cluster)
            assert one.prompt(30) == same.prompt(30) != other.prompt(30) != other.prompt(30)

    run(story())


def test_waiting_for_idle_engines_ends_when_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines), Probe(cluster) as probe:
            engines[0].metrics = load(running=1)
            waiting = asyncio.create_task(probe.wait_idle())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            engines[0].metrics = load()
            await waiting
            monkeypatch.setattr(probe_module, "SETTLE_S", 0.0)
            engines[0].metrics = load(waiting=3)
            with pytest.raises(Busy, match="3 waiting"):
                await probe.wait_idle()

    run(story())


PREFILLS = b"vllm:request_prefill_time_seconds"


def counters(requests: int, seconds: float) -> bytes:
    return load() + PREFILLS + b"_sum %g\n" % seconds + PREFILLS + b"_count %d\n" % requests


def test_what_an_engine_counts_is_in_its_own_seconds_and_missing_counts_are_none() -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}, time_scale=0.5) as (cluster, engines), Probe(cluster) as probe:
            engine = probe.mixed[0]
            before = await probe.counted(engine)
            assert before.requests == before.prefill_s == before.transfers == before.moved_bytes == -1
            assert before.first_tokens == before.gaps == before.gap_s == -1
            assert await probe.counted_after(engine, before, 5) == before
            engines[0].metrics = counters(4, 1.5)
            before = await probe.counted(engine)
            assert before.requests == 4 and before.prefill_s == 3.0
            first, gaps = b"vllm:time_to_first_token_seconds", b"vllm:inter_token_latency_seconds"
            told = first + b"_count 3\n" + gaps + b"_sum 0.25\n" + gaps + b"_count 40\n"
            engines[0].metrics = counters(4, 1.5) + told
            now = await probe.counted(engine)
            assert (now.first_tokens, now.gaps, now.gap_s) == (3, 40, 0.5)
            engines[0].metrics = counters(6, 2.0)
            assert (await probe.counted_after(engine, before, 2)).prefill_s == 4.0
            with pytest.raises(Busy, match="mixed/0 has served 2 requests where 1 were sent"):
                await probe.counted_after(engine, before, 1)

    run(story())


def test_resetting_the_prefix_cache_says_whether_it_did() -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines), Probe(cluster) as probe:
            for status, body, did in ((200, b"", True), (200, b'{"success": false}', False), (404, b"", False)):
                engines[0].says["/reset_prefix_cache"] = status, body
                assert await probe.reset_prefix_cache(probe.mixed[0]) is did

    run(story())
