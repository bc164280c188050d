"""The simulated twin of a live cluster."""

from __future__ import annotations

import pytest

from disaggroute.envs.setting import Setting
from disaggroute.training.description import Description, describe
from disaggroute.training.truth.twin import twin

from .live_folder import SCENARIO

LISTED = {
    "live_cluster": {
        "engines": [
            ["prefill", "a", None, {}],
            ["prefill", "b", "h100-qwen2.5-3b", {}],
            ["decode", "c", None, {"num_blocks": 77}],
            ["decode", "d", None, {}],
        ]
    }
}


@pytest.fixture
def description() -> Description:
    return describe(Setting.of(SCENARIO))


def test_it_has_the_pools_and_the_profiles_that_the_folder_tells_of(description: Description) -> None:
    cluster = twin(description, {})
    assert (len(cluster.prefill), len(cluster.decode), len(cluster.mixed)) == (2, 2, 0)
    assert {engine.name for engine in cluster.instances} == {"a40-qwen2.5-3b"}


def test_what_single_engines_change_is_changed(description: Description) -> None:
    cluster = twin(description, LISTED)
    assert [engine.name for engine in cluster.prefill] == ["a40-qwen2.5-3b", "h100-qwen2.5-3b"]
    assert cluster.decode[0].num_blocks == 77 != cluster.decode[1].num_blocks


def test_a_profile_that_is_given_is_that_of_every_engine_and_their_changes_stay(description: Description) -> None:
    cluster = twin(description, LISTED, "h200-qwen2.5-3b")
    assert {engine.name for engine in cluster.instances} == {"h200-qwen2.5-3b"}
    assert cluster.decode[0].num_blocks == 77


def test_a_profile_that_is_not_known_here_is_asked_for(description: Description) -> None:
    strange = description.model_copy(update={"profiles": {"prefill": ("mine",), "decode": ("mine",)}})
    with pytest.raises(ValueError, match=r"unknown profile 'mine'.*the folder's prefill pool names it: give --profile"):
        twin(strange, {})


def test_a_pool_of_unlike_engines_that_are_not_listed_is_refused(description: Description) -> None:
    unlike = description.model_copy(update={"profiles": {"prefill": ("a", "b"), "decode": ("a",)}})
    with pytest.raises(ValueError, match="the prefill pool has engines of a, b, and the folder does not say"):
        twin(unlike, {})


@pytest.mark.parametrize(
    "damage", [5, {"engines": 5}, {"engines": [["prefill"]]}, {"engines": [["prefill", "a", None, 5]]}]
)
def test_a_damaged_list_of_engines_is_named(description: Description, damage: object) -> None:
    with pytest.raises(ValueError, match="the folder's live_cluster, which lists its engines, is damaged"):
        twin(description, {"live_cluster": damage})


def test_a_pool_without_a_profile_asks_for_one(description: Description) -> None:
    with pytest.raises(ValueError, match="does not say which profile its prefill pool has; give --profile"):
        twin(description.model_copy(update={"profiles": {}}), {})
