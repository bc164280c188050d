"""Options of a live cluster, alike for `evaluate` and `saturate`, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .executors import PROCESS

if TYPE_CHECKING:
    from ..envs.backend import Backend
    from ..envs.scenario import Scenario

SIMULATOR = "simulator"

LIVE_DURATION_S, LIVE_WARMUP_S, LIVE_SEEDS = 120.0, 10.0, 3
"""Of a live run, unless said otherwise: wall time is dear."""

WARMUP_S = 60.0

BackendName = Annotated[
    str, typer.Option("--backend", help="What runs the policies: simulator, or live for the engines of --cluster.")
]
Gates = Annotated[
    bool | None, typer.Option("--gates/--no-gates", help="Live: whether the cluster is checked before the first run.")
]
Reset = Annotated[
    bool | None,
    typer.Option("--reset/--no-reset", help="Live: whether an engine that cannot reset its prefix cache is an error."),
]
OnEngineLoss = Annotated[
    str | None, typer.Option(help="Live: go-on or stop, when the router ejects an engine. Default: go-on.")
]
LiveOptions = Annotated[
    Path | None, typer.Option(help="Live: YAML file of further options (docs/live-evaluation.md).", show_default=False)
]
LiveWarmup = Annotated[
    float | None,
    typer.Option(
        "--warmup", help="Seconds before the window, routed alike but not measured. Default: 60; 10 on a live cluster."
    ),
]


def scenario_values(backend: str, values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Fields of the scenario, with what is usual for the backend where nothing was said.

    Args:
        backend: name of the backend.
        values: fields as given; None: not.
        given: workers, executor and ray_address.

    Raises:
        ValueError: an unknown backend, or an option that means nothing there; names it.
    """
    from ..envs.backend import names
    from ..envs.catalog import unknown

    if backend == SIMULATOR:
        return values | {"warmup_s": WARMUP_S if values["warmup_s"] is None else values["warmup_s"]}
    if backend not in names():
        raise ValueError(unknown("backend", backend, names()))
    one = "runs follow each other, on one cluster"
    for option, value, why in (
        *((option, value, one) for option, value in given.items() if value != PROCESS),
        ("topology", values["topology"], "its engines are those of --cluster"),
        ("profile", values["profile"], "it stands in the file of --cluster"),
        ("routers", values["routers"], "one router is in front of its engines"),
        ("dealing", values["dealing"], "one router is in front of its engines"),
    ):
        if value is not None:
            raise ValueError(f"{option} is {value}, but the backend is {backend}: {why}; leave it out")
    if values.get("constants_scale", 1.0) != 1.0:
        raise ValueError(
            f"constants_scale is {values['constants_scale']:g}, but the backend is {backend}: the router believes the "
            "profile of --cluster; name another one there"
        )
    if values["cluster"] is None:
        raise ValueError(f"cluster is missing; the backend {backend} needs --cluster, a name or a YAML file")
    usual = {"warmup_s": LIVE_WARMUP_S, "duration_s": LIVE_DURATION_S}
    return values | {name: usual[name] for name in usual if values[name] is None}


def backend_of(
    name: str,
    scenario: Scenario,
    gates: bool | None,
    reset: bool | None,
    on_engine_loss: str | None,
    live_options: Path | None,
) -> Backend:
    """The backend of these options.

    Raises:
        ValueError: an unknown name, an option that means nothing there, or what the backend refuses.
        OSError: a live cluster is not there.
    """
    from ..envs import backend as backends
    from .evaluation import simulator

    given = {"gates": gates, "reset": reset, "on_engine_loss": on_engine_loss, "live_options": live_options}
    said = {key: value for key, value in given.items() if value is not None}
    if name == SIMULATOR:
        if said:
            key, value = next(iter(said.items()))
            words = key.replace("_", "-")
            option = f"--{words} {value}" if not isinstance(value, bool) else f"--{'' if value else 'no-'}{words}"
            raise ValueError(f"{option} is for a live cluster; give --backend live too, or leave it out")
        return simulator(scenario)
    return backends.make(name, scenario, cluster=scenario.cluster, **said)


def check_rate(backend: Backend) -> None:
    """Refuses a live run whose rate nobody has said: what a simulator saturates at means little there.

    Raises:
        ValueError: the rate is missing.
    """
    setting = backend.setting
    if setting.scenario.rate is None and setting.traffic.own_rate is None:
        cluster = setting.scenario.cluster
        raise ValueError(
            f"rate is missing; give --rate, or find one with `disaggroute saturate {setting.scenario.workload} "
            f"--backend live --cluster {cluster}`"
        )
