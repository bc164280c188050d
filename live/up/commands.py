"""`disaggroute live up`, `live status` and `live down`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .raising import Tell
    from .standing import Standing

CLUSTER = typer.Argument(help="Live cluster: a name or a YAML file.")


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command()(up)
    app.command()(status)
    app.command()(down)


def up(
    cluster: Annotated[str, CLUSTER],
    wait: Annotated[float, typer.Option(min=1, help="Seconds that engines may take to answer.")] = 600.0,
) -> None:
    """Start the engines of a cluster on this machine, and wait until they answer.

    They go on when this command has ended, until `live down`. Engines that run are left alone: a second time it starts
    only those that have died. If one cannot start, those that were started with it are ended again.
    """
    from ..cluster_file import LiveCluster
    from ..launch_file import read
    from .raising import up as raise_up

    file = read(cluster)
    if isinstance(file, LiveCluster):
        raise ValueError(f"{cluster} has no `launch` section; its engines are started elsewhere and found by their url")
    started: list[str] = []
    signal.signal(signal.SIGTERM, _interrupted)
    with _progress() as show:

        def tell(name: str, what: str) -> None:
            if what == "starting":
                started.append(name)
            show(name, what)

        raised = raise_up(file, cluster, tell, wait)
    for role, k, entry in raised.engines():
        typer.echo(f"{raised.engine_name(role, k)} at {entry.url}")
    was = "is up" if started else "was up already"
    typer.echo(f"{raised.name} {was}; `disaggroute live serve {cluster}` serves on it, `live down {cluster}` ends it")


def _interrupted(number: int, frame: object) -> None:
    """SIGTERM is like Ctrl-C: what was started is taken down."""
    raise KeyboardInterrupt


def status(
    cluster: Annotated[
        str | None, typer.Argument(metavar="[CLUSTER]", help="Live cluster; by default all that are up.")
    ] = None,
) -> None:
    """Show which engines run and answer; exit code 1 if something is not well."""
    from ..launch_file import read
    from .lost import in_words, lost
    from .standing import standing, standings
    from .state import state_root

    found = standings() if cluster is None else [standing(read(cluster))]
    for each in found:
        _show(each)
    if not found:
        typer.echo(f"nothing is up ({state_root()})")
    for sentence in in_words(lost(found[0].name if cluster else None)):
        typer.echo(sentence, err=True)
    if not all(each.well for each in found):
        raise typer.Exit(1)


def down(
    cluster: Annotated[str, typer.Argument(help="Live cluster: a name or a YAML file.")],
    lost: Annotated[
        bool,
        typer.Option("--lost", help="Also those of this name that were started from another folder, or one removed."),
    ] = False,
) -> None:
    """End all engines that `live up` has started, also after a crash of it; that there are none is no error."""
    from .lost import end_lost, in_words
    from .lost import lost as find_lost
    from .raising import down as take_down
    from .state import state_root

    name = cluster if find_lost(cluster) else _name(cluster)
    count = take_down(name)
    if lost:
        count += end_lost(name)
    for sentence in in_words(find_lost(name)):
        typer.echo(sentence, err=True)
    if count:
        typer.echo(f"{name} is down; {count} engine{'s' if count != 1 else ''} ended")
    else:
        typer.echo(f"{name} was not up (by {state_root()})")  # Which may be that of another working folder.


def _name(cluster: str) -> str:
    """Name of the cluster, also where its file is gone or is not what it was when it was started.

    Raises:
        ValueError: there is neither such a state nor such a file.
    """
    from ...envs import catalog
    from ..cluster_file import LiveCluster
    from .state import started

    if cluster in started():
        return cluster
    return str(catalog.read("live", cluster).get("name", LiveCluster.model_fields["name"].default))


def _show(found: Standing) -> None:
    from .standing_table import show

    if found.engines:
        show(found)
    if found.folder:
        typer.echo(f"logs in {found.folder}")
    for text in filter(None, (found.complaint, found.way_out)):
        typer.echo(text, err=True)


@contextmanager
def _progress() -> Iterator[Tell]:
    """A line per engine on the standard error: what it does, and for how long."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    progress = Progress(*columns, console=console)
    tasks: dict[str, TaskID] = {}

    def tell(name: str, what: str) -> None:
        progress.start()  # Where there is nothing to show nothing is drawn.
        if name not in tasks:
            tasks[name] = progress.add_task("", total=1)
        progress.update(tasks[name], description=f"{name} {what}", completed=what in ("ready", "ended"))

    try:
        yield tell
    finally:
        if progress.live.is_started:
            progress.stop()
