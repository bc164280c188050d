"""`disaggroute explain`: a description, and with a workload what a policy does there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app

QUICK = ("--rate", "14", "--duration", "15", "--warmup", "2", "--samples", "10", "--workers", "1")
ASKS_ELSEWHERE = re.compile(r"https?://|@import|url\(|<script|<link|<iframe", re.IGNORECASE)


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a command that ends with this exit code."""
    result = CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def test_a_policy_is_shown_at_work_beside_another_one(tmp_path: Path) -> None:
    words = ("linear@mixed-bursty", "mixed-bursty", "--against", "least-loaded", "--seeds", "4", *QUICK)
    out, _ = run(*words, "--out", str(tmp_path / "out"))
    for part in (
        "linear@mixed-bursty against least-loaded: mixed-bursty on 2p4d-a40-30k",
        "Goodput by class and family",
        "family reasoning",
        "The far end",
        "beyond 3 × the targets",
        "prefill instances under linear@mixed-bursty",
        "decode instances under least-loaded",
        "What the decode choice depends on",
        "Features that the prefill costs of linear@mixed-bursty depend on",
        "Terms of linear@mixed-bursty on decode instances",
        "Agreement with simple rules",
    ):
        assert part in out, part
    for name in ("effects.csv", "assignment.csv", "inputs.png", "assignment-decode.png", "explanation.html"):
        assert (tmp_path / "out" / name).stat().st_size > 0
        assert str(tmp_path / "out" / name) in out
    page = (tmp_path / "out" / "explanation.html").read_text()
    assert not ASKS_ELSEWHERE.search(page)
    assert "disaggroute explain linear@mixed-bursty mixed-bursty --against least-loaded --rate 14" in page
    again, _ = run(*words, "--out", str(tmp_path / "out"))
    assert again == out


def test_the_folder_of_another_explanation_is_refused(tmp_path: Path) -> None:
    words = ("least-loaded", "chat", *QUICK, "--seeds", "1", "--no-figures", "--out", str(tmp_path))
    run(*words)
    _, err = run(*words, "--against", "random", code=2)
    assert "which holds runs of another configuration (other against); name another folder" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("linear", "--seeds", "3"), "seeds is 3, but no workload is named; a policy is described without options"),
        (("lniear", "chat"), "unknown policy 'lniear'; nearest: linear"),
        (("linear", "chta"), "unknown workload 'chta'; nearest: chat"),
        (("linear", "chat", "--against", "lniear"), "unknown policy 'lniear'; nearest: linear"),
        (("linear", "chat", "--against", "linear"), "against is linear, the policy that is explained"),
        (("linear", "chat", "--first-seed", "30000"), "seed 30000 is held out for claims"),
        (("linear", "chat", "--workers", "0"), "workers is 0; it must be at least 1"),
        (("linear", "chat", "--samples", "1"), "--samples is '1'; it must be greater than or equal to 2"),
        (("linear", "chat", "--topology", "2X"), "topology is '2X'; it must read like 2P4D"),
        (
            ("size-interval(decode_cuts=[1, 2, 3])", "chat", "--topology", "1P2D"),
            "size-interval: decode_cuts holds 3 numbers; a pool of 2 needs 1",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    out, err = run(*arguments, code=2)
    assert out == "" and len(err.splitlines()) == 1 and words in err
