"""`disaggroute compare-routers`: its table, its files and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app

QUICK = ("--seeds", "4", "--duration", "20", "--warmup", "5", "--workers", "1")


def run(*arguments: str, code: int) -> tuple[str, str]:
    """Standard output and standard error of a comparison that ends with this exit code."""
    result = CliRunner().invoke(app, ["compare-routers", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def test_policies_are_compared_at_the_stored_rate_of_one_router(tmp_path: Path) -> None:
    more = ("--counts", "1,4", "--dealing", "random", "--policies", "round-robin,marginal-cost(sample=2)")
    out, _ = run("mixed-bursty-a40", *QUICK, *more, "--out", str(tmp_path), code=0)
    assert "13.97 requests/s" in out and "seeds 10000 to 10003" in out and "change" in out
    assert "marginal-cost(sample=2)" in out
    for name in ("routers.csv", "routers.png", "1-routers/summary.csv", "4-routers/summary.csv"):
        assert (tmp_path / name).is_file(), name
    again, _ = run("mixed-bursty-a40", *QUICK, *more, "--out", str(tmp_path), code=0)
    assert again == out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--counts", "1,x"), "counts is '1,x'; it must be whole numbers of routers, such as 1,2,4,8"),
        (("--counts", "0,1"), "routers is 0; it must be greater than or equal to 1"),
        (("--counts", "1,16"), "routers is 16; it must be less than or equal to 8"),
        (("--dealing", "hash"), "dealing is 'hash'; it must be 'round-robin' or 'random'"),
        (("--first-seed", "30000"), "seed 30000 is held out for claims"),
        (("--policies", "round-robyn"), "unknown policy 'round-robyn'; nearest: round-robin"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    out, err = run("mixed-bursty-a40", *QUICK, *arguments, code=2)
    assert out == "" and len(err.splitlines()) == 1 and words in err
