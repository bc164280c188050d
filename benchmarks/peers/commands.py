"""`disaggroute bench peers`: our simulator beside others, on the same trace."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .comparison import Compared

app = typer.Typer(no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of Dynamo's environment, as `setup` makes it.")]


@app.callback()
def peers() -> None:
    """One trace through another simulator (Dynamo's replay) and through ours: how fast, and how far apart.

    \b
    disaggroute bench peers setup ../dynamo
    disaggroute bench peers run ../dynamo
    """  # noqa: D301


@app.command()
def setup(folder: Folder) -> None:
    """Install Dynamo's replay into an environment of its own, in the version that the comparison was made with.

    Does nothing where it has been done. Packages come from where pip is configured to look.
    """
    from .installation import install

    python = install(folder, _say)
    typer.echo(f"Dynamo is installed; its Python is {python}")


@app.command()
def run(
    folder: Folder,
    requests: Annotated[int, typer.Option(help="Requests of the trace.")] = 10_000,
    load: Annotated[float, typer.Option(help="Rate of the trace as a share of the cluster's capacity.")] = 0.8,
    repeats: Annotated[int, typer.Option(help="Processes of each simulator, in turn.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the trace.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for peers.json, peers.csv and peers.png.")
    ] = Path("results/peers"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Run the same trace through Dynamo's replay and through ours, in turn, and compare speeds and delays."""
    from ...training.compilation import compile_all
    from .comparison import compare
    from .installation import peer_python

    python = peer_python(folder)
    compile_all(_say)
    found = compare(python, requests=requests, load=load, repeats=repeats, seed=seed, say=_say)
    words = ["disaggroute", "bench", "peers", "run", "DIR", "--requests", str(requests), "--load", f"{load:g}"]
    command = shlex.join([*words, "--repeats", str(repeats), "--seed", str(seed)])
    report = found.report.model_copy(update={"command": command})
    _write(found, report.json_text(), out)
    if as_json:
        typer.echo(report.json_text())
    else:
        _show(found)
        typer.echo(f"again: {command}\nwritten to {out}")


@app.command()
def probe(folder: Folder) -> None:
    """Run cases of a few requests through both, each of which shows one difference of their models."""
    from rich.console import Console

    from ...training.compilation import compile_all
    from .installation import peer_python
    from .probes import PROBES, run_probe

    python = peer_python(folder)
    compile_all(_say)
    console = Console(highlight=False, markup=False, emoji=False)
    for case in PROBES:
        console.print(run_probe(python, case))
        console.print()
    console.print("times in ms")


def _write(found: Compared, json_text: str, out: Path) -> None:
    from ...envs.atomic_file import write_atomically
    from .figure import draw

    report = found.report
    version = report.versions["ai-dynamo"]
    title = f"{report.requests:,} requests, {report.rate:.3g} per second, 2P4D, ai-dynamo {version}"
    write_atomically(out / "peers.json", f"{json_text}\n".encode())
    write_atomically(out / "peers.csv", report.csv_text().encode())
    write_atomically(out / "peers.png", draw(found.theirs, found.ours, title))


def _show(found: Compared) -> None:
    from rich.console import Console

    from .table import delay_table, preemption_words, speed_table

    console = Console(highlight=False, markup=False, emoji=False)
    for table in (speed_table(found.report), delay_table(found.report)):
        console.print(table)
        console.print()
    console.print(preemption_words(found.report), soft_wrap=True)
    versions = ", ".join(f"{name} {version}" for name, version in found.report.versions.items())
    console.print(f"on {found.report.machine}; {versions}", soft_wrap=True)


def _say(text: str) -> None:
    typer.echo(text, err=True)
