"""Faults on demand: each does what it says, as often as it says, and can be taken back."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from disaggroute.live.emulator import faults
from disaggroute.live.emulator.faults import Fault, Faults

from .engines import options, prefill, run, serving, two_legs, until

PREFILL, DECODE, MIXED = options("prefill"), options("decode"), options("mixed")


def test_a_fault_reads_its_short_form() -> None:
    assert faults.parse("crash") == Fault(kind="crash")
    assert faults.parse("drop_connection:tokens=3,requests=2") == Fault(kind="drop_connection", tokens=3, requests=2)
    assert faults.parse("slow_link:factor=2.5").factor == 2.5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stall", "fault 'stall': stall needs seconds"),
        ("crash:seconds=1", "crash has no seconds"),
        ("fire", "kind"),
        ("stall:seconds", "'seconds' must read like field=value"),
        ("stall:seconds=long", "seconds"),
        ("unhealthy:requests=0", "requests"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        faults.parse(text)


def test_a_fault_hits_as_many_requests_as_it_says() -> None:
    here = Faults([Fault(kind="error_500", requests=2), Fault(kind="unhealthy")])
    assert [here.take("error_500") is not None for _ in range(3)] == [True, True, False]
    assert all(here.take("unhealthy") is not None for _ in range(5))
    here.clear("error_500")
    assert [fault.kind for fault in here] == ["unhealthy"]
    here.clear()
    assert list(here) == []


def test_faults_are_set_listed_and_cleared_over_http() -> None:
    async def work() -> None:
        async with serving(MIXED) as (_, (client,)):
            given = [{"kind": "unhealthy"}, {"kind": "error_500", "requests": 3}]
            assert (await client.post("/emulator/faults", given)).body == {"faults": given}
            assert (await client.get("/health")).status == 503
            assert (await client.complete("a", 2)).status == 500
            assert (await client.get("/emulator/faults")).body["faults"][1]["requests"] == 2
            assert (await client.delete("/emulator/faults")).body == {"faults": []}
            assert (await client.get("/health")).status == (await client.complete("a", 2)).status == 200
            bad = await client.fault("stall")
            assert bad.status == 400 and "stall needs seconds" in bad.error["message"]
            assert (await client.post("/emulator/faults", b"{")).status == 400

    run(work())


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_ends_in_an_error_after_some_tokens(stream: bool) -> None:
    async def work() -> None:
        async with serving(MIXED) as (_, (client,)):
            right = await client.complete("a", 9)
            await client.fault("stream_error", tokens=3, requests=1)
            answer = await client.complete("a", 9, stream=stream)
            assert answer.error["code"] == 500
            assert (answer.status, answer.done) == ((200, True) if stream else (500, False))
            if stream:
                assert answer.text == right.text[:3]
            assert (await client.complete("a", 9, stream=stream)).text == right.text
            assert await client.metric("kv_cache_usage_perc") == 0

    run(work())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [0, 3])
def test_a_connection_is_dropped_after_some_tokens(stream: bool, tokens: int) -> None:
    async def work() -> None:
        async with serving(MIXED) as (_, (client,)):
            await client.fault("drop_connection", tokens=tokens, requests=1)
            with pytest.raises(aiohttp.ClientError):
                await client.complete("a", 9, stream=stream)
            assert (await client.complete("a", 9, stream=stream)).status == 200
            assert await client.metric("kv_cache_usage_perc") == 0

    run(work())


def test_a_prefill_leg_can_break_off_and_its_kv_stays() -> None:
    async def work() -> None:
        async with serving(PREFILL) as (_, (client,)):
            leg = {"kv_transfer_params": {"do_remote_decode": True}}
            await client.fault("drop_connection", tokens=1, requests=1)
            with pytest.raises(aiohttp.ClientError):
                await client.complete("a", 1, **leg)
            await client.fault("stream_error", tokens=0, requests=1)
            assert (await client.complete("a", 1, **leg)).status == 500
            assert await client.metric("kv_cache_usage_perc") == 2 / 3750

    run(work())


def test_a_prefill_leg_can_lack_its_parameters() -> None:
    async def work() -> None:
        async with serving(PREFILL) as (_, (client,)):
            await client.fault("missing_kv_params", requests=1)
            leg = {"kv_transfer_params": {"do_remote_decode": True}}
            answer = await client.complete("a", 1, **leg)
            assert answer.status == 200 and answer.body["kv_transfer_params"] is None
            assert (await client.complete("a", 1, **leg)).body["kv_transfer_params"] is not None

    run(work())


def test_the_answer_of_a_prefill_leg_can_come_late_while_its_lease_runs() -> None:
    async def work() -> None:
        leased = options("prefill", overrides={"lease_s": 2.0, "kv_tokens": 64})
        async with serving(leased, DECODE) as (_, (first, second)):
            await first.fault("late_kv_params", seconds=4, requests=1)
            parameters = await prefill(first, "x" * 40)
            assert await first.metric("nixl_num_kv_expired_reqs_total") == 1
            await prefill(first, "y" * 64)
            late = await second.complete("x" * 40, 16, kv_transfer_params=parameters)
            assert late.text != (await second.complete("x" * 40, 16)).text

    run(work())


def test_a_slow_link_makes_pulls_last_longer() -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as (_, (first, second)):
            await two_legs(first, second, "x" * 40, 2)
            usual = await second.metric("nixl_xfer_time_seconds_sum")
            await first.fault("slow_link", factor=500, requests=1)
            await two_legs(first, second, "x" * 40, 2)
            slow = await second.metric("nixl_xfer_time_seconds_sum") - usual
            assert slow > 100 * usual
            await two_legs(first, second, "x" * 40, 2)

    run(work())


def test_an_engine_that_stalls_answers_nothing_until_the_stall_ends() -> None:
    async def work() -> None:
        async with serving(MIXED) as (_, (client,)):
            right = await client.complete("a", 9)
            await client.fault("stall", seconds=100_000)
            hanging = [asyncio.create_task(client.get("/health")), asyncio.create_task(client.complete("a", 9))]
            await asyncio.wait(hanging, timeout=0.1)
            assert not any(task.done() for task in hanging)
            assert (await client.get("/emulator/faults")).status == 200
            await client.delete("/emulator/faults")
            assert (await hanging[0]).status == 200 and (await hanging[1]).text == right.text

            running = asyncio.create_task(client.complete("a", 2000, stream=True))
            await asyncio.sleep(0)
            await client.fault("stall", seconds=1)
            assert len((await running).text) == 2000

    run(work())


def test_a_stalled_prefill_engine_holds_up_pulls() -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as (_, (first, second)):
            parameters = await prefill(first, "x" * 40)
            await first.fault("stall", seconds=100_000)
            pulling = asyncio.create_task(second.complete("x" * 40, 4, kv_transfer_params=parameters))

            async def waits() -> bool:
                return await second.metric("num_requests_waiting") == 1

            await until(waits)
            await first.delete("/emulator/faults")
            assert (await pulling).status == 200

    run(work())


def test_a_crashed_engine_is_gone_at_once() -> None:
    async def work() -> None:
        async with serving(MIXED) as ((engine,), (client,)):
            running = asyncio.create_task(client.complete("a", 30_000))

            async def runs() -> bool:
                return await client.metric("num_requests_running") == 1

            await until(runs)
            with pytest.raises(aiohttp.ClientError):
                await client.fault("crash")
            with pytest.raises(aiohttp.ClientError):
                await running
            with pytest.raises(aiohttp.ClientError):
                await client.get("/health")
            assert engine.crash_reason == "it was told to"

    run(work())


def test_faults_can_be_there_from_the_start() -> None:
    async def work() -> None:
        given = options("mixed", faults=[{"kind": "unhealthy", "requests": 1}])
        for _ in range(2):  # what the first engine used up, the second has again
            async with serving(given) as (_, (client,)):
                assert [(await client.get("/health")).status for _ in range(2)] == [503, 200]

    run(work())
