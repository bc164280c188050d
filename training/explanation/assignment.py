"""Which requests go where: each group's requests and tokens over the instances of a pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...envs.trace import SLO_CLASSES
from .recording import Recording

DECILES = 10

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupShares:
    """A group of requests over the instances of a pool.

    Attributes:
        kind: all, class, family, prompt or predicted.
        name: of the group; of a tenth its range in tokens.
        requests: of the group that were assigned.
        of_requests: (instances,) shares of them.
        of_tokens: (instances,) shares of their tokens: prompt on prefill instances, output elsewhere.
    """

    kind: str
    name: str
    requests: int
    of_requests: Floats
    of_tokens: Floats


@dataclass(frozen=True, eq=False)
class Requests:
    """The measured requests of all runs of a policy that were assigned, as columns of one length."""

    prompt: Integers
    output: Integers
    predicted: Integers
    slo: Integers
    family: Integers
    prefill: Integers
    decode: Integers
    families: tuple[str, ...]

    @staticmethod
    def of(recordings: Sequence[Recording]) -> Requests:
        """All of them, run after run."""
        families = tuple(dict.fromkeys(name for each in recordings for name in each.stored.trace.families))
        columns: dict[str, list[Integers]] = {name: [] for name in _COLUMNS}
        for each in recordings:
            stored = each.stored
            kept = stored.measured & (stored.records["decode"] >= 0)
            known = np.array([families.index(name) for name in stored.trace.families])
            values = {
                **{name: getattr(stored.trace, name) for name in ("prompt", "output", "slo")},
                **{name: stored.records[name] for name in ("predicted", "prefill", "decode")},
                "family": known[stored.trace.family],
            }
            for name in _COLUMNS:
                columns[name].append(values[name][kept].astype(np.int64))
        return Requests(**{name: np.concatenate(parts) for name, parts in columns.items()}, families=families)


_COLUMNS = ("prompt", "output", "predicted", "slo", "family", "prefill", "decode")


def shares(requests: Requests, pool: str, size: int, edges: dict[str, Floats]) -> list[GroupShares]:
    """Each group over the instances of a pool; groups without requests are left out.

    Args:
        requests: of a policy.
        pool: prefill, decode or mixed.
        size: instances of the pool.
        edges: of the tenths of prompt and predicted, as `tenths` gives them: the same for all policies.
    """
    chosen = requests.prefill if pool == "prefill" else requests.decode
    tokens = requests.prompt if pool == "prefill" else requests.output
    found = []
    for kind, name, mine in _groups(requests, edges):
        if mine.any():
            counts = np.bincount(chosen[mine], minlength=size).astype(np.float64)
            load = np.bincount(chosen[mine], weights=tokens[mine], minlength=size)
            found.append(GroupShares(kind, name, int(mine.sum()), counts / counts.sum(), load / load.sum()))
    return found


def tenths(requests: Requests) -> dict[str, Floats]:
    """Edges between the tenths of prompt and predicted tokens; fewer where many requests are alike."""
    levels = np.arange(1, DECILES) / DECILES
    return {
        name: np.unique(np.quantile(getattr(requests, name), levels, method="inverted_cdf"))
        for name in ("prompt", "predicted")
    }


def _groups(requests: Requests, edges: dict[str, Floats]) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
    yield "all", "all", np.ones(len(requests.slo), np.bool_)
    for k, name in enumerate(SLO_CLASSES):
        yield "class", name, requests.slo == k
    if len(requests.families) > 1:
        for k, name in enumerate(requests.families):
            yield "family", name, requests.family == k
    for kind, ends in edges.items():
        place = np.searchsorted(ends, getattr(requests, kind), side="left")
        for k in range(len(ends) + 1):
            yield kind, _range(ends, k), place == k


def _range(ends: Floats, k: int) -> str:
    """Of a tenth, in tokens: its own end belongs to it."""
    if len(ends) == 0:
        return "all"
    if k == len(ends):
        return f"> {ends[-1]:,.0f}"
    return f"≤ {ends[0]:,.0f}" if k == 0 else f"{ends[k - 1] + 1:,.0f}–{ends[k]:,.0f}"
