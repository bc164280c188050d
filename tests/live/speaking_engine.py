"""Scripted engines that speak: exact lengths, tokens that follow from the prompt, idle unless told otherwise."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.emulator import tokens

from .scripted_engine import MODEL, STREAM, Act, ScriptedEngine, Writer, chunk, event, metrics, parameters, whole

Speech = Callable[[dict[str, Any]], list[int]]


def follows(body: dict[str, Any]) -> list[int]:
    """Tokens that depend on the whole prompt."""
    answer = tokens.Answer(tokens.digest(body["prompt"]))
    return [answer.next_token() for _ in range(body["max_tokens"])]


def speaks(speech: Speech = follows, *, counts: tuple[int, int] = (0, 0), told: bool = True, cached: int = 0) -> Act:
    """What an engine answers.

    Args:
        speech: the tokens.
        counts: by how much the counts of prompt and output are wrong.
        told: whether token ids are told.
        cached: prompt tokens that it says it had in its prefix cache.
    """

    async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
        said = speech(body)
        usage = {"prompt_tokens": len(body["prompt"]) + counts[0], "completion_tokens": len(said) + counts[1]}
        more: dict[str, Any] = {"usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}}}
        choices = [{"index": 0, "text": tokens.decode(said), "token_ids": said if told else None}]
        if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            more["kv_transfer_params"] = parameters(engine)
        if not body["stream"]:
            await whole(writer, 200, json.dumps({"choices": choices, **more}).encode())
            return
        writer.write(STREAM)
        for token in said:
            one = {"index": 0, "text": tokens.decode([token]), "token_ids": [token] if told else None}
            writer.write(chunk(event({"choices": [one]})))
        writer.write(chunk(event({"choices": [], **more}) + event("[DONE]")) + b"0\r\n\r\n")
        await writer.drain()

    return act


def load(running: int = 0, waiting: int = 0) -> bytes:
    """Metrics of an engine with so many requests."""
    text = metrics().replace(b"running{engine=\"0\",model_name=\"tiny\"} 3.0", b"running %d" % running)
    return text.replace(b"waiting{engine=\"0\",model_name=\"tiny\"} 2.0", b"waiting %d" % waiting)


@asynccontextmanager
async def speaking(topology: dict[str, int], **fields: Any) -> AsyncIterator[tuple[LiveCluster, list[ScriptedEngine]]]:
    """A cluster of them: engines by role, in the order of the roles; `fields` are the cluster's."""
    async with AsyncExitStack() as stack:
        engines: list[ScriptedEngine] = []
        pools: dict[str, list[dict[str, str]]] = {}
        for role, count in topology.items():
            for _ in range(count):
                engine = await stack.enter_async_context(ScriptedEngine())
                engine.metrics, engine.always = load(), speaks()
                engines.append(engine)
                pools.setdefault(role, []).append({"url": engine.url})
        base = {"name": "scripted", "model": MODEL, "profile": "a40-qwen2.5-3b"}
        yield LiveCluster.load({**base, **pools, **fields}), engines
