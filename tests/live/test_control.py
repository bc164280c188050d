"""Administration, health and metrics: what operators may see and do, and that clients may not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from disaggroute.live.control import admin_app
from disaggroute.live.proxy import ApiKeys

from .proxy_client import Answer, Call, Setup, routed, until
from .scripted_engine import ScriptedEngine, hang, piece, stream

PLAIN = {"prompt": [1, 2, 3], "max_tokens": 2}

KEY = {"authorization": "Bearer master"}

Ask = Callable[..., Coroutine[Any, Any, Answer]]


def run(test: Callable[[Setup, Ask], Coroutine[Any, Any, None]], pools: str = "1P2D", **options: Any) -> None:
    async def main() -> None:
        async with routed(pools, **options) as setup:
            app = admin_app(setup.service, ApiKeys(["master"]))

            async def ask(method: str, path: str, body: Any = None, headers: dict[str, str] = KEY) -> Answer:
                text = b"" if body is None else json.dumps(body).encode()
                path, _, query = path.partition("?")
                call = Call(app, path, text, {"content-type": "application/json"} | headers, method, query)
                await asyncio.wait_for(call.task, 30)
                return call.answer

            await test(setup, ask)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("GET", "/admin/engines"),
        ("GET", "/admin/engines/decode/0"),
        ("POST", "/admin/engines"),
        ("PATCH", "/admin/engines/decode/0"),
        ("DELETE", "/admin/engines/decode/0"),
        ("GET", "/admin/policy"),
        ("PUT", "/admin/policy"),
        ("GET", "/admin/ledger"),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
def test_operators_need_their_key(method: str, path: str, headers: dict[str, str]) -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        got = await ask(method, path, {}, headers)
        assert got.status == 401 and got.headers[b"www-authenticate"] == b"Bearer"
        assert "Authorization: Bearer KEY" in got.json["error"]["message"]

    run(test)


def test_engines_are_listed_as_they_are() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        await until(lambda: all(engine.poll for engine in setup.service.engines))
        rows = (await ask("GET", "/admin/engines")).json
        assert [row["name"] for row in rows] == ["prefill/0", "decode/0", "decode/1"]
        row = rows[1]
        assert (row["health"], row["block_size"], row["blocks"], row["version"]) == ("up", 16, 100, "0.32.0")
        assert (row["kv_usage"], row["running"], row["waiting"]) == (0.25, 3, 2) and row["poll_age_s"] >= 0
        assert (await ask("GET", "/admin/engines/decode/1")).json["url"] == setup.engines["decode/1"].url
        missing = await ask("GET", "/admin/engines/decode/9")
        assert missing.status == 404 and "there are prefill/0, decode/0, decode/1" in missing.json["error"]["message"]

    run(test)


def test_a_drained_engine_gets_nothing_new_until_it_may_again() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        got = await ask("PATCH", "/admin/engines/decode/0", {"draining": True})
        assert got.status == 200 and got.json["draining"]
        for _ in range(3):
            await setup.ask(PLAIN)
        assert setup.legs["decode/0"] == 0
        await ask("PATCH", "/admin/engines/decode/0", {"draining": False})
        for _ in range(2):
            await setup.ask(PLAIN)
        assert setup.legs["decode/0"] == 1

    run(test)


def test_an_engine_is_added_and_removed_while_requests_go_on() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        setup.engines["decode/0"].acts = [stream(*[piece("a")] * 40, then="hang")]
        call = setup.call(PLAIN | {"stream": True})
        await call.first.wait()
        async with ScriptedEngine() as other:
            got = await ask("POST", "/admin/engines", {"role": "decode", "engine": {"url": other.url}})
            assert got.status == 201 and got.json["name"] == "decode/2" and got.json["health"] == "up"
            assert setup.service.router.state.in_flight == 1
            for _ in range(6):
                assert (await setup.ask(PLAIN)).status == 200
            assert other.legs
            assert (await ask("DELETE", "/admin/engines/decode/2")).status == 204
            seen = len(other.legs)
            for _ in range(4):
                assert (await setup.ask(PLAIN)).status == 200
            assert len(other.legs) == seen
        call.leave()
        await call.task
        assert setup.service.router.state.in_flight == 0

    run(test)


def test_an_engine_with_legs_in_flight_is_removed_only_by_force() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        setup.engines["decode/0"].acts = [hang]
        call = setup.call(PLAIN)
        await until(lambda: setup.engines["decode/0"].legs)
        got = await ask("DELETE", "/admin/engines/decode/0")
        assert got.status == 409 and "1 legs in flight; drain it first, or use force" in got.json["error"]["message"]
        assert (await ask("DELETE", "/admin/engines/decode/0?force=true")).status == 204
        await asyncio.wait_for(call.task, 10)
        assert call.answer.status == 200 and setup.legs["decode/1"] >= 1  # served elsewhere
        assert setup.service.router.state.in_flight == 0

    run(test)


def test_an_engine_that_returns_with_another_vllm_stays_ejected() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        engine, scripted = setup.service.engine("decode/0"), setup.engines["decode/0"]
        port = scripted.port
        await scripted.kill()
        await until(lambda: engine.health == "ejected")
        scripted.version = "0.33.0"
        await scripted.listen(port)
        await until(lambda: "vLLM differ" in engine.reason)
        assert engine.health == "ejected" and "decode/0 has 0.33" in engine.reason
        scripted.version = "0.32.1"
        await until(lambda: engine.health == "up")

    run(test)


def test_what_does_not_fit_is_not_added() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        async def refused(role: str, entry: dict[str, Any]) -> tuple[int, str]:
            got = await ask("POST", "/admin/engines", {"role": role, "engine": entry})
            return got.status, got.json["error"]["message"]

        async with (
            ScriptedEngine(model="other") as other,
            ScriptedEngine(block_size=32) as large,
            ScriptedEngine(version="0.31.9") as old,
        ):
            assert await refused("decode", {"url": other.url}) == (
                400,
                f"decode/2 ({other.url}) serves other; the cluster's model is tiny",
            )
            assert await refused("decode", {"url": large.url}) == (
                400,
                "the engines' KV blocks differ in size: decode/1 has 16, decode/2 has 32 tokens; "
                "all of a cluster have the same",
            )
            assert await refused("decode", {"url": old.url}) == (
                400,
                "the engines' vLLM differ: decode/2 has 0.31, decode/1 has 0.32; all of a cluster have the same",
            )
            assert await refused("mixed", {"url": large.url}) == (
                409,
                "role is mixed; this cluster has decode and prefill engines",
            )
            assert await refused("decode", {"url": large.url, "name": "prefill/0"}) == (
                409,
                "name is prefill/0, which is taken",
            )
        status, words = await refused("decode", {"url": setup.engines["prefill/0"].url})
        assert status == 409 and "the address of prefill/0" in words
        status, words = await refused("decode", {"url": "http://127.0.0.1:9"})
        assert status == 502 and words.startswith("http://127.0.0.1:9: ")
        status, words = await refused("decode", {"url": "nowhere"})
        assert status == 422 and "it must be like http://host:port" in words
        status, words = await refused("decode", {"url": large.url, "profile": "none"})
        assert status in (400, 502)
        assert len(setup.service.engines) == 3

    run(test)


def test_of_two_changes_at_once_the_second_sees_the_first() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        answers = await asyncio.gather(*(ask("DELETE", f"/admin/engines/decode/{k}") for k in range(2)))
        assert sorted(got.status for got in answers) == [204, 409]
        assert [engine.health for engine in setup.service.engines] == ["up", "up"]
        async with ScriptedEngine() as other:
            new = {"role": "decode", "engine": {"url": other.url}}
            answers = await asyncio.gather(*(ask("POST", "/admin/engines", new) for _ in range(2)))
            assert sorted(got.status for got in answers) == [201, 409]
            assert len(setup.service.engines) == 3
            answers = await asyncio.gather(*(ask("DELETE", "/admin/engines/prefill/1") for _ in range(2)))
            assert [got.status for got in answers] == [404, 404]

    run(test)


def test_an_engine_that_a_policy_cannot_do_without_stays_and_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        def refuse(*_: Any) -> None:
            raise ValueError("the policy is for two decode engines")

        monkeypatch.setattr(setup.service.router, "resize", refuse)
        got = await ask("DELETE", "/admin/engines/decode/0")
        assert got.status == 400 and "two decode engines" in got.json["error"]["message"]
        engine, polls = setup.service.engine("decode/0"), setup.engines["decode/0"].polls
        await until(lambda: setup.engines["decode/0"].polls > polls + 2)
        assert engine.health == "up" and setup.service.router.state.is_open(1)

    run(test)


def test_an_engine_that_returns_with_another_size_is_believed() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        engine, scripted = setup.service.engine("decode/0"), setup.engines["decode/0"]
        state = setup.service.router.state
        for blocks in (101, 51):
            await scripted.kill()
            await until(lambda: engine.health == "ejected")
            scripted.metrics = scripted.metrics.replace(b'num_gpu_blocks="101"', b'num_gpu_blocks="%d"' % blocks)
            await scripted.listen(scripted.port)
            await until(lambda: engine.health == "up")
            known = setup.service.router.state
            assert known.cluster.instances[1].num_blocks == blocks - 1
            assert (known is state) == (blocks == 101)
        assert (await setup.ask(PLAIN)).status == 200

    run(test)


def test_the_last_engine_of_a_pool_stays() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        got = await ask("DELETE", "/admin/engines/prefill/0?force=true")
        assert got.status == 409 and "is the last prefill engine" in got.json["error"]["message"]

    run(test)


def test_a_body_is_json_whatever_its_header_says() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        form = KEY | {"content-type": "application/x-www-form-urlencoded"}
        got = await ask("PUT", "/admin/policy", {"policy": "least-loaded"}, form)
        assert got.status == 200 and got.json["policy"] == "least-loaded"

    run(test)


def test_health_knows_at_once_that_a_pool_fails() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        for name in ("decode/0", "decode/1"):
            await setup.engines[name].kill()
        assert (await setup.ask(PLAIN)).status in (502, 503)
        got = await ask("GET", "/health", headers={})
        assert got.status == 503 and got.json["status"] == "down"

    run(test, faults=1, watch={"silent_s": 60.0})


def test_policies_are_switched_and_the_ledger_stays() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        setup.engines["decode/0"].acts = [hang]
        call = setup.call(PLAIN)
        await until(lambda: setup.engines["decode/0"].legs)
        assert (await ask("GET", "/admin/policy")).json == {"policy": "round-robin", "shadow": None, "fallbacks": {}}
        got = await ask("PUT", "/admin/policy", {"policy": "marginal-cost(w_q=1.0)", "shadow": "least-loaded"})
        assert got.status == 200 and got.json["policy"] == "marginal-cost(w_q=1.0)"
        assert setup.service.router.state.in_flight == 1
        await setup.ask(PLAIN)
        assert setup.legs["decode/1"] == 1
        call.leave()
        await call.task

    run(test)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"policy": "marginal-cots"}, "unknown policy 'marginal-cots'; nearest: marginal-cost"),
        ({"policy": "round-robin", "shadow": "nope"}, "unknown policy 'nope'"),
        ({"policy": "marginal-cost(w_q=-1)"}, "w_q"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_and_the_old_one_stays(wanted: dict[str, Any], words: str) -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        got = await ask("PUT", "/admin/policy", wanted)
        assert got.status == 400 and words in got.json["error"]["message"]
        assert (await ask("GET", "/admin/policy")).json == {"policy": "round-robin", "shadow": None, "fallbacks": {}}

    run(test)


def test_the_ledger_shows_what_is_in_flight() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        setup.engines["decode/0"].acts = [hang]
        call = setup.call(PLAIN, x_disaggroute_output_tokens="9")
        await until(lambda: setup.engines["decode/0"].legs)
        ledger = (await ask("GET", "/admin/ledger")).json
        assert ledger["in_flight"] == 1
        row = ledger["engines"][1]
        assert (row["engine"], row["in_flight"], row["committed"], row["pending"]) == ("decode/0", 1, 12, 1)
        call.leave()
        await call.task
        assert (await ask("GET", "/admin/ledger")).json["in_flight"] == 0

    run(test)


def test_health_names_what_is_not_well() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        assert (await ask("GET", "/health", headers={})).json == {"status": "ok", "in_flight": 0, "problems": []}
        await setup.engines["decode/1"].kill()
        await until(lambda: setup.service.engine("decode/1").health == "ejected")
        got = await ask("GET", "/health", headers={})
        assert got.status == 200 and got.json["status"] == "degraded"
        assert got.json["problems"][0].startswith("decode/1: ")

    run(test)


def test_metrics_are_told_to_operators() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        await setup.ask(PLAIN)
        got = await ask("GET", "/metrics")
        assert got.status == 200 and got.headers[b"content-type"].startswith(b"text/plain")
        assert b'disaggroute_requests_total{slo="loose",status="finished"} 1.0' in got.body

    run(test)


def test_a_missing_metric_ejects_an_engine_by_name() -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        engine = setup.engines["decode/0"]
        engine.metrics = engine.metrics.replace(b"vllm:kv_cache_usage_perc", b"vllm:renamed")
        await until(lambda: setup.service.engine("decode/0").health == "ejected")
        row = (await ask("GET", "/admin/engines/decode/0")).json
        assert "there is no vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc" in row["reason"]
        assert (await setup.ask(PLAIN)).status == 200 and setup.legs["decode/0"] == 0

    run(test)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/admin/none", "GET", 404), ("/metrics", "POST", 405), ("/admin/policy", "POST", 405)],
)
def test_other_paths_and_methods_are_refused_in_the_same_form(path: str, method: str, status: int) -> None:
    async def test(setup: Setup, ask: Ask) -> None:
        got = await ask(method, path, {})
        assert got.status == status and got.json["error"]["code"] == status

    run(test)
