"""What stands beside a name that `disaggroute list` shows on a terminal."""

from __future__ import annotations

import pytest

from disaggroute.training import name_commands

DESCRIBED = [what for what in name_commands.LISTS if what not in ("configs", "predictors")]


@pytest.mark.parametrize("what", DESCRIBED)
def test_every_name_is_explained_in_a_line(what: str) -> None:
    for name in name_commands._names(what):
        about = name_commands._about(what, name)
        assert about.strip() and "\n" not in about.strip()


def test_an_environment_is_a_workload_on_a_cluster_and_a_reward_is_what_it_pays() -> None:
    assert name_commands._about("environments", "chat") == "chat on 2p4d-a40-qwen2.5-3b"
    assert name_commands._about("rewards", "goodput").startswith("+1 for each request that ends with both targets met")
