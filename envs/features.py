"""Features: what a learned policy reads of an admission, by name, unit and formula.

They are made of the integer views (`envs/records.py`), which hold only what a router can know, and of the
router's constants. Each has a unit and a fixed divisor, so that usual values are of order 1; none is fitted.

One formula for all uses: the `…_row` functions below are plain arithmetic on float64. NumPy calls them with
columns (`envs/feature_arrays.py`); compiled code may call the same functions for one instance at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

if TYPE_CHECKING:
    from rich.table import Table

VERSION = 1
"""Version of the columns; to be raised when their meaning, order or scales change, since weights depend on them."""

Number = Any
"""A float64, or an array of them: the formulas hold for both."""

Columns = Any
"""Several of these: a tuple, or an array whose first axis they are."""


@dataclass(frozen=True)
class Feature:
    """One column.

    Attributes:
        name: of the column.
        unit: of the value before it is divided.
        scale: what it is divided by.
        meaning: what it says.
    """

    name: str
    unit: str
    scale: float
    meaning: str


REQUEST = (
    Feature("prompt", "tokens", 1_000, "p"),
    Feature("predicted", "tokens", 1_000, "ô"),
    Feature("tight", "0 or 1", 1, "1: SLO class tight"),
    Feature("ttft_target", "s", 1, "TTFT target"),
    Feature("tpot_target", "s", 0.1, "TPOT target"),
    Feature("since_last", "s", 1, "time since the router's last admission, 0 at its first"),
)
"""Columns of the request."""

_PREFILL_LEDGER = (
    Feature("queued", "requests", 32, "requests admitted whose prefill has not ended"),
    Feature("queued_strict", "requests", 32, "those of class tight"),
    Feature("queued_ratio", "ratio", 1, "their prompt tokens ÷ KV capacity"),
    Feature("queued_work", "s", 1, "backlog: their prompt tokens · tau_prefill"),
    Feature("own_prefill", "s", 1, "the request's prefill in one step: base + c1·p + c2·p²"),
    Feature("prefill_ratio", "ratio", 1, "(queued_work + own_prefill) ÷ TTFT target"),
)
_DECODE_LEDGER = (
    Feature("in_flight", "requests", 32, "requests admitted that have not ended"),
    Feature("pending", "requests", 32, "those without a token from here: in prefill, queued or in transit"),
    Feature("strict", "requests", 32, "those of class tight"),
    Feature("committed_ratio", "ratio", 1, "their prompt + predicted tokens ÷ KV capacity"),
    Feature("context_ratio", "ratio", 1, "their prompt + output tokens so far ÷ KV capacity"),
    Feature("pressure", "ratio", 1, "committed_ratio after this admission"),
    Feature("committed_work", "s", 100, "backlog until completion: their predicted output · tau_decode"),
    Feature("remaining_work", "s", 100, "backlog that decays: Σ max(0, predicted − out) · tau_decode"),
    Feature("projected_step", "s", 0.1, "decode step with all of them and this request: base + b·B + C·K"),
    Feature("step_ratio", "ratio", 1, "projected_step ÷ TPOT target"),
)
_POLLED = (
    Feature("polled_usage", "ratio", 1, "polled KV tokens in use ÷ KV capacity"),
    Feature("polled_running", "requests", 32, "polled running requests"),
    Feature("polled_waiting", "requests", 32, "polled waiting requests"),
    Feature("poll_age", "s", 0.1, "time since the poll"),
)
PROFILE = (
    Feature("tau_prefill", "s/token", 1e-4, "constant: prefill time per prompt token"),
    Feature("tau_decode", "s/token", 0.1, "constant: decode time per output token, calibrated"),
    Feature("kv_capacity", "tokens", 100_000, "constant: KV capacity"),
    Feature("base_prefill", "s", 0.1, "constant: base of a prefill step"),
    Feature("per_token", "s/token", 1e-4, "constant: c1"),
    Feature("per_token_sq", "s/token²", 1e-8, "constant: c2"),
    Feature("base_decode", "s", 0.1, "constant: base of a decode step"),
    Feature("per_sequence", "s", 1e-3, "constant: b"),
    Feature("per_context", "s/token", 1e-7, "constant: C"),
    Feature("role", "−1, 0, 1", 1, "prefill, mixed, decode"),
    Feature("index", "0 to 1", 1, "index in the pool ÷ the highest index"),
    Feature("available", "0 or 1", 1, "1: requests may be assigned"),
)
"""Last columns of every instance: all but `available` stay the same for a whole episode."""

PREFILL = (*_PREFILL_LEDGER, *_POLLED, *PROFILE)
"""Columns of a prefill instance."""

DECODE = (*_DECODE_LEDGER, *_POLLED, *PROFILE)
"""Columns of a decode instance."""

MIXED = (*_PREFILL_LEDGER, *_DECODE_LEDGER, *_POLLED, *PROFILE)
"""Columns of a mixed instance."""

ABOUT = (*(feature.name for feature in PROFILE[:-1]), "block_size")
"""What the formulas read of an instance, in order: constants (s, tokens), role, index, tokens per block."""

(
    _TAU_PREFILL,
    _TAU_DECODE,
    _CAPACITY,
    _BASE_PREFILL,
    _PER_TOKEN,
    _PER_TOKEN_SQ,
    _BASE_DECODE,
    _PER_SEQUENCE,
    _PER_CONTEXT,
    _ROLE,
    _INDEX,
    _BLOCK_SIZE,
) = range(len(ABOUT))

ROLE_PREFILL, ROLE_MIXED, ROLE_DECODE = -1.0, 0.0, 1.0

LEAST_TARGET = 1e-12
"""What a target of 0 counts as in ratios, s: 1 ps, the least that a trace can hold beside it."""


# The formulas, in units; every argument and result is float64 (or a column of them).


def request_row(
    prompt: Number, predicted: Number, tight: Number, ttft: Number, tpot: Number, since: Number
) -> tuple[Number, ...]:
    """REQUEST in units; lengths in tokens, times in seconds."""
    return prompt, predicted, tight, ttft, tpot, since


def own_prefill(prompt: Number, base: Number, per_token: Number, per_token_sq: Number) -> Number:
    """Prefill of a whole prompt in one step: base + c1·p + c2·p²."""
    return base + per_token * prompt + per_token_sq * prompt * prompt


def projected_step(
    sequences: Number, context: Number, base: Number, per_sequence: Number, per_context: Number
) -> Number:
    """A decode step with so many sequences and so many tokens of context: base + b·B + C·K."""
    return base + per_sequence * sequences + per_context * context


def prefill_ledger(view: Columns, prompt: Number, ttft: Number, about: Columns) -> tuple[Number, ...]:
    """The columns of the prefill ledger; `view` as PREFILL_VIEW, `about` as ABOUT."""
    work = view[1] * about[_TAU_PREFILL]
    own = own_prefill(prompt, about[_BASE_PREFILL], about[_PER_TOKEN], about[_PER_TOKEN_SQ])
    ratio = (work + own) / np.maximum(ttft, LEAST_TARGET)
    return view[0], view[2], view[1] / about[_CAPACITY], work, own, ratio


def decode_ledger(
    view: Columns, prompt: Number, predicted: Number, tpot: Number, about: Columns
) -> tuple[Number, ...]:
    """The columns of the decode ledger; `view` as DECODE_VIEW, `about` as ABOUT.

    The projected step is docs/model.md's T with everything in the ledger decoding: B = in flight + 1,
    K = context + p.
    """
    parts = about[_BASE_DECODE], about[_PER_SEQUENCE], about[_PER_CONTEXT]
    step = projected_step(view[0] + 1.0, view[5] + prompt, *parts)
    capacity = about[_CAPACITY]
    pressure = (view[2] + (prompt + predicted)) / capacity
    committed, remaining = view[3] * about[_TAU_DECODE], view[4] * about[_TAU_DECODE]
    ratios = (view[2] / capacity, view[5] / capacity, pressure)
    ratio = step / np.maximum(tpot, LEAST_TARGET)
    return (view[0], view[1], view[6], *ratios, committed, remaining, step, ratio)


def polled(used: Number, running: Number, waiting: Number, age: Number, about: Columns) -> tuple[Number, ...]:
    """The polled columns; `used` in blocks, `age` in seconds."""
    return used * about[_BLOCK_SIZE] / about[_CAPACITY], running, waiting, age


def profile(available: Number, about: Columns) -> tuple[Number, ...]:
    """The columns that say what the instance is."""
    return (
        about[_TAU_PREFILL],
        about[_TAU_DECODE],
        about[_CAPACITY],
        about[_BASE_PREFILL],
        about[_PER_TOKEN],
        about[_PER_TOKEN_SQ],
        about[_BASE_DECODE],
        about[_PER_SEQUENCE],
        about[_PER_CONTEXT],
        about[_ROLE],
        about[_INDEX],
        available,
    )


def prefill_state(
    view: Columns, prompt: Number, ttft: Number, age: Number, about: Columns
) -> tuple[Number, ...]:
    """PREFILL up to the profile, in units."""
    return prefill_ledger(view, prompt, ttft, about) + polled(view[3], view[4], view[5], age, about)


def decode_state(
    view: Columns,
    prompt: Number,
    predicted: Number,
    tpot: Number,
    age: Number,
    about: Columns,
) -> tuple[Number, ...]:
    """DECODE up to the profile, in units."""
    return decode_ledger(view, prompt, predicted, tpot, about) + polled(view[7], view[8], view[9], age, about)


def mixed_state(
    prefill_view: Columns,
    view: Columns,
    prompt: Number,
    predicted: Number,
    ttft: Number,
    tpot: Number,
    age: Number,
    about: Columns,
) -> tuple[Number, ...]:
    """MIXED up to the profile, in units."""
    first = prefill_ledger(prefill_view, prompt, ttft, about)
    second = decode_ledger(view, prompt, predicted, tpot, about)
    return first + second + polled(view[7], view[8], view[9], age, about)


def prefill_row(
    view: Columns, prompt: Number, ttft: Number, age: Number, about: Columns
) -> tuple[Number, ...]:
    """PREFILL in units."""
    return prefill_state(view, prompt, ttft, age, about) + profile(view[6], about)


def decode_row(
    view: Columns,
    prompt: Number,
    predicted: Number,
    tpot: Number,
    age: Number,
    about: Columns,
) -> tuple[Number, ...]:
    """DECODE in units."""
    return decode_state(view, prompt, predicted, tpot, age, about) + profile(view[10], about)


def mixed_row(
    prefill_view: Columns,
    view: Columns,
    prompt: Number,
    predicted: Number,
    ttft: Number,
    tpot: Number,
    age: Number,
    about: Columns,
) -> tuple[Number, ...]:
    """MIXED in units."""
    state = mixed_state(prefill_view, view, prompt, predicted, ttft, tpot, age, about)
    return state + profile(view[10], about)


for _formula in (
    own_prefill,
    projected_step,
    prefill_ledger,
    decode_ledger,
    polled,
    profile,
    request_row,
    prefill_state,
    decode_state,
    mixed_state,
    prefill_row,
    decode_row,
    mixed_row,
):
    register_jitable(_formula)  # compiled code may call it; here it stays a Python function


def scales(features: Sequence[Feature]) -> npt.NDArray[np.float64]:
    """(F,) what each column is divided by."""
    return np.array([feature.scale for feature in features], np.float64)


def describe() -> Table:
    """The features with units, divisors and meanings; `rich.print` shows it."""
    from rich.table import Table

    shown = Table("of", "feature", "unit", "÷", "meaning", title="Features")
    for of, features in (("request", REQUEST), ("prefill", PREFILL), ("decode", DECODE)):
        for k, feature in enumerate(features):
            cells = (of if k == 0 else "", feature.name, feature.unit, f"{feature.scale:g}", feature.meaning)
            shown.add_row(*cells, end_section=k == len(features) - 1)
    shown.caption = "A mixed instance has the ledger columns of both roles, and the others once."
    return shown
