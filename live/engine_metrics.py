"""What an engine says of itself in `/metrics`, by vLLM's names.

A metric that is not there is an error that names it, never a zero: a router that reads zeros sends everything to the
engine that it cannot see.
"""

from __future__ import annotations

import re
from typing import NamedTuple

USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
"""KV usage, 0 to 1: the name since vLLM 0.10, and the one before."""

RUNNING = (b"vllm:num_requests_running",)
WAITING = (b"vllm:num_requests_waiting",)
CACHE = (b"vllm:cache_config_info",)

_LABEL = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')


class MissingMetric(ValueError):
    """An engine does not export what the router needs."""


class Reported(NamedTuple):
    """What an engine reports at a poll.

    Attributes:
        usage: part of its KV blocks in use, 0 to 1.
        running: requests.
        waiting: requests.
    """

    usage: float
    running: int
    waiting: int


def reported(text: bytes) -> Reported:
    """The gauges that a router polls.

    Several engines behind one server (data parallel) are taken together: mean usage, sums of requests.

    Args:
        text: Prometheus exposition.

    Raises:
        MissingMetric: one is not there; the message names it.
    """
    usage = values(text, USAGE)
    running, waiting = sum(values(text, RUNNING)), sum(values(text, WAITING))
    return Reported(sum(usage) / len(usage), int(running), int(waiting))


def cache_size(text: bytes) -> tuple[int, int]:
    """Tokens per KV block, and usable blocks (vLLM keeps one of those it counts for itself).

    Raises:
        MissingMetric: the engine does not say so.
    """
    labels: dict[bytes, bytes] = {}
    for name in CACHE:
        for line in _lines(text, name):
            labels |= dict(_LABEL.findall(line))
    found = []
    for label in (b"block_size", b"num_gpu_blocks"):
        if not labels.get(label, b"").isdigit():
            raise MissingMetric(f"{CACHE[0].decode()} has no number in its label {label.decode()}")
        found.append(int(labels[label]))
    return found[0], max(found[1] - 1, 1)


def values(text: bytes, names: tuple[bytes, ...]) -> list[float]:
    """Values of the first of these metrics that is there, one per set of labels.

    Raises:
        MissingMetric: none is there, or its value is no number; the message names it.
    """
    for name in names:
        lines = _lines(text, name)
        if lines:
            try:
                return [float(line.rsplit(b" ", 1)[1]) for line in lines]
            except (ValueError, IndexError):
                raise MissingMetric(f"{name.decode()} has a line that is no number: {lines[0][:100]!r}") from None
    raise MissingMetric(f"there is no {' or '.join(name.decode() for name in names)}")


def _lines(text: bytes, name: bytes) -> list[bytes]:
    """The lines of a metric."""
    found, at = [], 0
    while (at := text.find(name, at)) >= 0:
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        after = text[at + len(name) : at + len(name) + 1]
        if (at == 0 or text[at - 1 : at] == b"\n") and after in (b"{", b" "):
            found.append(text[at:end].strip())
        at = end
    return found
