"""`disaggroute evaluate`, `disaggroute report` and `disaggroute saturate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .backend_options import (
    LIVE_SEEDS,
    SIMULATOR,
    BackendName,
    Gates,
    LiveOptions,
    LiveWarmup,
    OnEngineLoss,
    Reset,
    backend_of,
    check_rate,
    scenario_values,
)
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
    Workload,
    saturate_aloud,
    saturate_live_aloud,
    say,
    scenario_of,
    seed_count,
    with_rate,
)

if TYPE_CHECKING:
    from .results import Results

BASELINES = "round-robin,least-loaded,length-threshold,marginal-cost"


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command()(evaluate)
    app.command()(saturate)
    app.command()(report)


def evaluate(
    context: typer.Context,
    workload: Workload = "mixed-bursty-a40",
    policies: Annotated[str, typer.Option(help="Policies, separated by commas; parameters in brackets.")] = BASELINES,
    topology: Topology = None,
    cluster: ClusterFile = None,
    profile: ProfileName = None,
    routers: Routers = None,
    dealing: Dealing = None,
    rate: Rate = None,
    seeds: Annotated[
        int | None, typer.Option(help="Traces per policy. Default: 5; 3 on a live cluster; a trace file has 1.")
    ] = None,
    first_seed: Annotated[
        int | None, typer.Option(help="First seed. Default: 10000 (validation), 30000 with --claim.")
    ] = None,
    duration: Duration = None,
    warmup: LiveWarmup = None,
    predictor: PredictorName = "bucket",
    targets: Targets = None,
    trace_format: Format = None,
    tight_share: TightShare = None,
    constants_scale: Scale = 1.0,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/WORKLOAD-CLUSTER-KEY.")] = None,
    records: Annotated[
        str | None,
        typer.Option(help="Whose records to keep: first (seed), all, none. Default: first; all on a live cluster."),
    ] = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="Use held-out seeds for a claim; adds a line to the log.")
    ] = False,
    claim_log: Annotated[
        Path | None,
        typer.Option(
            help="The log of held-out evaluations, to be committed. Default: configs/experiments/held-out.log."
        ),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Whether to draw figures and write report.html.")
    ] = True,
    backend: BackendName = SIMULATOR,
    gates: Gates = None,
    reset: Reset = None,
    on_engine_loss: OnEngineLoss = None,
    live_options: LiveOptions = None,
    matrix: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Many conditions instead of one: a matrix by name (`generalisation`) or YAML file (docs/matrices.md).",
        ),
    ] = None,
    conditions: Annotated[
        str | None, typer.Option(help="With --matrix: names of the conditions to run, separated by commas.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="With --matrix: folder of trace files. Default: $DISAGGROUTE_DATA.", show_default=False),
    ] = None,
) -> None:
    """Run policies on the same traces and compare their goodput.

    Results go to a folder: summary.csv (one row per run), records.parquet, figures as PNG, and report.html,
    one page with all of it.

    What is stored is not run again, so an interrupted evaluation goes on with the same command.

    \b
    disaggroute evaluate
    disaggroute evaluate mixed-bursty-a40 --policies "round-robin,marginal-cost(w_q=0.1)" --seeds 20
    disaggroute evaluate chat --topology 1P2D --rate 12
    disaggroute evaluate azure2023_conv.csv.gz --rate 20 --targets relative
    disaggroute evaluate chat --backend live --cluster my-cluster.yaml --rate 12
    disaggroute evaluate --matrix generalisation --data traces
    """  # noqa: D301
    from .evaluation import check_evaluation, simulator, split_policies
    from .evaluation import evaluate as run
    from .executors.choice import make_executor
    from .held_out import DEFAULT_LOG
    from .progress import run_progress
    from .results import read_results
    from .seeds import CLAIM_SEEDS, HELD_OUT, VALIDATION, seeds_from

    if claim_log is not None and not claim:
        raise ValueError(f"claim_log is {claim_log}, but without --claim nothing is logged; give both or neither")
    if matrix is not None:
        from .matrix.command import evaluate_matrix

        given = _given(context)
        _check_with_matrix(given)
        evaluate_matrix(
            matrix,
            conditions=conditions,
            policies=policies if "policies" in given else None,
            seeds=seeds,
            first_seed=first_seed,
            duration=duration,
            data=data,
            out=out,
            workers=make_executor(executor, workers=workers, ray_address=ray_address),
            claim=claim,
            claim_log=claim_log,
            figures=figures,
        )
        return
    for name, value in (("conditions", conditions), ("data", data)):
        if value is not None:
            raise ValueError(f"{name} is {value}, but it belongs to --matrix; give that too, or leave it out")
    values = {
        "workload": workload,
        "format": trace_format,
        "topology": topology,
        "cluster": cluster,
        "profile": profile,
        "routers": routers,
        "dealing": dealing,
        "rate": rate,
        "duration_s": duration,
        "warmup_s": warmup,
        "predictor": predictor,
        "targets": targets,
        "tight_share": tight_share,
        "constants_scale": constants_scale,
    }
    given = {"workers": workers, "executor": executor, "ray_address": ray_address}
    scenario = scenario_of(**scenario_values(backend, values, given))
    pool = make_executor(executor, workers=workers, ray_address=ray_address)
    runner = backend_of(backend, scenario, gates, reset, on_engine_loss, live_options)
    setting, usual = runner.setting, LIVE_SEEDS if runner.serial else 5
    kept = records if records is not None else "all" if runner.serial else "first"
    first = first_seed if first_seed is not None else (HELD_OUT if claim else VALIDATION).first
    count = seeds if seeds is not None else seed_count(setting, CLAIM_SEEDS if claim else usual)
    chosen = seeds_from(first, count)
    labels = check_evaluation(setting, split_policies(policies), chosen, records=kept, claim=claim)
    scenario = setting.scenario
    try:
        with pool:
            if runner.serial:
                check_rate(runner)
            else:
                scenario = with_rate(scenario, pool)
                runner = simulator(scenario)
            report = runner.setting.traffic.report(scenario.rate)
            if report:
                typer.echo(report, err=True)
            with run_progress("evaluating") as tell:
                evaluation = run(
                    scenario,
                    labels,
                    chosen,
                    out=out,
                    records=kept,  # type: ignore[arg-type]
                    workers=pool,
                    claim=claim,
                    log=claim_log or DEFAULT_LOG,
                    on_run=tell,
                    say=say,
                    backend=runner,
                )
    except KeyboardInterrupt:
        typer.echo("disaggroute: interrupted; the same command goes on from the finished runs", err=True)
        raise typer.Exit(1) from None
    _show(read_results(evaluation.folder.path, evaluation.asked), figures)


def report(
    folder: Annotated[Path, typer.Argument(help="Results folder of an evaluation.", show_default=False)],
) -> None:
    """Make figures and page of an evaluation again, from its results folder alone.

    \b
    disaggroute evaluate --out results/study
    disaggroute report results/study
    """  # noqa: D301
    from .results import read_results

    _show(read_results(folder), True)


def saturate(
    workload: Workload = "mixed-bursty-a40",
    target: Annotated[float, typer.Option(help="Share of the ceiling to reach, between 0 and 1.")] = 0.84,
    policy: Annotated[str, typer.Option(help="Policy that is to reach it.")] = "round-robin",
    topology: Topology = None,
    cluster: ClusterFile = None,
    profile: ProfileName = None,
    routers: Routers = None,
    dealing: Dealing = None,
    start: Annotated[float | None, typer.Option(help="Rate at which to start, requests per second.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Traces per rate. Default: 5; 1 on a live cluster; a trace file has 1.")
    ] = None,
    first_seed: Annotated[int, typer.Option(help="First seed; held-out ones are refused.")] = 20_000,
    duration: Duration = None,
    warmup: LiveWarmup = None,
    predictor: PredictorName = "bucket",
    targets: Targets = None,
    trace_format: Format = None,
    tight_share: TightShare = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
    backend: BackendName = SIMULATOR,
    gates: Gates = None,
    reset: Reset = None,
    on_engine_loss: OnEngineLoss = None,
    live_options: LiveOptions = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Live: folder of the runs. Default: results/saturation-WORKLOAD-CLUSTER-live-KEY."),
    ] = None,
) -> None:
    """Find the rate at which round robin reaches 0.84 of the ceiling.

    Prints the rate alone on the standard output, and what was tried on the standard error.

    On a live cluster the search ends within 0.01 of the target, and an interrupted one goes on with the same command.

    \b
    disaggroute saturate mixed-bursty-a40 --topology 2P4D
    disaggroute evaluate --rate $(disaggroute saturate chat --seeds 10) chat
    disaggroute saturate chat --backend live --cluster my-cluster.yaml
    """  # noqa: D301
    from .executors.choice import make_executor
    from .seeds import seeds_from

    if out is not None and backend == SIMULATOR:
        raise ValueError(f"out is {out}, but a search in the simulator keeps no runs; leave it out")
    values = {
        "workload": workload,
        "format": trace_format,
        "topology": topology,
        "cluster": cluster,
        "profile": profile,
        "routers": routers,
        "dealing": dealing,
        "rate": start,
        "duration_s": duration,
        "warmup_s": warmup,
        "predictor": predictor,
        "targets": targets,
        "tight_share": tight_share,
    }
    given = {"workers": workers, "executor": executor, "ray_address": ray_address}
    scenario = scenario_of(**scenario_values(backend, values, given))
    pool = make_executor(executor, workers=workers, ray_address=ray_address)
    runner = backend_of(backend, scenario, gates, reset, on_engine_loss, live_options)
    count = seeds if seeds is not None else seed_count(runner.setting, 1 if runner.serial else 5)
    chosen = seeds_from(first_seed, count)
    if runner.serial:
        found = saturate_live_aloud(runner, target=target, policy=policy, seeds=chosen, out=out)
    else:
        with pool:
            found = saturate_aloud(scenario, pool, target=target, policy=policy, seeds=chosen)
    typer.echo(f"{found.rate:g}")


WITH_MATRIX = (
    *("matrix", "conditions", "data", "policies", "seeds", "first_seed", "duration", "out", "workers"),
    *("executor", "ray_address", "claim", "claim_log", "figures"),
)
"""Options of `evaluate` that mean something beside a matrix, whose file says the rest."""


def _given(context: typer.Context) -> dict[str, object]:
    """The parameters that stand on the command line."""
    given = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given[name] = value
    return given


def _check_with_matrix(given: dict[str, object]) -> None:
    for name, value in given.items():
        if name not in WITH_MATRIX:
            raise ValueError(f"{name} is {value}, but the file of --matrix says what each condition is; leave it out")


def _show(results: Results, figures: bool) -> None:
    from .comparison import compare
    from .report.writing import remove_report, write_report
    from .table import NARROWEST, delay_table, goodput_table, remarks, table_console

    console = table_console()
    comparison = compare(results)
    folder = results.folder.path
    written = []
    try:
        console.print(results.title, soft_wrap=True)
        for table in (goodput_table(comparison, console.width), delay_table(comparison, console.width)):
            console.print()
            console.print(table)
        console.print()
        console.print(remarks(comparison), width=NARROWEST)
        if results.missing:
            console.print(f"{results.missing}.", width=NARROWEST)
    finally:  # Whether or not somebody reads to the end, as in `disaggroute evaluate | head`.
        if figures:
            written = write_report(results)
        else:
            remove_report(folder)
    for path in (folder / "summary.csv", folder / "records.parquet", *written):
        if path.exists():
            console.print(str(path), soft_wrap=True)
