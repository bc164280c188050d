"""The command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from disaggroute import __version__
from disaggroute.__main__ import app

FIGURES = tuple(f"{name}.png" for name in ("goodput", "slo-scale", "groups", "delays", "balance", "timeline"))
QUICK = ["--topology", "1P2D", "--rate", "10", "--duration", "10", "--warmup", "2", "--workers", "1", "--no-figures"]
DRAWN = QUICK[:-1]


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a command that ends with this exit code."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def refusal(*arguments: str) -> str:
    """The one sentence with which a command refuses bad input."""
    out, err = run(*arguments, code=2)
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("disaggroute: ")
    assert "Traceback" not in err
    return err.removeprefix("disaggroute: ").strip()


def test_the_version_is_printed() -> None:
    assert run("--version")[0] == f"disaggroute {__version__}\n"


@pytest.mark.parametrize(
    "command",
    ["evaluate", "report", "saturate", "check-scenario", "list", "explain", "trace", "profile"],
)
def test_every_command_has_a_help_text(command: str) -> None:
    assert command in run("--help")[0]
    assert "Usage" in run(command, "--help")[0]


def test_help_imports_neither_numba_nor_pandas_nor_matplotlib() -> None:
    code = (
        "import sys; from disaggroute.__main__ import app; from typer.testing import CliRunner; "
        "assert CliRunner().invoke(app, ['evaluate', '--help']).exit_code == 0; "
        "print(sorted({'numba', 'pandas', 'matplotlib', 'pyarrow', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("policies", "marginal-cost"),
        ("workloads", "mixed-bursty-a40"),
        ("profiles", "a40-qwen2.5-3b"),
        ("configs", "clusters/2p4d-a40"),
        ("predictors", "noisy"),
        ("environments", "mixed-bursty-a40"),
        ("rewards", "slo-miss"),
    ],
)
def test_lists_give_the_names_that_other_commands_take(what: str, name: str) -> None:
    assert name in run("list", what)[0].split()


def test_an_unknown_list_is_answered_with_the_nearest() -> None:
    assert refusal("list", "polices").startswith("unknown list 'polices'; nearest: policies")


def test_explain_prints_the_formula_the_parameters_and_the_hash() -> None:
    out, _ = run("explain", "marginal-cost(w_q=0.1)")
    for words in ("backlog", "w_q", "sigma_tight", "marginal-cost(w_q=0.1) has the hash"):
        assert words in out


def test_an_evaluation_shows_its_table_and_where_the_results_lie(tmp_path: Path) -> None:
    out, _ = run("evaluate", "chat", *DRAWN, "--seeds", "4", "--out", str(tmp_path / "r"))
    for words in ("round-robin", "marginal-cost", "goodput", "TTFT", "seeds 10000 to 10003", "95 %"):
        assert words in out
    for name in ("summary.csv", "records.parquet", *FIGURES, "report.html"):
        assert (tmp_path / "r" / name).stat().st_size > 0
        assert str(tmp_path / "r" / name) in out


def test_a_report_is_made_again_from_a_folder_that_was_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    first, _ = run("evaluate", "chat", *DRAWN, "--seeds", "2", "--out", str(old))
    kept = {name: (old / name).read_bytes() for name in (*FIGURES, "report.html")}
    old.rename(new)
    for name in kept:
        (new / name).unlink()
    again, _ = run("report", str(new))
    assert {name: (new / name).read_bytes() for name in kept} == kept
    assert again.replace(str(new), str(old)) == first


def test_the_command_on_the_page_makes_the_same_folder_again(tmp_path: Path) -> None:
    policies = "round-robin,marginal-cost(w_q=0.1, sample=2)"
    run("evaluate", "chat", *DRAWN, "--seeds", "2", "--policies", policies, "--out", str(tmp_path / "one"))
    page = ElementTree.fromstring((tmp_path / "one" / "report.html").read_text().partition("\n")[2])
    (command,) = [node.text or "" for node in page.iter("pre")]
    run(*shlex.split(command)[1:], "--workers", "1", "--out", str(tmp_path / "two"))
    one, two = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two


def test_without_figures_none_is_left_in_the_folder(tmp_path: Path) -> None:
    options = ["evaluate", "chat", *DRAWN, "--seeds", "1", "--policies", "round-robin", "--out", str(tmp_path / "r")]
    run(*options)
    out, _ = run(*options, "--no-figures")
    assert "report.html" not in out and "summary.csv" in out
    assert not list((tmp_path / "r").glob("*.png")) and not (tmp_path / "r" / "report.html").exists()


def test_a_report_of_something_else_is_refused(tmp_path: Path) -> None:
    assert refusal("report", str(tmp_path)) == f"{tmp_path} is no results folder: it has no experiment.json"


def test_the_default_folder_lies_below_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("evaluate", "chat", *QUICK, "--seeds", "1", "--policies", "round-robin")
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.startswith("chat-1p2d-a40-qwen2.5-3b-")


def test_a_trace_file_is_evaluated_and_its_filtered_share_printed(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    rows = "".join(f"{k * 0.2},{50 + k % 90},{5 + k % 40}\n" for k in range(500))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    out, err = run(
        *("evaluate", str(path), "--topology", "1P2D", "--warmup", "10", "--targets", "relative"),
        *("--workers", "1", "--no-figures", "--out", str(tmp_path / "r")),
    )
    assert "one trace" in out and "filtered share 0.00%" in err and "infeasible with relative targets" in err


def test_a_cluster_file_replaces_the_topology(tmp_path: Path) -> None:
    options = [option for option in QUICK if option not in ("--topology", "1P2D")]
    out, _ = run(
        "evaluate", "chat", *options, "--cluster", "1p2d-a40", "--seeds", "1", "--out", str(tmp_path / "r")
    )
    assert "chat on 1p2d-a40:" in out


def test_mixed_instances_are_evaluated_too(tmp_path: Path) -> None:
    options = ["2M" if option == "1P2D" else option for option in QUICK]
    out, _ = run("evaluate", "chat", *options, "--seeds", "1", "--out", str(tmp_path / "r"))
    assert "chat on 2m-a40" in out


def test_saturate_prints_the_rate_alone_on_the_standard_output() -> None:
    options = ["--topology", "1P1D", "--duration", "10", "--warmup", "2", "--seeds", "2", "--workers", "1"]
    out, err = run("saturate", "chat", *options, "--target", "0.8")
    assert float(out) > 1 and "of the ceiling at" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policies", "round-robbin"], "unknown policy 'round-robbin'; nearest: round-robin"),
        (["--policies", ""], "policies is empty; at least one policy is needed"),
        (["--policies", "marginal-cost(w=1)"], "marginal-cost: unknown field 'w'"),
        (["mixed-busty-a40"], "unknown workload 'mixed-busty-a40'; nearest: mixed-bursty-a40"),
        (["--profile", "a40-qwen"], "unknown profile 'a40-qwen'; nearest: a40-qwen2.5-3b"),
        (["--cluster", "2p4d-a4"], "unknown cluster '2p4d-a4'; nearest: 2p4d-a40"),
        (["--predictor", "oracel"], "unknown predictor 'oracel'; nearest: oracle"),
        (["--rate", "-3"], "rate is -3.0; it must be greater than 0"),
        (["--rate", "0"], "rate is 0.0; it must be greater than 0"),
        (["--rate", "nan"], "rate is nan; it must be a finite number"),
        (["--topology", "2P0D"], "topology is '2P0D'; it must read like 2P4D"),
        (["--topology", "2P4D1M"], "topology is '2P4D1M'; it must read like 2P4D"),
        (["--topology", "2P4D", "--cluster", "2p4d-a40"], "topology and cluster both describe the cluster"),
        (["--seeds", "0"], "seeds is 0; it must be at least 1"),
        (["--first-seed", "30000"], "seed 30000 is held out for claims"),
        (["--claim"], "duration is 300 s; a claim needs at least 1800 simulated seconds"),
        (["--records", "some"], "records is 'some'; allowed are first, all, none"),
        (["--targets", "hard"], "targets is 'hard'; it must be 'fixed' or 'relative'"),
        (["--workers", "0"], "workers is 0; it must be at least 1"),
        (["--format", "azure"], "format is 'azure', but mixed-bursty-a40 is a workload"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "r")]
    rate = [] if "--rate" in arguments else ["--rate", "10"]
    assert words in refusal("evaluate", *arguments, *rate, *out)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: lame\nprefill: {count: 1, profile: a40-qwen2.5-3b}\n", "lame: the decode pool is empty"),
        (
            "mixed: {count: 1, profile: a40-qwen2.5-3b}\ndecode: {count: 1, profile: a40-qwen2.5-3b}\n",
            "beside",
        ),
        ("prefill: {count: 1, profil: a40}\n", "profile is missing; it is required"),
        ("prefill: [\n", "is not valid YAML"),
    ],
)
def test_a_bad_cluster_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    assert words in refusal("evaluate", "chat", "--rate", "5", "--cluster", str(path))


def test_a_request_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    pool = "{count: 1, profile: a40-qwen2.5-3b, overrides: {num_blocks: 20}}"
    path.write_text(f"name: small\nprefill: {pool}\ndecode: {pool}\n")
    sentence = refusal("evaluate", "chat", "--rate", "5", "--cluster", str(path))
    assert "KV blocks" in sentence and "has 20" in sentence


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    out = ["--seeds", "1", "--policies", "round-robin", "--out", str(tmp_path / "r")]
    run("evaluate", "chat", *QUICK, *out)
    sentence = refusal("evaluate", "chat", *QUICK, *out, "--predictor", "oracle")
    assert "holds runs of another configuration (other predictor)" in sentence


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, err = run("evaluate", "chat", *QUICK, "--seeds", "1", "--out", str(tmp_path / "file" / "r"), code=2)
    assert "not a directory" in err.splitlines()[-1] and "Traceback" not in err


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    _, err = run("evaluate", "chat", *QUICK, "--seeds", "1", "--out", str(tmp_path / "r"), code=2)
    assert "permission denied" in err


def test_a_disk_that_is_full_is_told_in_one_sentence(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    log = [
        "--claim-log",
        "/dev/full",
        "--claim",
        "--duration",
        "1800",
        "--seeds",
        "50",
        "--policies",
        "round-robin",
    ]
    options = ["--topology", "1P1D", "--rate", "0.1", "--workers", "1", "--out", str(tmp_path / "r")]
    _, err = run("evaluate", "chat", *options, *log, code=1)
    assert err.splitlines()[-1] == "disaggroute: cannot write /dev/full: no space left on device"


def test_a_missing_or_malformed_trace_file_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "nor is it a file" in refusal("evaluate", str(tmp_path / "none.csv"))
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,x,5\n")
    assert "line 3" in refusal("evaluate", str(path))


def test_several_seeds_for_one_trace_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n90,6,5\n")
    assert "recorded is one trace" in refusal("evaluate", str(path), "--seeds", "3")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "1.5"], "target is 1.5; it must lie between 0 and 1"),
        (
            ["--first-seed", "30000"],
            "seed 30000 is held out for claims (30000 to 30099); saturate may not use it",
        ),
        (["--policy", "round-robbin"], "unknown policy 'round-robbin'; nearest: round-robin"),
        (["--start", "-1"], "rate is -1.0; it must be greater than 0"),
    ],
)
def test_saturate_refuses_bad_input(arguments: list[str], words: str) -> None:
    _, err = run("saturate", "chat", *arguments, code=2)
    assert words in err.splitlines()[-1]


def test_explain_answers_an_unknown_policy_with_the_nearest() -> None:
    assert refusal("explain", "least-loded").startswith("unknown policy 'least-loded'; nearest: least-loaded")


def test_debug_shows_where_an_error_came_from() -> None:
    result = CliRunner().invoke(app, ["--debug", "explain", "least-loded"])
    assert isinstance(result.exception, ValueError)


def test_the_module_runs_as_a_program_and_keeps_errors_off_the_standard_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "disaggroute", "explain", "least-loded"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("disaggroute: unknown policy 'least-loded'; nearest: least-loaded")
    assert done.stderr.count("\n") == 1
