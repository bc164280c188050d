"""The proxy over scripted engines that fail: retries, breakers, engines that go and come back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from .proxy_client import PLAIN, STREAMED, Setup, answered_at, run, until
from .scripted_engine import Act, Gate, after, drop, hang, piece, refuse, stream, usual


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_a_leg_of_an_engine_that_is_emulated_slower_than_life_has_the_engines_seconds(leg: str, tmp_path: Path) -> None:
    async def slow(*leg: Any) -> None:
        await asyncio.sleep(0.05)
        await usual(*leg)

    async def test(setup: Setup) -> None:
        setup.engines[f"{leg}/0"].acts = [slow]
        assert (await setup.ask(PLAIN)).status == 200
        assert setup.records()[0]["faults"] == []

    limits = {"prefill_timeout_s": 0.01, "decode_timeout_s": 0.01}
    run(test, "1P1D", path=tmp_path / "records.jsonl", cluster={"time_scale": 6_000.0}, relay=limits)


@pytest.mark.parametrize("act", [drop, refuse(500), refuse(503)])
@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_leg_that_fails_is_tried_on_another_engine(act: Act, leg: str, streamed: bool, tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines[f"{leg}/0"].acts = [act]
        got = await setup.ask(STREAMED if streamed else PLAIN)
        assert got.status == 200
        assert setup.engines[f"{leg}/1"].legs and len(setup.engines[f"{leg}/0"].legs) == 1
        record = setup.records()[0]
        assert record["status"] == "finished" and record["attempts"] == 2 and record[leg] == f"{leg}/1"
        assert setup.service.router.state.in_flight == 0

    run(test, "2P2D", path=tmp_path / "records.jsonl")


def test_retries_are_bounded(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        for name in ("decode/0", "decode/1"):
            setup.engines[name].always = refuse(500, "broken")
        got = await setup.ask(STREAMED)
        assert got.status == 502 and got.json["error"]["message"] == (
            "no engine could serve the request (answered 500: broken)"
        )
        assert setup.legs["decode/0"] + setup.legs["decode/1"] == 3
        record = setup.records()[0]
        assert record["status"] == "failed" and record["http_status"] == 502 and len(record["faults"]) == 3

    run(test, path=tmp_path / "records.jsonl", faults=10)


def test_an_engine_that_keeps_failing_is_sent_nothing_for_a_while() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].always = refuse(500)
        for _ in range(6):
            assert (await setup.ask(PLAIN)).status == 200
        assert setup.legs["decode/0"] == 2
        assert setup.service.engine("decode/0").breaker.state == "open"

    run(test, faults=2, pause_s=3600.0)


def test_after_the_pause_one_request_tries_and_the_engine_is_back() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [refuse(500)]
        await setup.ask(PLAIN)
        assert setup.service.engine("decode/0").breaker.state == "open"
        await asyncio.sleep(0.06)
        for _ in range(4):
            assert (await setup.ask(PLAIN)).status == 200
        assert setup.service.engine("decode/0").breaker.state == "closed" and setup.legs["decode/0"] > 1

    run(test, faults=1, pause_s=0.05)


def test_a_stream_that_tries_an_engine_lets_others_come_with_its_first_token() -> None:
    async def test(setup: Setup) -> None:
        engine = setup.service.engine("decode/0")
        setup.engines["decode/0"].acts = [refuse(500), stream(piece("a"), then="hang")]
        await setup.ask(PLAIN)
        assert engine.breaker.state == "open"
        await asyncio.sleep(0.06)
        calls = [setup.call(STREAMED) for _ in range(2)]
        await until(lambda: len(setup.engines["decode/0"].legs) == 2)
        await until(lambda: engine.breaker.state == "closed")
        for call in calls:
            call.leave()
        await asyncio.gather(*(call.task for call in calls))
        assert engine.breaker.state == "closed" and engine.breaker.faults == 0

    run(test, faults=1, pause_s=0.05)


def test_an_engine_that_returns_with_another_cache_has_its_size_in_the_ledger() -> None:
    async def test(setup: Setup) -> None:
        engine = setup.engines["decode/0"]
        await engine.kill()
        await until(lambda: setup.service.engine("decode/0").health == "ejected")
        engine.metrics = engine.metrics.replace(b'num_gpu_blocks="101"', b'num_gpu_blocks="51"')
        await engine.listen(engine.port)
        await until(lambda: setup.service.engine("decode/0").health == "up")
        sizes = [spec.num_blocks for spec in setup.service.router.state.cluster.instances]
        assert sizes == [100, 50, 100]
        assert (await setup.ask(PLAIN)).status == 200

    run(test)
def test_an_answer_from_before_a_breaker_opened_does_not_close_it() -> None:
    async def test(setup: Setup) -> None:
        gate = Gate()
        setup.engines["decode/0"].acts = [after(gate), refuse(500)]
        early = setup.call(PLAIN)
        await until(lambda: setup.legs["decode/0"] == 1)
        for _ in range(2):
            assert (await setup.ask(PLAIN)).status == 200
        assert setup.service.engine("decode/0").breaker.state == "open"
        gate.set()
        await early.task
        assert early.answer.status == 200 and setup.service.engine("decode/0").breaker.state == "open"

    run(test, faults=1, pause_s=3600.0)


def test_only_one_request_is_assigned_to_an_engine_that_is_tried(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        gate = Gate()
        setup.engines["prefill/0"].always = after(gate)
        setup.service.engine("decode/0").breaker.failed(asyncio.get_running_loop().time() - 3600.0)
        calls = [setup.call(PLAIN) for _ in range(4)]
        await until(lambda: setup.legs["prefill/0"] == 4)
        assert setup.service.engine("decode/0").breaker.state == "trying"
        gate.set()
        await asyncio.gather(*(call.task for call in calls))
        assert sorted(record["decode"] for record in setup.records()) == ["decode/0"] + ["decode/1"] * 3
        assert setup.service.engine("decode/0").breaker.state == "closed"

    run(test, path=tmp_path / "records.jsonl", faults=1, pause_s=60.0)


def test_a_request_that_ends_before_its_decode_leg_lets_another_one_try() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["prefill/0"].acts = [hang]
        breaker = setup.service.engine("decode/0").breaker
        breaker.failed(asyncio.get_running_loop().time() - 3600.0)
        call = setup.call(PLAIN)
        await until(lambda: setup.legs["prefill/0"] == 1)
        assert breaker.state == "trying"
        call.leave()
        await call.task
        assert breaker.state == "open" and breaker.may_send(asyncio.get_running_loop().time())

    run(test, "1P1D", faults=1, pause_s=60.0)


@pytest.mark.parametrize("how", ["killed", "broken"])
def test_a_decode_engine_that_fails_during_the_prefill_is_sent_nothing(how: str, tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        gate = Gate()
        setup.engines["prefill/0"].acts = [after(gate)]
        call = setup.call(PLAIN)
        await until(lambda: setup.legs["prefill/0"] == 1)
        chosen = setup.service.engine("decode/0")
        if how == "killed":
            await setup.engines["decode/0"].kill()
            await until(lambda: chosen.health == "ejected")
        else:
            chosen.breaker.failed(asyncio.get_running_loop().time())
        gate.set()
        await call.task
        assert call.answer.status == 200 and setup.legs["decode/0"] == 0
        record = setup.records()[0]
        assert record["faults"] == ["decode/0: it became unavailable after it was chosen"]
        await until(lambda: setup.legs["decode/1"] == 2, "the freeing leg")

    run(test, path=tmp_path / "records.jsonl", faults=1, pause_s=3600.0)


@pytest.mark.parametrize("body", [PLAIN, STREAMED])
def test_a_decode_leg_that_never_ends_is_tried_elsewhere(body: dict[str, Any], tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [hang]
        assert (await setup.ask(body)).status == 200
        assert "no whole answer within 0.5 s" in setup.records()[0]["faults"][0]
        assert setup.service.engine("decode/0").ejections == 0

    run(test, path=tmp_path / "records.jsonl", relay={"decode_timeout_s": 0.5})


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_a_clients_error_is_the_clients_and_no_fault_of_the_engine(leg: str, tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        for name, engine in setup.engines.items():
            if name.startswith(leg):
                engine.always = refuse(400, "temperature must be positive")
        for _ in range(5):
            got = await setup.ask(STREAMED)
            assert got.status == 400 and got.json["error"]["message"] == "temperature must be positive"
        assert all(engine.breaker.faults == 0 for engine in setup.service.engines)
        assert all(record["status"] == "rejected" and record["attempts"] == 1 for record in setup.records())
        assert setup.service.router.state.in_flight == 0

    run(test, path=tmp_path / "records.jsonl", faults=1)


def test_a_busy_engine_has_no_fault() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].always = refuse(429)
        for _ in range(3):
            assert (await setup.ask(PLAIN)).status == 200
        assert setup.service.engine("decode/0").breaker.faults == 0

    run(test, faults=1)


def test_all_engines_of_a_pool_down_is_503_with_a_time_to_come_back(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        for name in ("decode/0", "decode/1"):
            await setup.engines[name].kill()
        await until(lambda: all(e.health == "ejected" for e in setup.service.engines if e.role == "decode"))
        got = await setup.ask(PLAIN)
        assert got.status == 503 and got.headers[b"retry-after"] == b"1"
        assert "no engine is available" in got.json["error"]["message"] and setup.legs["prefill/0"] == 0
        assert setup.records()[0]["status"] == "rejected"
        health = await asyncio.wait_for(answered_at(setup, "/health"), 10)
        assert health.status == 503 and health.json["status"] == "down"

    run(test, path=tmp_path / "records.jsonl")


def test_an_engine_that_comes_back_is_used_again() -> None:
    async def test(setup: Setup) -> None:
        engine = setup.engines["decode/0"]
        await engine.kill()
        await until(lambda: setup.service.engine("decode/0").health == "ejected")
        assert (await setup.ask(PLAIN)).status == 200
        await engine.listen(engine.port)
        await until(lambda: setup.service.engine("decode/0").health == "up")
        before = len(engine.legs)
        for _ in range(2):
            assert (await setup.ask(PLAIN)).status == 200
        assert len(engine.legs) == before + 1

    run(test)


def test_kv_that_no_decode_leg_reached_is_fetched_by_another_decode_engine() -> None:
    async def test(setup: Setup) -> None:
        await setup.engines["decode/0"].kill()
        setup.service.engine("decode/0").health = "up"
        got = await setup.ask(PLAIN)
        assert got.status == 200
        freed = setup.engines["decode/1"]
        await until(lambda: len(freed.legs) == 2, "the freeing leg")
        asked = sorted(leg["kv_transfer_params"]["remote_request_id"] for leg in freed.legs)
        assert asked == ["cmpl-0", "cmpl-1"]
        freeing = next(leg for leg in freed.legs if leg["kv_transfer_params"]["remote_request_id"] == "cmpl-0")
        assert freeing["max_tokens"] == 1 and not freeing["stream"]

    run(test)


@pytest.mark.parametrize("act", [stream(then="drop"), refuse(503)])
def test_kv_of_a_decode_leg_that_failed_early_is_fetched_under_the_requests_own_id(act: Act) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [act]
        assert (await setup.ask(STREAMED, x_request_id="mine")).status == 200
        freed = setup.engines["decode/1"]
        await until(lambda: len(freed.legs) == 2, "the freeing leg")
        assert all(b"x-request-id: mine\r\n" in head for head in freed.headers)

    run(test)
