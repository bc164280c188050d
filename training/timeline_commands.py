"""`disaggroute timeline`: a stored run as a timeline for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..envs.timeline import Names
    from .runs import ResultsFolder, Run

ENDINGS = (".json", ".json.gz")


def register(app: typer.Typer) -> None:
    """Adds the command of this module to an app."""
    app.command()(timeline)


def timeline(
    results: Annotated[Path, typer.Argument(help="Results folder that `evaluate` wrote.")],
    policy: Annotated[str | None, typer.Option(help="Policy of the run. Default: the only one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run. Default: the first with records.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File, .json or .json.gz. Default: RESULTS/timelines/POLICY-HASH/SEED.json.gz."),
    ] = None,
    start: Annotated[float | None, typer.Option("--from", help="Leave out what ended before this second.")] = None,
    end: Annotated[float | None, typer.Option("--to", help="Leave out what arrived after this second.")] = None,
) -> None:
    """Write what every request of a run did on every instance, for https://ui.perfetto.dev.

    One process per instance: its requests on lanes, phase after phase, with arrows from prefill to decode, markers of
    missed targets and failures, and counters of requests by phase and of KV tokens.

    A request takes about 3 kB, 0.4 kB compressed; --from and --to cut a long run.

    \b
    disaggroute timeline results/study --policy marginal-cost --from 60 --to 120
    """  # noqa: D301
    from ..envs.timeline import write_timeline
    from .results import read_note
    from .runs import ResultsFolder, atomic_file
    from .stored_records import read_records

    folder = ResultsFolder(results, str(read_note(results).get("key")))
    run = _chosen(folder, policy, seed)
    source = folder.records_path(run.policy, run.seed)
    target = out if out is not None else results / "timelines" / source.parent.name / f"{run.seed}.json.gz"
    if not target.name.endswith(ENDINGS):
        raise ValueError(f"out is {target}; it must end in {' or '.join(ENDINGS)}")
    stored = read_records(source)
    window = _window(start, end, int(stored.records["end"].max(initial=0)))
    with atomic_file(target) as file:
        stream = _packed(file) if target.suffix == ".gz" else file
        events = write_timeline(
            stream,
            stored.records,
            stored.trace,
            _names(run, stored.records),
            routed=stored.decided,
            window=window,
            about={"policy": run.label, "seed": run.seed, "experiment": run.experiment},
        )
        if stream is not file:
            stream.close()
    typer.echo(f"{run.label}, seed {run.seed}: {events:,} events; open the file at https://ui.perfetto.dev", err=True)
    typer.echo(target)


def _chosen(folder: ResultsFolder, policy: str | None, seed: int | None) -> Run:
    """The run that is meant; it has records."""
    from ..envs import catalog
    from ..policies import registry

    runs = folder.runs()
    labels = sorted({run.label for run in runs})
    if not labels:
        raise ValueError(f"{folder.path} holds no finished run")
    if policy is None and len(labels) > 1:
        raise ValueError(f"policy is missing; {folder.path} has runs of {', '.join(labels)}")
    if policy is not None and policy not in labels:  # the same policy may be written in another way
        wanted = registry.parse(policy).hash
        labels = [run.label for run in runs if run.policy["hash"] == wanted]
        if not labels:
            raise ValueError(f"{folder.path}: " + catalog.unknown("policy", policy, {run.label for run in runs}))
    label = policy if policy in labels else labels[0]
    stored = [run for run in runs if run.label == label and folder.records_path(run.policy, run.seed).exists()]
    for run in stored:
        if seed is None or run.seed == seed:
            return run
    seeds = ", ".join(str(run.seed) for run in stored) or "none"
    what = f"of {label}" if seed is None else f"of {label} and seed {seed}"
    raise ValueError(
        f"{folder.path} has no records {what}; seeds with records: {seeds} (`evaluate --records all` keeps all)"
    )


def _names(run: Run, records: npt.NDArray[Any]) -> Names:
    """Names of the instances, by role, up to the last that served a request."""
    names = {}
    for role in run.summary.balance:
        count = int(records["prefill" if role == "prefill" else "decode"].max(initial=-1)) + 1
        names[role] = [f"{role} {i}" for i in range(count)]
    return names


def _window(start: float | None, end: float | None, last: int) -> tuple[int, int] | None:
    """The window in ps, or None for all of a run that ends at `last`."""
    from ..envs.cluster import MAX_TIME_PS, PS_PER_S

    if start is None and end is None:
        return None
    for name, value in (("from", start), ("to", end)):
        if value is not None and not 0 <= value <= MAX_TIME_PS / PS_PER_S:
            raise ValueError(f"{name} is {value:g} s; it must be between 0 and 100 days")
    window = (round((start or 0) * PS_PER_S), last if end is None else round(end * PS_PER_S))
    if window[0] >= window[1]:
        ends = f"{window[1] / PS_PER_S:g} s" + (", when the run ends" if end is None else "")
        raise ValueError(f"from is {start or 0:g} s; it must lie before {ends}")
    return window


def _packed(file: Any) -> Any:
    """A gzip stream into a file, without name and time in its header: the same run gives the same bytes."""
    import gzip

    return gzip.GzipFile("", "wb", 6, file, mtime=0)
