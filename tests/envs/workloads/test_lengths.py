from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import catalog
from disaggroute.envs.workloads.lengths import LengthLaw

TWO = {"parts": [{"weight": 0.3, "median": 200, "sigma": 1.3}, {"weight": 0.7, "median": 2000, "sigma": 0.7}]}


def law(**fields: Any) -> LengthLaw:
    return catalog.validate(LengthLaw, fields, "law")


def draw(n: int, **fields: Any) -> np.ndarray:
    return law(**fields).lengths(np.random.default_rng(0).random(n))


def test_an_untruncated_lognormal_has_its_median_and_sigma() -> None:
    lengths = draw(200_000, parts=[{"median": 500, "sigma": 0.5}], max=100_000)
    assert np.median(lengths) == pytest.approx(500, rel=0.01)
    assert np.log(lengths).std() == pytest.approx(0.5, rel=0.01)


def test_truncating_has_the_law_of_redrawing() -> None:
    generator = np.random.default_rng(1)
    part = generator.random(400_000) < 0.3
    normal = generator.standard_normal(400_000)
    raw = np.where(part, 200 * np.exp(1.3 * normal), 2000 * np.exp(0.7 * normal))
    redrawn = np.rint(raw)
    redrawn = redrawn[(redrawn >= 1) & (redrawn <= 4096)]
    lengths = draw(400_000, **TWO, max=4096)
    for q in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        assert np.quantile(lengths, q) == pytest.approx(np.quantile(redrawn, q), rel=0.03)
    assert lengths.mean() == pytest.approx(redrawn.mean(), rel=0.01)


def test_nothing_piles_up_at_the_bounds() -> None:
    probabilities = law(**TWO, max=4096).probabilities()
    assert probabilities[-1] < 1.01 * probabilities[-2]
    assert draw(10_000, **TWO, min=100, max=4096).min() >= 100


def test_probabilities_are_those_of_the_rounded_lognormal() -> None:
    def cdf(x: float) -> float:
        return 0.5 * math.erfc(-(math.log(x / 10) / 0.8) / math.sqrt(2))

    table = law(parts=[{"median": 10, "sigma": 0.8}], min=2, max=50).probabilities()
    mass = cdf(50.5) - cdf(1.5)
    assert table[5] == pytest.approx((cdf(7.5) - cdf(6.5)) / mass)
    assert table.sum() == pytest.approx(1.0)


def test_the_ends_of_the_unit_interval_give_the_bounds() -> None:
    one = law(parts=[{"median": 10, "sigma": 0.8}], min=2, max=50)
    assert one.lengths(np.array([0.0, np.nextafter(1.0, 0.0)])).tolist() == [2, 50]
    assert one.lengths(np.empty(0)).dtype == np.int32


def test_the_mean_is_that_of_the_lengths() -> None:
    assert law(**TWO).mean() == pytest.approx(draw(400_000, **TWO).mean(), rel=0.01)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"parts": []}, "law: parts is "),
        ({"parts": [{"median": 0, "sigma": 1}]}, r"parts\.0\.median is 0; it must be greater than 0"),
        ({"parts": [{"median": 1, "sigma": 0}]}, r"parts\.0\.sigma is 0; it must be greater than 0"),
        ({"parts": [{"median": 1, "sigma": 1, "weight": 0}]}, r"parts\.0\.weight is 0"),
        ({**TWO, "min": 0}, "min is 0; it must be greater than or equal to 1"),
        ({**TWO, "min": 9, "max": 8}, r"min is 9; it must be at most max \(8\)"),
        ({"parts": [{"median": 1000, "sigma": 0.01}], "max": 500}, "holds 0.0e\\+00 of the mixture"),
    ],
)
def test_a_law_that_makes_no_sense_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        law(**fields)
