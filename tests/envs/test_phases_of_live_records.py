"""Phases of requests whose transfer nobody saw, as on real engines."""

from __future__ import annotations

import numpy as np

from disaggroute.envs.phases import legs
from disaggroute.envs.records import FAILED, FINISHED, RECORD
from disaggroute.envs.trace import Trace

TRACE = Trace(
    arrival=np.array([0, 0]),
    prompt=np.array([30, 30], np.int32),
    output=np.array([5, 5], np.int32),
    slo=np.zeros(2, np.int8),
    family=np.zeros(2, np.int8),
    ttft_target=np.array([10, 10]),
    tpot_target=np.array([10, 10]),
)


def records() -> np.ndarray:  # type: ignore[type-arg]
    rows = np.zeros(2, RECORD)
    for name in ("reserve", "transfer_start", "transfer_end", "first_token", "last_token"):
        rows[name] = -1
    rows["prefill_start"], rows["prefill_end"], rows["end"] = 10, 40, [95, 60]
    rows["first_token"][0], rows["last_token"][0], rows["generated"] = 50, 90, [5, 0]
    rows["status"] = [FINISHED, FAILED]
    return rows


def test_all_between_prefill_and_first_token_counts_as_transfer() -> None:
    prefill, decode = legs(records(), TRACE, aggregated=False)
    assert prefill.edges[:, 0].tolist() == [0, 10, 40, 50]
    assert decode.edges[:, 0].tolist() == [40, 40, 50, 50, 95]
    assert decode.kv[0] == prefill.kv[0] == 30
    assert decode.growing[:, 0].tolist() == [50, 90]


def test_a_request_that_failed_before_its_first_token_was_offered_until_then() -> None:
    prefill, decode = legs(records(), TRACE, aggregated=False)
    assert prefill.edges[:, 1].tolist() == [0, 10, 40, 60]
    assert decode.edges[:, 1].tolist() == [40, 60, 60, 60, 60] and decode.kv[1] == 0
