"""The proxy over scripted engines: two legs, and the hazards between them. Every request leaves a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .proxy_client import DONE, ERROR, PLAIN, PROMPT, STREAMED, USAGE, Setup, run
from .scripted_engine import Act, answer, parameters, piece, stream, whole, without

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
