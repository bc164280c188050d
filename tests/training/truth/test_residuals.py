"""Residuals: a driver that was planted shows, the others do not."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.training.truth.residuals import Residuals, concurrency
from disaggroute.training.truth.truth import Truth, compare_with_simulator

from .conftest import Make
from .live_folder import MS, Way


def found(truth: Truth) -> dict[tuple[str, str], Residuals]:
    return {(each.quantity.name, each.driver): each for each in truth.residuals}


def test_an_error_that_grows_with_the_prompt_is_explained_by_the_prompt(live: Make) -> None:
    def grow(columns: dict[str, np.ndarray]) -> None:
        more = columns["prompt"].astype(np.int64) * MS // 100
        columns["first_token_ps"] += more
        columns["last_token_ps"] += more

    each = found(compare_with_simulator(live(Way(), grow)))
    prompt = each["ttft", "prompt"]
    medians = [bin_[4] for bin_ in prompt.bins]
    assert medians == sorted(medians) and medians[-1] - medians[0] > 10e-3  # 10 ms in a thousand tokens
    assert prompt.explained > 0.4 > each["ttft", "instance"].explained
    assert each["tpot", "prompt"].explained < 0.05


def test_a_slow_instance_is_explained_by_the_instance(live: Make) -> None:
    def slow(columns: dict[str, np.ndarray]) -> None:
        span = columns["last_token_ps"] - columns["first_token_ps"]
        columns["last_token_ps"] = columns["first_token_ps"] + np.where(columns["decode"] == 1, span * 21 // 20, span)

    each = found(compare_with_simulator(live(Way(), slow)))["tpot", "instance"]
    assert [(bin_[0], bin_[1]) for bin_ in each.bins] == [(0, 0), (1, 1)]
    assert each.bins[0][4] == pytest.approx(0.0, abs=1e-9) and each.bins[1][4] > 5e-4
    assert each.explained > 0.8


def test_bins_hold_every_request_once(live: Make) -> None:
    truth = compare_with_simulator(live())
    for each in truth.residuals:
        assert sum(bin_[2] for bin_ in each.bins) == len(each.residual)
    assert sum(run.requests for run in truth.runs) == len(found(truth)["ttft", "time"].residual)


def test_concurrency_counts_who_is_there(live: Make) -> None:
    run = compare_with_simulator(live()).runs[0]
    records = run.live.stored.records
    for k in (50, 250):
        mine = records[k]
        here = records["decode"] == mine["decode"]
        there = (records["prefill_end"] <= mine["prefill_end"]) & (records["end"] >= mine["prefill_end"])
        assert concurrency(run, "decode")[k] == (here & there).sum()
