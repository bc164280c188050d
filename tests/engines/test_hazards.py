"""What engines do when the protocol is broken or an engine dies: the reasons for the router's care."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import aiohttp
import pytest

from ..live.engines.plain_qwen import continuation
from .conftest import Cluster
from .processes import group, until_gone
from .two_leg_client import Client, first_token, new_prompt, run, until

pytestmark = pytest.mark.engines


def test_a_decode_leg_without_the_name_of_its_request_hangs_and_kills_the_engine_when_the_client_goes(
    cluster: Cluster,
) -> None:
    async def test(client: Client) -> None:
        decode = cluster.decodes[0]
        body = {"prompt": new_prompt(100), "max_tokens": 4}
        parameters = await client.prefill_leg(cluster.prefill, body)
        del parameters["remote_request_id"]
        leg = asyncio.create_task(client.ask(decode, body | {"kv_transfer_params": parameters}))

        async def waits() -> bool:
            return await client.metric(decode, "num_requests_waiting") == 1

        await until(waits, "the request waits for its KV")
        finished, _ = await asyncio.wait([leg], timeout=3)
        assert not finished
        leg.cancel()

        async def dead() -> bool:
            return not await asyncio.to_thread(decode.healthy)

        await until(dead, "the engine is dead")
        assert "KeyError: 'remote_request_id'" in decode.log.read_text()

    run(test)


def test_a_decode_leg_after_the_lease_answers_200_with_wrong_tokens(pair: Cluster) -> None:
    async def test(client: Client) -> None:
        prefill, decode = pair.prefill, pair.decodes[0]
        late = await client.pulled_late(prefill)
        prompt = new_prompt(320)
        parameters = await client.prefill_leg(prefill, {"prompt": prompt})
        await until(lambda: client.blocks_free(prefill), "the lease has ended")
        # Other prompts fill every block: 5 times 63 of 128.
        for _ in range(5):
            await client.ask(prefill, {"prompt": new_prompt(2000), "max_tokens": 1})
        body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True}
        answer = await client.ask(decode, body | {"kv_transfer_params": parameters})
        assert answer.status == 200 and answer.error is None and len(answer.tokens) == 8
        assert answer.tokens != continuation(prompt, 8)

        async def noticed() -> bool:
            return await client.pulled_late(prefill) == late + 1

        await until(noticed, "the prefill engine counts the late pull")

    run(test)


def test_a_prefill_engine_killed_between_the_legs_fails_the_decode_leg_or_has_it_recompute(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        prompts = [new_prompt(100) for _ in range(3)]
        legs = [
            {"prompt": prompt, "max_tokens": 6, "ignore_eos": True}
            | {"kv_transfer_params": await client.prefill_leg(cluster.prefill, {"prompt": prompt})}
            for prompt in prompts
        ]
        cluster.prefill.kill()
        fails, recomputes = cluster.decodes
        plain = await client.ask(fails, legs[0])
        assert plain.status == 500 and plain.error is not None
        # In a stream the status has gone out before: the error is an event.
        streamed = await client.ask(fails, legs[1] | {"stream": True})
        assert streamed.status == 200 and streamed.error is not None and not streamed.tokens and streamed.done
        healed = await client.ask(recomputes, legs[2])
        assert healed.status == 200 and healed.tokens == continuation(prompts[2], 6)
        # Both go on.
        for decode in cluster.decodes:
            prompt = new_prompt(50)
            answer = await client.ask(decode, {"prompt": prompt, "max_tokens": 4, "ignore_eos": True})
            assert answer.tokens == continuation(prompt, 4)

    run(test)


def test_a_decode_engine_that_dies_breaks_its_streams_off_and_leaves_blocks_to_the_end_of_the_lease(
    cluster: Cluster,
) -> None:
    async def test(client: Client) -> None:
        victim, other = cluster.decodes
        expired = await client.expired(cluster.prefill)
        streamed = {"prompt": new_prompt(100), "max_tokens": 1900, "ignore_eos": True}
        waiting = {"prompt": new_prompt(200), "max_tokens": 6, "ignore_eos": True}
        await client.prefill_leg(cluster.prefill, waiting)
        parameters = await client.prefill_leg(cluster.prefill, streamed)
        ended = False
        with contextlib.suppress(aiohttp.ClientError):
            async with first_token(client, victim, streamed | {"kv_transfer_params": parameters}) as stream:
                # Its first process alone: the others go with it.
                assert len(group(victim.pid)) >= 3
                os.kill(victim.pid, signal.SIGKILL)
                ended = [event async for event in stream][-1] is None
        assert not ended
        until_gone(victim.pid)
        with pytest.raises(aiohttp.ClientError):
            await client.ask(victim, waiting)
        # Prefilled again for the other engine, it is answered rightly.
        answer = await client.two_legs(cluster.prefill, other, waiting)
        assert answer.tokens == continuation(waiting["prompt"], 6)
        await until(lambda: client.blocks_free(cluster.prefill), "the blocks are free after the lease")
        assert await client.expired(cluster.prefill) == expired + 1

    run(test)
