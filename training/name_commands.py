"""`disaggroute list`: what the other commands can be told."""

from __future__ import annotations

import sys
from inspect import getdoc
from typing import Annotated, Any

import typer

LISTS = ("policies", "environments", "rewards", "workloads", "profiles", "configs", "predictors", "suite")


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command("list")(list_names)


def list_names(
    what: Annotated[str, typer.Argument(metavar="|".join(LISTS), help="What to list.")],
) -> None:
    """List the names that other commands take; on a terminal with a line about each.

    Among the policies are those with the parameters of a file that ships with the package, as NAME@FILE.
    """
    from ..envs import catalog

    if what not in LISTS:
        raise ValueError(catalog.unknown("list", what, LISTS))
    if what == "configs":
        for kind in catalog.KINDS:
            for name in catalog.names(kind):
                typer.echo(f"{kind}/{name}")
        return
    names = _names(what)
    if what == "predictors" or not sys.stdout.isatty():
        typer.echo("\n".join(names))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name in names:
        table.add_row(name, Text(_told(what, name)))
    Console(markup=False, emoji=False).print(table)


def _told(what: str, name: str) -> str:
    """What a name stands for; where it cannot be read, why."""
    try:
        return _about(what, name)
    except ValueError as error:
        return str(error)


def _about(what: str, name: str) -> str:
    """What a name stands for, in one sentence."""
    from ..envs import profiles, rewards
    from ..envs.environment_config import EnvironmentConfig
    from ..envs.setting import Setting
    from ..envs.workloads.config import load
    from ..policies import policy_file, registry
    from .suite import config as suite

    if what == "suite":
        scenario = suite.load(name)
        return f"Version {scenario.version}. {scenario.notes}"
    if what == "environments":
        setting = Setting.of(EnvironmentConfig.load(name).scenario)
        return f"{setting.traffic.name} on {setting.cluster.name}"
    if what == "rewards":
        return (getdoc(rewards.make(name)) or "").split("\n")[0]
    if what == "profiles":
        profile = profiles.load(name)
        return f"{profile.model} on {profile.tensor_parallel} × {profile.gpu}"
    if what == "workloads":
        return load(name).notes
    policy, _, file = name.partition("@")
    if file:
        return f"Parameters for {policy_file.load(policy, file).provenance.get('scenario', 'an unnamed scenario')}"
    return (registry.policy_class(name).__doc__ or "").strip().split("\n")[0]


def _names(what: str) -> tuple[str, ...]:
    from ..envs import environment_config, predictors, profiles, rewards, workloads
    from ..policies import policy_file, registry
    from .suite import config as suite

    if what == "policies":
        files = {name: policy_file.shipped(name) for name in registry.names()}
        return tuple(text for name in files for text in (name, *(f"{name}@{file}" for file in files[name])))
    modules: dict[str, Any] = {"workloads": workloads, "profiles": profiles, "predictors": predictors}
    modules |= {"environments": environment_config, "rewards": rewards, "suite": suite}
    return tuple(modules[what].names())
