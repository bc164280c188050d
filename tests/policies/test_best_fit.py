"""Best fit: the fullest that fits, what happens when nothing does, and giving up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import features as F
from disaggroute.envs import router_constants
from disaggroute.envs.admission import Admission
from disaggroute.envs.cluster import PS_PER_S, Cluster
from disaggroute.envs.feature_arrays import FeatureArrays
from disaggroute.envs.simulator import simulate
from disaggroute.policies import make, parse
from disaggroute.policies.registry import policy_class

from . import scenes

OF = scenes.trace(400, rate=35)


def decided(on: Cluster, **params: Any) -> Iterator[tuple[Admission, dict[str, Any], int, int]]:
    """Admissions of a run, the features of each in units (by role and name, one number per instance), and picks."""
    arrays = FeatureArrays.of_cluster(on)
    simulated = scenes.simulator(on, OF)
    policy = make("best-fit", **params)
    while simulated.run():
        admission = simulated.admission()
        seen = arrays.of_admission(admission)
        named: dict[str, Any] = {}
        for role, columns in (("prefill", F.PREFILL), ("decode", F.DECODE)):
            for k, column in enumerate(columns):
                named[f"{role} {column.name}"] = seen[role][:, k].astype(np.float64) * column.scale
        prefill, decode = policy.route(admission)
        yield admission, named, prefill, decode
        simulated.send(prefill, decode)


def test_prefill_takes_the_longest_projection_within_the_slack_else_the_shortest() -> None:
    kinds = set()
    for admission, named, prefill, _ in decided(scenes.cluster("3P4D"), ttft_slack=0.8):
        ttft = named["prefill queued_work"] + named["prefill own_prefill"]
        limit = 0.8 * admission.ttft_target / PS_PER_S
        fitting = ttft[ttft <= limit]
        expected = fitting.max() if len(fitting) else ttft.min()
        assert ttft[prefill] == pytest.approx(expected, rel=1e-6)
        kinds.add((len(fitting), ttft.min() < ttft.max()))
    assert {(0, True), (3, True)} <= kinds


def test_decode_takes_the_highest_pressure_within_the_limits_else_the_lowest() -> None:
    kinds = set()
    for admission, named, _, decode in decided(scenes.cluster(), limit=0.08, tpot_slack=0.36):
        pressure, step = named["decode pressure"], named["decode projected_step"]
        fits = (pressure <= 0.08) & (step <= 0.36 * admission.tpot_target / PS_PER_S)
        expected = pressure[fits].max() if fits.any() else pressure.min()
        assert pressure[decode] == pytest.approx(expected, rel=1e-6)
        kinds.add(int(fits.sum()))
    assert kinds >= {0, 1, 3}


def test_a_request_that_is_given_up_goes_where_the_queue_is_longest() -> None:
    given_up = 0
    for admission, named, prefill, _ in decided(scenes.cluster(), ttft_slack=0, give_up=1):
        ttft = named["prefill queued_work"] + named["prefill own_prefill"]
        hopeless = ttft.min() > admission.ttft_target / PS_PER_S
        assert ttft[prefill] == pytest.approx(ttft.max() if hopeless else ttft.min(), rel=1e-6)
        given_up += int(hopeless)
    assert given_up > 10


@pytest.mark.parametrize(
    "params", [{"ttft_slack": 1e6, "tpot_slack": 1e6, "limit": 1e6}, {"ttft_slack": 0, "limit": 0}, {"give_up": 0}]
)
def test_an_idle_pool_is_filled_from_the_lowest_index(params: dict[str, Any]) -> None:
    for on in (scenes.cluster("3P4D"), scenes.cluster("4M")):
        simulated = scenes.simulator(on, OF)
        assert simulated.run()
        assert make("best-fit", **{"ttft_slack": 0, **params}).route(simulated.admission()) == (0, 0)


def test_without_slack_prefill_is_the_least_projected_ttft() -> None:
    on = scenes.cluster()
    constants = router_constants.from_cluster(on)
    packed, least = (
        simulate(OF, on, policy=parse(text), predictor="oracle", constants=constants).records["prefill"][:20]
        for text in ("best-fit(ttft_slack=0)", "least-ttft")
    )
    assert (packed == least).all()


def test_all_four_numbers_are_tuned() -> None:
    labels = [dimension.label for dimension in policy_class("best-fit").search_space(2, 4)]
    assert labels == list(make("best-fit").params)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"limit": -1}, "limit is -1; it must be greater than or equal to 0"),
        ({"give_up": "never"}, "give_up is 'never'; it must be a valid number"),
        ({"tpot_slack": None}, "tpot_slack is None; it must be a valid number"),
    ],
)
def test_a_bad_parameter_is_answered_by_a_sentence(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"best-fit: {sentence}"):
        make("best-fit", **params)
