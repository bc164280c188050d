"""Engines that answer nonsense: every request has an answer and a record, and nothing stays in the ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from disaggroute.live.request import Request

from .proxy_client import routed
from .scripted_engine import Act, ScriptedEngine, Writer, event, piece, stream, whole, without

HTML = b"<!doctype html>\n\n<p>Sign in to the network</p>\n\n"

DONE = event("[DONE]")


def says(body: bytes, status: int = 200) -> Act:
    async def act(engine: ScriptedEngine, fields: dict[str, Any], writer: Writer) -> None:
        await whole(writer, status, body)

    return act


def counts(tokens: str) -> bytes:
    return event('{"choices":[],"usage":{"completion_tokens":' + tokens + "}}")


WHOLE: dict[str, Act] = {
    "html": says(HTML),
    "half": says(b'{"id": "cmpl-1", "choices": [{"te'),
    "nothing": says(b""),
    "list": says(b"[]"),
    "redirect": says(HTML, 302),
    "count": says(b'{"choices":[],"usage":{"completion_tokens":99999999999}}'),
    "negative": says(b'{"choices":[],"usage":{"completion_tokens":-7}}'),
}

STREAMS: dict[str, Act] = {
    "html": says(HTML),
    "nothing": says(b""),
    "end alone": stream(DONE),
    "count": stream(piece("a"), counts("99999999999999999999999999"), DONE),
    "text": stream(piece("a"), counts('"many"'), DONE),
    "null": stream(piece("a"), counts("null"), DONE),
    "negative": stream(piece("a"), counts("-3"), DONE),
    "fraction": stream(piece("a"), counts("1.5"), DONE),
    "list": stream(piece("a"), counts("[1]"), DONE),
    "infinite": stream(piece("a"), counts("Infinity"), DONE),
    "deep": stream(piece("a"), event("[" * 100_000 + "]" * 100_000), DONE),
    "long number": stream(piece("a"), event("9" * 5_000), DONE),
    "deep error": stream(piece("a"), event('{"error":' + "[" * 900 + "]" * 900 + "}"), DONE),
}


@pytest.mark.parametrize("pools", ["1P2D", "2M"])
@pytest.mark.parametrize(
    ("streamed", "name"), [*((False, name) for name in WHOLE), *((True, name) for name in STREAMS)]
)
def test_whatever_an_engine_answers_the_request_ends_and_is_recorded(
    pools: str, streamed: bool, name: str, tmp_path: Path
) -> None:
    act = (STREAMS if streamed else WHOLE)[name]

    async def main() -> None:
        async with routed(pools, path=tmp_path / "r.jsonl", faults=1_000) as setup:
            engine = setup.engines["decode/0" if pools == "1P2D" else "mixed/0"]
            engine.always = act
            for _ in range(3):  # round-robin meets it
                answer = await setup.ask({"prompt": [1, 2, 3], "max_tokens": 3, "stream": streamed})
                assert answer.status in (200, 502)
                if answer.status != 200 or not streamed:
                    assert isinstance(answer.json, dict)
            assert engine.legs
            assert setup.service.router.in_flight == 0 and setup.service.in_flight == 0
            records = setup.records()
            assert len(records) == 3
            assert all(record["http_status"] in (200, 502) and -1 <= record["generated"] < 2**31 for record in records)
            assert not [record for record in records if "Error" in (record["error"] or "")]

    asyncio.run(main())


def test_a_handover_that_cannot_be_passed_on_is_a_fault_of_its_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with routed("2P1D", path=tmp_path / "r.jsonl") as setup:
            deep: Any = []
            for _ in range(300):
                deep = [deep]
            setup.engines["prefill/0"].always = without(extra=deep)
            for _ in range(2):
                assert (await setup.ask({"prompt": [1, 2, 3], "max_tokens": 3})).status == 200
            assert setup.service.router.in_flight == 0
            faults = [fault for record in setup.records() for fault in record["faults"]]
            assert set(faults) == {"prefill/0: kv_transfer_params cannot be passed on"}

    asyncio.run(main())


def test_a_request_that_fails_inside_the_router_is_recorded(tmp_path: Path) -> None:
    class Broken:
        async def count(self, request: Request) -> int:
            raise KeyError("a mistake of ours")

    async def main() -> None:
        async with routed("1P1D", path=tmp_path / "r.jsonl") as setup:
            setup.service.tokenizer = Broken()
            assert (await setup.ask({"prompt": "a", "max_tokens": 3})).status == 500
            assert [record["error"] for record in setup.records()] == ["KeyError: 'a mistake of ours'"]

    asyncio.run(main())
