"""A whole request on one engine: completions and chats, whole and streamed, as vLLM answers them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from disaggroute.live.emulator import tokens

from .engines import Answer, Client, options, run, serving, until

MIXED = options("mixed")
SMALL = options("mixed", overrides={"max_model_len": 2048, "kv_tokens": 1024, "block_size": 32})


def test_a_completion_has_vllms_shape_and_the_id_of_its_request() -> None:
    async def work() -> None:
        async with serving(MIXED) as (_, (client,)):
            answer = await client.complete("Hello there", 6, request_id="abc-1")
        assert answer.status == 200 and answer.headers["x-request-id"] == "abc-1"
        body = answer.body
        assert (body["id"], body["object"], body["model"]) == ("cmpl-abc-1", "text_completion", "tiny")
        (choice,) = body["choices"]
        assert choice["finish_reason"] == "length" and len(choice["text"]) == 6 and choice["token_ids"] is None
        counts = {"prompt_tokens": 11, "total_tokens": 17, "completion_tokens": 6}
        assert counts.items() <= body["usage"].items()
        assert [body[key] for key in ("kv_transfer_params", "ec_transfer_params", "metrics")] == [None] * 3

    run(work())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_says_token_by_token_what_the_whole_answer_says(path: str) -> None:
    async def work() -> None:
        asked: dict[str, Any] = {"model": "tiny", "max_tokens": 9, "ignore_eos": True, "return_token_ids": True}
        asked |= {"prompt": "Tell me"} if "chat" not in path else {"messages": [{"role": "user", "content": "Tell me"}]}
        async with serving(MIXED) as (_, (client,)):
            whole = await client.post(path, asked)
            stream = await client.post(path, asked | {"stream": True, "stream_options": {"include_usage": True}})
        assert stream.done and stream.text == whole.text
        parts = [choice for event in stream.events for choice in event["choices"] if "token_ids" in choice]
        told = [token for part in parts for token in part["token_ids"]]
        assert len(parts) == len(told) == 9
        assert told == whole.body["choices"][0]["token_ids"]
        assert [part["finish_reason"] for part in parts] == [None] * 8 + ["length"]
        assert stream.events[-1]["choices"] == []
        assert stream.events[-1]["usage"]["completion_tokens"] == 9
        assert stream.events[-1]["usage"]["total_tokens"] == whole.body["usage"]["total_tokens"]
        assert {event["id"] for event in stream.events} == {stream.events[0]["id"]}

    run(work())


def test_a_stream_has_counts_only_if_they_are_asked_for() -> None:
    async def work() -> None:
        async with serving(MIXED) as (_, (client,)):
            plain = await client.complete("a", 3, stream=True)
            both = {"include_usage": True, "continuous_usage_stats": True}
            running = await client.complete("a", 3, stream=True, stream_options=both)
        assert not any("usage" in event for event in plain.events) and len(plain.events) == 3
        counted = [event["usage"]["completion_tokens"] for event in running.events]
        assert counted == [1, 2, 3, 3]

    run(work())


def test_a_chat_stream_begins_with_the_role() -> None:
    async def work() -> None:
        messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        async with serving(MIXED) as (_, (client,)):
            answer = await client.post(
                "/v1/chat/completions", {"messages": messages, "max_completion_tokens": 2, "stream": True}
            )
        assert answer.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert {event["object"] for event in answer.events} == {"chat.completion.chunk"}

    run(work())


def test_an_answer_depends_on_the_whole_prompt() -> None:
    async def work() -> None:
        async with serving(MIXED) as (_, (client,)):
            answers = [await client.complete(f"{start} and the same end", 12) for start in "abcdefgh"]
            again = await client.complete("a and the same end", 12)
        assert len({answer.text for answer in answers}) == 8
        assert again.text == answers[0].text

    run(work())


def test_an_answer_that_may_end_by_itself_ends_with_an_end_token() -> None:
    async def work() -> None:
        asked = {"prompt": "How long?", "max_tokens": 200, "return_token_ids": True}
        async with serving(MIXED) as (_, (client,)):
            answers = [await client.post("/v1/completions", asked | {"stream": stream}) for stream in (False, True)]
            hinted = await client.post("/v1/completions", asked | {"vllm_xargs": {"output_tokens": 7}})
        whole, stream = answers
        (choice,) = whole.body["choices"]
        assert choice["finish_reason"] == "stop" and choice["token_ids"][-1] == tokens.END
        assert len(choice["text"]) == len(choice["token_ids"]) - 1
        assert whole.text == stream.text
        assert stream.events[-1]["choices"][0]["finish_reason"] == "stop"
        assert hinted.body["usage"]["completion_tokens"] == 7

    run(work())


def test_an_answer_ends_at_the_context_limit() -> None:
    async def work() -> None:
        async with serving(options("mixed", overrides={"max_model_len": 64})) as (_, (client,)):
            answer = await client.post("/v1/completions", {"prompt": "x" * 60, "max_tokens": 500, "ignore_eos": True})
        assert answer.body["usage"]["completion_tokens"] == 4

    run(work())


BAD = [
    ({"prompt": [5] * 2100}, 400, "maximum context length is 2048 tokens. However, your prompt contains 2100 input"),
    ({"prompt": [5] * 1500}, 400, "KV blocks; the engine has 32"),
    ({"prompt": "a", "model": "nope"}, 404, "The model `nope` does not exist. Valid aliases: tiny."),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0"),
    ({"prompt": "a", "max_tokens": "many"}, 400, "Input should be a valid integer"),
    ({"prompt": "a", "max_tokens": 2, "min_tokens": 3}, 400, "min_tokens must be less than or equal to max_tokens=2"),
    ({"max_tokens": 2}, 400, "Either prompt or prompt_embeds must be provided"),
    ({"prompt": []}, 400, "Either prompt or prompt_embeds must be provided"),
    ({"prompt": [100000]}, 400, "Token id 100000 is out of vocabulary"),
    ({"prompt": ["a", "b"]}, 400, "one prompt at a time"),
    ({"prompt": "a", "n": 2}, 400, "does not do n=2"),
    ({"prompt": "a", "stop": ["x"]}, 400, "does not do stop="),
    ({"prompt": "a", "echo": True}, 400, "does not do echo=True"),
    ({"prompt": "a", "logprobs": 1}, 400, "does not do logprobs=1"),
    ({"prompt": "a", "kv_transfer_params": {"do_remote_decode": True}}, 400, "does not do do_remote_decode"),
    (b'{"prompt": ', 400, "JSON decode error"),
    (b"[]", 400, "Input should be a valid dictionary"),
]


def test_a_bad_request_gets_a_sentence_in_vllms_shape() -> None:
    async def work() -> None:
        async with serving(SMALL) as (_, (client,)):
            for body, status, sentence in BAD:
                answer = await client.post("/v1/completions", body)
                assert answer.status == status, body
                assert sentence in answer.error["message"], answer.error
                assert answer.error["code"] == status and {"type", "param"} <= answer.error.keys()
            assert (await client.metrics())["vllm:kv_cache_usage_perc"] == 0
            chat = await client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 3000}]})
            assert chat.status == 400 and "input tokens" in chat.error["message"]
            picture = [{"role": "user", "content": [{"type": "image_url"}]}]
            chat = await client.post("/v1/chat/completions", {"messages": picture})
            assert "no part of type 'image_url'" in chat.error["message"]

    run(work())


def test_other_paths_answer_as_vllm_does() -> None:
    async def work() -> None:
        async with serving(SMALL) as (_, (client,)):
            assert (await client.get("/health")).status == 200
            assert (await client.get("/version")).body == {"version": "0.32.0"}
            (card,) = (await client.get("/v1/models")).body["data"]
            assert (card["id"], card["max_model_len"]) == ("tiny", 2048)
            found = (await client.post("/tokenize", {"model": "tiny", "prompt": "Hä!"})).body
            assert found == {"count": 4, "max_model_len": 2048, "tokens": [75, 198, 167, 36], "token_strs": None}
            assert (await client.post("/detokenize", {"tokens": found["tokens"]})).body == {"prompt": "Hä!"}
            chat = (await client.post("/tokenize", {"messages": [{"role": "user", "content": "A"}]})).body
            assert chat["tokens"][0] == 1 and chat["count"] == 20
            assert (await client.post("/tokenize", {"model": "x", "prompt": "a"})).status == 404
            assert (await client.post("/tokenize", {})).status == 400
            assert (await client.get("/nothing")).body == {"detail": "Not Found"}
            assert (await client.get("/v1/completions")).status == 405
            assert (await client.post("/reset_prefix_cache", {})).body == {"success": True}

    run(work())


async def _interrupted(client: Client, body: dict[str, Any]) -> None:
    """Sends a request and goes away once it runs."""
    async with client.session.post(client.url + "/v1/completions", data=json.dumps(body)):
        await until(lambda: _is(client, "num_requests_running", 1))


async def _is(client: Client, metric: str, value: float) -> bool:
    return await client.metric(metric) == value


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_the_blocks(stream: bool) -> None:
    async def work() -> None:
        body = {"prompt": "x" * 500, "max_tokens": 20_000, "ignore_eos": True, "stream": stream}
        async with serving(options("mixed", time_scale=1.0)) as (_, (client,)):
            gone = asyncio.create_task(_interrupted(client, body))
            if stream:
                await gone
            else:  # no answer comes before the end
                await until(lambda: _is(client, "num_requests_running", 1))
                gone.cancel()
            await until(lambda: _is(client, "num_requests_running", 0))
            metrics = await client.metrics()
        assert metrics["vllm:kv_cache_usage_perc"] == 0
        assert metrics['vllm:request_success_total{finished_reason="abort"}'] == 1

    run(work())


def test_many_requests_preempt_each_other_and_still_get_all_their_tokens() -> None:
    async def work() -> None:
        roomy, tight = options("mixed"), options("mixed", overrides={"kv_tokens": 640})
        async with serving(roomy, tight) as (_, clients):

            async def all_of(client: Client) -> list[Answer]:
                asked = [client.complete(f"{i} {'y' * 90}", 100, stream=i % 2 == 0) for i in range(8)]
                return list(await asyncio.gather(*asked))

            there, here = await all_of(clients[0]), await all_of(clients[1])
            assert await clients[1].metric("num_preemptions_total") > 0
        assert [answer.text for answer in here] == [answer.text for answer in there]
        assert all(len(answer.text) == 100 for answer in here)

    run(work())


def test_a_connection_is_kept_and_requests_in_a_row_are_answered_in_a_row() -> None:
    async def work() -> None:
        async with serving(MIXED) as ((engine,), _):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rsplit(":", 1)[1]))
            body = b'{"prompt": "a", "max_tokens": 3}'
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body + b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            raw = await reader.read()
            writer.close()
        first, second = raw.split(b"HTTP/1.1 200 OK")[1:]
        assert b"text_completion" in first and b'{"version":"0.32.0"}' in second

    run(work())


def test_what_is_no_http_is_refused() -> None:
    async def work() -> None:
        async with serving(MIXED) as ((engine,), (client,)):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rsplit(":", 1)[1]))
            writer.write(b"\x16\x03\x01 hello\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()
            assert (await client.get("/health")).status == 200

    run(work())


def test_an_engine_that_stops_can_let_its_requests_end() -> None:
    async def work() -> None:
        async with serving(MIXED) as ((engine,), (client,)):
            running = asyncio.create_task(client.complete("a", 500, stream=True))
            await until(lambda: _is(client, "num_requests_running", 1))
            await engine.stop(grace=50)
            assert len((await running).text) == 500

    run(work())


def test_an_engine_that_stops_refuses_connections() -> None:
    async def work() -> None:
        async with serving(MIXED) as ((engine,), (client,)):
            await engine.stop()
            with pytest.raises(aiohttp.ClientError):
                await client.get("/health")

    run(work())
