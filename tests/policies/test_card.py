"""CARD: small, medium and large requests, short and long servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.envs import router_constants
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator import simulate
from disaggroute.policies import make
from disaggroute.policies.registry import policy_class
from disaggroute.policies.search_space import params_at

from . import scenes

TOKENS, LEFT = PREFILL_VIEW.index("queued_tokens"), DECODE_VIEW.index("remaining_output")
CUTS: dict[str, Any] = {"prefill_cut": 300, "prefill_band": 2, "decode_cut": 100, "decode_band": 2}
OF = scenes.trace(300, rate=25)


def routed(on: Cluster, **params: Any) -> np.ndarray[Any, Any]:
    """Records of a run under an oracle."""
    policy = make("card", **CUTS, **params)
    constants = router_constants.from_cluster(on)
    return simulate(OF, on, policy=policy, predictor="oracle", constants=constants).records


def test_small_ones_go_to_the_short_servers_and_large_ones_to_the_long_ones() -> None:
    records = routed(scenes.cluster())
    assert (records["prefill"][OF.prompt < 150] == 0).all()
    assert (records["prefill"][OF.prompt >= 600] == 1).all()
    assert set(records["decode"][OF.output < 50].tolist()) == {0, 1}
    assert set(records["decode"][OF.output >= 200].tolist()) == {2, 3}


def test_medium_ones_go_to_the_short_server_until_it_is_busy() -> None:
    simulated = scenes.simulator(scenes.cluster(), OF)
    policy = make("card", **CUTS, prefill_threshold=400, decode_threshold=500)
    seen = set()
    while simulated.run():
        admission = simulated.admission()
        prefill, decode = policy.route(admission)
        if 150 <= admission.prompt < 600:
            busy = admission.prefill[0, TOKENS] >= 400
            seen.add(("prefill", bool(busy)))
            assert prefill == int(busy)
        if 50 <= admission.predicted < 200:
            busy = admission.decode[:2, LEFT].min() >= 500
            seen.add(("decode", bool(busy)))
            assert (decode >= 2) == busy
        simulated.send(prefill, decode)
    assert len(seen) == 4


@pytest.mark.parametrize(("share", "long"), [(0, 1), (0.3, 1), (0.5, 2), (0.8, 3), (1, 3)])
def test_the_share_of_long_servers_leaves_one_of_each_kind(share: float, long: int) -> None:
    records = routed(scenes.cluster(), decode_long=share, decode_threshold=0)
    assert set(records["decode"][OF.output < 50].tolist()) == set(range(4 - long))
    assert set(records["decode"][OF.output >= 50].tolist()) == set(range(4 - long, 4))


@pytest.mark.parametrize(("drained", "left"), [((2, 3), {2, 3}), ((4, 5), {0, 1})])
def test_one_kind_takes_everything_while_the_other_is_closed(drained: tuple[int, ...], left: set[int]) -> None:
    assert set(routed(scenes.drained("2P4D", *drained))["decode"].tolist()) == left


def test_a_pool_of_one_has_one_choice() -> None:
    assert set(routed(scenes.cluster("1P1D"))["decode"].tolist()) == {0}


def test_mixed_instances_are_ruled_by_the_numbers_of_decode() -> None:
    records = routed(scenes.cluster("4M"), decode_threshold=0)
    assert set(records["decode"][OF.output < 50].tolist()) == {0, 1}
    assert set(records["decode"][OF.output >= 50].tolist()) == {2, 3}


@pytest.mark.parametrize(("prefills", "decodes", "numbers"), [(1, 1, 0), (2, 4, 3 + 4), (0, 3, 4), (3, 2, 4 + 3)])
def test_the_search_space_fits_the_pools_and_starts_at_the_defaults(prefills: int, decodes: int, numbers: int) -> None:
    space = policy_class("card").search_space(prefills, decodes)
    assert len(space) == numbers
    params = params_at(space, [d.place(d.start) for d in space])
    default = make("card").params
    assert {**default, **params} == pytest.approx(default)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"prefill_band": 0.5}, "prefill_band is 0.5; it must be greater than or equal to 1"),
        ({"decode_cut": 0}, "decode_cut is 0; it must be greater than 0"),
        ({"decode_long": 2}, "decode_long is 2; it must be less than or equal to 1"),
        ({"prefill_threshold": -1}, "prefill_threshold is -1; it must be greater than or equal to 0"),
    ],
)
def test_a_bad_parameter_is_answered_by_a_sentence(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"card: {sentence}"):
        make("card", **params)
