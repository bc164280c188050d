"""A request in two legs: its KV is held, leased, pulled and freed, and what was pulled decides the answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from disaggroute.live.emulator.options import EngineOptions

from .engines import Client, Json, options, prefill, run, serving, two_legs, until

PREFILL, DECODE, MIXED = options("prefill"), options("decode"), options("mixed")


def leased(seconds: float, **overrides: Any) -> EngineOptions:
    return options("prefill", overrides={"lease_s": seconds, **overrides})


async def used(client: Client) -> float:
    return await client.metric("kv_cache_usage_perc")


async def frees_all(*clients: Client) -> None:
    """Waits until no engine uses a block."""

    async def free() -> bool:
        return all([await used(client) == 0 for client in clients])

    await until(free)


async def counts(client: Client, metric: str, least: float) -> None:
    """Waits until a metric has reached a value."""

    async def reached() -> bool:
        return await client.metric(metric) >= least

    await until(reached)


@pytest.mark.parametrize("stream", [True, False])
def test_two_legs_say_what_one_engine_says(stream: bool) -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE, MIXED) as (_, (first, second, alone)):
            for prompt in ("short", "a longer prompt that fills several blocks of the cache " * 3, [7, 300, 511] * 40):
                expected = await alone.complete(prompt, 20)
                answer = await two_legs(first, second, prompt, 20, stream=stream)
                assert answer.text == expected.text and answer.status == 200
            await frees_all(first, second)
            pulled = await second.metric("nixl_xfer_time_seconds_count")
            assert pulled == 3 and await first.metric("nixl_num_kv_expired_reqs_total") == 0

    run(work())


def test_a_prefill_leg_answers_with_what_vllm_answers() -> None:
    async def work() -> None:
        async with serving(PREFILL) as ((engine,), (client,)):
            parameters = await prefill(client, "x" * 40, request_id="abc")
            assert parameters.pop("remote_request_id").startswith("cmpl-abc-0-")
            assert parameters == {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [[1, 2, 3]],
                "remote_engine_id": engine.engine_id,
                "remote_host": "127.0.0.1",
                "remote_port": engine.side_channel_port,
                "tp_size": 1,
                "dcp_size": 1,
                "pp_size": 1,
                "remote_num_tokens": 40,
                "remote_blocks_expiry_time": None,
                "transfer_mode": "pull",
            }
            metrics = await client.metrics()
            assert metrics["vllm:kv_cache_usage_perc"] == 3 / 3750 and metrics["vllm:num_requests_running"] == 0
            assert (await client.post("/reset_prefix_cache", {})).body == {"success": False}

    run(work())


def test_a_chat_goes_in_two_legs_too() -> None:
    async def work() -> None:
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "ignore_eos": True}
        path = "/v1/chat/completions"
        async with serving(PREFILL, DECODE, MIXED) as (_, (first, second, alone)):
            leg = asked | {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
            parameters = (await first.post(path, leg)).body["kv_transfer_params"]
            answer = await second.post(path, asked | {"kv_transfer_params": parameters, "stream": True})
            assert answer.text == (await alone.post(path, asked)).text

    run(work())


def test_a_decode_engine_does_whole_requests_and_a_prefill_engine_first_tokens() -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE, MIXED) as (_, (first, second, alone)):
            expected = await alone.complete("a prompt", 5)
            assert (await second.complete("a prompt", 5)).text == expected.text
            assert (await first.complete("a prompt", 1)).text == expected.text[:1]
            refused = await first.complete("a prompt", 5)
            assert refused.status == 400 and "max_tokens must be 1" in refused.error["message"]
            await frees_all(first, second)

    run(work())


def test_a_streamed_prefill_leg_strands_its_blocks_until_the_lease_ends() -> None:
    async def work() -> None:
        async with serving(leased(20)) as (_, (client,)):
            leg = {"kv_transfer_params": {"do_remote_decode": True}, "stream": True}
            answer = await client.complete("x" * 40, 1, **leg)
            assert answer.done and not any("kv_transfer_params" in event for event in answer.events)
            assert await used(client) > 0
            await frees_all(client)
            assert await client.metric("nixl_num_kv_expired_reqs_total") == 1

    run(work())


def test_a_late_decode_leg_reads_what_stands_in_the_blocks_now() -> None:
    async def work() -> None:
        async with serving(leased(0.5, kv_tokens=64), DECODE) as (_, (first, second)):
            right = (await second.complete("x" * 40, 16)).text
            parameters = await prefill(first, "x" * 40)
            await counts(first, "nixl_num_kv_expired_reqs_total", 1)
            untouched = await second.complete("x" * 40, 16, kv_transfer_params=parameters)
            assert (untouched.status, untouched.text) == (200, right)
            await counts(first, "nixl_num_notifications_after_expiry_total", 1)
            await prefill(first, "y" * 64)
            late = await second.complete("x" * 40, 16, kv_transfer_params=parameters)
            assert late.status == 200 and late.text != right
            await counts(first, "nixl_num_notifications_after_expiry_total", 2)

    run(work())


def test_other_blocks_than_those_of_the_prompt_give_another_answer() -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as (_, (first, second)):
            right = (await second.complete("x" * 40, 16)).text
            for wrong in ([[3, 2, 1]], [[2, 3, 4]]):
                parameters = await prefill(first, "x" * 40) | {"remote_block_ids": wrong}
                assert (await second.complete("x" * 40, 16, kv_transfer_params=parameters)).text != right

    run(work())


async def go_away(client: Client, parameters: Json) -> None:
    """Sends a decode leg and disconnects once the engine has it."""
    body = {"prompt": "x" * 40, "max_tokens": 500, "ignore_eos": True, "kv_transfer_params": parameters}
    data = json.dumps(body)
    task = asyncio.create_task(client.session.post(client.url + "/v1/completions", data=data).__aenter__())

    async def there() -> bool:
        metrics = await client.metrics()
        return metrics["vllm:num_requests_waiting"] + metrics["vllm:num_requests_running"] > 1

    await until(there)
    task.cancel()


def test_a_client_that_goes_away_in_the_queue_frees_the_blocks_of_both_engines() -> None:
    async def work() -> None:
        crowded = options("decode", overrides={"max_num_seqs": 1})
        async with serving(PREFILL, crowded) as ((_, engine), (first, second)):
            ahead = asyncio.create_task(second.complete("z", 2000))
            await counts(second, "num_requests_running", 1)
            await go_away(second, await prefill(first, "x" * 40))
            await frees_all(first)
            assert not ahead.done() and engine.crash_reason is None
            ahead.cancel()
            await frees_all(second)

    run(work())


def test_a_decode_leg_that_is_refused_frees_the_prefill_engines_blocks() -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as (_, (first, second)):
            parameters = await prefill(first, "x" * 40)
            refused = await second.complete("x" * 40, 1, n=2, kv_transfer_params=parameters)
            assert refused.status == 400
            await frees_all(first)

    run(work())


@pytest.mark.parametrize("absent", ["remote_request_id", "remote_engine_id", "remote_host", "remote_port"])
def test_a_decode_leg_without_a_name_hangs_and_kills_the_engine_when_its_client_goes(absent: str) -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as ((_, engine), (first, second)):
            parameters = await prefill(first, "x" * 40)
            del parameters[absent]
            data = json.dumps({"prompt": "x" * 40, "max_tokens": 4, "kv_transfer_params": parameters})
            hanging = asyncio.create_task(
                second.session.post(second.url + "/v1/completions", data=data).__aenter__()
            )
            await counts(second, 'num_requests_waiting_by_reason{reason="deferred"}', 1)
            assert (await second.complete("other", 3)).status == 200  # others are served meanwhile
            assert not hanging.done() and engine.crash_reason is None
            hanging.cancel()

            async def dead() -> bool:
                return engine.crash_reason is not None

            await until(dead)
            assert "aborted while it waited for KV that has no name" in str(engine.crash_reason)

    run(work())


def test_a_decode_leg_without_blocks_kills_the_engine() -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as ((_, engine), (first, second)):
            parameters = await prefill(first, "x" * 40) | {"remote_block_ids": []}
            with pytest.raises(aiohttp.ClientError):
                await second.complete("x" * 40, 4, kv_transfer_params=parameters)
            assert "remote_block_ids names none of it" in str(engine.crash_reason)

    run(work())


def test_without_hazards_a_malformed_decode_leg_is_an_error() -> None:
    async def work() -> None:
        async with serving(PREFILL, options("decode", hazards=False)) as (_, (first, second)):
            parameters = await prefill(first, "x" * 40)
            del parameters["remote_request_id"], parameters["remote_block_ids"]
            answer = await second.complete("x" * 40, 4, kv_transfer_params=parameters)
            sentence = "kv_transfer_params lacks remote_request_id, remote_block_ids"
            assert (answer.status, answer.error["message"]) == (400, sentence)

    run(work())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("knew", [True, False])
def test_a_prefill_engine_killed_between_the_legs_fails_the_request(stream: bool, knew: bool) -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as ((engine, _), (first, second)):
            if knew:
                await two_legs(first, second, "before", 3)
            parameters = await prefill(first, "x" * 40)
            engine.crash("killed")
            answer = await second.complete("x" * 40, 4, kv_transfer_params=parameters, stream=stream)
            assert (answer.status, answer.done) == ((200, True) if stream else (500, False))
            assert answer.error == {
                "message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500
            }  # fmt: skip
            await frees_all(second)
            metrics = await second.metrics()
            assert metrics["vllm:nixl_num_failed_transfers_total"] == 1
            assert metrics['vllm:request_success_total{finished_reason="error"}'] == 1

    run(work())


def test_a_prefill_engine_killed_during_a_pull_fails_the_request() -> None:
    async def work() -> None:
        slow = {"latency_ms": 30_000.0}
        async with serving(options("prefill", overrides=slow), DECODE) as ((engine, _), (first, second)):
            parameters = await prefill(first, "x" * 40)
            pulling = asyncio.create_task(second.complete("x" * 40, 4, kv_transfer_params=parameters))
            await counts(second, "nixl_xfer_time_seconds_count", 1)
            engine.crash("killed")
            assert (await pulling).status == 500
            await frees_all(second)

    run(work())


def test_another_engine_at_the_same_address_has_not_the_kv() -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as (_, (first, second)):
            parameters = await prefill(first, "x" * 40) | {"remote_engine_id": "the one before"}
            assert (await second.complete("x" * 40, 4, kv_transfer_params=parameters)).status == 500

    run(work())


def test_kv_that_cannot_be_pulled_may_be_computed_again() -> None:
    async def work() -> None:
        recomputing = options("decode", kv_load_failure_policy="recompute")
        async with serving(PREFILL, recomputing) as ((engine, _), (first, second)):
            right = (await second.complete("x" * 40, 16)).text
            parameters = await prefill(first, "x" * 40)
            engine.crash("killed")
            answer = await second.complete("x" * 40, 16, kv_transfer_params=parameters, stream=True)
            assert (answer.status, answer.text) == (200, right)
            await frees_all(second)

    run(work())


def test_a_decode_engine_killed_during_a_pull_leaves_the_blocks_to_the_lease() -> None:
    async def work() -> None:
        slow = options("prefill", overrides={"latency_ms": 4_000.0, "lease_s": 40.0})
        async with serving(slow, DECODE) as ((_, engine), (first, second)):
            parameters = await prefill(first, "x" * 40)
            pulling = asyncio.create_task(second.complete("x" * 40, 4, kv_transfer_params=parameters))
            await counts(second, "nixl_xfer_time_seconds_count", 1)
            engine.crash("killed")
            with pytest.raises(aiohttp.ClientError):
                await pulling
            await frees_all(first)
            assert await first.metric("nixl_num_kv_expired_reqs_total") == 1

    run(work())


def test_preempted_requests_whose_kv_was_pulled_get_all_their_tokens() -> None:
    async def work() -> None:
        tight = options("decode", overrides={"kv_tokens": 640})
        async with serving(PREFILL, tight, MIXED) as (_, (first, second, alone)):
            prompts = [f"{i} {'y' * 90}" for i in range(8)]
            expected = [await alone.complete(prompt, 100) for prompt in prompts]
            legs = [two_legs(first, second, prompt, 100, stream=True) for prompt in prompts]
            answers = await asyncio.gather(*legs)
            assert await second.metric("num_preemptions_total") > 0
            assert [answer.text for answer in answers] == [answer.text for answer in expected]
            await frees_all(first, second)

    run(work())
