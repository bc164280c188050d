from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.envs import cluster_config, profiles, router_constants


def two_kinds() -> router_constants.RouterConstants:
    config = cluster_config.from_topology(
        "1P2D",
        "a40-qwen2.5-3b",
        decode=[{"count": 1, "profile": "a40-qwen2.5-3b"}, {"count": 1, "profile": "h100-qwen2.5-3b"}],
    )
    return config.router_constants()


def test_each_instance_has_the_constants_of_its_profile() -> None:
    constants = two_kinds()
    a40, h100 = profiles.load("a40-qwen2.5-3b"), profiles.load("h100-qwen2.5-3b")
    assert len(constants) == 3
    assert constants.prefills == 1
    assert constants.tau_decode.tolist() == [a40.tau_decode, a40.tau_decode, h100.tau_decode]
    assert constants.tau_prefill.tolist() == [a40.tau_prefill, a40.tau_prefill, h100.tau_prefill]
    assert constants.tau_decode_single[2] == h100.tau_decode_single
    assert constants.kv_capacity.tolist()[:2] == [60_000, 60_000]
    assert constants.per_sequence[0] == pytest.approx(30.87e-6)
    assert constants.base_decode[0] == pytest.approx(13.106e-3)
    assert constants.per_context[0] == pytest.approx(55.31e-9)


def test_scaling_changes_every_time_and_no_capacity() -> None:
    constants = two_kinds()
    small = constants.scaled(1 / 7.4)
    for key in (
        "tau_prefill",
        "tau_decode",
        "tau_decode_single",
        "base_decode",
        "per_context",
        "per_token_sq",
    ):
        np.testing.assert_allclose(getattr(small, key) * 7.4, getattr(constants, key))
    assert (small.kv_capacity == constants.kv_capacity).all()


def test_overriding_takes_a_number_or_one_per_instance() -> None:
    constants = two_kinds().overridden(tau_decode=0.01, kv_capacity=[1, 2, 3])
    assert constants.tau_decode.tolist() == [0.01] * 3
    assert constants.kv_capacity.tolist() == [1, 2, 3]


def test_an_engine_below_the_calibrations_concurrency_is_measured_at_its_limit() -> None:
    engine = profiles.load("a40-qwen2.5-3b").engine(max_num_seqs=4)
    assert router_constants.tau_decode(engine) == engine.step_time(4, 4 * 1024) / 1e12


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tau_deocde": 1.0}, "unknown router constant 'tau_deocde'; nearest: tau_decode"),
        ({"tau_decode": [1.0, 2.0]}, "router constant tau_decode is .*; it must be a number or 3 of them"),
        ({"tau_decode": "fast"}, "router constant tau_decode is 'fast'; it must be a number"),
        ({"tau_decode": -1.0}, r"router constant tau_decode is -1\.0; it must be at least 0 and finite"),
        ({"tau_decode": float("nan")}, "router constant tau_decode is nan; it must be at least 0 and finite"),
    ],
)
def test_a_bad_override_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        two_kinds().overridden(**values)


@pytest.mark.parametrize("factor", [0, -1, float("nan")])
def test_a_scale_that_is_not_positive_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=r"scale is .*; it must be greater than 0"):
        two_kinds().scaled(factor)
