"""docs/evaluation.md has the numbers of the protocol that the code follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.envs.setting import DEFAULT_DURATION_S
from disaggroute.training import saturation, seeds, statistics
from disaggroute.training.summary import SEGMENT_S

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()


@pytest.mark.parametrize("of", seeds.RANGES, ids=[of.name for of in seeds.RANGES])
def test_every_range_of_seeds_has_a_row(of: seeds.SeedRange) -> None:
    assert f"| {of.first:,} to {of.last:,} |" in PAGE


@pytest.mark.parametrize(
    "sentence",
    [
        f"at least {seeds.CLAIM_SEEDS} of them, and on at least {seeds.CLAIM_DURATION_S:,.0f} simulated seconds",
        f"--claim --seeds {seeds.CLAIM_SEEDS} --duration {seeds.CLAIM_DURATION_S:.0f}",
        f"{saturation.TARGET:g} of the ceiling",
        f"{saturation.TOLERANCE:g} of the target",
        f"by bootstrap with {statistics.RESAMPLES:,} resamples",
        f"segments of {SEGMENT_S:g} s",
        f"{statistics.BLOCK_S / SEGMENT_S:g} consecutive segments",
        f"`--duration` seconds ({DEFAULT_DURATION_S:g};",
    ],
)
def test_the_page_has_the_numbers_of_the_code(sentence: str) -> None:
    assert sentence in " ".join(PAGE.split())
