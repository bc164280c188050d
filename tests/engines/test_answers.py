"""What comes out of two legs is what one engine alone answers, token by token."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from disaggroute.live.engines.tiny_model import tokens_of

from ..live.engines.plain_qwen import continuation
from .conftest import Cluster
from .two_leg_client import CHAT, Client, new_prompt, run

pytestmark = pytest.mark.engines

# Around the borders of blocks of 32 tokens, one token, and many blocks.
LENGTHS = [1, 2, 31, 32, 33, 64, 65, 100, 700, 1500]


def test_two_legs_answer_as_the_model_does_at_every_length_and_on_every_pair(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        for length in LENGTHS:
            for decode in cluster.decodes:
                prompt = new_prompt(length)
                body = {"prompt": prompt, "max_tokens": 6, "ignore_eos": True}
                answer = await client.two_legs(cluster.prefill, decode, body)
                assert answer.tokens == continuation(prompt, 6), length
                assert answer.usage["prompt_tokens"] == length and answer.usage["completion_tokens"] == 6

    run(test)


def test_an_engine_alone_answers_as_the_model_does(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        for engine in cluster.engines:
            prompt = new_prompt(100)
            answer = await client.ask(engine, {"prompt": prompt, "max_tokens": 16, "ignore_eos": True})
            assert answer.tokens == continuation(prompt, 16)

    run(test)


def test_prompts_with_the_same_ending_are_answered_differently(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        ending = tokens_of(" and they went home through the rain, one behind the other, saying nothing.")
        bodies = [{"prompt": [*new_prompt(8), *ending], "max_tokens": 8, "ignore_eos": True} for _ in range(8)]
        answers = [await client.two_legs(cluster.prefill, cluster.decodes[0], body) for body in bodies]
        assert len({tuple(answer.tokens) for answer in answers}) == 8

    run(test)


def test_a_streamed_request_brings_the_same_tokens_text_and_counts(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        for decode in cluster.decodes:
            body = {"prompt": new_prompt(150), "max_tokens": 40, "ignore_eos": True}
            plain = await client.two_legs(cluster.prefill, decode, body)
            streamed = await client.two_legs(
                cluster.prefill, decode, body | {"stream": True, "stream_options": {"include_usage": True}}
            )
            alone = await client.ask(cluster.prefill, body)
            assert streamed.tokens == plain.tokens == alone.tokens and len(plain.tokens) == 40
            assert streamed.text == plain.text == alone.text
            assert streamed.usage["completion_tokens"] == 40 and streamed.done
            assert streamed.finish_reason == plain.finish_reason == alone.finish_reason == "length"

    run(test)


def test_chat_and_text_prompts_go_two_legs_as_token_ids_do(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        text = "".join(chr(token - 3) for token in new_prompt(90))
        options = {"max_tokens": 12, "ignore_eos": True}
        texts = {"prompt": text} | options
        assert (await client.two_legs(cluster.prefill, cluster.decodes[0], texts)).tokens == continuation(
            tokens_of(text), 12
        )
        chat = {"messages": [{"role": "user", "content": text}]} | options
        for stream in (False, True):
            two = await client.two_legs(cluster.prefill, cluster.decodes[1], chat | {"stream": stream}, CHAT)
            one = await client.ask(cluster.prefill, chat | {"stream": stream}, CHAT)
            assert two.tokens == one.tokens and two.text == one.text and len(two.tokens) == 12

    run(test)


def test_the_end_of_the_answer_is_found_by_the_decode_engine(cluster: Cluster) -> None:
    """Without `ignore_eos`, and with a stop word."""

    async def test(client: Client) -> None:
        prompt = new_prompt(60)
        alone = await client.ask(cluster.prefill, {"prompt": prompt, "max_tokens": 30, "ignore_eos": True})
        # Two characters of its middle; those of broken bytes are all alike and come earlier too.
        stop = next(pair for pair in map("".join, pairwise(alone.text[8:])) if pair.isascii())
        body = {"prompt": prompt, "max_tokens": 30, "stop": [stop]}
        two = await client.two_legs(cluster.prefill, cluster.decodes[0], body)
        one = await client.ask(cluster.prefill, body)
        assert two.tokens == one.tokens and two.finish_reason == one.finish_reason == "stop"

    run(test)


def test_many_requests_at_the_same_time_are_each_answered_rightly(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        prompts = [new_prompt(length) for length in (20, 70, 130, 300) * 4]
        answers = await asyncio.gather(
            *(
                client.two_legs(
                    cluster.prefill,
                    cluster.decodes[number % 2],
                    {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "stream": number % 3 == 0},
                )
                for number, prompt in enumerate(prompts)
            )
        )
        assert [answer.tokens for answer in answers] == [continuation(prompt, 8) for prompt in prompts]

    run(test)


def test_the_prompt_is_pulled_and_not_computed_again(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        for decode in cluster.decodes:
            names = ("nixl_bytes_transferred_count", "prompt_tokens_by_source_total", "prompt_tokens_by_source_total")
            labels = ({}, {"source": "external_kv_transfer"}, {"source": "local_compute"})
            before = [await client.metric(decode, name, **label) for name, label in zip(names, labels, strict=True)]
            await client.two_legs(cluster.prefill, decode, {"prompt": new_prompt(320), "max_tokens": 2})
            after = [await client.metric(decode, name, **label) for name, label in zip(names, labels, strict=True)]
            pulls, pulled, computed = (b - a for a, b in zip(before, after, strict=True))
            assert pulls == 1
            assert pulled >= 319  # the last token of the prompt is computed with the first step
            assert computed <= 1

    run(test)


def test_a_decode_engine_out_of_blocks_preempts_and_still_answers_in_full(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        decode = cluster.decodes[0]
        before = await client.metric(decode, "num_preemptions_total")
        # 5 times (600 + 500) tokens are 175 blocks of 32, and the engine has 128; the prompts alone fit.
        length = {"max_tokens": 500, "min_tokens": 500, "ignore_eos": True}
        bodies = [{"prompt": new_prompt(600)} | length for _ in range(5)]
        legs = [body | {"kv_transfer_params": await client.prefill_leg(cluster.prefill, body)} for body in bodies]
        answers = await asyncio.gather(*(client.ask(decode, leg) for leg in legs))
        assert await client.metric(decode, "num_preemptions_total") > before
        for body, answer in zip(bodies, answers, strict=True):
            alone = await client.ask(cluster.prefill, body)
            assert answer.tokens == alone.tokens and len(answer.tokens) == 500

    run(test)
