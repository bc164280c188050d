from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app

run = CliRunner().invoke


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    rows = "".join(f"{k},{100 + k},{10 + k}\n" for k in range(50))
    path = tmp_path / "sample.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n\n" + rows)
    return path


def test_inspect_prints_format_rows_rate_burstiness_and_lengths(sample: Path) -> None:
    result = run(app, ["trace", "inspect", str(sample)])
    assert result.exit_code == 0
    for text in (
        "vidur",
        "50",
        "1.000 per s",
        "CV of gaps",
        "index of dispersion, 10 s",
        "P99",
        "blank lines",
    ):
        assert text in result.output
    assert "infeasible with fixed targets: 0 miss even alone" in result.output


def test_inspect_draws(sample: Path, tmp_path: Path) -> None:
    result = run(app, ["trace", "inspect", str(sample), "--plot", str(tmp_path / "t.png"), "--format", "vidur"])
    assert result.exit_code == 0
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_says_that_quantised_times_were_spread(shared_data: Path) -> None:
    result = run(app, ["trace", "inspect", str(shared_data / "formats" / "mooncake_conversation_head50.jsonl")])
    assert "spread at random" in result.output
    assert "prefix blocks" in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--format", "vidu"], "unknown trace format 'vidu'"),
        (["--format", "azure"], "column 'TIMESTAMP' is missing"),
        (["--profile", "a41"], "unknown profile 'a41'"),
        (["--targets", "strict"], "target_kind is 'strict'"),
        (["--plot", "t.txt"], "a plot is written as .png"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_sentence(
    sample: Path, arguments: list[str], sentence: str
) -> None:
    result = run(app, ["trace", "inspect", str(sample), *arguments])
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output
