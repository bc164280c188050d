"""Plants every fault of `faults.py` in a copy of the package and lets the random cases catch it.

    python -m tests.differential.mutants [--limit 5000] [--only WORD] [--out results/mutants.csv]

prints a table and exits with 1 if a fault survives, no longer applies, or the core without a fault differs
from the reference. Each copy has a cache of its own, so that nothing compiled earlier is taken for it.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from .faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
LIMIT = 5_000
COLOURS = {"caught": "green", "survived": "red", "broken": "magenta", "equal": "green"}


@dataclass(frozen=True)
class Outcome:
    """What became of one copy of the package.

    Attributes:
        fault: name of the fault, "" for the core as it is.
        module: the file with the fault.
        verdict: caught; survived; broken (does not apply or does not run); equal (no fault, no difference).
        cases: random cases that were run; the last is the one that differed.
        seed: seed of the case that differed, or −1.
        difference: the first difference in words.
    """

    fault: str
    module: str
    verdict: Literal["caught", "survived", "broken", "equal"]
    cases: int
    seed: int
    difference: str

    @property
    def good(self) -> bool:
        """Whether it is as it should be."""
        return self.verdict in ("caught", "equal")


def copy_package(to: Path) -> Path:
    """Copies what the random cases need into `to`/disaggroute; returns that folder."""
    package = to / "disaggroute"
    package.mkdir()
    shutil.copy(ROOT / "__init__.py", package)
    for folder in ("envs", "tests/differential"):
        shutil.copytree(ROOT / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def run_hunt(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """Runs `hunt.py` in the copy of the package under `folder`."""
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "DISAGGROUTE_CACHE": str(folder / "cache"),
        "NUMBA_OPT": "1",  # compiles faster
    }
    command = [sys.executable, "-m", "disaggroute.tests.differential.hunt", str(limit)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def try_fault(fault: Fault | None, limit: int = LIMIT) -> Outcome:
    """Runs up to `limit` random cases on the core with one fault, or without any."""
    name, module = (fault.name, fault.module) if fault else ("", "")
    with tempfile.TemporaryDirectory(prefix="disaggroute-mutant-") as folder:
        package = copy_package(Path(folder))
        if fault is not None:
            file = package / "envs" / "simulator" / fault.module
            try:
                file.write_text(fault.planted(file.read_text()))
            except ValueError as error:
                return Outcome(name, module, "broken", 0, -1, str(error))
        done = run_hunt(Path(folder), limit)
    lines = done.stdout.splitlines() or [""]
    if done.returncode == 0:
        result = json.loads(lines[-1])
        cases, difference = int(result["cases"]), result["difference"]
        if difference is None:
            return Outcome(name, module, "survived" if fault else "equal", cases, -1, "")
        return Outcome(name, module, "caught" if fault else "broken", cases, cases - 1, difference)
    if done.returncode > 0 or not lines[-1].isdigit():
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        return Outcome(name, module, "broken", 0, -1, last)
    seed = int(lines[-1])
    why = signal.Signals(-done.returncode).name
    ending = "it does not end" if why == "SIGALRM" else f"it dies of {why}"
    return Outcome(name, module, "caught" if fault else "broken", seed + 1, seed, ending)


def try_all(faults: Iterable[Fault], limit: int, workers: int) -> Iterator[Outcome]:
    """Outcomes of the core without a fault and then of every fault, in order."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(partial(try_fault, limit=limit), [None, *faults])


def table_of(outcomes: Iterable[Outcome]) -> Table:
    """The outcomes for a terminal."""
    table = Table("fault", "module", "verdict", "seed", "first difference")
    for o in outcomes:
        seed = "" if o.seed < 0 else str(o.seed)
        colour = COLOURS[o.verdict]
        table.add_row(o.fault or "none", o.module, f"[{colour}]{o.verdict}[/]", seed, o.difference[:120])
    return table


def write_csv(outcomes: Iterable[Outcome], out: Path) -> None:
    """Writes the outcomes, one a row."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Outcome)])
        writer.writeheader()
        writer.writerows(asdict(o) for o in outcomes)


def main(
    limit: Annotated[int, typer.Option(min=1, help="Random cases that a fault must not survive.")] = LIMIT,
    only: Annotated[str, typer.Option(help="Only the faults whose name holds this.")] = "",
    workers: Annotated[int, typer.Option(min=1, help="Copies that run at a time.")] = 2,
    out: Annotated[Path, typer.Option(help="CSV file for the outcomes.")] = Path("results/mutants.csv"),
) -> None:
    """Plants faults in the fast core, one at a time, and shows that random cases catch them."""
    console = Console()
    chosen = [fault for fault in FAULTS if only in fault.name]
    outcomes = []
    for outcome in try_all(chosen, limit, workers):
        outcomes.append(outcome)
        name = outcome.fault or "no fault"
        console.print(f"{len(outcomes) - 1:3} of {len(chosen)}: {name}: {outcome.verdict} ({outcome.seed})")
    console.print(table_of(outcomes))
    write_csv(outcomes, out)
    bad = [o.fault or "the core without a fault" for o in outcomes if not o.good]
    if bad:
        console.print(f"{len(bad)} not as they should be: {', '.join(bad)}")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
