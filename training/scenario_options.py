"""Options that describe a scenario, alike for all commands, and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..envs.backend import Backend
    from ..envs.scenario import Scenario
    from ..envs.setting import Setting
    from .executors.executor import Executor
    from .saturation import Probe, Saturation

Workload = Annotated[
    str,
    typer.Argument(
        metavar="[WORKLOAD_OR_TRACE]",
        help="Workload family (`disaggroute list workloads`), its YAML file, or a trace file.",
    ),
]
Topology = Annotated[
    str | None,
    typer.Option(
        help="Prefill and decode instances, such as 2P4D, or mixed ones, such as 4M. "
        "Default: the workload's cluster, else 2P4D."
    ),
]
ClusterFile = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Cluster by name (`disaggroute list configs`) or YAML file, instead of --topology; a live one for a live "
        "backend.",
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", help="Profile of every instance of --topology. Default: the workload's."),
]
Routers = Annotated[
    int | None,
    typer.Option(help="Router replicas, 1 to 8, each with its own ledger. Default: the cluster's, else 1."),
]
Dealing = Annotated[
    str | None,
    typer.Option(help="How requests are dealt to several routers: round-robin or random. Default: round-robin."),
]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Requests per second. Default: a trace file's own, else the saturation rate, stored or searched for."
    ),
]
Duration = Annotated[
    float | None,
    typer.Option(help="Length of the measurement window, simulated seconds. Default: 300, or a whole trace; 120 live."),
]
Warmup = Annotated[float, typer.Option(help="Seconds before the window, routed alike but not measured.")]
PredictorName = Annotated[str, typer.Option("--predictor", help="Such as bucket, oracle, noisy(0.5), constant.")]
Targets = Annotated[
    str | None,
    typer.Option(
        help="SLO targets: fixed (the profile's), or relative to each request alone. Default: the workload's."
    ),
]
Format = Annotated[str | None, typer.Option("--format", help="Format of a trace file. Default: detected.")]
TightShare = Annotated[
    float | None, typer.Option(help="Share of tight requests of a trace file. Default: the file's, else 0.5.")
]
Scale = Annotated[
    float,
    typer.Option(help="Factor on all times the router believes in; 0.135 is the study's uncalibrated one."),
]
WorkerCount = Annotated[
    int | None,
    typer.Option("--workers", help="Runs at a time. Default: one per core; all of the cluster at --ray-address."),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor", help="What does the runs: process, on this machine, or ray, also on others (docs/executors.md)."
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of a Ray cluster, for --executor ray. Default: one on this machine, for this command alone.",
        show_default=False,
    ),
]


def scenario_of(**values: Any) -> Scenario:
    """The scenario that the options describe.

    Raises:
        ValueError: names the option, its value and what is allowed.
    """
    from ..envs.scenario import Scenario

    return Scenario.make(**values)


def seed_count(setting: Setting, otherwise: int) -> int:
    """How many seeds a setting gets unless told: one for a trace file."""
    return 1 if setting.traffic.single else otherwise


def with_rate(scenario: Scenario, workers: Executor) -> Scenario:
    """The scenario at its rate: as given, the trace's own, the stored one, or the one that a search finds."""
    from ..envs.setting import Setting

    known = Setting.of(scenario).at_known_rate()
    return scenario.at_rate(saturate_aloud(scenario, workers).rate) if known is None else known.scenario


def saturate_aloud(scenario: Scenario, workers: Executor, **options: Any) -> Saturation:
    """Searches for the saturation rate and tells every step on the standard error."""
    from .saturation import saturate as search

    found = search(scenario, workers=workers, on_probe=_tell_probe, say=say, **options)
    _tell_found(found)
    return found


def saturate_live_aloud(backend: Backend, **options: Any) -> Saturation:
    """The same on a live cluster."""
    from .live_saturation import RESULT, saturate_live

    found, folder = saturate_live(backend, on_probe=_tell_probe, say=say, **options)
    _tell_found(found)
    say(f"what was tried is in {folder / RESULT}")
    return found


def _tell_probe(probe: Probe) -> None:
    say(f"{probe.rate:g} requests/s: goodput {probe.goodput:.4f}, {probe.share:.4f} of the ceiling")


def _tell_found(found: Saturation) -> None:
    share = f"{found.found.share:.4f} of the ceiling"
    say(f"{found.policy} reaches {share} at {found.rate:g} requests/s (target {found.target:g})")
    if found.doubt:
        say(f"warning: {found.doubt}")


def say(text: str) -> None:
    """A line on the standard error."""
    typer.echo(text, err=True)
