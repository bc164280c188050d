"""The router in front of real engines: right answers, freed blocks, and no harm from the hazards of the protocol."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from disaggroute.live import record_log
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.engines.launcher import RealEngine
from disaggroute.live.engines.tiny_model import tokens_of
from disaggroute.live.http_client import HttpClient

from ..live.emulated_router import RouterThread, router
from ..live.engines.plain_qwen import continuation
from .conftest import LEASE_S, START_S, Cluster
from .two_leg_client import CHAT, COMPLETIONS, LIMIT_S, Answer, Body, Client, first_token, new_prompt, run, until

pytestmark = pytest.mark.engines

# Real engines take milliseconds to tell their metrics, and here they share two cores with everything else.
WATCH = {"poll_interval_s": 0.5, "silent_s": 20.0, "stalled_s": 100.0, "return_polls": 2}


@dataclass(frozen=True)
class Door:
    """The router, to be asked like an engine."""

    url: str
    name: str = "tiny"


class RealCluster:
    """What the router is told of the engines."""

    def __init__(self, engines: Cluster) -> None:
        self.engines = engines

    def cluster(self) -> LiveCluster:
        pools: dict[str, list[dict[str, str]]] = {"prefill": [], "decode": []}
        for engine in self.engines.engines:
            pools[engine.role].append({"url": engine.url})
        fields = {"model": "tiny", "profile": "a40-qwen2.5-3b", "lease_s": LEASE_S, "block_size": 32}
        return LiveCluster.load(fields | pools)


@contextmanager
def serving(engines: Cluster, folder: Path) -> Iterator[RouterThread]:
    with router(RealCluster(engines), folder / "records.jsonl", watch=WATCH, policy="round-robin") as running:
        yield running


@pytest.fixture
def served(cluster: Cluster, tmp_path: Path) -> Iterator[RouterThread]:
    """A router in front of all engines."""
    with serving(cluster, tmp_path) as running:
        yield running


@pytest.fixture
def served_pair(pair: Cluster, tmp_path: Path) -> Iterator[RouterThread]:
    """A router in front of one prefill and one decode engine."""
    with serving(pair, tmp_path) as running:
        yield running


@pytest.fixture
def door(served: RouterThread) -> Door:
    return Door(served.clients)


def records(served: RouterThread) -> dict[str, Body]:
    """The records so far by request id; each request has one."""

    async def flush() -> None:
        assert served.service.records.flush()

    asyncio.run_coroutine_threadsafe(flush(), served.loop).result(LIMIT_S)
    rows = [row for row in record_log.read(served.records) if "kind" not in row]
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows), "a request has two records"
    return by_id


async def settled(client: Client, served: RouterThread, engines: list[RealEngine]) -> None:
    """Nothing is in flight, and no engine holds a block."""

    async def idle() -> bool:
        return served.service.in_flight == 0

    await until(idle, "no request is in flight")
    assert served.service.router.state.in_flight == 0
    for engine in engines:
        await until(lambda engine=engine: client.blocks_free(engine), f"{engine} holds no block")
        assert await client.running(engine) == 0


async def asked(client: Client, door: Door, body: Body) -> Answer:
    """An answer; a connection that breaks is an answer that was refused, but says so by an error here."""
    return await client.ask(door, body)


def checked(answers: list[Answer], prompts: list[list[int]], count: int) -> int:
    """Every answer is right or says that it is none; returns how many are right."""
    right = 0
    for answer, prompt in zip(answers, prompts, strict=True):
        if not answer.refused:
            assert answer.tokens == continuation(prompt, count)
            right += 1
    return right


def test_requests_of_every_kind_are_answered_as_by_one_engine(
    cluster: Cluster, served: RouterThread, door: Door
) -> None:
    async def test(client: Client) -> None:
        text = "".join(chr(token - 3) for token in new_prompt(90))
        options = {"max_tokens": 20, "ignore_eos": True}
        kinds: list[tuple[Body, str]] = [
            ({"prompt": new_prompt(100)}, COMPLETIONS),
            ({"prompt": new_prompt(700)}, COMPLETIONS),
            ({"prompt": text}, COMPLETIONS),
            ({"messages": [{"role": "user", "content": text[::-1]}]}, CHAT),
        ]
        for body, path in kinds:
            for stream in (False, True):
                for _ in range(2):  # once on each decode engine
                    name = f"{len(records(served))}"
                    through = await client.ask(door, {"id": name, "stream": stream} | body | options, path)
                    alone = await client.ask(cluster.prefill, body | options | {"stream": stream}, path)
                    assert through.tokens == alone.tokens and through.text == alone.text, (body, stream)
                    assert len(through.tokens) == 20 and through.finish_reason == "length"
        rows = records(served)
        assert len(rows) == 16 and all(row["status"] == "finished" for row in rows.values())
        assert {row["generated"] for row in rows.values()} == {20}
        assert {row["decode"] for row in rows.values()} == {"decode/0", "decode/1"}
        assert rows["0"]["prompt"] == 100
        await settled(client, served, cluster.engines)

    run(test)


def test_the_first_token_of_a_stream_is_seen_by_the_record(served: RouterThread, door: Door) -> None:
    async def test(client: Client) -> None:
        await client.ask(door, {"id": "one", "prompt": new_prompt(64), "max_tokens": 8, "stream": True})
        row = records(served)["one"]
        times = [row[key] for key in ("arrival", "prefill_start", "prefill_end", "decode_start", "first_token", "end")]
        assert times == sorted(times) and times[0] >= 0

    run(test)


def test_many_requests_at_the_same_time_are_all_answered_rightly(
    cluster: Cluster, served: RouterThread, door: Door
) -> None:
    async def test(client: Client) -> None:
        prompts = [new_prompt(length) for length in (20, 70, 130, 300) * 4]
        bodies = [
            {"id": f"{k}", "prompt": prompt, "max_tokens": 8, "ignore_eos": True, "stream": k % 2 == 0}
            for k, prompt in enumerate(prompts)
        ]
        answers = await asyncio.gather(*(client.ask(door, body) for body in bodies))
        assert checked(answers, prompts, 8) == 16
        assert {row["status"] for row in records(served).values()} == {"finished"}
        await settled(client, served, cluster.engines)

    run(test)


def test_a_client_that_goes_during_its_stream_frees_the_blocks(
    cluster: Cluster, served: RouterThread, door: Door
) -> None:
    async def test(client: Client) -> None:
        async def leaves(name: str) -> bool:
            body = {"id": name, "prompt": new_prompt(400), "max_tokens": 1600, "ignore_eos": True}
            async with first_token(client, door, body):
                pass  # Nothing is asked here: the answer is over within seconds.
            await settled(client, served, cluster.engines)
            row = records(served)[name]
            assert row["first_token"] >= row["arrival"] and row["status"] in ("cancelled", "finished")
            return bool(row["status"] == "cancelled")

        # An engine whose server gets no processor sends all its tokens at once, perhaps before the client has left.
        assert any([await leaves(f"gone-{k}") for k in range(5)])

    run(test)


def test_clients_that_go_during_prefill_leave_nothing_behind(
    cluster: Cluster, served: RouterThread, door: Door
) -> None:
    async def test(client: Client) -> None:
        bodies = [{"id": f"{k}", "prompt": new_prompt(1900), "max_tokens": 8} for k in range(8)]
        tasks = [asyncio.create_task(client.ask(door, body)) for body in bodies]

        async def busy() -> bool:
            waits = await client.metric(cluster.prefill, "num_requests_waiting")
            return waits + await client.running(cluster.prefill) > 0

        await until(busy, "the prefill engine is at work")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settled(client, served, cluster.engines)
        rows = records(served)
        assert len(rows) == 8 and any(row["status"] == "cancelled" for row in rows.values())

    run(test)


def test_a_prompt_beyond_the_context_limit_is_the_clients_fault_alone(served: RouterThread, door: Door) -> None:
    async def test(client: Client) -> None:
        for k in range(5):
            answer = await client.ask(door, {"id": f"{k}", "prompt": new_prompt(2100), "max_tokens": 1})
            assert answer.status == 400 and answer.error is not None and "2048" in answer.error["message"]
        assert {engine.breaker.state for engine in served.service.engines} == {"closed"}
        assert {row["status"] for row in records(served).values()} == {"rejected"}

    run(test)


def test_kv_that_was_left_too_long_is_prefilled_again_and_never_read(
    cluster: Cluster, served: RouterThread, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hazard of `test_hazards`, with a router that was held up between the legs of one request."""
    relay = served.service.relay
    decode = relay._decode
    held = asyncio.Event()

    async def late(request: Any, *rest: Any) -> None:
        if request.id == "late" and not held.is_set():
            held.set()

            async def work(client: Client) -> None:
                await until(lambda: client.blocks_free(cluster.prefill), "the lease has ended")
                for _ in range(5):  # fills every block
                    await client.ask(cluster.prefill, {"prompt": new_prompt(2000), "max_tokens": 1})

            await asyncio.to_thread(run, work)
        await decode(request, *rest)

    monkeypatch.setattr(relay, "_decode", late)

    async def test(client: Client) -> None:
        before = await client.expired(cluster.prefill), await client.pulled_late(cluster.prefill)
        prompt = new_prompt(320)
        answer = await client.ask(door, {"id": "late", "prompt": prompt, "max_tokens": 8, "ignore_eos": True})
        assert held.is_set() and answer.tokens == continuation(prompt, 8)
        row = records(served)["late"]
        assert row["status"] == "finished" and row["attempts"] == 2
        after = await client.expired(cluster.prefill), await client.pulled_late(cluster.prefill)
        assert after == (before[0] + 1, before[1])  # it expired, and nobody came for it
        await settled(client, served, cluster.engines)

    run(test)


def test_parameters_without_the_name_of_the_request_reach_no_decode_engine(
    cluster: Cluster, served: RouterThread, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = HttpClient.fetch
    stripped: list[str] = []

    async def nameless(client: HttpClient, method: str, path: str, *rest: Any, **more: Any) -> Any:
        answer = await fetch(client, method, path, *rest, **more)
        if path == COMPLETIONS and not stripped:
            body = json.loads(answer.body)
            stripped.append(body["kv_transfer_params"].pop("remote_request_id"))
            answer = answer._replace(body=json.dumps(body).encode())
        return answer

    monkeypatch.setattr(HttpClient, "fetch", nameless)

    async def test(client: Client) -> None:
        prompt = new_prompt(100)
        answer = await client.ask(door, {"id": "one", "prompt": prompt, "max_tokens": 8, "ignore_eos": True})
        assert stripped and answer.tokens == continuation(prompt, 8)
        assert records(served)["one"]["attempts"] == 2
        await settled(client, served, cluster.engines)  # the first prefill's blocks at the end of their lease
        assert all(decode.healthy() for decode in cluster.decodes)

    run(test)


def test_a_decode_engine_killed_during_decode_breaks_its_own_streams_and_no_others(
    cluster: Cluster, served: RouterThread, door: Door
) -> None:
    async def test(client: Client) -> None:
        victim = cluster.decodes[0]
        prompts = [new_prompt(100) for _ in range(6)]
        bodies = [
            {"id": f"{k}", "prompt": prompt, "max_tokens": 600, "ignore_eos": True, "stream": k % 3 != 0}
            for k, prompt in enumerate(prompts)
        ]
        tasks = [asyncio.create_task(client.ask(door, body)) for body in bodies]

        async def decoding() -> bool:
            return await client.running(victim) > 0

        await until(decoding, "the engine decodes")
        victim.kill()
        answers = await asyncio.gather(*tasks)
        alone = await asyncio.gather(*(client.ask(cluster.decodes[1], body) for body in bodies))
        for body, answer, right in zip(bodies, answers, alone, strict=True):
            assert answer.tokens == right.tokens[: len(answer.tokens)]
            # What was not streamed, or had not begun, was done again elsewhere.
            assert len(answer.tokens) == 600 or (answer.refused and body["stream"] and answer.tokens)
        broken = [answer for answer in answers if answer.refused]
        assert len(broken) <= 3
        rows = records(served)
        assert sorted(rows) == sorted(body["id"] for body in bodies)
        assert sum(row["status"] == "failed" for row in rows.values()) == len(broken)
        # It goes on with the other engine.
        more = [new_prompt(60) for _ in range(6)]
        after = await asyncio.gather(
            *(client.ask(door, {"prompt": prompt, "max_tokens": 8, "ignore_eos": True}) for prompt in more)
        )
        assert checked(after, more, 8) == 6
        await settled(client, served, [cluster.prefill, cluster.decodes[1]])

    run(test)


def test_a_prefill_engine_killed_between_the_legs_gives_no_wrong_answer_and_the_router_serves_when_it_is_back(
    pair: Cluster, served_pair: RouterThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(served_pair.clients)
    relay = served_pair.service.relay
    decode = relay._decode
    arrived: list[str] = []

    async def killed_first(request: Any, *rest: Any) -> None:
        arrived.append(request.id)
        if len(arrived) == 3:
            pair.prefill.kill()
        await decode(request, *rest)

    monkeypatch.setattr(relay, "_decode", killed_first)

    async def test(client: Client) -> None:
        prompts = [new_prompt(100) for _ in range(6)]
        bodies = [
            {"id": f"{k}", "prompt": prompt, "max_tokens": 8, "ignore_eos": True, "stream": k % 2 == 0}
            for k, prompt in enumerate(prompts)
        ]
        answers = await asyncio.gather(*(client.ask(door, body) for body in bodies))
        right = checked(answers, prompts, 8)
        rows = records(served_pair)
        assert sorted(rows) == [f"{k}" for k in range(6)]
        # Those whose decode leg finds the prefill engine dead are computed again by this decode engine.
        assert len(arrived) >= 3 and sum(row["status"] == "finished" for row in rows.values()) == right
        # Without a prefill engine it says so.
        refused = await client.ask(door, {"prompt": new_prompt(20), "max_tokens": 1})
        assert refused.status in (502, 503)
        pair.prefill.start()  # from the thread with which it ends
        await asyncio.to_thread(pair.prefill.wait_ready, START_S)

        async def back() -> bool:
            return served_pair.service.engine("prefill/0").health == "up"

        await until(back, "the router sees that the engine is back")
        prompt = new_prompt(100)
        again = await client.ask(door, {"prompt": prompt, "max_tokens": 8, "ignore_eos": True})
        assert again.tokens == continuation(prompt, 8)
        await settled(client, served_pair, pair.engines)

    run(test)


def test_the_official_client_of_openai_is_served_streamed_and_not(
    pair: Cluster, served_pair: RouterThread
) -> None:
    door = Door(served_pair.clients)
    text = "".join(chr(token - 3) for token in new_prompt(90))
    extra = {"ignore_eos": True, "return_token_ids": True}
    with openai.OpenAI(base_url=f"{door.url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        options: Any = {"model": "tiny", "max_tokens": 12, "temperature": 0, "extra_body": extra}
        whole = client.completions.create(prompt=text, **options)
        pieces = client.completions.create(prompt=text, stream=True, **options)
        assert whole.usage is not None and whole.usage.completion_tokens == 12
        assert whole.choices[0].token_ids == continuation(tokens_of(text), 12)  # type: ignore[attr-defined]
        assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
        messages: Any = [{"role": "user", "content": text}]
        chat = client.chat.completions.create(messages=messages, **options)
        parts = client.chat.completions.create(messages=messages, stream=True, **options)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == chat.choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="2048"):
            client.completions.create(prompt=text * 30, **options)


def test_the_benchmark_of_vllm_runs_against_the_router(
    python: Path, model: Path, served_pair: RouterThread, tmp_path: Path
) -> None:
    door = Door(served_pair.clients)
    program = (
        "from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser\n"
        "from vllm.benchmarks.serve import add_cli_args, main\n"
        "parser = Parser()\nadd_cli_args(parser)\nmain(parser.parse_args())\n"
    )
    words = ["--backend", "openai", "--base-url", door.url, "--endpoint", "/v1/completions", "--model", "tiny"]
    words += ["--tokenizer", str(model), "--dataset-name", "random", "--random-input-len", "64"]
    words += ["--random-output-len", "16", "--num-prompts", "16", "--max-concurrency", "4", "--ignore-eos"]
    words += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json", "--disable-tqdm"]
    done = subprocess.run([python, "-c", program, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == 16 and result.get("failed", 0) == 0
    assert result["total_output_tokens"] == 16 * 16
    rows = records(served_pair)
    assert len(rows) >= 16 and {row["status"] for row in rows.values()} == {"finished"}
    assert sum(row["generated"] == 16 and row["streamed"] for row in rows.values()) >= 16
