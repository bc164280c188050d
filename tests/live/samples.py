"""Answers of vLLM 0.32.0 with NIXL 1.5.1 to a tiny model, as they came (tests/live/data)."""

from __future__ import annotations

from pathlib import Path

from disaggroute.live.http_client import Answer

DATA = Path(__file__).parent / "data"


def sample(name: str) -> Answer:
    """The answer in `data/NAME.http`; a body that came in chunks stands there without their lengths."""
    head, _, body = (DATA / f"{name}.http").read_bytes().partition(b"\n\n")
    first, *lines = head.split(b"\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines)
    return Answer(int(first.split()[1]), headers, body)


def metrics(role: str) -> bytes:
    """What a prefill or a decode engine exports, without most histograms."""
    return (DATA / f"metrics_{role}.txt").read_bytes()
