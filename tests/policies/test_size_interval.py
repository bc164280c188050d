"""Size intervals: cuts, prices, classes, direction, and cuts for the wrong pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.envs import router_constants
from disaggroute.envs.simulator import simulate
from disaggroute.envs.simulator.simulator import Simulator
from disaggroute.policies import make, parse
from disaggroute.policies.registry import policy_class
from disaggroute.policies.search_space import params_at

from ..differential.cases import random_case
from . import scenes
from .test_compiled_equals_plain import check

DEAR = 1e6
NEVER = {f"{stage}_{way}": DEAR for stage in ("prefill", "decode") for way in ("up", "down")}
FREE = dict.fromkeys(NEVER, 0)


def routed(topology: str = "2P4D", **params: Any) -> np.ndarray[Any, Any]:
    """Records of a run under an oracle."""
    on = scenes.cluster(topology)
    return simulate(
        scenes.trace(300, rate=25),
        on,
        policy=make("size-interval", **params),
        predictor="oracle",
        constants=router_constants.from_cluster(on),
    ).records


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("aggregated", [False, True])
def test_given_cuts_decide_as_the_plain_formula_does(seed: int, aggregated: bool) -> None:
    case = random_case(seed + 900, aggregated=aggregated)
    prefills, decodes = len(case.cluster.prefill), len(case.cluster.decode) or len(case.cluster.mixed)
    rng = np.random.default_rng(seed)
    first = rng.integers(1, 60, (prefills or decodes) - 1).tolist()
    second = rng.integers(1, 20, decodes - 1).tolist()
    check(f"size-interval(prefill_cuts={first}, decode_cuts={second}, prefill_up=5, decode_down=0.3)", case, seed)


def test_without_spill_every_size_goes_to_its_interval() -> None:
    of = scenes.trace(300, rate=25)
    records = routed(prefill_cuts=[200], decode_cuts=[30, 90, 300], **NEVER)
    assert (records["prefill"] == (of.prompt >= 200)).all()
    assert (records["decode"] == np.searchsorted([30, 90, 300], of.output, side="right")).all()


def test_sizes_fall_with_the_index_when_the_order_is_descending() -> None:
    given: dict[str, Any] = {"prefill_cuts": [200], "decode_cuts": [30, 90, 300], **NEVER}
    up = routed(**given)
    down = routed(**given, prefill_order="descending", decode_order="descending")
    assert (down["prefill"] == 1 - up["prefill"]).all()
    assert (down["decode"] == 3 - up["decode"]).all()


def test_the_size_of_loose_requests_is_scaled() -> None:
    of = scenes.trace(300, rate=25)
    records = routed(prefill_cuts=[200], prefill_loose=0.5, decode_cuts=[30, 90, 300], decode_loose=1e6, **NEVER)
    loose = of.slo == 1
    assert (records["prefill"] == (of.prompt >= np.where(loose, 400, 200))).all()
    assert (records["decode"][loose] == 3).all()
    assert len(set(records["decode"][~loose].tolist())) == 4


def test_without_prices_it_is_the_least_projected_latency() -> None:
    on = scenes.cluster()
    constants = router_constants.from_cluster(on)
    other = simulate(
        scenes.trace(300, rate=25),
        on,
        policy=parse("least-ttft(decode=min-tpot)"),
        predictor="oracle",
        constants=constants,
    ).records
    free = routed(**FREE)
    assert (free[["prefill", "decode"]] == other[["prefill", "decode"]]).all()
    assert (routed()["prefill"] != free["prefill"]).any()


def test_the_price_downwards_keeps_long_prompts_away_and_lets_short_ones_through() -> None:
    of = scenes.trace(300, rate=25)
    records = routed(prefill_cuts=[200], prefill_up=0, prefill_down=DEAR)
    long = of.prompt >= 200
    assert (records["prefill"][long] == 1).all()
    assert set(records["prefill"][~long].tolist()) == {0, 1}


def test_default_cuts_are_spread_over_a_pool_of_any_size() -> None:
    for instances in (1, 2, 3, 16):
        vector = make("size-interval", prefill_low=2, prefill_high=2**17).vector_for(instances, 1)  # type: ignore[attr-defined]
        assert vector[10:] == pytest.approx([2 * 2 ** (16 * k / instances) for k in range(1, instances)])


def test_cuts_are_sorted_so_that_equal_policies_have_equal_hashes() -> None:
    assert make("size-interval", decode_cuts=[9, 3, 6]).hash == make("size-interval", decode_cuts=[3, 6, 9]).hash


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prefill_cuts=[10, 20]", "prefill_cuts holds 2 numbers; a pool of 2 needs 1"),
        ("decode_cuts=[10]", "decode_cuts holds 1 numbers; a pool of 4 needs 3"),
        ("decode_cuts=[]", "decode_cuts holds 0 numbers; a pool of 4 needs 3"),
    ],
)
def test_cuts_for_another_pool_are_refused(text: str, sentence: str) -> None:
    policy = parse(f"size-interval({text})")
    simulated = scenes.simulator(scenes.cluster(), scenes.trace())
    with pytest.raises(ValueError, match=f"size-interval: {sentence}"):
        policy.run_compiled(simulated, 0)  # type: ignore[attr-defined]
    assert simulated.run()
    with pytest.raises(ValueError, match=f"size-interval: {sentence}"):
        policy.route(simulated.admission())


def test_mixed_pools_need_cuts_of_their_own_size() -> None:
    on = scenes.cluster("3M")
    constants = router_constants.from_cluster(on)
    of = scenes.trace()
    simulated = Simulator(on, of, predicted=of.output, constants=constants)
    assert simulated.run()
    with pytest.raises(ValueError, match="prefill_cuts holds 1 numbers; a pool of 3 needs 2"):
        make("size-interval", prefill_cuts=[5]).route(simulated.admission())
    assert set(routed("3M", prefill_cuts=[90, 300], decode_cuts=[30, 90])["decode"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"prefill_cuts": [0]}, r"prefill_cuts.0 is 0; it must be greater than 0"),
        ({"prefill_cuts": 5}, "prefill_cuts is 5; it must be a valid list"),
        ({"decode_cuts": ["x"]}, "decode_cuts.0 is 'x'; it must be a valid number"),
        ({"prefill_order": "up"}, "prefill_order is 'up'; it must be 'ascending' or 'descending'"),
        ({"decode_loose": 0}, "decode_loose is 0; it must be greater than 0"),
    ],
)
def test_a_bad_parameter_is_answered_by_a_sentence(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"size-interval: {sentence}"):
        make("size-interval", **params)


@pytest.mark.parametrize(("prefills", "decodes", "numbers"), [(1, 1, 0), (2, 4, 4 + 6), (0, 3, 5 + 5), (16, 48, 5 + 5)])
def test_the_search_space_fits_the_pools_and_starts_at_the_defaults(prefills: int, decodes: int, numbers: int) -> None:
    space = policy_class("size-interval").search_space(prefills, decodes)
    assert len(space) == numbers
    default, start = (
        make("size-interval", **params).vector_for(prefills, decodes)  # type: ignore[attr-defined]
        for params in ({}, params_at(space, [d.place(d.start) for d in space]))
    )
    assert start == pytest.approx(default, rel=1e-5)  # a search space gives six digits
