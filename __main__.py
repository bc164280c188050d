"""The command line, assembled from the parts: `disaggroute` or `python -m disaggroute`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import __version__
from .envs.error_text import error_text

DONE, FAILED, BAD_INPUT = 0, 1, 2
"""Exit codes."""

UsageError: Any = typer.BadParameter.__mro__[1]
"""What the command line's parser raises; its class lies where the version of typer wants it."""

MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN),
)
"""Errors of the system that say nothing against the input: a full disk, too many open files and the like."""


class SentenceGroup(TyperGroup):
    """Turns the errors of all commands into one sentence on the standard error and an exit code."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Reads the options that stand before the command."""
        with _sentences(debug=False):
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; `--debug` lets errors through with their traceback."""
        with _sentences(bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


@contextmanager
def _sentences(debug: bool) -> Iterator[None]:
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except UsageError as error:
        if not error.format_message():  # a group of commands without one: its help text is shown
            raise
        _say(_usage(error))
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        _say("interrupted")
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if debug:
            raise
        _say(_sentence(error))
        bad = isinstance(error, ValueError) or (isinstance(error, OSError) and error.errno not in MACHINE)
        raise typer.Exit(BAD_INPUT if bad else FAILED) from None


app = typer.Typer(
    cls=SentenceGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Request routing in disaggregated LLM serving: a simulated cluster, baselines and learned routers.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"disaggroute {__version__}")
        raise typer.Exit(DONE)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Options that stand before the command."""


def _mount() -> None:
    """Adds the commands of the parts; each imports what is slow only when it runs."""
    from .benchmarks.commands import app as bench_app
    from .envs import backend
    from .envs.profile_commands import app as profile_app
    from .envs.traces.commands import app as trace_app
    from .live.commands import app as live_app
    from .training import (
        commands,
        compare_commands,
        experiment_commands,
        explain_commands,
        name_commands,
        return_commands,
        router_commands,
        scenario_commands,
        timeline_commands,
        tune_commands,
    )
    from .training.learning import commands as train_commands

    name_commands.register(app)
    explain_commands.register(app)
    commands.register(app)
    tune_commands.register(app)
    train_commands.register(app)
    timeline_commands.register(app)
    scenario_commands.register(app)
    router_commands.register(app)
    return_commands.register(app)
    compare_commands.register(live_app)  # Of records alone, so it knows nothing of engines.
    app.add_typer(experiment_commands.app, name="experiment")
    app.add_typer(trace_app, name="trace")
    app.add_typer(profile_app, name="profile")
    app.add_typer(bench_app, name="bench")
    app.add_typer(live_app, name="live")
    backend.register("live", _live_backend)


def _live_backend(*args: Any, **options: Any) -> Any:
    """The live backend, whose libraries are loaded when somebody wants it."""
    from .live.backend import live_backend

    return live_backend(*args, **options)


def _say(sentence: str) -> None:
    typer.echo(f"disaggroute: {sentence}", err=True)


def _sentence(error: Exception) -> str:
    if isinstance(error, UnpicklingError | EOFError):  # Only compiled code is read in this form.
        from .envs.simulator.compile import cache_folder

        return f"the compiled code in {cache_folder()} is damaged; delete that folder"
    if isinstance(error, OSError) and error.errno is not None:
        # Ours already read as a sentence; the interpreter's own start with "[Errno 2]".
        text = error.strerror or str(error)
        if error.filename:
            return f"{error.filename}: {text.lower()}"
        return f"the standard output cannot be written: {text.lower()}" if text == os.strerror(error.errno) else text
    if isinstance(error, MemoryError):
        return "the memory is full; fewer workers, a lower rate or a shorter duration may help"
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | RuntimeError | OSError):
        return text or type(error).__name__
    if isinstance(error, ImportError):
        return f"a library cannot be loaded ({text}); install disaggroute again, or free memory"
    return f"this should not happen ({error_text(error)}); please report it with what `disaggroute --debug …` shows"


def _usage(error: Any) -> str:
    """What is wrong with the words of a command line, as a sentence."""
    from pydantic import ValidationError

    cause, command = error.__cause__, error.ctx.command_path if error.ctx else "disaggroute"
    if isinstance(cause, ValidationError) and error.param:
        found = cause.errors(include_url=False)[0]
        wanted = found["msg"].removeprefix("Input should be ").split(",")[0]
        text = f"{error.param.opts[0]} is {found['input']!r}; it must be {wanted}"
    else:
        text = error.format_message().rstrip(".")
        text = text[0].lower() + text[1:]
    return f"{' '.join(text.split())}; `{command} --help` tells what is allowed"


_mount()


def main() -> None:
    """Runs the command line and exits with 0 (done), 1 (a check or run failed) or 2 (bad input)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as in `disaggroute ... >&-`
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()


if __name__ == "__main__":
    main()
