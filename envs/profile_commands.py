"""`disaggroute profile`: show profiles, import them from other projects' fits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import catalog, profile_import, profiles
from .cluster import PS_PER_S

app = typer.Typer(help="Show and import profiles.", no_args_is_help=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a profile, or path of a YAML file.")],
) -> None:
    """Print the constants of a profile, their sources and fit errors, and what follows from them."""
    from rich.console import Console
    from rich.table import Table

    profile = profiles.load(name)
    engine, targets = profile.engine(), profile.slo_targets
    table = Table(title=f"{profile.name}: {profile.gpu}, {profile.model}, tp {profile.tensor_parallel}")
    for heading in ("constant", "value", "fit error mean / max", "source"):
        table.add_column(heading)
    notes: list[str] = []
    for constant, value in profile.constants().items():
        source = profile.source(constant)
        errors = " / ".join("-" if e is None else f"{e:.1%}" for e in (source.error_mean, source.error_max))
        if source.text not in notes:
            notes.append(source.text)
        mark = f"({notes.index(source.text) + 1})" + (" assumed" if source.assumed else "")
        table.add_row(constant, f"{value}", errors if errors != "- / -" else "", mark)
    derived = Table(title="follows")
    derived.add_column("quantity")
    derived.add_column("value", justify="right")
    for words, text in (
        ("KV capacity", f"{engine.num_blocks * engine.block_size:,} tokens"),
        ("tau_decode (16 sequences of 1,024 tokens)", f"{profile.tau_decode * 1e3:.3f} ms per token"),
        ("tau_decode_single", f"{profile.tau_decode_single * 1e3:.3f} ms per token"),
        ("tau_prefill", f"{profile.tau_prefill * 1e6:.2f} µs per token"),
        ("TTFT target tight / loose", _milliseconds(targets.ttft)),
        ("TPOT target tight / loose", _milliseconds(targets.tpot)),
    ):
        derived.add_row(words, text)
    console = Console(markup=False, emoji=False)
    console.print(table)
    for number, text in enumerate(notes, 1):
        console.print(f"({number}) {text}", highlight=False)
    console.print(derived)
    if profile.notes:
        console.print(profile.notes)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="File to import.")],
    source: Annotated[str, typer.Option("--from", help="Format of the file.")] = profile_import.FITS,
    out: Annotated[Path, typer.Option("--out", help="Folder for the YAML files.")] = Path("profiles"),
) -> None:
    """Write one profile file for each entry of FILE."""
    if source not in profile_import.SOURCES:
        raise ValueError(catalog.unknown("source of profiles", source, profile_import.SOURCES))
    for profile in profile_import.read_fits(file):
        typer.echo(profile_import.write(profile, out))


def _milliseconds(targets: tuple[int, int]) -> str:
    return " / ".join(f"{1e3 * t / PS_PER_S:.1f}" for t in targets) + " ms"
