"""Names that mean something elsewhere (markup, formulas, HTML, shells) are shown as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app

ROWS = "".join(f"{k * 0.2},{50 + k % 90},{5 + k % 40}\n" for k in range(100))
HEADER = "arrival_s,prompt_tokens,output_tokens\n"
NAMES = ("[bold] a, @(b)", "[/red]", ":smile: $\\frac{", "<i>日本 é&amp;", "-dash")


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


@pytest.mark.parametrize("name", ["[bold] a, @(b)", "[red] :smile: $\\frac{ <i>日本 é&amp;"])
def test_a_trace_file_may_have_any_printable_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.csv").write_text(HEADER + ROWS)
    quick = ("--warmup", "2", "--workers", "1", "--policies", "round-robin,least-loaded", "--out", f"r {name}")
    out, _ = run("evaluate", *quick, "--", f"{name}.csv")
    assert out.startswith(f"{name} on 2p4d-a40-qwen2.5-3b: ") and f"r {name}/report.html" in out
    page = (Path(f"r {name}") / "report.html").read_text(encoding="utf-8").partition("\n")[2]
    assert f"{name} on 2p4d" in "".join(ElementTree.fromstring(page).itertext())


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_may_have_any_printable_name(name: str, tmp_path: Path) -> None:
    pool = "{count: 1, profile: a40-qwen2.5-3b}"
    quoted = "'" + name + "'"
    (tmp_path / "c.yaml").write_text(f"name: {quoted}\nprefill: {pool}\ndecode: {pool}\n", encoding="utf-8")
    quick = ("--rate", "5", "--duration", "5", "--warmup", "1", "--seeds", "1", "--workers", "1", "--no-figures")
    out, _ = run(
        *("evaluate", "chat", "--cluster", str(tmp_path / "c.yaml"), "--policies", "round-robin"),
        *(*quick, "--out", str(tmp_path / "r")),
    )
    assert out.startswith(f"chat on {name}: ")


def test_a_trace_file_is_inspected_and_drawn_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        file = name.replace("/", "_") + ".csv"
        Path(file).write_text(HEADER + ROWS)
        out, _ = run("trace", "inspect", "--plot", "plot.png", "--", file)
        assert file in out and Path("plot.png").stat().st_size > 0


def test_nothing_is_printed_before_bad_options_of_an_inspection_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + ROWS)
    out, err = run("trace", "inspect", str(tmp_path / "t.csv"), "--targets", "hard", code=2)
    assert out == "" and "target_kind is 'hard'" in err


def test_a_results_folder_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    folder = str(tmp_path / "r\udcff")
    quick = ("--rate", "5", "--duration", "5", "--warmup", "1", "--seeds", "1", "--workers", "1")
    program = [sys.executable, "-m", "disaggroute"]
    evaluation = [*program, "evaluate", "chat", *quick, "--policies", "round-robin", "--out", folder]
    for command, made in ((evaluation, "report.html"), ([*program, "timeline", folder], "timelines")):
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (Path(folder) / made).exists()


def test_what_cannot_be_printed_in_a_file_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a\nb\x1b[31m.csv"
    path.write_text(HEADER + ROWS)
    quick = ("--warmup", "2", "--workers", "1", "--policies", "round-robin", "--no-figures")
    out, _ = run("evaluate", str(path), *quick, "--out", str(tmp_path / "r"))
    assert out.startswith("a?b?[31m on 2p4d")


def test_a_hidden_file_is_called_by_its_whole_name(tmp_path: Path) -> None:
    (tmp_path / ".own.csv").write_text(HEADER + ROWS)
    quick = ("--warmup", "2", "--workers", "1", "--policies", "round-robin", "--no-figures")
    out, _ = run("evaluate", str(tmp_path / ".own.csv"), *quick, "--out", str(tmp_path / "r"))
    assert out.startswith(".own.csv on ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{0}/bad\udcff.csv"], r"scenario: workload is '.*; it must be Unicode text"),
        (["chat", "--cluster", "{0}/\udcff.yaml"], r"scenario: cluster is '.*; it must be Unicode text"),
        ([5000 * "x"], r"unknown workload 'x{1,60}\.\.\.; allowed: chat"),
        (["chat", "--cluster", "{0}/name.yaml"], r"name\.yaml: name: 'a\\x1b\[31m' must be 1 to 100 printable char"),
        (["chat", "--cluster", "{0}/long.yaml"], r"long\.yaml: name: 'nnn.*\.\.\. must be 1 to 100 printable char"),
        (["{0}/family.csv"], r"family\.csv, line 3: family is 'a\\x01b'; it must be at most 100 printable characters"),
        (["{0}/t.csv", "--rate", "1e-300"], r"rate is 1e-300; it stretches .*t\.csv beyond 100 days, the longest tr"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_name_that_titles_and_files_cannot_carry_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    pool = "{count: 1, profile: a40-qwen2.5-3b}"
    (tmp_path / "name.yaml").write_text(f'name: "a\\x1b[31m"\nprefill: {pool}\ndecode: {pool}\n')
    (tmp_path / "long.yaml").write_text(f"name: {'n' * 3000}\nprefill: {pool}\ndecode: {pool}\n")
    (tmp_path / "family.csv").write_text("arrival_s,prompt_tokens,output_tokens,family\n0,5,5,b\n90,5,5,a\x01b\n")
    (tmp_path / "t.csv").write_text(HEADER + ROWS)
    rate = [] if "--rate" in arguments else ["--rate", "5"]
    words = [word.format(tmp_path) for word in arguments]
    out, err = run("evaluate", *words, *rate, "--out", str(tmp_path / "r"), code=2)
    assert out == "" and re.match(f"disaggroute: .*{sentence}", err), err
    assert len(err.splitlines()) == 1 and not (tmp_path / "r").exists()
