"""Policies in pictures: the same look everywhere, and no two alike."""

from __future__ import annotations

import pytest

from disaggroute.policies import registry
from disaggroute.training.policy_style import COLOURS, PALETTE, policy_colour, policy_styles


@pytest.mark.parametrize(
    "label",
    ["marginal-cost", "marginal-cost(w_q=0.1, sample=2)", "marginal-cost@tuned", "marginal-cost@a/b.yaml(w_q=1)"],
)
def test_a_policy_has_one_name_and_one_colour_whatever_its_parameters_or_file(label: str) -> None:
    assert policy_colour(label) == policy_colour("marginal-cost")


def test_every_registered_policy_has_a_colour_of_its_own_choice() -> None:
    assert set(registry.names()) <= set(COLOURS)


def test_all_known_policies_look_different_from_each_other() -> None:
    styles = policy_styles(COLOURS)
    assert len(set(styles.values())) == len(COLOURS)
    assert len({(style.colour, style.marker) for style in styles.values()}) == len(COLOURS)
    assert len({(style.colour, style.dashes) for style in styles.values()}) == len(COLOURS)


def test_a_known_policy_looks_the_same_in_whatever_company() -> None:
    alone = policy_styles(["marginal-cost"])["marginal-cost"]
    variants = [f"marginal-cost(w_q={k})" for k in range(1, 6)]
    together = policy_styles([*variants, "simulator-naive", "marginal-cost"])
    assert together["marginal-cost"] == alone


def test_variants_keep_the_colour_and_never_look_like_the_policy_itself() -> None:
    labels = ["marginal-cost@tuned", "marginal-cost(w_q=0.1)", "marginal-cost", "simulator-naive(w_q=2)"]
    styles = policy_styles(labels)
    assert len({style.colour for style in styles.values()}) == 1
    assert len({(style.marker, style.dashes, style.hatch) for style in styles.values()}) == len(labels)
    alone, itself = policy_styles(["marginal-cost@tuned"]), policy_styles(["marginal-cost"])
    assert alone["marginal-cost@tuned"] != itself["marginal-cost"]


def test_sixteen_policies_of_any_kind_can_be_told_apart() -> None:
    labels = [f"marginal-cost(w_q={k})" for k in range(8)] + [f"mine-{k}" for k in range(8)]
    assert len(set(policy_styles(labels).values())) == 16


def test_a_policy_of_another_package_has_a_colour_of_the_palette_that_stays() -> None:
    assert policy_colour("my-own-policy") in PALETTE
    assert policy_colour("my-own-policy") == policy_colour("my-own-policy(x=1)")
