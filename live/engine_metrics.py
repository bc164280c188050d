"""What an engine says of itself in `/metrics`, by vLLM's names.

A metric that is not there is an error that names it, never a zero: a router that reads zeros sends everything to the
engine that it cannot see.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .excerpt import excerpt

USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
"""KV usage, 0 to 1: the name since vLLM 0.10, and the one before."""

RUNNING = (b"vllm:num_requests_running",)
WAITING = (b"vllm:num_requests_waiting",)
CACHE = (b"vllm:cache_config_info",)

MOST = 1e9
"""Requests that an engine may have."""

_LABEL = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(rb'(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?[ \t]+(\S+)')
"""What follows a metric's name: labels and a value, perhaps with a time behind it."""


class MissingMetric(ValueError):
    """An engine does not export what the router needs, or it is nothing that can be counted with."""


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
    usage = values(text, USAGE, 1.0)
    running, waiting = sum(values(text, RUNNING)), sum(values(text, WAITING))
    return Reported(sum(usage) / len(usage), int(running), int(waiting))


def cache_size(text: bytes) -> tuple[int, int]:
    """Tokens per KV block, and usable blocks (vLLM keeps one of those it counts for itself).

    Several engines behind one server each state the blocks of all of them.

    Raises:
        MissingMetric: the engine does not say so.
    """
    lines = next((lines for name in CACHE if (lines := _lines(text, name))), [])
    if not lines:
        raise MissingMetric(f"there is no {CACHE[0].decode()}")
    labels = dict(_LABEL.findall(lines[-1]))
    found = []
    for label in (b"block_size", b"num_gpu_blocks"):
        value = labels.get(label, b"")
        if not re.fullmatch(rb"[0-9]{1,9}", value) or not int(value):
            raise MissingMetric(f"{CACHE[0].decode()} has no number in its label {label.decode()}")
        found.append(int(value))
    return found[0], max(found[1] - 1, 1)


def values(text: bytes, names: tuple[bytes, ...], most: float = MOST) -> list[float]:
    """Values of the first of these metrics that is there, one per set of labels.

    Args:
        text: Prometheus exposition.
        names: of the metric, newest first.
        most: what a value may be.

    Raises:
        MissingMetric: none is there, or its value is no number from 0 to that; the message names it.
    """
    for name in names:
        lines = _lines(text, name)
        if lines:
            return [_value(name, line, most) for line in lines]
    raise MissingMetric(f"there is no {' or '.join(name.decode() for name in names)}")


def _value(name: bytes, line: bytes, most: float) -> float:
    sample = _SAMPLE.match(line, len(name))
    try:
        value = float(sample[1]) if sample else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # NaN neither
        raise MissingMetric(f"{name.decode()} is no number from 0 to {most:g}: {excerpt(line)}")
    return value


def _lines(text: bytes, name: bytes) -> list[bytes]:
    """The lines of a metric: they start with its name and go on with labels or a space, not with more of a name."""
    found, at = [], 0
    while (at := text.find(name, at)) >= 0:
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        after = text[at + len(name) : at + len(name) + 1]
        if (at == 0 or text[at - 1 : at] == b"\n") and after in (b"{", b" ", b"\t"):
            found.append(text[at:end].strip())
        at = end
    return found
