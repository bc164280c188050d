"""Gates open for engines that pass KV as it was, and name the pair, the place and both outputs where they do not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from disaggroute.live import probe as probe_module
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.engine import Unfit
from disaggroute.live.gate.gates import run_gates
from disaggroute.live.gate.report import GateReport
from disaggroute.live.http_client import Unreachable
from disaggroute.live.probe import Busy

from ..emulator import engines as emulated
from ..scripted_engine import MODEL, drop, refuse, without
from ..speaking_engine import follows, load, speaking, speaks
from ..waiting import run

NAMES = {
    "counts": "exact token counts",
    "model": "the output depends on the whole prompt",
    "alone": "the same output from every engine alone",
    "pairs": "the same output from every pair",
}


async def gates(cluster: LiveCluster) -> GateReport:
    told: list[str] = []
    report = await run_gates(cluster, tell=told.append, seed=1)
    assert [line.removeprefix("gate: ") for line in told] == [c.name for c in report.checks if c.verdict != "not run"]
    return report


def verdicts(report: GateReport) -> list[str]:
    return [check.verdict for check in report.checks]


def two_legged(body: dict[str, Any]) -> bool:
    return bool((body.get("kv_transfer_params") or {}).get("do_remote_prefill"))


@pytest.mark.parametrize(
    ("topology", "checks", "pairs"), [({"prefill": 2, "decode": 2}, 5, 4), ({"mixed": 2}, 4, 0)]
)
def test_engines_that_do_as_they_should_pass(topology: dict[str, int], checks: int, pairs: int) -> None:
    async def story() -> None:
        async with speaking(topology) as (cluster, engines):
            report = await gates(cluster)
            assert report.passed and not report.problems and verdicts(report) == ["passed"] * checks
            assert len(report.warm_ups) == (pairs or 2) and all(each.second_s > 0 for each in report.warm_ups)
            sent = [tuple(body["prompt"]) for engine in engines for body in engine.legs if two_legged(body)]
            assert len(set(sent)) == len(sent), "a prefix cache could hold what should be pulled"
            content = json.loads(report.json_bytes())
            assert content["passed"] is True and len(content["checks"]) == checks
            assert len(report.tables()) == 2

    run(story())


def test_kv_that_arrives_wrong_names_the_pair_the_token_and_both_outputs() -> None:
    def forgets(body: dict[str, Any]) -> list[int]:
        said = follows(body)
        if two_legged(body) and len(said) > 5:
            said[4] = 7
        return said

    async def story() -> None:
        async with speaking({"prefill": 1, "decode": 2}) as (cluster, engines):
            engines[2].always = speaks(forgets)
            report = await gates(cluster)
            assert not report.passed and verdicts(report) == ["passed"] * 4 + ["failed"]
            assert len(report.problems) == 3  # One for each length; the other pair is right.
            first = report.problems[0]
            assert first.startswith("prefill/0 → decode/1: token 5 after a prompt of 15 tokens differs")
            prompt = next(body["prompt"] for body in engines[2].legs if two_legged(body) and body["max_tokens"] == 24)
            right = follows({"prompt": prompt, "max_tokens": 24})
            assert f"decode/0 alone said {' '.join(map(str, right))}" in first
            assert " ".join(map(str, [*right[:4], 7, *right[5:]])) in first

    run(story())


def test_engines_whose_tokens_are_not_told_are_compared_by_their_text() -> None:
    async def story() -> None:
        async with speaking({"prefill": 1, "decode": 2}) as (cluster, engines):
            for engine in engines:
                engine.always = speaks(told=False)
            assert (await gates(cluster)).passed
            engines[1].always = speaks(lambda body: [*follows(body)[:-1], 40], told=False)
            report = await gates(cluster)
            assert [c.name for c in report.checks if c.verdict == "failed"] == [NAMES["alone"]]
            assert "character 24 after a prompt of 15 tokens differs" in report.problems[0]

    run(story())


def test_a_model_that_repeats_its_prompt_is_refused_because_it_would_pass_with_any_kv() -> None:
    async def story() -> None:
        async with speaking({"prefill": 1, "decode": 1}) as (cluster, engines):
            for engine in engines:
                engine.always = speaks(lambda body: body["prompt"][-1:] * body["max_tokens"])
            report = await gates(cluster)
            assert not report.passed
            assert verdicts(report) == ["passed", "passed", "refused", "not run", "not run"]
            assert "the model repeats itself whatever its prompt begins with: 8 prompts" in report.problems[0]
            assert "gave 1 different outputs" in report.problems[0]

    run(story())


@pytest.mark.parametrize(
    ("counts", "words"),
    [((1, 0), "usage.prompt_tokens is 2"), ((0, 1), "1 asked for, streamed: usage.completion_tokens is 2")],
)
def test_counts_that_are_not_exact_are_named(counts: tuple[int, int], words: str) -> None:
    async def story() -> None:
        async with speaking({"prefill": 1, "decode": 1}) as (cluster, engines):
            engines[1].always = speaks(counts=counts)
            report = await gates(cluster)
            assert verdicts(report) == ["passed", "failed", "not run", "not run", "not run"]
            assert report.problems[0].startswith("prefill/0 → decode/0: a prompt of 1 tokens")
            assert words in report.problems[0]

    run(story())


def test_an_answer_that_is_a_token_short_is_named() -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines):
            engines[0].always = speaks(lambda body: follows(body)[: max(1, body["max_tokens"] - 1)])
            report = await gates(cluster)
            assert "2 asked for, streamed: 1 tokens came" in " ".join(report.problems)

    run(story())


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (without(remote_request_id=None), "remote_request_id is missing"),
        (refuse(500, "out of order"), "prefill/1 answers 500: out of order"),
        (drop, "prefill/1: http"),
    ],
)
def test_a_pair_over_which_nothing_comes_is_named_and_the_other_is_warm(act: Any, words: str) -> None:
    async def story() -> None:
        async with speaking({"prefill": 2, "decode": 1}) as (cluster, engines):
            engines[1].always = act
            report = await gates(cluster)
            assert verdicts(report) == ["failed", *["not run"] * 4]
            (problem,) = report.problems
            assert problem.startswith("prefill/1 → decode/0: ") and words in problem
            assert [each.name for each in report.warm_ups] == ["prefill/0 → decode/0"]

    run(story())


def test_a_reference_out_of_the_prefix_cache_proves_nothing() -> None:
    async def story() -> None:
        async with speaking({"prefill": 1, "decode": 1}) as (cluster, engines):
            engines[1].always = speaks(cached=16)
            report = await gates(cluster)
            assert verdicts(report)[-1] == "refused"
            assert "decode/0 alone took 16 tokens from its prefix cache" in report.problems[0]
            # Where the only decode engine cannot forget, the prefill engine goes on from its own KV instead.
            engines[1].says["/reset_prefix_cache"] = 404, b""
            assert (await gates(cluster)).passed

    run(story())


@pytest.mark.parametrize(("running", "waiting"), [(1, 0), (0, 2)])
def test_a_cluster_under_load_is_refused(running: int, waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "SETTLE_S", 0.1)

    async def story() -> None:
        async with speaking({"mixed": 2}) as (cluster, engines):
            engines[1].metrics = load(running, waiting)
            words = rf"mixed/1 is under load \({running} requests running, {waiting} waiting\)"
            with pytest.raises(Busy, match=words):
                await gates(cluster)

    run(story())


def test_an_engine_that_is_not_there_or_another_one_is_refused() -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines):
            with pytest.raises(Unfit, match=f"mixed/0 .* serves {MODEL}; the cluster's model is big"):
                await gates(cluster.model_copy(update={"model": "big"}))
            await engines[0].kill()
            with pytest.raises(Unreachable, match=rf"is not up \(mixed/0: {engines[0].url}"):
                await gates(cluster)

    run(story())


def test_too_small_a_context_is_refused() -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}, max_model_len=255) as (cluster, _):
            with pytest.raises(ValueError, match=r"take 255 tokens .* at least 256 are needed"):
                await gates(cluster)

    run(story())


def test_emulated_engines_pass() -> None:
    async def story() -> None:
        given = [emulated.options("prefill"), emulated.options("decode"), emulated.options("decode")]
        async with emulated.serving(*given) as (engines, _):
            pools = {"prefill": [{"url": engines[0].url}], "decode": [{"url": e.url} for e in engines[1:]]}
            fields = {"model": "tiny", "profile": "a40-qwen2.5-3b", "time_scale": emulated.FAST, **pools}
            report = await gates(LiveCluster.load(fields))
            assert report.passed, report.problems

    run(story())


def test_kv_that_was_fetched_after_its_lease_and_overwritten_is_seen() -> None:
    """As engines do it: 200, the right number of tokens, and another prompt's answer."""

    async def story() -> None:
        small = {"kv_tokens": 1024, "lease_s": 1.0}
        given = [emulated.options("prefill", overrides=small), emulated.options("decode")]
        async with emulated.serving(*given) as (engines, (first, _)), asyncio.TaskGroup() as group:
            pools = {"prefill": [{"url": engines[0].url}], "decode": [{"url": engines[1].url}]}
            fields = {"model": "tiny", "profile": "a40-qwen2.5-3b", "time_scale": emulated.FAST, **pools}
            over = asyncio.Event()

            async def others() -> None:
                await first.fault("late_kv_params", seconds=2.0)
                while not over.is_set():
                    await first.complete([20] * 500, 1)

            def tell(text: str) -> None:
                if NAMES["pairs"] in text:
                    group.create_task(others())

            report = await run_gates(LiveCluster.load(fields), tell=tell)
            over.set()
            assert verdicts(report) == ["passed"] * 4 + ["failed"]
            assert report.problems[0].startswith("prefill/0 → decode/0: token ")

    run(story())
