"""What an emulated engine answers has the shape of what vLLM was seen to answer (tests/live/data)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from .engines import Answer, Client, Json, options, prefill, run, serving

SAMPLES = Path(__file__).parents[1] / "data" / "vllm-0.32"
LIMITS = {"max_model_len": 2048, "block_size": 32, "num_blocks": 128}
PREFILL, DECODE = options("prefill", overrides=LIMITS), options("decode", overrides=LIMITS)

PROMPT = [3 + byte for byte in b"The quick brown fox jumps over the lazy dog. " * 2 + b"And again"]
CHAT = [{"role": "user", "content": "Hello, who are you? " * 4}]
MAY_BE_ABSENT = {"remote_prefill_cached_tokens"}
"""What vLLM tells only of a prefix that was cached."""


def sample(name: str) -> Answer:
    """A recorded answer."""
    head, _, body = (SAMPLES / f"{name}.http").read_bytes().partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines[1:])}
    answer = Answer(int(lines[0].split()[1]), headers)
    if headers.get("content-type", "").startswith("text/event-stream"):
        data = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
        answer.events = [json.loads(line) for line in data if line != "[DONE]"]
        answer.done = "[DONE]" in data
    elif body.strip():
        answer.body = json.loads(body)
    return answer


def shape(value: Any) -> Any:
    """The names in a value and how they are nested."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items() if key not in MAY_BE_ABSENT}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__ if value is not None else None


def alike(ours: Answer, name: str, *, words: bool = False) -> None:
    """Compares status and shape, and with `words` the body word by word."""
    theirs = sample(name)
    assert ours.status == theirs.status, name
    assert ours.headers.get("content-type") == theirs.headers.get("content-type"), name
    assert "x-request-id" in ours.headers
    assert ours.done == theirs.done, name
    if words:
        assert (ours.body, ours.events) == (theirs.body, theirs.events), name
    assert untyped(shape(ours.body)) == untyped(shape(theirs.body)), name
    assert [untyped(shape(e)) for e in ours.events] == [untyped(shape(e)) for e in theirs.events], name
    assert reasons(ours) == reasons(theirs), name


def reasons(answer: Answer) -> list[str | None]:
    """Why it ends, in every part of an answer."""
    return [choice.get("finish_reason") for part in (answer.body, *answer.events) for choice in part.get("choices", [])]


def untyped(found: Any) -> Any:
    """A shape in which numbers and texts are not told from what may be null."""
    if isinstance(found, dict):
        return {key: untyped(part) for key, part in found.items()}
    if isinstance(found, list):
        return [untyped(part) for part in found if isinstance(part, dict | list)]
    return None


COMPLETION = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
CONVERSATION = {"model": "tiny", "messages": CHAT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TOLD = {"return_token_ids": True}
LEG = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}


@pytest.mark.parametrize(
    ("name", "chat", "more"),
    [
        ("completion_plain", False, {}),
        ("completion_plain_token_ids", False, TOLD),
        ("completion_stream", False, {"stream": True}),
        ("chat_plain", True, {}),
    ],
)
def test_a_whole_request_is_answered_in_vllms_shape(name: str, chat: bool, more: Json) -> None:
    async def work() -> None:
        async with serving(DECODE) as (_, (client,)):
            alike(await send(client, chat, more), name)

    run(work())


async def send(client: Client, chat: bool, more: Json) -> Answer:
    path, body = ("/v1/chat/completions", CONVERSATION) if chat else ("/v1/completions", COMPLETION)
    return await client.post(path, body | more)


@pytest.mark.parametrize(
    ("name", "chat", "more"),
    [("prefill_leg", False, {}), ("prefill_leg_streamed", False, {"stream": True}), ("chat_prefill_leg", True, {})],
)
def test_a_prefill_leg_is_answered_in_vllms_shape(name: str, chat: bool, more: Json) -> None:
    async def work() -> None:
        async with serving(PREFILL) as (_, (client,)):
            alike(await send(client, chat, LEG | more), name)

    run(work())


@pytest.mark.parametrize(
    ("name", "chat", "more"),
    [
        ("decode_leg", False, {}),
        ("decode_leg_stream", False, STREAM),
        ("decode_leg_stream_continuous_usage", False, CONTINUOUS),
        ("decode_leg_stream_token_ids", False, TOLD | {"stream": True}),
        ("chat_decode_leg", True, {}),
        ("chat_decode_leg_stream", True, STREAM),
        ("chat_decode_leg_stream_token_ids", True, TOLD | {"stream": True}),
    ],
)
def test_a_decode_leg_is_answered_in_vllms_shape(name: str, chat: bool, more: Json) -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as (_, (first, second)):
            parameters = (await send(first, chat, LEG)).body["kv_transfer_params"]
            alike(await send(second, chat, more | {"kv_transfer_params": parameters}), name)

    run(work())


@pytest.mark.parametrize(
    ("name", "stream"),
    [("error_decode_leg_dead_side_channel", False), ("error_decode_leg_dead_side_channel_stream", True)],
)
def test_a_failed_pull_is_answered_in_vllms_words(name: str, stream: bool) -> None:
    async def work() -> None:
        async with serving(PREFILL, DECODE) as ((engine, _), (first, second)):
            parameters = await prefill(first, PROMPT)
            engine.crash("killed")
            alike(await send(second, False, {"stream": stream, "kv_transfer_params": parameters}), name, words=True)

    run(work())


def test_errors_have_vllms_words() -> None:
    async def work() -> None:
        async with serving(DECODE) as (_, (client,)):

            async def asked(**changes: Any) -> Answer:
                return await client.post("/v1/completions", COMPLETION | changes)

            for name, answer in (
                ("error_unknown_model", await asked(model="nope")),
                ("error_no_prompt", await client.post("/v1/completions", {"model": "tiny", "max_tokens": 6})),
                ("error_empty_prompt", await asked(prompt=[])),
                ("error_token_out_of_vocabulary", await asked(prompt=[100000])),
                ("error_zero_max_tokens", await asked(max_tokens=0)),
                ("error_negative_max_tokens", await asked(max_tokens=-1)),
                ("error_too_long", await asked(prompt=[10] * 2100)),
                ("error_bad_field", await asked(max_tokens="many")),
                ("error_unknown_path", await client.get("/nothing")),
                ("error_method", await client.get("/v1/completions")),
                ("tokenize_unknown_model", await client.post("/tokenize", {"model": "nope", "prompt": "a"})),
            ):
                alike(answer, name, words=True)
            alike(await client.post("/v1/completions", b'{"prompt": '), "error_bad_json")

    run(work())


def test_the_other_paths_answer_in_vllms_shape() -> None:
    async def work() -> None:
        async with serving(PREFILL) as (_, (client,)):
            alike(await client.get("/health"), "health")
            alike(await client.get("/version"), "version", words=True)
            alike(await client.get("/v1/models"), "models")
            alike(await client.post("/reset_prefix_cache", {}), "reset_prefix_cache", words=True)
            await prefill(client, PROMPT)
            alike(await client.post("/reset_prefix_cache", {}), "reset_prefix_cache_refused", words=True)
            for name in ("tokenize_text", "tokenize_chat"):
                alike(await client.post("/tokenize", _tokenized(name)), name, words=True)

    run(work())


def _tokenized(name: str) -> Json:
    """The request that a recorded answer of `/tokenize` belongs to."""
    text = bytes(token - 3 if token > 2 else token for token in sample(name).body["tokens"]).decode()
    if name == "tokenize_text":
        return {"model": "tiny", "prompt": text}
    return {"model": "tiny", "messages": [{"role": "user", "content": text.split("\n")[1].rstrip("\x02")}]}


def test_every_metric_has_a_name_and_labels_of_vllm() -> None:
    async def work() -> set[str]:
        async with serving(DECODE) as (_, (client,)):
            await client.complete("a", 3)
            async with client.session.get(client.url + "/metrics") as response:
                return _series((await response.text()).splitlines())

    theirs = _series((SAMPLES / "metrics_decode.txt").read_text().splitlines())
    assert asyncio.run(work()) <= theirs


def _series(lines: list[str]) -> set[str]:
    """Names with their labels, but for buckets and the configuration."""
    names = {line.rsplit(" ", 1)[0] for line in lines if line.startswith("vllm:")}
    return {name for name in names if "_bucket" not in name and "cache_config_info" not in name}
