"""`disaggroute explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .executors import PROCESS
from .scenario_options import (
    ClusterFile,
    Dealing,
    Duration,
    ExecutorName,
    Format,
    PredictorName,
    ProfileName,
    Rate,
    RayAddress,
    Routers,
    Scale,
    Targets,
    TightShare,
    Topology,
    WorkerCount,
    say,
    scenario_of,
    seed_count,
    with_rate,
)

if TYPE_CHECKING:
    from ..envs.scenario import Scenario
    from .explanation.explanation import Explanation
    from .report.tables import Table

AGAINST = "marginal-cost"


def register(app: typer.Typer) -> None:
    """Adds the command of this module to an app."""
    app.command()(explain)


def explain(
    context: typer.Context,
    policy: Annotated[str, typer.Argument(help="Policy, with parameters in brackets where wanted.")],
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD_OR_TRACE]",
            help="What drives the cluster: a workload family, its YAML file, or a trace file. Without it the policy "
            "is described.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[str, typer.Option(help="Policy to compare with.")] = AGAINST,
    topology: Topology = None,
    cluster: ClusterFile = None,
    profile: ProfileName = None,
    routers: Routers = None,
    dealing: Dealing = None,
    rate: Rate = None,
    seeds: Annotated[int | None, typer.Option(help="Traces. Default: 5; a trace file has 1.")] = None,
    first_seed: Annotated[int, typer.Option(help="First seed; held-out ones are refused.")] = 10_000,
    duration: Duration = None,
    warmup: Annotated[float, typer.Option(help="Seconds before the window, routed alike but not measured.")] = 60.0,
    predictor: PredictorName = "bucket",
    targets: Targets = None,
    trace_format: Format = None,
    tight_share: TightShare = None,
    constants_scale: Scale = 1.0,
    samples: Annotated[
        int, typer.Option(min=2, help="Decisions of each run that are put again with other inputs.")
    ] = 120,
    out: Annotated[
        Path | None, typer.Option(help="Results folder. Default: results/explain-POLICY-WORKLOAD-CLUSTER-KEY.")
    ] = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Whether to draw figures and write explanation.html.")
    ] = True,
) -> None:
    """Print how a policy decides and what its parameters are; with a workload, show what it does there.

    With a workload, the policy and another one run on the same traces: which requests go to which instance, what
    decisions depend on, which simple rule they are like, and which requests are served better or worse.

    \b
    disaggroute explain marginal-cost
    disaggroute explain linear@mixed-bursty mixed-bursty --against marginal-cost@mixed-bursty
    """  # noqa: D301
    if workload is None:
        _refuse_options(context)
        _describe(policy)
        return
    from .executors.choice import make_executor
    from .explanation.explanation import check_explanation, explain, explanation_configuration
    from .explanation.writing import write_explanation
    from .progress import run_progress
    from .runs import ResultsFolder
    from .seeds import seeds_from

    pool = make_executor(executor, workers=workers, ray_address=ray_address)
    scenario = scenario_of(
        workload=workload,
        format=trace_format,
        topology=topology,
        cluster=cluster,
        profile=profile,
        routers=routers,
        dealing=dealing,
        rate=rate,
        duration_s=duration,
        warmup_s=warmup,
        predictor=predictor,
        targets=targets,
        tight_share=tight_share,
        constants_scale=constants_scale,
    )
    from ..envs.setting import Setting

    setting = Setting.of(scenario)
    chosen = seeds_from(first_seed, seed_count(setting, 5) if seeds is None else seeds)
    labels = check_explanation(setting, policy, against, chosen)
    with pool:
        scenario = with_rate(scenario, pool)
        setting = Setting.of(scenario)
        report = setting.traffic.report(scenario.rate)
        if report:
            say(report)
        content = explanation_configuration(setting, *labels, chosen) | {"samples": samples}
        folder = ResultsFolder.open(out or _default_folder(setting.name, labels[0], content), content)
        with run_progress("explaining") as tell:
            found = explain(scenario, *labels, chosen, samples=samples, workers=pool, on_run=tell, say=say)
    written: list[Path] = []
    try:
        _show(found)
    finally:  # Whether or not somebody reads to the end.
        again = _command(scenario, labels, chosen, samples)
        written = write_explanation(found, folder.path, again, figures=figures)
    for path in written:
        typer.echo(path)


def _describe(policy: str) -> None:
    from ..policies import registry

    chosen = registry.parse(policy)
    typer.echo(registry.describe(chosen.name))
    # Which parameters there are may depend on the pools; their names do not.
    tunable = dict.fromkeys(dimension.name for dimension in chosen.search_space(2, 4))
    if tunable:
        typer.echo(f"\n`disaggroute tune` chooses {', '.join(tunable)}.")
    if chosen.origin is not None:
        typer.echo(f"\nParameters of {chosen}:")
        for key, value in chosen.params.items():
            typer.echo(f"  {key} = {'none' if value is None else value}")
    typer.echo(f"\n{chosen} has the hash {chosen.hash}.")


def _refuse_options(context: typer.Context) -> None:
    """Refuses options that mean nothing to a description."""
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name not in ("policy", "workload") and source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"{name} is {value}, but no workload is named; a policy is described without options")


def _default_folder(name: str, policy: str, content: dict[str, Any]) -> Path:
    import re

    from .runs import fingerprint

    words = re.sub(r"[^\w.-]+", "-", f"{policy.partition('(')[0]}-{name}")[:100].strip("-")
    return Path("results") / f"explain-{words}-{fingerprint(content)[:6]}"


def _command(scenario: Scenario, labels: tuple[str, str], seeds: range, samples: int) -> str:
    import shlex

    from .description import scenario_words
    from .explanation.explanation import SAMPLES

    words = ["disaggroute", "explain", labels[0], scenario.workload, "--against", labels[1]]
    words += [*scenario_words(scenario), "--first-seed", str(seeds[0]), "--seeds", str(len(seeds))]
    return shlex.join([*words, *(["--samples", str(samples)] if samples != SAMPLES else [])])


def _show(found: Explanation) -> None:
    from .explanation.tables import (
        agreement_table,
        assignment_table,
        effect_table,
        feature_table,
        input_table,
        tail_table,
        term_table,
    )
    from .explanation.writing import remarks
    from .report.terminal import rich_table, table_width
    from .table import NARROWEST, table_console

    console = table_console()
    tables: list[Table] = [effect_table(found), tail_table(found)]
    for pool in found.pools:
        some = [assignment_table(found, portrait, pool) for portrait in found.portraits]
        tables += [table for table in some if table_width(table) <= console.width]  # The page has the wide ones.
    for pool in found.pools:
        tables.append(input_table(found, pool))
        if found.policy.costs is not None:
            tables += [feature_table(found.policy, pool), term_table(found.policy, pool)]
    tables.append(agreement_table(found))
    console.print(found.title, soft_wrap=True)
    for table in tables:
        if table.rows:
            console.print()
            console.print(table.title, soft_wrap=True)
            console.print(rich_table(table, console.width))
            console.print(table.note, width=NARROWEST)
    console.print()
    for remark in remarks(found):
        console.print(remark, width=NARROWEST)
