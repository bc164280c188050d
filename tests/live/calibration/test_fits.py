"""Measurements of engines with known constants give these constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disaggroute.envs.cluster import PS_PER_S
from disaggroute.live.calibration.fits import Fits, Sizes, fits_of
from disaggroute.live.calibration.measurement import NOT_TOLD

from .planted import OVERHEAD, PER_TOKEN, SPEC, planted

SIZES = Sizes(SPEC.max_num_batched_tokens, SPEC.block_size)
DECODE = np.array([SPEC.base_decode, SPEC.batch[1], SPEC.per_context]) / PS_PER_S
PREFILL = np.array([SPEC.base_prefill, SPEC.per_token, SPEC.per_token_sq]) / PS_PER_S
TRANSFER = np.array([SPEC.latency, SPEC.egress_per_block]) / PS_PER_S


def furthest_step(fits: Fits) -> float:
    """Largest relative error of predicted decode steps and prefills within what an engine does."""
    steps = [(b, b * c) for b in (1, 8, 64, 200) for c in (50, 500, 2000)]
    told = fits.decode.fit.at([[1, b, k] for b, k in steps])
    errors = [float(np.abs(told / [SPEC.step_time(b, k) / PS_PER_S for b, k in steps] - 1).max())]
    for prompt in (30, 500, 8192, 20_000):
        chunks = -(-prompt // SPEC.max_num_batched_tokens)
        seconds = float(fits.prefill.fit.at([chunks, prompt, prompt**2]))
        errors.append(abs(seconds / (SPEC.prompt_time(prompt) / PS_PER_S) - 1))
    return max(errors)


def test_all_constants_come_back_exactly_without_noise() -> None:
    fits = fits_of(planted(), SIZES, 0)
    assert np.allclose(fits.decode.fit.values, DECODE, rtol=1e-6)
    assert np.allclose(fits.prefill.fit.values, PREFILL, rtol=1e-6)
    assert fits.transfer is not None and np.allclose(fits.transfer.fit.values, TRANSFER, rtol=1e-4)
    assert np.allclose(fits.overhead.values, [OVERHEAD, PER_TOKEN], rtol=1e-4)
    assert fits.own_count and fits.own_steps and fits.own_transfers and fits.kv_bytes == 36_864
    assert fits.leg_overhead == pytest.approx(OVERHEAD + PER_TOKEN * 850, rel=0.01)
    assert furthest_step(fits) < 1e-6


def test_a_tenth_of_wild_measurements_and_noise_move_predictions_by_less_than_2_percent() -> None:
    rows = planted(noise=0.02)
    fits = fits_of(planted(noise=0.02, late=range(0, len(rows), 10)), SIZES, 20)
    assert furthest_step(fits) < 0.02
    assert fits.decode.fit.aside >= 4 and np.isfinite(fits.decode.fit.errors).all()
    assert fits.transfer is not None
    assert np.abs(fits.transfer.fit.at([[1, 400]]) / (TRANSFER @ [1, 400]) - 1).max() < 0.1


def test_where_engines_do_not_tell_prefill_times_the_clients_count_without_the_round_trip() -> None:
    fits = fits_of(planted(told=False), SIZES, 0)
    assert not (fits.own_count or fits.own_steps or fits.own_transfers) and fits.kv_bytes is None
    assert np.allclose(fits.decode.fit.values, DECODE, rtol=1e-6)
    assert np.allclose(fits.overhead.values, [OVERHEAD, 0])
    per_block = TRANSFER + np.array([0, PER_TOKEN * SPEC.block_size])
    assert fits.transfer is not None and np.allclose(fits.transfer.fit.values, per_block, rtol=0.02)
    assert np.allclose(fits.prefill.fit.values, PREFILL + np.array([0, PER_TOKEN, 0]), rtol=1e-4)


def test_one_engine_that_does_not_tell_is_enough_to_take_the_clients_times() -> None:
    rows = [replace(row, engine_seconds=NOT_TOLD) if row.engine == "prefill/1" else row for row in planted()]
    assert not fits_of(rows, SIZES, 0).own_count
    rows = [replace(row, engine_seconds=NOT_TOLD) if row.engine == "decode/1" else row for row in planted()]
    assert not fits_of(rows, SIZES, 0).own_steps


def test_a_count_that_is_missing_now_and_then_is_left_out_and_the_others_stand() -> None:
    rows = [replace(row, engine_seconds=NOT_TOLD) if row.round == 1 else row for row in planted()]
    fits = fits_of(rows, SIZES, 0)
    assert fits.own_count and fits.own_steps and fits.own_transfers
    assert np.allclose(fits.decode.fit.values, DECODE, rtol=1e-6)
    assert {row.round for row in fits.prefill.rows} == {0, 2}
    assert np.allclose(fits.prefill.fit.values, PREFILL, rtol=1e-6)
    assert fits.transfer is not None and np.allclose(fits.transfer.fit.values, TRANSFER, rtol=1e-4)


def test_engines_that_are_a_little_apart_are_one_pool() -> None:
    fits = fits_of(planted(slow={"decode/1": 1.05}), SIZES, 0)
    assert fits.decode.own == {}
    assert max(fits.decode.ratios.values()) / min(fits.decode.ratios.values()) == pytest.approx(1.05, rel=0.01)


def test_an_engine_that_is_far_off_gets_constants_of_its_own_and_leaves_the_pools_alone() -> None:
    fits = fits_of(planted(slow={"decode/1": 1.3, "prefill/0": 0.7}), SIZES, 0)
    # Of two unlike engines the faster one stands for the pool.
    assert list(fits.decode.own) == ["decode/1"] and list(fits.prefill.own) == ["prefill/1"]
    assert np.allclose(fits.decode.fit.values, DECODE, rtol=1e-4)
    assert np.allclose(fits.decode.own["decode/1"].values, DECODE * 1.3, rtol=1e-4)
    assert np.allclose(fits.prefill.fit.values, PREFILL * 0.7, rtol=1e-4)
    assert np.allclose(fits.prefill.own["prefill/1"].values, PREFILL, rtol=1e-4)
    assert fits.decode.ratios == pytest.approx({"decode/0": 1.0, "decode/1": 1.3}, rel=1e-3)


def test_mixed_engines_have_no_transfers() -> None:
    fits = fits_of(planted(pairs=False), SIZES, 0)
    assert fits.transfer is None and fits.kv_bytes is None and furthest_step(fits) < 1e-6


@pytest.mark.parametrize("kind", ["prefill", "decode", "transfer"])
def test_too_few_measurements_are_named(kind: str) -> None:
    rows = [row for row in planted() if row.kind != kind or row.prompt == 64]
    rows = [row for row in rows if row.kind != kind or row.sequences == 1]
    with pytest.raises(ValueError, match=f"measurements of {kind}; too few to fit its constants"):
        fits_of(rows, SIZES, 0)
