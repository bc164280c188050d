"""`disaggroute bench`: measure speed, start-up time and memory on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .measurement import Result
    from .report import Report

app = typer.Typer(invoke_without_command=True)

REPORTING = ("--json", "--compare")
"""Options that change what is shown, not what is measured."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Compare = Annotated[
    Path | None, typer.Option("--compare", metavar="FILE", help="Compare with what --json printed before.")
]
Requests = Annotated[int, typer.Option("--requests", help="About how many requests a run has.")]
Repeats = Annotated[int, typer.Option("--repeats", help="How often each number is measured.")]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Requests per second. Default: the saturation rate, stored or searched for."),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the trace.")]
Episodes = Annotated[int, typer.Option("--episodes", help="Episodes that end in a repeat, at least.")]
Duration = Annotated[
    float | None,
    typer.Option("--duration-s", help="Simulated seconds of an episode. Default: the configuration's, 300."),
]
ColdRepeats = Annotated[
    int, typer.Option("--cold-repeats", help="How often everything is compiled anew; 0 leaves it out.")
]


@app.callback()
def everything(
    context: typer.Context,
    requests: Requests = 1_000_000,
    repeats: Repeats = 5,
    cold_repeats: ColdRepeats = 1,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """Measure speed, start-up time and memory: all of it, or one of the commands below.

    \b
    disaggroute bench
    disaggroute bench --json > before.json
    disaggroute bench simulator --compare before.json
    """  # noqa: D301
    if context.invoked_subcommand is not None:
        if given := _given(context):
            raise ValueError(
                f"{given[0][0]} stands before {context.invoked_subcommand}; it must stand after it"
            )
        return
    _check_counts(cold_repeats, requests=requests, repeats=repeats)
    baseline = _baseline(compare)
    from . import clone as cloning
    from . import decision as decisions
    from . import environment as environments
    from . import memory as memories
    from . import policies as deciding
    from . import proxy as proxies
    from . import simulator as simulation
    from . import startup as starting
    from . import training as trainings
    from . import vector as vectors

    results: list[Result] = []
    for topology in simulation.TOPOLOGIES:
        rate = _rate(topology, None)
        results += simulation.measure(topology, rate, requests=requests, repeats=repeats, say=_say)
        results += deciding.measure(topology, rate, requests=min(requests, 100_000), repeats=repeats, say=_say)
    results += vectors.measure(repeats=repeats, say=_say)
    results += environments.measure(repeats=repeats, say=_say)
    if (library := trainings.missing()) is None:
        results += trainings.measure(repeats=repeats, say=_say)
    else:
        _say(f"train is left out: {library} is not installed; `pip install 'disaggroute[train]'`")
    if (why := proxies.missing()) is None:
        results += decisions.measure(repeats=repeats, say=_say)
        results += proxies.measure(repeats=repeats, say=_say)
    else:
        _say(f"proxy is left out: {why}")
    rate = _rate(cloning.TOPOLOGY, None)
    results += cloning.measure(rate, repeats=repeats, say=_say)
    results += starting.measure(repeats=repeats, cold_repeats=cold_repeats, say=_say)
    results += memories.measure(rate, requests=requests, say=_say)
    _show(context, results, as_json, baseline)


@app.command()
def simulator(
    context: typer.Context,
    topologies: Annotated[str, typer.Option(help="Clusters, separated by commas.")] = "2P4D,16P48D",
    policies: Annotated[
        str, typer.Option(help="Policies, separated by commas; parameters in brackets.")
    ] = "round-robin,least-loaded,marginal-cost",
    requests: Requests = 1_000_000,
    repeats: Repeats = 5,
    rate: Rate = None,
    seed: Seed = 0,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """Requests simulated per second in whole episodes, on one core."""
    _check_counts(requests=requests, repeats=repeats)
    from ..training.evaluation import check_policies, split_policies

    labels = check_policies(split_policies(policies))
    names = _topologies(topologies, rate)
    baseline = _baseline(compare)
    from . import simulator as simulation

    results: list[Result] = []
    for name in names:
        results += simulation.measure(
            name,
            _rate(name, rate),
            policies=labels,
            requests=requests,
            repeats=repeats,
            seed=seed,
            say=_say,
        )
    _show(context, results, as_json, baseline)


@app.command()
def policies(
    context: typer.Context,
    topologies: Annotated[str, typer.Option(help="Clusters, separated by commas.")] = "2P4D,16P48D",
    requests: Requests = 100_000,
    repeats: Repeats = 5,
    rate: Rate = None,
    seed: Seed = 0,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """CPU time of a decision of the learned policies: in compiled episodes, and by `route` in Python."""
    _check_counts(requests=requests, repeats=repeats)
    names = _topologies(topologies, rate)
    baseline = _baseline(compare)
    from . import policies as deciding

    results: list[Result] = []
    for name in names:
        results += deciding.measure(
            name, _rate(name, rate), requests=requests, repeats=repeats, seed=seed, say=_say
        )
    _show(context, results, as_json, baseline)


@app.command()
def vector(
    context: typer.Context,
    envs: Annotated[str, typer.Option(help="Numbers of environments, separated by commas.")] = "256,16,1",
    sync_envs: Annotated[
        int, typer.Option(help="Environments beside Gymnasium's SyncVectorEnv; 0 leaves that out.")
    ] = 16,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the last measurement. Default: one per core; 1 leaves it out.")
    ] = None,
    episodes: Episodes = 16,
    duration_s: Duration = None,
    repeats: Repeats = 5,
    seed: Seed = 0,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """Decisions per second of the native vector environment, autoreset included, on one core, at last on all."""
    _check_counts(episodes=episodes, repeats=repeats)
    baseline = _baseline(compare)
    from . import vector as vectors

    results = vectors.measure(
        envs=_counts("envs", envs),
        sync_envs=sync_envs,
        episodes=episodes,
        repeats=repeats,
        seed=seed,
        threads=threads,
        say=_say,
        overrides=_overrides(duration_s),
    )
    _show(context, results, as_json, baseline)


@app.command()
def env(
    context: typer.Context,
    episodes: Episodes = 16,
    duration_s: Duration = None,
    repeats: Repeats = 5,
    seed: Seed = 0,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """Steps per second of the single environment in a Python loop, resets included, on one core."""
    _check_counts(episodes=episodes, repeats=repeats)
    baseline = _baseline(compare)
    from . import environment as environments

    results = environments.measure(
        episodes=episodes, repeats=repeats, seed=seed, say=_say, overrides=_overrides(duration_s)
    )
    _show(context, results, as_json, baseline)


@app.command()
def train(
    context: typer.Context,
    envs: Annotated[int, typer.Option(help="Environments side by side.")] = 64,
    steps: Annotated[int, typer.Option(help="Steps of each environment in a rollout.")] = 256,
    batch: Annotated[int, typer.Option(help="Steps in a minibatch.")] = 4_096,
    epochs: Annotated[int, typer.Option(help="How often an update goes over its rollout.")] = 4,
    threads: Annotated[int, typer.Option(help="Threads that torch may use.")] = 1,
    updates: Annotated[int, typer.Option(help="Updates per repeat.")] = 2,
    duration_s: Duration = None,
    repeats: Repeats = 5,
    seed: Seed = 0,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """Steps per second of a PPO of Stable-Baselines3, rollouts and training."""
    baseline = _baseline(compare)
    from . import training as trainings

    results = trainings.measure(
        envs=envs,
        steps=steps,
        batch=batch,
        epochs=epochs,
        threads=threads,
        updates=updates,
        repeats=repeats,
        seed=seed,
        say=_say,
        overrides=_overrides(duration_s),
    )
    _show(context, results, as_json, baseline)


@app.command()
def clone(
    context: typer.Context,
    in_flight: Annotated[int, typer.Option(help="Requests in flight in the state that is copied.")] = 300,
    times: Annotated[int, typer.Option(help="Copies per repeat.")] = 20_000,
    repeats: Repeats = 5,
    rate: Rate = None,
    seed: Seed = 0,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """Time to copy the state of a 2P4D cluster."""
    _check_counts(in_flight=in_flight, times=times, repeats=repeats)
    baseline = _baseline(compare)
    from . import clone as cloning

    results = cloning.measure(
        _rate(cloning.TOPOLOGY, rate),
        in_flight=in_flight,
        times=times,
        repeats=repeats,
        seed=seed,
        say=_say,
    )
    _show(context, results, as_json, baseline)


@app.command()
def proxy(
    context: typer.Context,
    requests: Annotated[int, typer.Option("--requests", help="Requests of a repeat; half as many streams.")] = 2_000,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.")] = 32,
    step_ms: Annotated[float, typer.Option(help="Time between two tokens of a stream, ms.")] = 0.5,
    held: Annotated[
        str, typer.Option(help="Streams that are held open, separated by commas; 0 leaves that out.")
    ] = "1000,4000,16000",
    repeats: Repeats = 5,
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Give proxies the priority of real-time programs (needs the right).")
    ] = False,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """CPU time per request of the router on one core, beside a bare proxy and vllm-router if it is installed.

    Also the time of a decision, and the memory of streams that are held open.
    """
    _check_counts(requests=requests, concurrency=concurrency, repeats=repeats)
    widths = [] if held.strip() == "0" else _counts("held", held)
    baseline = _baseline(compare)
    from . import decision
    from . import proxy as proxies

    proxies.check(concurrency=concurrency, step_s=step_ms / 1e3)
    results = decision.measure(repeats=repeats, say=_say)
    results += proxies.measure(
        requests=requests,
        concurrency=concurrency,
        step_s=step_ms / 1e3,
        held=widths,
        repeats=repeats,
        realtime=realtime,
        say=_say,
    )
    _show(context, results, as_json, baseline)


@app.command()
def startup(
    context: typer.Context,
    repeats: Repeats = 5,
    cold_repeats: ColdRepeats = 1,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """Time from the start of a process to the import, to the first step, to everything compiled."""
    _check_counts(cold_repeats, repeats=repeats)
    baseline = _baseline(compare)
    from . import startup as starting

    results = starting.measure(repeats=repeats, cold_repeats=cold_repeats, say=_say)
    _show(context, results, as_json, baseline)


@app.command()
def memory(
    context: typer.Context,
    requests: Requests = 1_000_000,
    repeats: Repeats = 1,
    rate: Rate = None,
    seed: Seed = 0,
    as_json: Json = False,
    compare: Compare = None,
) -> None:
    """Peak memory of a process that simulates a long run at 2P4D and keeps its records and decisions."""
    _check_counts(requests=requests, repeats=repeats)
    baseline = _baseline(compare)
    from . import memory as memories

    results = memories.measure(
        _rate(memories.TOPOLOGY, rate), requests=requests, repeats=repeats, seed=seed, say=_say
    )
    _show(context, results, as_json, baseline)


def _check_counts(cold_repeats: int = 0, **counts: int) -> None:
    """Refuses bad counts before anything slow begins."""
    from .measurement import at_least

    for name, value in counts.items():
        at_least(name, value)
    at_least("cold_repeats", cold_repeats, 0)


def _topologies(text: str, rate: float | None) -> list[str]:
    """Names separated by commas; one if a rate is given."""
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"topologies is {text!r}; at least one is needed, such as 2P4D")
    if rate is not None and len(names) > 1:
        raise ValueError(f"rate is {rate:g} for {len(names)} topologies; it must be given with one")
    return names


def _counts(name: str, text: str) -> list[int]:
    """Numbers separated by commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{name} is {text!r}; it must be numbers separated by commas, such as 256,16,1")
    return [int(part) for part in parts]


def _overrides(duration_s: float | None) -> dict[str, float]:
    """Fields of the environment's configuration that are replaced."""
    return {} if duration_s is None else {"duration_s": duration_s}


def _baseline(file: Path | None) -> Report | None:
    from .report import Report

    return None if file is None else Report.read(file)


def _rate(topology: str, given: float | None) -> float:
    """The rate to drive at; compiles what the measurement needs, so that it is not waited for unawares."""
    from ..training.compilation import compile_all
    from .drive import saturation_rate

    if given is not None and not given > 0:
        raise ValueError(f"rate is {given:g}; it must be greater than 0")
    compile_all(_say)
    return given if given is not None else saturation_rate(topology, _say)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _given(context: typer.Context) -> list[tuple[str, str]]:
    """The options that were given, with their values."""
    given = []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given.append((parameter.opts[0], str(context.params[name])))
    return given


def _command(context: typer.Context) -> str:
    """The command that measures the same again."""
    words = ["disaggroute", "bench"]
    if context.command.name != "bench" and context.info_name not in (None, "bench"):
        words.append(str(context.info_name))
    for option, value in _given(context):
        if option not in REPORTING:
            words += [option, value]
    return shlex.join(words)


def _show(context: typer.Context, results: Sequence[Result], as_json: bool, baseline: Report | None) -> None:
    from .machine import Machine
    from .report import Report

    command = _command(context)
    signed = tuple(result.model_copy(update={"command": command}) for result in results)
    report = Report(machine=Machine.this(), results=signed)
    if baseline is not None:
        report = report.compared_with(baseline)
    if as_json:
        typer.echo(report.json_text())
        return
    from rich.console import Console

    from .table import load_table, results_table

    console = Console(highlight=False, markup=False, emoji=False)
    for table in (results_table(report), load_table(report)):
        if table is not None:
            console.print(table)
            console.print()
    console.print(f"on {report.machine}", soft_wrap=True)
    if baseline is not None:
        console.print(f"baseline: {baseline.machine}", soft_wrap=True)
    console.print(f"again: {command}", soft_wrap=True)
