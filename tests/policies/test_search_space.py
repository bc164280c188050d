"""Search spaces: every point of them is a policy, and the search starts at the defaults."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disaggroute.policies import make, registry
from disaggroute.policies.search_space import Dimension, params_at

POOLS = [(1, 1), (2, 4), (3, 7), (0, 1), (0, 4)]


@pytest.mark.parametrize("pools", POOLS)
@pytest.mark.parametrize("name", registry.names())
@settings(max_examples=20)
@given(data=st.data())
def test_every_point_gives_parameters_that_the_policy_accepts(
    name: str, pools: tuple[int, int], data: st.DataObject
) -> None:
    space = registry.policy_class(name).search_space(*pools)
    places = data.draw(st.lists(st.floats(0, 1), min_size=len(space), max_size=len(space)))
    assert make(name, **params_at(space, places)).name == name


@pytest.mark.parametrize("name", registry.names())
def test_the_start_is_the_default_where_that_is_a_number(name: str) -> None:
    default = make(name).params
    for dimension in registry.policy_class(name).search_space(2, 4):
        usual = default[dimension.name]
        if dimension.key is None and usual is not None:
            assert dimension.start == usual
        elif isinstance(usual, dict):
            assert dimension.start == usual.get(dimension.key, 0.0)


@given(st.floats(1e-6, 1e6), st.floats(2.0, 1e6), st.floats(0, 1), st.sampled_from(["linear", "log"]))
def test_a_value_lies_between_its_bounds_and_leads_back_to_its_place(
    low: float, factor: float, place: float, scale: str
) -> None:
    dimension = Dimension("x", low, low * factor, low, scale)  # type: ignore[arg-type]
    value = dimension.value(place)
    assert low <= value <= low * factor
    assert dimension.place(value) == pytest.approx(place, abs=1e-5)


@given(st.floats(0, 1))
def test_values_have_at_most_six_digits(place: float) -> None:
    value = Dimension("x", 0.001, 1000.0, 1.0, "log").value(place)
    assert value == float(f"{value:.6g}")


def test_lists_and_mappings_are_put_together_from_their_places() -> None:
    space = (Dimension("a", 0, 1, 0, key=0), Dimension("a", 0, 1, 0, key=1), Dimension("b", 0, 2, 0, key="x*y"))
    assert params_at(space, [0.5, 1.0, 0.5]) == {"a": [0.5, 1.0], "b": {"x*y": 1.0}}
    assert [dimension.label for dimension in space] == ["a[0]", "a[1]", "b[x*y]"]


@pytest.mark.parametrize(
    ("low", "high", "start", "scale"), [(1, 1, 1, "linear"), (0, 2, 3, "linear"), (0, 1, 0, "log")]
)
def test_bounds_that_make_no_sense_are_refused(low: float, high: float, start: float, scale: str) -> None:
    with pytest.raises(ValueError, match="x: "):
        Dimension("x", low, high, start, scale)  # type: ignore[arg-type]
