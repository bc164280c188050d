"""Words of a command line that it cannot read: each refused in one sentence that says what is allowed, exit code 2."""

from __future__ import annotations

import errno

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.training import evaluation


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["evaluate", "chat", "--rate", "abc"], "--rate is 'abc'; it must be a valid number; "),
        (["evaluate", "chat", "--seeds", "1.5"], "--seeds is '1.5'; it must be a valid integer; "),
        (["evaluate", "chat", "--rat", "5"], "no such option: --rat (Possible options: "),
        (["evaluate", "chat", "document"], "got unexpected extra argument(s) (document); "),
        (["evaluate", "--workers"], "option '--workers' requires an argument; "),
        (["evaluate", "--claim=5"], "option '--claim' does not take a value; "),
        (["report"], "missing argument 'folder'; "),
        (["repot"], "no such command 'repot'. Did you mean 'report'?; "),
        (["--bogus"], "no such option: --bogus; "),
        (["--debug"], "missing command; "),
        (["trace", "bogus"], "no such command 'bogus'; "),
    ],
)
def test_a_bad_word_is_refused_in_one_sentence(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, words, prog_name="disaggroute")
    assert result.exit_code == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"disaggroute: {sentence}")
    assert result.stderr.rstrip().endswith("--help` tells what is allowed")


def test_the_sentence_names_the_command_whose_help_it_points_at() -> None:
    result = CliRunner().invoke(app, ["trace", "inspect"], prog_name="disaggroute")
    assert "`disaggroute trace inspect --help`" in result.stderr


def test_a_group_of_commands_alone_shows_its_help() -> None:
    result = CliRunner().invoke(app, ["trace"])
    assert result.exit_code == 2 and "Usage" in result.output and "inspect" in result.output


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ValueError("rate is 0"), 2, "rate is 0"),
        (OSError(errno.EACCES, "Permission denied", "r/x"), 2, "r/x: permission denied"),
        (OSError(errno.ENOSPC, "cannot write r/x: no space left on device"), 1, "cannot write r/x: no space left"),
        (RuntimeError("a worker process died"), 1, "a worker process died"),
        (MemoryError("Unable to allocate 3 TiB"), 1, "the memory is full; fewer workers"),
        (KeyboardInterrupt(), 1, "interrupted"),
        (ImportError("No module named 'pyarrow'"), 1, "a library cannot be loaded (No module named 'pyarrow');"),
        (PermissionError("r/x is open to other users"), 2, "r/x is open to other users"),
        (KeyError("x"), 1, "this should not happen (KeyError: 'x'); please report it with what `disaggroute --debug"),
        (AssertionError(), 1, "this should not happen (AssertionError); please report"),
    ],
)
def test_any_error_is_one_sentence_and_an_exit_code(
    error: BaseException, code: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(evaluation, "check_evaluation", fail)
    result = CliRunner().invoke(app, ["evaluate", "chat", "--rate", "5", "--seeds", "1"])
    assert result.exit_code == code and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"disaggroute: {sentence}")


def test_debug_shows_an_error_that_should_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(evaluation, "check_evaluation", fail)
    result = CliRunner().invoke(app, ["--debug", "evaluate", "chat", "--rate", "5", "--seeds", "1"])
    assert isinstance(result.exception, KeyError)
