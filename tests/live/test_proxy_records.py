"""What the proxy keeps and shows: classes, hints, records, shadow, metrics, the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .proxy_client import PLAIN, STREAMED, Setup, run, until
from .scripted_engine import piece, stream


def test_a_request_that_the_router_itself_fails_is_recorded(tmp_path: Path) -> None:
    class Broken:
        async def count(self, request: Any) -> int:
            raise RuntimeError("a bug")

    async def test(setup: Setup) -> None:
        setup.service.tokenizer = Broken()
        got = await setup.ask({"prompt": "a text", "max_tokens": 4})
        assert got.status == 500 and "its log says more" in got.json["error"]["message"]
        record = setup.records()[0]
        assert (record["status"], record["http_status"], record["error"]) == ("failed", 500, "RuntimeError: a bug")

    run(test, path=tmp_path / "records.jsonl")


def test_class_and_length_come_by_header_or_metadata(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        await setup.ask(PLAIN, x_disaggroute_slo="tight", x_disaggroute_output_tokens="77")
        await setup.ask(PLAIN | {"metadata": {"slo": "tight", "output_tokens": 78}})
        await setup.ask(PLAIN)
        rows = [(r["slo"], r["predicted"]) for r in setup.records()]
        assert rows[:2] == [("tight", 77), ("tight", 78)]
        assert rows[2] == ("loose", 4)  # learned from the two
        got = await setup.ask(PLAIN, x_disaggroute_slo="urgent")
        assert got.status == 400 and "x-disaggroute-slo: unknown SLO class 'urgent'" in got.json["error"]["message"]

    run(test, path=tmp_path / "records.jsonl")


def test_a_record_has_all_times_in_order_and_no_prompt(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        await setup.ask({"prompt": "a secret text", "max_tokens": 4, "stream": True})
        record = setup.records()[0]
        names = ["arrival", "prefill_start", "prefill_end", "decode_start", "first_token", "last_token", "end"]
        times = [record[name] for name in names]
        assert times == sorted(times) and times[0] > 0
        assert record["prompt"] == 3 and record["generated"] == 4 and record["streamed"]
        assert "secret" not in json.dumps(record) and record["policy"] == "round-robin"
        assert record["ttft_target"] > 0 and record["max_stall"] >= 0

    run(test, path=tmp_path / "records.jsonl")


def test_a_record_holds_the_prompt_where_that_was_asked_for(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        await setup.ask({"prompt": "a text", "max_tokens": 4})
        assert setup.records()[0]["prompt_content"] == "a text"

    run(test, path=tmp_path / "records.jsonl", keep_prompts=True)


def test_the_file_of_records_says_what_it_is_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"

    async def test(setup: Setup) -> None:
        await setup.ask(PLAIN)

    run(test, path=path)
    run(test, path=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [("kind" in line) for line in lines] == [True, False, True, False]
    assert lines[0]["policy"] == "round-robin" and lines[0]["engines"][0]["name"] == "prefill/0"


def test_a_shadow_policy_decides_and_moves_nothing(tmp_path: Path) -> None:
    async def test(setup: Setup) -> None:
        for _ in range(4):
            assert (await setup.ask(PLAIN)).status == 200
        records = setup.records()
        assert all(record["shadow"][0] == "prefill/0" for record in records)
        assert all(record["shadow"][1].startswith("decode/") for record in records)
        assert [record["decode"] for record in records] == ["decode/0", "decode/1"] * 2
        assert b"disaggroute_shadow_decisions_total" in setup.service.metrics.text()

    run(test, path=tmp_path / "records.jsonl", shadow="least-loaded")


def test_metrics_count_what_happened() -> None:
    async def test(setup: Setup) -> None:
        await setup.ask(STREAMED, x_disaggroute_slo="tight")
        await setup.ask(PLAIN)
        await setup.ask({"prompt": [1] * 2_000})
        await until(lambda: all(engine.poll for engine in setup.service.engines))
        text = setup.service.metrics.text().decode()
        for line in (
            'disaggroute_requests_total{slo="tight",status="finished"} 1.0',
            'disaggroute_requests_total{slo="loose",status="finished"} 1.0',
            'disaggroute_requests_total{slo="loose",status="rejected"} 1.0',
            'disaggroute_tokens_total{kind="output"} 8.0',
            'disaggroute_tokens_total{kind="prompt"} 10.0',
            'disaggroute_ttft_seconds_count{slo="tight"} 1.0',
            'disaggroute_slo_met_total{slo="tight"} 1.0',
            'disaggroute_assigned_total{engine="prefill/0"} 2.0',
            'disaggroute_engine_kv_usage{engine="decode/1",role="decode"} 0.25',
            'disaggroute_engine_waiting{engine="decode/1",role="decode"} 2.0',
            "disaggroute_in_flight 0.0",
            "disaggroute_records_waiting 0.0",
        ):
            assert line in text, line

    run(test)


def test_the_ledger_follows_a_stream() -> None:
    async def test(setup: Setup) -> None:
        setup.engines["decode/0"].acts = [stream(piece("a"), piece("b"), then="hang")]
        call = setup.call(STREAMED, x_disaggroute_output_tokens="10")

        def row() -> dict[str, Any]:
            return setup.service.router.snapshot()[1]

        await until(lambda: row()["remaining_output"] == 8)
        assert (row()["in_flight"], row()["pending"], row()["context"], row()["committed"]) == (1, 0, 7, 15)
        assert setup.service.router.snapshot()[0]["queued"] == 0
        call.leave()
        await call.task
        assert row()["in_flight"] == row()["context"] == 0

    run(test)


def test_polls_reach_the_ledger() -> None:
    async def test(setup: Setup) -> None:
        def row() -> dict[str, Any]:
            return setup.service.router.snapshot()[1]

        await until(lambda: row()["used"] == 25)
        assert (row()["running"], row()["waiting"], row()["available"]) == (3, 2, 1)

    run(test)
