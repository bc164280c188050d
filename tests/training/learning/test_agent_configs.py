"""The configurations of agents that ship can be trained."""

from __future__ import annotations

from typing import Any

import pytest

from disaggroute.training.learning import methods


@pytest.mark.parametrize("name", ["ppo", "maskable-ppo", "dqn", "imitation"])
def test_a_configuration_that_ships_is_sound(name: str) -> None:
    config: Any = methods.load(name)
    config.check()
    assert config.method == config.name == name


def test_ppo_begins_with_random_weights_and_no_teacher() -> None:
    config = methods.load("ppo")
    assert config.policy.start is None


def test_maskable_ppo_differs_in_nothing_but_the_algorithm() -> None:
    plain, masked = (methods.load(name).model_dump(exclude={"name", "method"}) for name in ("ppo", "maskable-ppo"))
    assert plain == masked
