"""Probes: what a decision depends on, found from outside, for any policy.

A recorded decision is put to the policy again with one input as it was at another recorded decision; how often the
choice changes is how much the policy looks at that input. Inputs are what a router sees: of the request its lengths
and class, of each pool one column of the views, of all its instances at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...envs.admission import Admission
from ...envs.records import DECODE_VIEW, PREFILL_VIEW
from ...envs.setting import Setting
from ...envs.staged_admission import Stage
from ...policies.policy import Policy

POLLED = ("used", "running", "waiting")
"""Columns of the last poll."""

WHOLE = "everything"
"""All columns of a pool, or all of the request, at once."""

Swap = Callable[[Admission, Admission], dict[str, Any]]
"""Fields of an admission, as they are in another one."""


class Input(NamedTuple):
    """Something that a router sees.

    Attributes:
        of: request, prefill, decode or mixed.
        name: of the column.
        swap: takes it from another admission.
    """

    of: str
    name: str
    swap: Swap


@dataclass(frozen=True, eq=False)
class Moment:
    """A recorded decision.

    Attributes:
        admission: what the router saw, without its memory.
        last: the router's admission before, ps; negative if there was none.
        prefill: the choice.
        decode: likewise.
    """

    admission: Admission
    last: int
    prefill: int = -1
    decode: int = -1

    @staticmethod
    def of(admission: Admission, last: int) -> Moment:
        """A decision that is about to be made."""
        return Moment(replace(admission, constants=None, address=0, owner=None), last)

    def routed(self, prefill: int, decode: int) -> Moment:
        """The same with its choice."""
        return replace(self, prefill=prefill, decode=decode)


@dataclass(frozen=True)
class Changes:
    """How often a choice changed.

    Attributes:
        prefill: decisions whose prefill instance changed (aggregated: whose instance did).
        decode: decisions whose decode instance changed.
        asked: decisions that were put again.
    """

    prefill: int
    decode: int
    asked: int


Probes = dict[tuple[str, str], Changes]
"""By pool (or request) and column."""


def inputs(aggregated: bool) -> tuple[Input, ...]:
    """All that can be swapped: of the request, then of each pool."""
    found = [
        Input("request", "prompt", lambda a, b: {"prompt": b.prompt}),
        Input("request", "predicted", lambda a, b: {"predicted": b.predicted}),
        Input("request", "class and targets", _swap_class),
        Input("request", WHOLE, lambda a, b: {"prompt": b.prompt, "predicted": b.predicted} | _swap_class(a, b)),
    ]
    if aggregated:
        columns: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
            **{name: ((name,), ()) for name in PREFILL_VIEW[:3]},
            **{name: ((), (name,)) for name in DECODE_VIEW[:7]},
            **{f"polled {name}": ((name,), (name,)) for name in POLLED},
            WHOLE: ((*PREFILL_VIEW[:3], *POLLED), (*DECODE_VIEW[:7], *POLLED)),
        }
        return (*found, *(Input("mixed", name, _Columns(*of)) for name, of in columns.items()))
    for pool, view in (("prefill", PREFILL_VIEW[:3]), ("decode", DECODE_VIEW[:7])):
        names = {**{name: (name,) for name in view}, **{f"polled {name}": (name,) for name in POLLED}}
        names[WHOLE] = (*view, *POLLED)
        found += [
            Input(pool, name, _Columns(of, ()) if pool == "prefill" else _Columns((), of)) for name, of in names.items()
        ]
    return tuple(found)


def probe(
    moments: Sequence[Moment], policies: Sequence[Policy | None], setting: Setting, seed: int
) -> Probes | None:
    """Puts recorded decisions again with other inputs.

    Args:
        moments: decisions of one run.
        policies: the policy as it was before each of them; None: it could not be copied.
        setting: of the run.
        seed: of the order in which decisions lend each other their inputs.

    Returns:
        Changes by input; None if the policy cannot be asked so: it could not be copied, failed, or decided otherwise
        when nothing was changed.
    """
    if len(moments) < 2:
        return None
    stage = Stage(setting.cluster, setting.constants)
    donors = lenders(len(moments), seed)
    try:
        for moment, policy in zip(moments, policies, strict=True):
            if _asked(moment, policy, stage, {}) != (moment.prefill, moment.decode):
                return None
        return {
            (of, name): _changes(swap, moments, policies, donors, stage)
            for of, name, swap in inputs(setting.cluster.aggregated)
        }
    except Exception:  # A policy of another package, asked about what no cluster has ever been like.
        return None


def _changes(
    swap: Swap,
    moments: Sequence[Moment],
    policies: Sequence[Policy | None],
    donors: npt.NDArray[np.int64],
    stage: Stage,
) -> Changes:
    prefill = decode = 0
    for moment, policy, donor in zip(moments, policies, donors, strict=True):
        choice = _asked(moment, policy, stage, swap(moment.admission, moments[donor].admission))
        prefill += choice[0] != moment.prefill
        decode += choice[1] != moment.decode
    return Changes(prefill, decode, len(moments))


def _asked(moment: Moment, policy: Policy | None, stage: Stage, changes: dict[str, Any]) -> tuple[int, int]:
    if policy is None:
        raise ValueError("the policy cannot be copied")
    admission = replace(moment.admission, **changes) if changes else moment.admission
    choice = copy.deepcopy(policy).choose(stage.show(admission, moment.last))
    return int(choice[0]), int(choice[1])


def lenders(count: int, seed: int) -> npt.NDArray[np.int64]:
    """For each decision another one, all different: one step further on a random round."""
    order = np.random.default_rng([seed, count]).permutation(count)
    donors = np.empty(count, np.int64)
    donors[order] = np.roll(order, 1)
    return donors


class _Columns:
    """Takes columns of the views from another admission, of all instances of the pool; openness stays."""

    def __init__(self, prefill: Sequence[str], decode: Sequence[str]) -> None:
        self._prefill = [PREFILL_VIEW.index(name) for name in prefill]
        self._decode = [DECODE_VIEW.index(name) for name in decode]

    def __call__(self, admission: Admission, other: Admission) -> dict[str, Any]:
        changes = {}
        for name, columns in (("prefill", self._prefill), ("decode", self._decode)):
            if columns:
                views = getattr(admission, name).copy()
                views[:, columns] = getattr(other, name)[:, columns]
                changes[name] = views
        return changes


def _swap_class(_: Admission, other: Admission) -> dict[str, Any]:
    return {"slo": other.slo, "ttft_target": other.ttft_target, "tpot_target": other.tpot_target}
