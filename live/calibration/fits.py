"""From measurements to the constants of a profile (docs/model.md, "Step time" and "Transfer")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from .measurement import NOT_TOLD, Measurement
from .robust_fit import Floats, LinearFit, fit

RESAMPLES = 200
"""Of the bootstrap that gives standard errors."""

DEVIATES = 0.1
"""An engine whose times are further than this from its pool's has constants of its own."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """What the fits take as given.

    Attributes:
        budget: tokens of a step (`max_num_batched_tokens`).
        block_size: tokens per KV block.
    """

    budget: int
    block_size: int


@dataclass(frozen=True, eq=False)
class PoolFit:
    """One kind of measurement of a pool.

    Attributes:
        rows: the measurements.
        seconds: (n,) what was fitted: times without what the client and HTTP add.
        fit: of the engines that are alike.
        ratios: by engine, median of its times over the fitted ones.
        own: fits of engines that deviate.
    """

    rows: list[Measurement]
    seconds: Floats
    fit: LinearFit
    ratios: dict[str, float]
    own: dict[str, LinearFit]

    def of(self, engine: str) -> PoolFit:
        """What holds for one engine: its own measurements and fit if it deviates, else the pool's."""
        if engine not in self.own:
            return self
        mine = [k for k, row in enumerate(self.rows) if row.engine == engine]
        return PoolFit([self.rows[k] for k in mine], self.seconds[mine], self.own[engine], {}, {})


@dataclass(frozen=True, eq=False)
class Fits:
    """All fits of a calibration.

    Attributes:
        sizes: what was taken as given.
        prefill: columns steps, tokens, tokens²: s.
        decode: columns 1, sequences, context: s per step.
        transfer: columns 1, blocks: s; None where there are no pairs.
        overhead: what a client sees beyond the engine's own count, columns 1, prompt tokens: s. Not in the profile.
        own_count: whether prefill times are the engines' own count; else the client's, without the overhead.
        own_steps: whether decode steps are; else the times at which the client saw tokens.
        own_transfers: whether transfers are; else decode legs, without their first step and the overhead.
        leg_overhead: what a client sees in a decode leg beyond its transfer and its first step, median, s; not in the
            profile. 0 unless transfers are the engines' own count.
        kv_bytes: of a token, as measured; None where engines do not tell.
    """

    sizes: Sizes
    prefill: PoolFit
    decode: PoolFit
    transfer: PoolFit | None
    overhead: LinearFit
    own_count: bool
    own_steps: bool
    own_transfers: bool
    leg_overhead: float
    kv_bytes: int | None


def fits_of(rows: Iterable[Measurement], sizes: Sizes, resamples: int = RESAMPLES) -> Fits:
    """Fits everything.

    Args:
        rows: measurements of all kinds.
        sizes: what is taken as given.
        resamples: of the bootstrap.

    Raises:
        ValueError: too few measurements for a constant; says of what.
    """
    by_kind: dict[str, list[Measurement]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    prefills, own_count = _told(by_kind.get("prefill", []))
    overhead = _overhead(prefills if own_count else by_kind.get("round-trip", []), own_count)
    seconds = np.array([row.engine_seconds if own_count else row.seconds for row in prefills])
    if not own_count:
        seconds = np.maximum(seconds - overhead.values[0], 1e-6)
    prefill = _pool("prefill", prefills, partial(prefill_columns, budget=sizes.budget), seconds, seconds, resamples)
    decodes, own_steps = _told(by_kind.get("decode", []))
    steps = np.array([row.engine_seconds if own_steps else row.seconds for row in decodes])
    decode = _pool("decode", decodes, decode_columns, steps, steps, resamples)
    transfers, own_transfers = _told(by_kind.get("transfer", []))
    transfer, leg_overhead = None, 0.0
    if transfers:
        legs = np.array([row.seconds for row in transfers])
        rest = legs - _first_step(decode, transfers)
        if own_transfers:
            moved = scale = np.array([row.engine_seconds for row in transfers])
            leg_overhead = float(np.median(rest - moved))
        else:
            scale = legs
            moved = rest - overhead.at([[1.0, row.prompt] for row in transfers])
        by_blocks = partial(transfer_columns, block_size=sizes.block_size)
        transfer = _pool("transfer", transfers, by_blocks, moved, scale, resamples)
    told = [row.bytes_per_token for row in transfers if row.bytes_per_token > 0]
    kv_bytes = round(float(np.median(told))) if told else None
    own = own_count, own_steps, own_transfers
    return Fits(sizes, prefill, decode, transfer, overhead, *own, leg_overhead, kv_bytes)


def prefill_columns(rows: list[Measurement], budget: int) -> Floats:
    """(n, 3) steps, tokens and tokens² of prompts alone; the squares of chunks telescope."""
    tokens = np.array([row.prompt for row in rows], np.float64)
    return np.stack([np.ceil(tokens / budget), tokens, tokens**2], 1)


def decode_columns(rows: list[Measurement]) -> Floats:
    """(n, 3) 1, sequences and context of decode steps."""
    return np.array([[1.0, row.sequences, row.context] for row in rows]).reshape(-1, 3)


def transfer_columns(rows: list[Measurement], block_size: int) -> Floats:
    """(n, 2) 1 and blocks of transfers."""
    return np.array([[1.0, -(-row.prompt // block_size)] for row in rows]).reshape(-1, 2)


def _told(rows: list[Measurement]) -> tuple[list[Measurement], bool]:
    """The rows with the engines' own count, and that there are such; or all of them, where some engine does not tell.

    An engine tells if it does so for most of its rows: a count that came late once makes no client's time of the rest.
    """
    by_engine: dict[tuple[str, str], list[bool]] = {}
    for row in rows:
        by_engine.setdefault((row.engine, row.peer), []).append(row.engine_seconds != NOT_TOLD)
    if not rows or any(2 * sum(told) <= len(told) for told in by_engine.values()):
        return rows, False
    return [row for row in rows if row.engine_seconds != NOT_TOLD], True


def _overhead(rows: list[Measurement], own_count: bool) -> LinearFit:
    """What a client sees beyond the engine's own count: by prompt length, or the round trip of an empty question."""
    if not own_count:
        least = min((row.seconds for row in rows), default=0.0)
        return LinearFit(np.array([least, 0.0]), np.full(2, np.nan), np.zeros(len(rows)), np.ones(len(rows), np.bool_))
    columns = np.array([[1.0, row.prompt] for row in rows])
    seconds = np.array([row.seconds - row.engine_seconds for row in rows])
    return fit(columns, seconds, np.full(len(rows), max(float(np.median(seconds)), 1e-9)))


def _first_step(decode: PoolFit, rows: list[Measurement]) -> Floats:
    """(n,) the decode step that yields the first token after a transfer, s."""
    columns = np.array([[1.0, 1.0, row.prompt] for row in rows])
    seconds = decode.fit.at(columns)
    for name, own in decode.own.items():
        seconds = np.where([row.peer == name for row in rows], own.at(columns), seconds)
    return seconds


def _pool(
    what: str,
    rows: list[Measurement],
    columns_of: Callable[[list[Measurement]], Floats],
    seconds: Floats,
    scale: Floats,
    resamples: int,
) -> PoolFit:
    """Fits a pool; engines that deviate get fits of their own and do not count in the pool's."""
    columns = columns_of(rows) if rows else np.zeros((0, 3))
    if len(np.unique(columns, axis=0)) < columns.shape[1]:
        raise ValueError(f"there are {len(rows)} measurements of {what}; too few to fit its constants")
    engines = [row.engine for row in rows]
    levels = _levels(columns, seconds, scale, engines)
    middle = sorted(levels.values())[(len(levels) - 1) // 2]  # of two unlike engines the faster one is the pool
    alike = np.array([abs(levels[engine] / middle - 1) <= DEVIATES for engine in engines])
    pool = fit(columns[alike], seconds[alike], scale[alike], resamples=resamples)
    ratios = _ratios(pool, columns, seconds, scale, engines)
    own = {}
    for engine in sorted(set(np.array(engines)[~alike])):
        mine = np.array([each == engine for each in engines])
        own[engine] = fit(columns[mine], seconds[mine], scale[mine], resamples=resamples)
    residuals = (seconds - pool.at(columns)) / scale
    kept = np.zeros(len(rows), np.bool_)
    kept[alike] = pool.kept
    return PoolFit(rows, seconds, LinearFit(pool.values, pool.errors, residuals, kept), ratios, own)


def _levels(columns: Floats, seconds: Floats, scale: Floats, engines: list[str]) -> dict[str, float]:
    """By engine, how much it takes by its own fit for everything that was measured in the pool, on the mean, s."""
    names, others = np.array(engines), scale - seconds
    found = {}
    for name in dict.fromkeys(engines):
        mine = names == name
        enough = len(np.unique(columns[mine], axis=0)) >= columns.shape[1]
        own = fit(columns[mine], seconds[mine], scale[mine]) if enough else fit(columns, seconds, scale)
        found[name] = float(np.exp(np.log(np.maximum(own.at(columns) + others, 1e-9)).mean()))
    return found


def _ratios(whole: LinearFit, columns: Floats, seconds: Floats, scale: Floats, engines: list[str]) -> dict[str, float]:
    """By engine, the median of its times over the fitted ones; of a decode leg all of it counts."""
    over = scale / np.maximum(whole.at(columns) + scale - seconds, 1e-9)
    names = np.array(engines)
    return {name: float(np.median(over[names == name])) for name in dict.fromkeys(engines)}
