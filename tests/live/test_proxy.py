"""The proxy over scripted engines: two legs, hazards, retries, cancellation, limits. Every request leaves a record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from .proxy_client import Setup, routed, until
from .scripted_engine import (
    Act,
    answer,
    drop,
    event,
    hang,
    parameters,
    piece,
    refuse,
    stream,
    usual,
    whole,
    without,
)

PROMPT = [1, 2, 3, 4, 5]
PLAIN = {"prompt": PROMPT, "max_tokens": 4}
STREAMED = PLAIN | {"stream": True}
USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2}})
ERROR = event({"error": {"message": "KV load failed", "type": "InternalServerError", "code": 500}})
DONE = event("[DONE]")

Gate = asyncio.Event


def after(gate: Gate, then: Act = usual) -> Act:
    """Waits for a gate to open first."""

    async def act(engine: Any, body: dict[str, Any], writer: Any) -> None:
        await gate.wait()
        await then(engine, body, writer)

    return act


Test = Callable[[Setup], Coroutine[Any, Any, None]]


def run(test: Test, pools: str = "1P2D", **options: Any) -> None:
    async def main() -> None:
        async with routed(pools, **options) as setup:
            await test(setup)

    asyncio.run(main())


# --- the two legs


@pytest.mark.parametrize("streamed", [False, True])
def test_a_completion_goes_over_both_legs(streamed: bool) -> None:
    async def test(setup: Setup) -> None:
        got = await setup.ask(STREAMED if streamed else PLAIN, x_request_id="mine")
        assert got.status == 200 and got.headers[b"x-request-id"] == b"mine"
        assert (got.text if streamed else got.json["choices"][0]["text"]) == "0 1 2 3 "
        prefill, decode = setup.engines["prefill/0"], setup.engines["decode/0"]
        leg = prefill.legs[0]
        assert leg["kv_transfer_params"]["do_remote_decode"] is True
        assert (leg["prompt"], leg["max_tokens"], leg["stream"]) == (PROMPT, 1, False)
        leg = decode.legs[0]
        handed = leg.pop("kv_transfer_params")
        assert handed == parameters(prefill) | {"remote_request_id": "cmpl-0"}
        asked = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        assert leg == {"model": "tiny", "prompt": PROMPT, "max_tokens": 4} | asked
        assert all(b"x-request-id: mine\r\n" in engine.headers[0] for engine in (prefill, decode))
        assert "kv_transfer_params" not in got.body.decode()

    run(test)


def test_a_chat_goes_over_both_legs() -> None:
    async def test(setup: Setup) -> None:
        chat = {"messages": [{"role": "user", "content": "one two three"}], "max_completion_tokens": 3}
        got = await setup.ask(chat, "/v1/chat/completions")
        assert got.status == 200
        assert setup.engines["prefill/0"].legs[0]["max_tokens"] == 1
        assert "max_completion_tokens" not in setup.engines["prefill/0"].legs[0]
        assert setup.engines["decode/0"].legs[0]["max_completion_tokens"] == 3

    run(test)


def test_the_final_counts_reach_only_clients_that_asked(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        without_counts = await setup.ask(STREAMED)
        with_counts = await setup.ask(STREAMED | {"stream_options": {"include_usage": True}})
        assert [e for e in without_counts.events if isinstance(e, dict) and e.get("usage")] == []
        assert with_counts.events[-2]["usage"]["completion_tokens"] == 4
        assert without_counts.events[-1] == with_counts.events[-1] == "[DONE]"
        assert [record["generated"] for record in setup.records()] == [4, 4]

    run(test, path=tmp_path / "records.jsonl")


def test_mixed_engines_serve_in_one_leg() -> None:
    async def test(setup: Setup) -> None:
        for body in (PLAIN, STREAMED):
            got = await setup.ask(body)
            assert got.status == 200
        assert setup.legs == {"mixed/0": 1, "mixed/1": 1}
        assert "kv_transfer_params" not in setup.engines["mixed/0"].legs[0]
        assert setup.service.router.state.in_flight == 0

    run(test, "2M")


def test_a_decode_engines_own_parameters_stay_inside() -> None:
    async def with_parameters(engine: Any, body: dict[str, Any], writer: Any) -> None:
        await whole(writer, 200, answer(2, kv_transfer_params=parameters(engine)))

    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [with_parameters]
        got = await setup.ask(PLAIN)
        assert got.status == 200 and "kv_transfer_params" not in got.json and len(got.json["choices"]) == 1

    run(test)


# --- hazards between the legs


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (without(remote_request_id=None), "remote_request_id is missing"),
        (without(remote_block_ids=[]), "remote_block_ids is []"),
        (without(do_remote_prefill=False), "do_remote_prefill is False"),
    ],
)
def test_a_handover_that_is_not_whole_never_reaches_a_decode_engine(act: Act, reason: str, tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["prefill/0"].acts = [act]
        got = await setup.ask(PLAIN)
        assert got.status == 200  # prefilled again, on the other engine
        assert setup.legs == {"prefill/0": 1, "prefill/1": 1, "decode/0": 0, "decode/1": 1}
        record = setup.records()[0]
        assert record["attempts"] == 2 and reason in record["faults"][0]

    run(test, "2P2D", path=tmp_path / "records.jsonl")


def test_nothing_usable_from_any_prefill_engine_is_an_error_and_no_decode_leg() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["prefill/0"].always = without(remote_request_id=None)
        got = await setup.ask(STREAMED)
        assert got.status == 502 and "remote_request_id is missing" in got.json["error"]["message"]
        assert setup.legs == {"prefill/0": 3, "decode/0": 0, "decode/1": 0}

    run(test, faults=10)


def test_an_old_engine_hands_over_without_a_request_id() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["prefill/0"].acts = [without(remote_request_id=None, remote_block_ids=[1, 2])]
        for engine in setup.service.engines:
            engine.version = (0, 12, 0)
        got = await setup.ask(PLAIN)
        assert got.status == 200 and setup.legs["prefill/0"] == 1

    run(test)


def test_too_long_between_the_legs_prefills_again(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        relay = setup.service.relay
        relay._between_legs = -1  # always too late
        got = await setup.ask(PLAIN)
        assert got.status == 503 and "too long since the prefill" in got.json["error"]["message"]
        assert setup.legs == {"prefill/0": 3, "decode/0": 0, "decode/1": 0}
        relay._between_legs = 10**12
        assert (await setup.ask(PLAIN)).status == 200
        assert [record["attempts"] for record in setup.records()] == [3, 1]
        assert b"disaggroute_prefill_again_total 3.0" in setup.service.metrics.text()

    run(test, path=tmp_path / "records.jsonl")


def test_an_error_in_the_stream_before_the_first_token_is_tried_again(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [stream(ERROR + DONE)]
        got = await setup.ask(STREAMED)
        assert got.status == 200 and got.text == "0 1 2 3 " and b"error" not in got.body
        assert setup.legs == {"prefill/0": 2, "decode/0": 1, "decode/1": 1}
        record = setup.records()[0]
        assert record["status"] == "finished" and record["faults"] == ["decode/0: KV load failed"]

    run(test, path=tmp_path / "records.jsonl")


def test_an_error_in_the_stream_after_tokens_is_the_clients_and_a_failure(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [stream(piece("a"), ERROR + DONE)]
        got = await setup.ask(STREAMED)
        assert got.status == 200 and got.events[-2]["error"]["message"] == "KV load failed"
        assert got.events[-1] == "[DONE]" and setup.legs["decode/1"] == 0
        record = setup.records()[0]
        assert record["status"] == "failed" and record["error"] == "KV load failed" and record["generated"] == 1
        assert setup.service.router.state.in_flight == 0

    run(test, path=tmp_path / "records.jsonl")


@pytest.mark.parametrize("parts", [(piece("a"),), (piece("a"), piece("b")[:20])])
def test_a_stream_that_breaks_off_ends_with_an_error_event(parts: tuple[bytes, ...], tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [stream(*parts, then="drop")]
        got = await setup.ask(STREAMED)
        assert got.status == 200 and got.text == "a"
        assert "the connection was lost" in got.events[-2]["error"]["message"] and got.events[-1] == "[DONE]"
        assert setup.records()[0]["status"] == "failed"

    run(test, path=tmp_path / "records.jsonl")


def test_a_stream_without_its_end_is_a_failure(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [stream(piece("a"))]
        got = await setup.ask(STREAMED)
        assert "the stream ended before its end" in got.events[-2]["error"]["message"]
        assert setup.records()[0]["status"] == "failed"

    run(test, path=tmp_path / "records.jsonl")


def test_the_count_of_tokens_is_the_engines_own(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [stream(piece("several tokens at once"), USAGE, DONE)]
        await setup.ask(STREAMED)
        assert setup.records()[0]["generated"] == 2

    run(test, path=tmp_path / "records.jsonl")


# --- retries and the breaker


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
        health = await asyncio.wait_for(_answered(setup, "/health"), 10)
        assert health.status == 503 and health.json["status"] == "down"

    run(test, path=tmp_path / "records.jsonl")


async def _answered(setup: Setup, path: str, **headers: str) -> Any:
    call = setup.call(b"", path, "GET", **headers)
    await call.task
    return call.answer


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
            assert (await _answered(setup, "/v1/models", **headers)).status == 401
        assert (await setup.ask(PLAIN, authorization="Bearer secret")).status == 200
        models = await _answered(setup, "/v1/models", authorization="Bearer secret")
        assert models.json["data"][0]["id"] == "tiny"
        assert (await _answered(setup, "/health")).status == 200

    run(test, keys=("other", "secret"))


def test_clients_see_neither_metrics_nor_administration() -> None:
    async def test(setup: Setup) -> None:
        for path in ("/metrics", "/admin/engines", "/admin/policy", "/admin/ledger"):
            assert (await _answered(setup, path)).status == 404

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


# --- classes, hints, records


def test_a_request_that_the_router_itself_fails_is_recorded(tmp_path: Path) -> None:
    class Broken:
        async def count(self, request: Any) -> int:
            raise RuntimeError("a bug")

    async def test(setup: Setup) -> None:
        setup.service.tokenizer = Broken()
        got = await setup.ask({"prompt": "a text", "max_tokens": 4})
        assert got.status == 500 and "its log says more" in got.json["error"]["message"]
        record = setup.records()[0]
        assert (record["status"], record["http_status"], record["error"]) == ("failed", 500, "RuntimeError: a bug")

    run(test, path=tmp_path / "records.jsonl")


def test_class_and_length_come_by_header_or_metadata(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        await setup.ask(PLAIN, x_disaggroute_slo="tight", x_disaggroute_output_tokens="77")
        await setup.ask(PLAIN | {"metadata": {"slo": "tight", "output_tokens": 78}})
        await setup.ask(PLAIN)
        rows = [(r["slo"], r["predicted"]) for r in setup.records()]
        assert rows[:2] == [("tight", 77), ("tight", 78)]
        assert rows[2] == ("loose", 4)  # learned from the two
        got = await setup.ask(PLAIN, x_disaggroute_slo="urgent")
        assert got.status == 400 and "x-disaggroute-slo: unknown SLO class 'urgent'" in got.json["error"]["message"]

    run(test, path=tmp_path / "records.jsonl")


def test_a_record_has_all_times_in_order_and_no_prompt(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        await setup.ask({"prompt": "a secret text", "max_tokens": 4, "stream": True})
        record = setup.records()[0]
        names = ["arrival", "prefill_start", "prefill_end", "decode_start", "first_token", "last_token", "end"]
        times = [record[name] for name in names]
        assert times == sorted(times) and times[0] > 0
        assert record["prompt"] == 3 and record["generated"] == 4 and record["streamed"]
        assert "secret" not in json.dumps(record) and record["policy"] == "round-robin"
        assert record["ttft_target"] > 0 and record["max_stall"] >= 0

    run(test, path=tmp_path / "records.jsonl")


def test_a_record_holds_the_prompt_where_that_was_asked_for(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        await setup.ask({"prompt": "a text", "max_tokens": 4})
        assert setup.records()[0]["prompt_content"] == "a text"

    run(test, path=tmp_path / "records.jsonl", keep_prompts=True)


def test_the_file_of_records_says_what_it_is_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"

    async def test(setup: Setup) -> None:
        await setup.ask(PLAIN)

    run(test, path=path)
    run(test, path=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [("kind" in line) for line in lines] == [True, False, True, False]
    assert lines[0]["policy"] == "round-robin" and lines[0]["engines"][0]["name"] == "prefill/0"


def test_a_shadow_policy_decides_and_moves_nothing(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        for _ in range(4):
            assert (await setup.ask(PLAIN)).status == 200
        records = setup.records()
        assert all(record["shadow"][0] == "prefill/0" for record in records)
        assert all(record["shadow"][1].startswith("decode/") for record in records)
        assert [record["decode"] for record in records] == ["decode/0", "decode/1"] * 2
        assert b"disaggroute_shadow_decisions_total" in setup.service.metrics.text()

    run(test, path=tmp_path / "records.jsonl", shadow="least-loaded")


def test_metrics_count_what_happened() -> None:
    async def test(setup: Setup) -> None:
        await setup.ask(STREAMED, x_disaggroute_slo="tight")
        await setup.ask(PLAIN)
        await setup.ask({"prompt": [1] * 2_000})
        await until(lambda: all(engine.poll for engine in setup.service.engines))
        text = setup.service.metrics.text().decode()
        for line in (
            'disaggroute_requests_total{slo="tight",status="finished"} 1.0',
            'disaggroute_requests_total{slo="loose",status="finished"} 1.0',
            'disaggroute_requests_total{slo="loose",status="rejected"} 1.0',
            'disaggroute_tokens_total{kind="output"} 8.0',
            'disaggroute_tokens_total{kind="prompt"} 10.0',
            'disaggroute_ttft_seconds_count{slo="tight"} 1.0',
            'disaggroute_slo_met_total{slo="tight"} 1.0',
            'disaggroute_assigned_total{engine="prefill/0"} 2.0',
            'disaggroute_engine_kv_usage{engine="decode/1",role="decode"} 0.25',
            'disaggroute_engine_waiting{engine="decode/1",role="decode"} 2.0',
            "disaggroute_in_flight 0.0",
            "disaggroute_records_waiting 0.0",
        ):
            assert line in text, line

    run(test)


def test_the_ledger_follows_a_stream() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [stream(piece("a"), piece("b"), then="hang")]
        call = setup.call(STREAMED, x_disaggroute_output_tokens="10")

        def row() -> dict[str, Any]:
            return setup.service.router.snapshot()[1]

        await until(lambda: row()["remaining_output"] == 8)
        assert (row()["in_flight"], row()["pending"], row()["context"], row()["committed"]) == (1, 0, 7, 15)
        assert setup.service.router.snapshot()[0]["queued"] == 0
        call.leave()
        await call.task
        assert row()["in_flight"] == row()["context"] == 0

    run(test)


def test_polls_reach_the_ledger() -> None:
    async def test(setup: Setup) -> None:
        def row() -> dict[str, Any]:
            return setup.service.router.snapshot()[1]

        await until(lambda: row()["used"] == 25)
        assert (row()["running"], row()["waiting"], row()["available"]) == (3, 2, 1)

    run(test)
