"""Meeting an engine: what it must be, what the router then believes of it, and whether requests may go there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from disaggroute.envs import profiles
from disaggroute.live.breaker import ORDINARY
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.engine import Engine, Unfit, check_alike, meet_all, series_of
from disaggroute.live.engine_metrics import MissingMetric, Reported
from disaggroute.live.http_client import Unreachable

from .samples import metrics as real_metrics
from .samples import sample
from .scripted_engine import BLOCK, BLOCKS, MODEL, ScriptedEngine, metrics
from .waiting import run

PROFILE = "a40-qwen2.5-3b"
LONG = 30.0


def cluster(*urls: str, **changes: Any) -> LiveCluster:
    """A prefill engine and, behind it, decode engines."""
    first, *others = urls or ("http://127.0.0.1:1",)
    return LiveCluster.load(
        {
            "model": MODEL,
            "profile": PROFILE,
            "prefill": [{"url": first}],
            "decode": [{"url": url} for url in others] or [{"url": "http://127.0.0.1:2"}],
            **changes,
        }
    )


def first_of(of: LiveCluster) -> Engine:
    role, k, entry = next(of.engines())
    return Engine.of(role, of.engine_name(role, k), entry, faults=3, pause_s=1.0)


@asynccontextmanager
async def one(**changes: Any) -> AsyncIterator[tuple[ScriptedEngine, Engine, LiveCluster]]:
    """A scripted engine, the engine as the router knows it, and a cluster of it."""
    async with ScriptedEngine() as scripted:
        of = cluster(scripted.url, **changes)
        engine = first_of(of)
        try:
            yield scripted, engine, of
        finally:
            await engine.client.close()


async def unfit(engine: Engine, of: LiveCluster) -> str:
    with pytest.raises(Unfit) as refused:
        await engine.meet(of, LONG)
    return str(refused.value)


# --- meeting --------------------------------------------------------------------------------------------------------


def test_an_engine_that_fits_is_known_afterwards() -> None:
    async def story() -> None:
        async with one(block_size=BLOCK) as (_, engine, of):
            assert (engine.health, engine.reason) == ("unknown", "not seen yet")
            assert (engine.block_size, engine.version) == (0, None)
            await engine.meet(of, LONG)
            assert (engine.block_size, engine.blocks, engine.max_model_len) == (BLOCK, BLOCKS - 1, 1_000)
            assert engine.version == (0, 32, 0)
            assert engine.health == "unknown" and engine.poll is None  # which are for the watch to change

    run(story())


def test_what_vllm_0_32_answers_fits() -> None:
    async def story() -> None:
        async with one(block_size=32) as (scripted, engine, of):
            scripted.metrics = real_metrics("decode")
            for path, name in (("/v1/models", "models"), ("/version", "version")):
                scripted.says[path] = 200, sample(name).body
            await engine.meet(of, LONG)
            assert (engine.block_size, engine.blocks, engine.max_model_len) == (32, 128, 2_048)
            assert engine.version == (0, 32, 0)
            # A prompt and its answer may fill the context.
            assert engine.spec(of).max_model_len == 2_048

    run(story())


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"data": [{"id": "other"}]}, "serves other; the cluster's model is tiny"),
        ({"data": [{"id": "other"}, {"id": 5}, "tiny"]}, "serves other, 5; the cluster's model is tiny"),
        ({"data": []}, "serves none; the cluster's model is tiny"),
        ({"data": {"id": "tiny"}}, "does not answer with a list of models"),
        ({"data": 5}, "does not answer with a list of models"),
        ({}, "does not answer with a list of models"),
        ([], "does not answer with a list of models"),
        (None, "does not answer with a list of models"),
    ],
)
def test_an_engine_that_serves_something_else_is_unfit(models: Any, said: str) -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            scripted.says["/v1/models"] = 200, json.dumps(models).encode()
            sentence = await unfit(engine, of)
            assert sentence.startswith(f"prefill/0 ({scripted.url}") and sentence.endswith(said)
            assert engine.block_size == 0

    run(story())


def test_of_several_models_the_clusters_one_is_found() -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            models = [{"id": "lora", "max_model_len": 5}, {"id": MODEL, "max_model_len": 77}]
            scripted.says["/v1/models"] = 200, json.dumps({"data": models}).encode()
            await engine.meet(of, LONG)
            assert engine.max_model_len == 77

    run(story())


@pytest.mark.parametrize("length", [None, True, "2048", -1, 0, 2.5])
def test_a_context_that_is_no_number_is_one_that_nobody_told(length: Any) -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            models = [{"id": MODEL, "max_model_len": length}]
            scripted.says["/v1/models"] = 200, json.dumps({"data": models}).encode()
            await engine.meet(of, LONG)
            assert engine.max_model_len == 0
            assert engine.spec(of).max_model_len == profiles.load(PROFILE).engine().max_model_len

    run(story())


def test_an_engine_of_another_block_size_is_unfit() -> None:
    async def story() -> None:
        async with one(block_size=32) as (_, engine, of):
            assert await unfit(engine, of) == "prefill/0 has KV blocks of 16 tokens; the cluster's have 32"

    run(story())


def test_an_engine_that_comes_back_with_another_block_size_is_unfit_though_the_cluster_says_none() -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            await engine.meet(of, LONG)
            scripted.metrics = metrics(block_size=64)
            assert await unfit(engine, of) == "prefill/0 has KV blocks of 64 tokens; the cluster's have 16"
            assert engine.block_size == BLOCK

    run(story())


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (b"vllm:kv_cache_usage_perc", "there is no vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc"),
        (b"vllm:num_requests_running", "there is no vllm:num_requests_running"),
        (b"vllm:num_requests_waiting{", "there is no vllm:num_requests_waiting"),
        (b"vllm:cache_config_info", "there is no vllm:cache_config_info"),
        (b"num_gpu_blocks", "vllm:cache_config_info has no number in its label num_gpu_blocks"),
    ],
)
def test_an_engine_without_a_metric_is_unfit_by_its_name(metric: bytes, said: str) -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            scripted.metrics = scripted.metrics.replace(metric, b"x" + metric)
            assert await unfit(engine, of) == f"prefill/0 ({scripted.url}/metrics): {said}"

    run(story())


def test_an_engine_that_does_not_speak_json_is_unfit() -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            scripted.says["/v1/models"] = 200, b"<html>"
            said = await unfit(engine, of)
            assert said == f"prefill/0 ({scripted.url}/v1/models) does not answer with a list of models"

    run(story())


@pytest.mark.parametrize("path", ["/v1/models", "/metrics"])
@pytest.mark.parametrize(("status", "kind"), [(500, Unreachable), (503, Unreachable), (404, Unfit), (401, Unfit)])
def test_an_engine_that_cannot_now_is_out_of_reach_and_one_that_never_will_is_unfit(
    path: str, status: int, kind: type[Exception]
) -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            scripted.says[path] = status, sample("error_dead_engine").body
            with pytest.raises(kind) as refused:
                await engine.meet(of, LONG)
            assert str(refused.value) == f"prefill/0 ({scripted.url}{path}) answers {status}"

    run(story())


@pytest.mark.parametrize(
    "version",
    [
        *((404, b'{"detail": "Not Found"}'), (500, b"{}"), (200, b"<html>"), (200, b"[]"), (200, b"{}")),
        *((200, b'{"version": 5}'), (200, b'{"version": "dev"}')),
    ],
)
def test_an_engine_that_does_not_tell_its_version_fits_all_the_same(version: tuple[int, bytes]) -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            scripted.says["/version"] = version
            engine.version = (0, 12, 0)  # of an earlier process
            await engine.meet(of, LONG)
            assert engine.version is None and engine.block_size == BLOCK

    run(story())


def test_an_engine_that_does_not_answer_is_out_of_reach() -> None:
    async def story() -> None:
        async with one() as (scripted, engine, of):
            scripted.silent = True
            with pytest.raises(Unreachable):
                await engine.meet(of, 0.05)
            await scripted.kill()
            with pytest.raises(Unreachable):
                await engine.meet(of, LONG)

    run(story())


def test_engines_are_met_side_by_side_and_each_has_its_own_answer() -> None:
    async def story() -> None:
        async with ScriptedEngine() as good, ScriptedEngine(model="other") as other, ScriptedEngine() as gone:
            of = cluster(good.url, other.url, gone.url)
            await gone.kill()
            engines = [
                Engine.of(role, of.engine_name(role, k), entry, faults=3, pause_s=1.0)
                for role, k, entry in of.engines()
            ]
            found = await meet_all(engines, of, LONG)
            assert found[0] is None and isinstance(found[1], Unfit) and isinstance(found[2], Unreachable)
            for engine in engines:
                await engine.client.close()

    run(story())


# --- polls ----------------------------------------------------------------------------------------------------------


def test_a_poll_is_what_the_engine_reports_now() -> None:
    async def story() -> None:
        async with one() as (scripted, engine, _):
            assert await engine.ask_poll(LONG) == Reported(0.25, 3, 2)
            scripted.metrics = metrics(value=0.5)
            assert (await engine.ask_poll(LONG)).usage == 0.5
            scripted.metrics = metrics(value=float("nan"))
            with pytest.raises(MissingMetric, match="kv_cache_usage_perc is no number"):
                await engine.ask_poll(LONG)
            scripted.says["/metrics"] = 503, b""
            with pytest.raises(Unreachable, match="/metrics\\) answers 503"):
                await engine.ask_poll(LONG)

    run(story())


# --- what the router believes ---------------------------------------------------------------------------------------


def test_the_sizes_that_an_engine_reports_go_before_those_of_its_profile() -> None:
    async def story() -> None:
        own = {"num_blocks": 7, "max_num_seqs": 9, "latency_ms": 3}
        async with ScriptedEngine() as scripted:
            of = cluster(prefill=[{"url": scripted.url, "overrides": own}])
            engine = first_of(of)
            before = engine.spec(of)
            assert (before.num_blocks, before.block_size, before.max_num_seqs) == (7, 16, 9)
            await engine.meet(of, LONG)
            after = engine.spec(of)
            assert (after.num_blocks, after.block_size, after.max_model_len) == (BLOCKS - 1, BLOCK, 1_000)
            assert (after.max_num_seqs, after.latency, after.per_token) == (9, before.latency, before.per_token)
            await engine.client.close()

    run(story())


def test_a_size_in_tokens_gives_way_to_the_engines_blocks() -> None:
    of = cluster(prefill=[{"url": "http://127.0.0.1:1", "overrides": {"kv_tokens": 160}}])
    engine = first_of(of)
    assert engine.spec(of).num_blocks == 10
    engine.blocks, engine.block_size = 50, 32
    assert (engine.spec(of).num_blocks, engine.spec(of).block_size) == (50, 32)


@pytest.mark.parametrize(
    ("cluster_s", "engines", "believed"), [(None, 500, 500), (300, 500, 300), (700, 500, 500), (700, 0, 700)]
)
def test_the_context_is_the_shorter_of_the_clusters_and_the_engines(
    cluster_s: int | None, engines: int, believed: int
) -> None:
    of = cluster(max_model_len=cluster_s)
    engine = first_of(of)
    engine.max_model_len = engines
    assert engine.spec(of).max_model_len == believed


# --- whether requests may go there ----------------------------------------------------------------------------------


def test_requests_go_to_engines_that_are_up_and_neither_draining_nor_broken() -> None:
    engine = first_of(cluster())
    assert not engine.may_send(0.0)
    engine.health = "up"
    assert engine.may_send(0.0)
    engine.draining = True
    assert not engine.may_send(0.0)
    engine.draining = False
    for _ in range(3):
        engine.breaker.failed(0.0, ORDINARY)
    assert not engine.may_send(0.9) and engine.may_send(1.0)
    engine.health = "ejected"
    assert not engine.may_send(1.0)


def test_legs_are_counted_and_progress_begins_with_the_first_stream() -> None:
    engine = first_of(cluster())
    engine.leg_begins(4.0)
    assert (engine.legs, engine.streams, engine.progress) == (1, 0, 0.0)
    engine.leg_begins(5.0, True)
    engine.leg_begins(7.0, True)
    assert (engine.legs, engine.streams, engine.progress) == (3, 2, 5.0)
    engine.leg_ends(True)
    engine.leg_ends(True)
    engine.leg_begins(9.0, True)
    assert (engine.legs, engine.streams, engine.progress) == (2, 1, 9.0)


def test_what_was_assigned_goes_on_only_to_an_engine_that_is_up_and_not_broken() -> None:
    engine = first_of(cluster())
    engine.health = "up"
    before = engine.breaker.sent(0.0)
    engine.draining = True
    assert before == ORDINARY and engine.may_go_on(before)  # nothing new is not nothing
    for _ in range(3):
        engine.breaker.failed(0.0, ORDINARY)
    tries = engine.breaker.sent(1.0)
    assert tries != ORDINARY and engine.may_go_on(tries) and not engine.may_go_on(before)
    engine.breaker.succeeded(tries)
    assert engine.may_go_on(before)
    engine.health = "ejected"
    assert not engine.may_go_on(before)


def of_versions(*versions: tuple[int, ...] | None) -> list[Engine]:
    """Engines of a cluster, seen with these versions and blocks of one size."""
    of = cluster("http://127.0.0.1:1", *(f"http://127.0.0.1:{2 + k}" for k in range(len(versions) - 1)))
    engines = []
    for version, (role, k, entry) in zip(versions, of.engines(), strict=True):
        engine = Engine.of(role, of.engine_name(role, k), entry, faults=3, pause_s=1.0)
        engine.version, engine.block_size = version, 16
        engines.append(engine)
    return engines


@pytest.mark.parametrize(
    ("version", "series"),
    [((0, 32, 1), (0, 32)), ((0, 32), (0, 32)), ((1, 4, 0), (1,)), ((2, 0), (2,)), (None, None)],
)
def test_before_1_the_minor_number_counts(version: tuple[int, ...] | None, series: tuple[int, ...] | None) -> None:
    assert series_of(version) == series


@pytest.mark.parametrize(
    "versions", [[(0, 32, 0), (0, 32, 1)], [(0, 32, 0), None, (0, 32, 0)], [(1, 0, 0), (1, 9, 0)], [None, None]]
)
def test_engines_of_one_series_are_alike(versions: list[tuple[int, ...] | None]) -> None:
    check_alike(of_versions(*versions))


def test_engines_of_two_series_are_unfit_with_one_of_each() -> None:
    with pytest.raises(Unfit) as refused:
        check_alike(of_versions((0, 32, 0), (0, 9, 2), (0, 32, 0)))
    said = "the engines' vLLM differ: decode/0 has 0.9, decode/1 has 0.32; all of a cluster have the same"
    assert str(refused.value) == said


def test_engines_with_blocks_of_two_sizes_are_unfit_with_one_of_each() -> None:
    engines = of_versions((0, 32, 0), None, None)
    engines[1].block_size, engines[2].block_size = 32, 0
    with pytest.raises(Unfit) as refused:
        check_alike(engines)
    said = "the engines' KV blocks differ in size: prefill/0 has 16, decode/0 has 32 tokens; "
    said += "all of a cluster have the same"
    assert str(refused.value) == said


def test_an_engine_that_is_ejected_may_return_with_another_version_but_not_with_another_block_size() -> None:
    engines = of_versions((0, 32, 0), (0, 31, 0))
    engines[1].health = "ejected"
    check_alike(engines)
    engines[1].block_size = 32
    with pytest.raises(Unfit, match="the engines' KV blocks differ in size"):
        check_alike(engines)
