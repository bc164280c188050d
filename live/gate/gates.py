"""The gates, one after the other: the first that does not open stops the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..cluster_file import LiveCluster
from ..http_client import Unreachable
from ..probe import Probe
from ..reply import Failed
from . import sameness, token_counts
from .report import Check, GateReport
from .warm_up import warm_up

Tell = Callable[[str], None]


async def run_gates(cluster: LiveCluster, *, tell: Tell, seed: int | None = None) -> GateReport:
    """Warms up all pairs of engines and holds them to what measurements rely on.

    Exact token counts; outputs that depend on the whole prompt (else the next would prove nothing); the same greedy
    output from every engine alone, and from every pair as from an engine alone.

    Args:
        cluster: engines that listen.
        tell: told what goes on, a line at a time.
        seed: of the prompts; by default new ones every time, which no prefix cache holds.

    Returns:
        What came of it; `passed` says whether anything may be measured.

    Raises:
        Unreachable: an engine does not answer at all.
        Unfit: one is not what the cluster says.
        Busy: one has other requests.
        ValueError: the engines' context is too short.
    """
    async with Probe(cluster, seed) as probe:
        return await gates_of(probe, tell)


async def gates_of(probe: Probe, tell: Tell) -> GateReport:
    """The same through a probe that is open."""
    token_counts.check_context(probe)
    await probe.wait_idle()
    report = GateReport(probe.cluster.name, probe.cluster.model, [])

    async def warm(check: Check) -> None:
        await warm_up(probe, check, report.warm_ups)

    async def counts(check: Check) -> None:
        await token_counts.look(probe, check)

    async def fitness(check: Check) -> None:
        await sameness.look_at_the_model(probe, check)

    async def alone(check: Check) -> None:
        await sameness.look_at_engines_alone(probe, check)

    async def pairs(check: Check) -> None:
        await sameness.look_at_pairs(probe, check)

    steps: list[tuple[str, Callable[[Check], Awaitable[None]]]] = [
        ("warm-up", warm),
        ("exact token counts", counts),
        ("the output depends on the whole prompt", fitness),
        ("the same output from every engine alone", alone),
    ]
    if probe.pairs:
        steps.append(("the same output from every pair", pairs))
    report.checks = [Check(name) for name, _ in steps]
    for check, (_, look) in zip(report.checks, steps, strict=True):
        tell(f"gate: {check.name}")
        try:
            await look(check)
        except (Failed, Unreachable) as error:
            check.problems.append(str(error))
        if check.problems:
            if check.verdict == "not run":
                check.verdict = "failed"
            check.words = check.words or check.problems[0]
            break
        check.verdict = "passed"
    return report
