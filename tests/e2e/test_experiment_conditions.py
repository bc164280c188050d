"""`disaggroute experiment conditions`: a small map, the one that ships, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app

SHORT = ("--quick", "--seeds", "2", "--duration", "10", "--workers", "1", "--findings", "highest-mean")


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a map that ends with this exit code."""
    result = CliRunner().invoke(app, ["experiment", "conditions", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def test_one_axis_of_the_map_runs_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    said, _ = run(*SHORT, "--axes", "weights,first-token", "--out", str(out))
    assert "highest mean goodput" in said and "Of 3 points, the default among them." in said
    for name in ("conditions.csv", "conditions.png", "conditions.html"):
        assert (out / name).stat().st_size > 0
    assert [path.name for path in (out / "files").iterdir()] == ["2p4d-a40-qwen2.5-3b-prefill-token.yaml"]
    page = (out / "conditions.html").read_text()
    assert "--axes weights,first-token" in page and "marginal-cost@mixed-bursty-a40" in page
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/runs/*/*.json")}
    again, _ = run(*SHORT, "--axes", "weights", "--out", str(out))
    assert "Of 2 points" in again
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--findings", "frontir"), "conditions: unknown finding 'frontir'; nearest: frontier"),
        (("--axes", "weight"), "conditions: unknown axis 'weight'; nearest: weights"),
        (("--file", "conditons"), "unknown experiment 'conditons'; nearest: conditions"),
        (("--file", "paper"), "paper: "),
        (("--workers", "0"), "workers is 0; it must be at least 1"),
        (("--first-seed", "30000"), "seed 30000 is held out for claims"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    said, err = run(*arguments, "--out", str(tmp_path / "out"), code=2)
    assert said == "" and words in err.splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "out").exists()
