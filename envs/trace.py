"""A trace: the requests that drive a run, as arrays sorted by arrival."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .cluster import MAX_TIME_PS, Cluster
from .time_limits import check_spans, egress_fits

TIGHT, LOOSE = 0, 1
SLO_CLASSES = ("tight", "loose")
"""Names of the SLO classes, by their index in `Trace.slo`."""


MAX_TARGET_PS = 1 << 59
"""Longest TTFT target, and TPOT target times output tokens (6.7 days): reports multiply them by up to 12."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests sorted by arrival.

    Attributes:
        arrival: (N,) ps, sorted, ≥ 0.
        prompt: (N,) tokens, ≥ 1.
        output: (N,) tokens, ≥ 1.
        slo: (N,) index into SLO_CLASSES.
        family: (N,) index into `families`.
        ttft_target: (N,) ps.
        tpot_target: (N,) ps.
        families: names of the workload families.
        name: for messages and reports.
        prefix_offsets: (N + 1,) into `prefix_ids`, or None.
        prefix_ids: ids of the prompt's prefix blocks (for prefix caching).
    """

    arrival: npt.NDArray[np.int64]
    prompt: npt.NDArray[np.int32]
    output: npt.NDArray[np.int32]
    slo: npt.NDArray[np.int8]
    family: npt.NDArray[np.int8]
    ttft_target: npt.NDArray[np.int64]
    tpot_target: npt.NDArray[np.int64]
    families: tuple[str, ...] = ("trace",)
    name: str = "trace"
    prefix_offsets: npt.NDArray[np.int64] | None = None
    prefix_ids: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Checks shapes and ranges.

        Raises:
            ValueError: a column has another length, is unsorted or out of range; names the request.
        """
        n = np.size(self.arrival)
        kinds = {"arrival": np.int64, "prompt": np.int32, "output": np.int32, "slo": np.int8}
        kinds |= {"family": np.int8, "ttft_target": np.int64, "tpot_target": np.int64}
        for key, dtype in kinds.items():
            object.__setattr__(self, key, _column(self.name, key, getattr(self, key), dtype, n))
        if n == 0:
            return
        # A least or largest value tells at once that all are in order; which is not is looked for only if one is.
        arrival = self.arrival
        unsorted = bool((arrival[1:] < arrival[:-1]).any())
        extremes = (arrival.min(), arrival.max()) if unsorted else (arrival[0], arrival[-1])
        if int(extremes[0]) < 0:
            _refuse(self.name, "arrival", arrival, arrival < 0, "must not be negative")
        if int(extremes[1]) > MAX_TIME_PS:
            _refuse(self.name, "arrival", arrival, arrival > MAX_TIME_PS, "lies beyond 100 days")
        if unsorted:
            _refuse(self.name, "arrival", arrival, np.diff(arrival, prepend=0) < 0, "is unsorted")
        for key in ("prompt", "output"):
            tokens = getattr(self, key)
            if int(tokens.min()) < 1:
                _refuse(self.name, key, tokens, tokens < 1, "must be at least 1 token")
        for key, count, why in (
            ("slo", len(SLO_CLASSES), "must be 0 (tight) or 1 (loose)"),
            ("family", len(self.families), f"must be an index below {len(self.families)}"),
        ):
            index = getattr(self, key)
            if int(index.view(np.uint8).max()) >= count:  # a negative one is larger than any
                _refuse(self.name, key, index, (index < 0) | (index >= count), why)
        for key, longest in (("ttft_target", 1), ("tpot_target", int(self.output.max()))):
            target = getattr(self, key)
            if int(target.view(np.uint64).max()) * longest <= MAX_TARGET_PS:  # likewise
                continue
            _refuse(self.name, key, target, target < 0, "must not be negative")
            most = MAX_TARGET_PS // (self.output.astype(np.int64) if longest > 1 else np.ones(n, np.int64))
            k = int(np.argmax(target > most))
            _refuse(self.name, key, target, target > most, f"must be at most {most[k]} ps")

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival)

    def select(self, which: npt.NDArray[np.bool_] | slice) -> Trace:
        """The requests picked by a mask or a slice, arrivals unchanged (prefix ids are dropped)."""
        columns = ("arrival", "prompt", "output", "slo", "family", "ttft_target", "tpot_target")
        picked = {key: getattr(self, key)[which] for key in columns}
        return replace(self, **picked, prefix_offsets=None, prefix_ids=None)

    def check_fits(self, cluster: Cluster) -> None:
        """Refuses a trace that holds a request which no instance choice could always serve.

        Raises:
            ValueError: names the first such request, what it needs and what the instance has; or an engine so
                slow that times could overflow.
        """
        if not len(self):
            return
        extremes = int(self.arrival[-1]), int(self.prompt.max()), int(self.output.max())
        if all_fit(cluster, *((1 << value.bit_length()) - 1 for value in extremes)):
            return
        tokens = self.prompt.astype(np.int64) + self.output
        longest = int(tokens.max())
        for role, need in slots_needed(self.prompt, self.output, cluster).items():
            most = int(need.max())
            for i, engine in enumerate(getattr(cluster, role)):
                if most <= engine.num_blocks * engine.block_size and longest <= engine.max_model_len:
                    continue
                blocks = -(-need // engine.block_size)
                for bad, what, wants, has in (
                    (blocks > engine.num_blocks, "KV blocks", blocks, engine.num_blocks),
                    (tokens > engine.max_model_len, "tokens of context", tokens, engine.max_model_len),
                ):
                    if bad.any():
                        k = int(np.argmax(bad))
                        raise ValueError(
                            f"{self.name}: request {k} ({self.prompt[k]} prompt + {self.output[k]} output tokens) "
                            f"needs {wants[k]} {what}; {role} instance {i} ({engine.name}) has {has}"
                        )
        check_spans(cluster, self.arrival, self.prompt, self.output)


@lru_cache(maxsize=256)
def all_fit(cluster: Cluster, last: int, prompt: int, output: int) -> bool:
    """Whether any trace up to an arrival (ps) fits a cluster, if its prompts and outputs have at most so many tokens.

    Asked of powers of two above a trace's extremes, it spares most traces the look at every request.
    """
    limit = np.iinfo(np.int32).max
    if max(prompt, output) > limit:
        return False
    longest, tokens = (np.array([count], np.int32) for count in (prompt, output))
    for role, need in slots_needed(longest, tokens, cluster).items():
        for engine in getattr(cluster, role):
            if need[0] > engine.num_blocks * engine.block_size or prompt + output > engine.max_model_len:
                return False
    arrivals = np.array([last], np.int64)
    if not egress_fits(cluster, arrivals):
        return False
    try:
        check_spans(cluster, arrivals, longest, tokens)
    except ValueError:
        return False
    return True


def slots_needed(
    prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32], cluster: Cluster
) -> dict[str, npt.NDArray[np.int64]]:
    """Tokens of KV that each request fills at most on an instance, by role (docs/model.md, "First token").

    Args:
        prompt: (N,) tokens.
        output: (N,) tokens.
        cluster: says which leg gives the first token.

    Returns:
        (N,) tokens for each of prefill, decode and mixed.
    """
    p, o = prompt.astype(np.int64), output.astype(np.int64)
    most = p + o - 1
    if cluster.first_token == "prefill":
        most = np.where(o > 1, np.maximum(most, p + 1), p)
    return {"prefill": p, "decode": most, "mixed": most}


def _column(name: str, key: str, given: object, dtype: npt.DTypeLike, requests: int) -> npt.NDArray[np.generic]:
    if type(given) is np.ndarray and given.dtype == dtype and given.shape == (requests,) and given.flags.c_contiguous:
        return given
    column = np.asarray(given)
    if column.shape != (requests,):
        raise ValueError(f"{name}: {key} has shape {column.shape}; it must be ({requests},)")
    if column.dtype.kind not in "iu" and requests:
        raise ValueError(f"{name}: {key} has dtype {column.dtype}; it must hold integers")
    limits = np.iinfo(dtype)
    if requests and column.dtype != dtype:
        _refuse(name, key, column, (column > limits.max) | (column < limits.min), f"must be at most {limits.max}")
    return np.ascontiguousarray(column, dtype)


def _refuse(name: str, column: str, values: npt.NDArray[np.generic], bad: npt.NDArray[np.bool_], why: str) -> None:
    if bad.any():
        k = int(np.argmax(bad))
        raise ValueError(f"{name}: {column} of request {k} is {values[k]}; it {why}")
