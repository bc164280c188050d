"""The shape of a network: which weights there are, in which order, and where they start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs import features as F
from disaggroute.policies.network_shape import COLUMNS, INPUTS, STAGES, SUMMARY, Shape, columns_at, contexts

HIDDEN = st.lists(st.integers(1, 40), min_size=1, max_size=2).map(tuple)


@given(HIDDEN, st.integers(0, 9))
def test_splitting_and_joining_give_the_vector_back(hidden: tuple[int, ...], seed: int) -> None:
    shape = Shape(hidden)
    vector = np.random.default_rng(seed).standard_normal(shape.size).astype(np.float32)
    assert np.array_equal(shape.join(shape.split(vector)), vector)


def test_arrays_are_views_in_the_documented_order() -> None:
    shape = Shape((3, 2))
    vector = np.arange(shape.size, dtype=np.float32)
    arrays = shape.split(vector)
    parts = ("skip", "context", "instance", "bias", "second", "second_bias", "out")
    assert list(arrays) == [f"{stage}.{part}" for stage in STAGES for part in parts]
    assert [arrays[name].flat[0] for name in arrays] == sorted(arrays[name].flat[0] for name in arrays)
    arrays["prefill.skip"][0, 1] = -5
    assert vector[1] == -5


def test_one_layer_has_no_second_arrays() -> None:
    assert not [name for name in Shape((4,)).arrays if "second" in name]


def test_the_default_network_is_small() -> None:
    assert Shape().hidden == (16,) and Shape().size == 2528


@pytest.mark.parametrize("stage", STAGES)
def test_the_units_read_state_index_and_some_constants_of_an_instance(stage: str) -> None:
    names = {feature.name for feature in COLUMNS[stage]}
    constants = {feature.name for feature in F.PROFILE}
    assert names - constants <= set(INPUTS[stage]) <= names
    assert {"index", "kv_capacity"} <= set(INPUTS[stage]) and "available" not in INPUTS[stage]
    assert set(SUMMARY[stage]) <= names - constants
    assert contexts(stage) == 7 + 3 * len(SUMMARY[stage])


def test_the_first_weights_are_those_of_linears_defaults_and_units_that_cost_nothing() -> None:
    shape = Shape((8, 4))
    arrays = shape.split(shape.initial(np.random.default_rng(0)))
    for stage, columns in (
        ("prefill", ("prefill_ratio",)),
        ("decode", ("step_ratio",)),
        ("mixed", ("prefill_ratio", "step_ratio")),
    ):
        skip = arrays[f"{stage}.skip"]
        assert skip.sum() == len(columns) and (skip[0, columns_at(stage, columns)] == 1).all()
        assert not arrays[f"{stage}.out"].any() and not arrays[f"{stage}.bias"].any()
        for part in ("context", "instance", "second"):
            assert np.unique(arrays[f"{stage}.{part}"]).size > 1


def test_the_first_weights_follow_from_the_seed_and_the_scale() -> None:
    shape = Shape((200,))
    first, again, other = (shape.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.dtype == np.float32
    assert first.tobytes() == again.tobytes() != other.tobytes()
    inputs = len(INPUTS["decode"]) + contexts("decode")
    drawn = shape.split(shape.initial(np.random.default_rng(0), 0.5))["decode.instance"]
    assert drawn.std() == pytest.approx(0.5 / np.sqrt(inputs), rel=0.1)


@pytest.mark.parametrize(
    ("hidden", "sentence"),
    [
        ((), "hidden has 0 layers; it must have 1 to 2"),
        ((1, 2, 3), "hidden has 3 layers; it must have 1 to 2"),
        ((0,), "hidden is [0]; each layer must have 1 to 256 units"),
        ((8, 257), "hidden is [8, 257]; each layer must have 1 to 256 units"),
    ],
)
def test_other_layers_are_refused(hidden: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        Shape(hidden)
    assert str(error.value) == sentence


def change(arrays: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**arrays, name: value}


def test_what_does_not_fit_the_shape_is_refused() -> None:
    shape = Shape((2,))
    with pytest.raises(ValueError, match=r"vector has shape \(3,\); hidden \[2\] needs \(\d+,\)"):
        shape.split(np.zeros(3))
    arrays: dict[str, Any] = shape.split(np.zeros(shape.size))
    with pytest.raises(ValueError, match=r"decode\.out has shape \(3,\); hidden \[2\] needs \(2,\)"):
        shape.join(change(arrays, "decode.out", np.zeros(3)))
    with pytest.raises(ValueError, match=r"arrays: more is missing or not one of them; they must be prefill\.skip, "):
        shape.join(change(arrays, "more", np.zeros(3)))
    with pytest.raises(ValueError, match=r"arrays: mixed\.bias is missing or not one of them"):
        shape.join({name: array for name, array in arrays.items() if name != "mixed.bias"})
