"""The proxy and its clients: those that leave, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from .proxy_client import DONE, PLAIN, STREAMED, USAGE, Setup, answered_at, run, until
from .scripted_engine import hang, piece, stream

# --- clients that leave


@pytest.mark.parametrize("leg", ["prefill/0", "decode/0"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_aborts_the_leg_in_progress(leg: str, streamed: bool, tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        engine = setup.engines[leg]
        engine.acts = [hang]
        call = setup.call(STREAMED if streamed else PLAIN)
        await until(lambda: engine.legs)
        call.leave()
        await asyncio.wait_for(call.task, 10)
        await asyncio.wait_for(engine.aborted.wait(), 10)
        assert call.answer.status == 0
        record = setup.records()[0]
        assert record["status"] == "cancelled" and record["attempts"] == 1
        assert setup.service.router.state.in_flight == 0 and setup.service.in_flight == 0
        assert setup.service.engine(leg).breaker.faults == 0

    run(test, path=tmp_path / "records.jsonl")


def test_a_client_that_leaves_a_stream_aborts_it(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        engine = setup.engines["decode/0"]
        engine.acts = [stream(piece("a"), then="hang")]
        call = setup.call(STREAMED)
        await asyncio.wait_for(call.first.wait(), 10)
        call.leave()
        await asyncio.wait_for(engine.aborted.wait(), 10)
        await asyncio.wait_for(call.task, 10)
        record = setup.records()[0]
        assert record["status"] == "cancelled" and record["first_token"] > 0 and not call.answer.ended

    run(test, path=tmp_path / "records.jsonl")


def test_a_stalled_engine_is_ejected_and_its_legs_are_tried_elsewhere(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [hang]
        got = await setup.ask(STREAMED)
        assert got.status == 200 and got.text == "0 1 2 3 "
        assert setup.service.engine("decode/0").ejections == 1
        assert setup.records()[0]["attempts"] == 2

    run(test, path=tmp_path / "records.jsonl", watch={"poll_interval_s": 0.01, "stalled_s": 0.2, "return_polls": 1})


# --- what is refused


def test_another_model_is_not_found() -> None:
    async def test(setup: Setup) -> None:
        got = await setup.ask({"model": "other", "prompt": "a"})
        assert got.status == 404 and got.json["error"]["param"] == "model"
        assert "this router serves 'tiny'" in got.json["error"]["message"]

    run(test)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "the body is not valid JSON"),
        (b"[]", 400, "the body holds a list"),
        ({"prompt": [1], "n": 2}, 400, "n is 2; only 1 is supported"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens is 0"),
        ({"prompt": [1], "kv_transfer_params": {"a": 1}}, 400, "kv_transfer_params is not supported"),
        ({"prompt": [1] * 997, "max_tokens": 4}, 400, "context limit is 1000 tokens"),
        ({"prompt": [1] * 1_001}, 400, "context limit is 1000 tokens"),
        ({"prompt": "a " * 998, "max_tokens": 4}, 400, "context limit is 1000 tokens"),
        (b'{"prompt": [1], "metadata": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}", 400, "the body is nested too deeply"),
        ({"prompt": "a" * 5_000}, 413, "larger than 4096 bytes"),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_leg(body: Any, status: int, words: str) -> None:
    async def test(setup: Setup) -> None:
        got = await setup.ask(body)
        assert got.status == status and words in got.json["error"]["message"]
        assert got.json["error"]["code"] == status
        assert set(setup.legs.values()) == {0} and setup.service.in_flight == 0

    run(test, max_body_bytes=4_096)


def test_clients_need_a_key_where_there_are_keys() -> None:
    async def test(setup: Setup) -> None:
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "Basic secret"}):
            got = await setup.ask(PLAIN, **headers)
            assert got.status == 401 and "API key" in got.json["error"]["message"]
            assert (await answered_at(setup, "/v1/models", **headers)).status == 401
        assert (await setup.ask(PLAIN, authorization="Bearer secret")).status == 200
        models = await answered_at(setup, "/v1/models", authorization="Bearer secret")
        assert models.json["data"][0]["id"] == "tiny"
        assert (await answered_at(setup, "/health")).status == 200

    run(test, keys=("other", "secret"))


def test_clients_see_neither_metrics_nor_administration() -> None:
    async def test(setup: Setup) -> None:
        for path in ("/metrics", "/admin/engines", "/admin/policy", "/admin/ledger"):
            assert (await answered_at(setup, path)).status == 404

    run(test)


def test_more_requests_than_the_router_takes_are_told_to_come_back() -> None:
    async def test(setup: Setup) -> None:
        for name in ("decode/0", "decode/1"):
            setup.engines[name].always = hang
        calls = [setup.call(PLAIN) for _ in range(2)]
        await until(lambda: setup.legs["decode/0"] + setup.legs["decode/1"] == 2)
        got = await setup.ask(PLAIN)
        assert got.status == 429 and got.headers[b"retry-after"] == b"1"
        for call in calls:
            call.leave()
        await asyncio.gather(*(call.task for call in calls))
        for name in ("decode/0", "decode/1"):
            setup.engines[name].always = None
        assert (await setup.ask(PLAIN)).status == 200

    run(test, max_in_flight=2)


def test_a_shutdown_lets_requests_in_flight_end_and_refuses_others() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [stream(*[piece("a")] * 20, USAGE, DONE)]
        call = setup.call(STREAMED)
        await asyncio.wait_for(call.first.wait(), 10)
        closing = asyncio.create_task(setup.service.close())
        await asyncio.sleep(0)
        got = await setup.ask(PLAIN)
        assert got.status == 503 and got.headers[b"retry-after"] == b"5"
        assert await closing is True
        await call.task
        assert call.answer.text == "a" * 20 and call.answer.ended

    run(test)


@pytest.mark.parametrize("body", [PLAIN, STREAMED])
@pytest.mark.parametrize("leg", ["prefill/0", "decode/0"])
def test_a_request_that_a_shutdown_cuts_off_is_told_and_recorded(
    body: dict[str, Any], leg: str, tmp_path: Path
) -> None:
    async def test(setup: Setup) -> None:
        setup.engines[leg].always = hang
        call = setup.call(body)
        await until(lambda: setup.legs[leg] == 1)
        assert await setup.service.close() is False
        await asyncio.wait_for(call.task, 10)
        assert call.answer.status == 503 and "shutting down" in call.answer.json["error"]["message"]
        assert [(row["http_status"], row["attempts"]) for row in setup.records()] == [(503, 1)]
        assert setup.service.router.state.in_flight == 0

    run(test, path=tmp_path / "records.jsonl", drain_s=0.1)


def test_refusals_are_counted_by_status_also_where_no_record_tells_of_them() -> None:
    async def test(setup: Setup) -> None:
        assert (await setup.ask(b"{", authorization="Bearer secret")).status == 400
        assert (await setup.ask({"prompt": [1] * 5_000}, authorization="Bearer secret")).status == 413
        for _ in range(2):
            assert (await setup.ask(PLAIN)).status == 401
        assert (await setup.ask(PLAIN, authorization="Bearer secret")).status == 200
        text = setup.service.metrics.text().decode()
        for status, count in ((400, 1), (401, 2), (413, 1)):
            assert f'disaggroute_refused_total{{status="{status}"}} {count}.0' in text

    run(test, keys=("secret",), max_body_bytes=4_096)
