"""The command line, assembled from the parts: `disaggroute` or `python -m disaggroute`."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import __version__

DONE, FAILED, BAD_INPUT = 0, 1, 2
"""Exit codes."""


class SentenceGroup(TyperGroup):
    """Turns the errors of all commands into one sentence on the standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; `--debug` lets errors through with their traceback."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            _say("interrupted")
            raise typer.Exit(FAILED) from None
        except (UnpicklingError, EOFError):  # Only compiled code is read in this form.
            if ctx.params.get("debug"):
                raise
            from .envs.simulator.compile import cache_folder

            _say(f"the compiled code in {cache_folder()} is damaged; delete that folder")
            raise typer.Exit(FAILED) from None
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            if ctx.params.get("debug"):
                raise
            _say(_sentence(error))
            raise typer.Exit(FAILED if isinstance(error, RuntimeError | MemoryError) else BAD_INPUT) from None


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
    from .envs.profile_commands import app as profile_app
    from .envs.traces.commands import app as trace_app
    from .training import commands, name_commands, return_commands

    name_commands.register(app)
    commands.register(app)
    return_commands.register(app)
    app.add_typer(trace_app, name="trace")
    app.add_typer(profile_app, name="profile")
    app.add_typer(bench_app, name="bench")


def _say(sentence: str) -> None:
    typer.echo(f"disaggroute: {sentence}", err=True)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        # Ours already read as a sentence; the interpreter's own start with "[Errno 2]".
        text = error.strerror or str(error)
        return f"{error.filename}: {text.lower()}" if error.filename else text
    if isinstance(error, MemoryError) and not str(error):
        return "the memory is full; fewer workers, a lower rate or a shorter duration may help"
    return " ".join(str(error).split()) or type(error).__name__


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
