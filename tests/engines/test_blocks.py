"""KV blocks are free again when nobody needs them any more."""

from __future__ import annotations

import pytest

from .conftest import Cluster
from .two_leg_client import Client, first_token, new_prompt, run, until

pytestmark = pytest.mark.engines


def test_a_client_that_goes_during_decode_frees_the_blocks_at_once(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        decode = cluster.decodes[0]

        async def gone() -> bool:
            return await client.running(decode) == 0 and await client.blocks_free(decode)

        async def leaves() -> bool:
            body = {"prompt": new_prompt(400), "max_tokens": 1600, "ignore_eos": True}
            parameters = await client.prefill_leg(cluster.prefill, body)
            whole = await client.metric(decode, "request_success_total", finished_reason="length")
            async with first_token(client, decode, body | {"kv_transfer_params": parameters}):
                pass  # Nothing is asked here: the answer is over within seconds.
            await until(gone, "the blocks of an aborted request are free")
            await until(lambda: client.blocks_free(cluster.prefill), "the blocks of its prompt are free")
            return await client.metric(decode, "request_success_total", finished_reason="length") == whole

        # An engine whose server gets no processor sends all its tokens at once, perhaps before the client has left.
        assert any([await leaves() for _ in range(5)])

    run(test)


def test_a_pulled_prompt_is_freed_on_the_prefill_engine_long_before_its_lease_ends(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        expired = await client.expired(cluster.prefill)
        body = {"prompt": new_prompt(200), "max_tokens": 2}
        parameters = await client.prefill_leg(cluster.prefill, body)
        assert not await client.blocks_free(cluster.prefill)
        assert await client.running(cluster.prefill) == 0
        await client.ask(cluster.decodes[0], body | {"kv_transfer_params": parameters})
        await until(lambda: client.blocks_free(cluster.prefill), "pulled blocks are free")
        assert await client.expired(cluster.prefill) == expired

    run(test)


def test_a_decode_leg_that_is_refused_frees_the_blocks_of_its_prompt(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        expired = await client.expired(cluster.prefill)
        prompt = new_prompt(200)
        parameters = await client.prefill_leg(cluster.prefill, {"prompt": prompt})
        refused = {"prompt": prompt, "max_tokens": -1, "kv_transfer_params": parameters}
        assert (await client.ask(cluster.decodes[0], refused)).status == 400
        await until(lambda: client.blocks_free(cluster.prefill), "the blocks of a refused request are free")
        assert await client.expired(cluster.prefill) == expired

    run(test)


def test_blocks_that_nobody_comes_for_are_free_when_the_lease_ends(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        expired = await client.expired(cluster.prefill)
        await client.prefill_leg(cluster.prefill, {"prompt": new_prompt(200)})
        assert not await client.blocks_free(cluster.prefill)
        await until(lambda: client.blocks_free(cluster.prefill), "blocks are free after the lease")
        assert await client.expired(cluster.prefill) == expired + 1

    run(test)


def test_a_streamed_prefill_leg_gives_no_parameters_and_strands_its_blocks(cluster: Cluster) -> None:
    async def test(client: Client) -> None:
        body = {"prompt": new_prompt(200), "max_tokens": 1, "stream": True}
        answer = await client.ask(cluster.prefill, body | {"kv_transfer_params": {"do_remote_decode": True}})
        assert answer.done and answer.parameters is None
        assert not await client.blocks_free(cluster.prefill)
        await until(lambda: client.blocks_free(cluster.prefill), "blocks are free after the lease")

    run(test)
