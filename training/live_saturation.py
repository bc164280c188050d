"""The saturation rate of a live cluster: the same search, on runs that are kept and not repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ..envs.backend import Backend
from ..envs.setting import Setting
from ..policies import registry
from .description import describe
from .evaluation import Task, check_pools, configuration, default_folder, policy_card, run_on
from .runs import RESULTS_SCHEMA, ResultsFolder, fingerprint, write_atomically
from .saturation import LIVE_NARROW, LIVE_TOLERANCE, TARGET, Probe, Saturation, search
from .seeds import SATURATION, refuse_held_out

RESULT = "saturation.json"
"""File in the folder of a search that says what was tried and found."""


def saturate_live(
    backend: Backend,
    *,
    target: float = TARGET,
    policy: str = "round-robin",
    seeds: range | None = None,
    out: Path | None = None,
    on_probe: Callable[[Probe], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Saturation, Path]:
    """Finds the rate at which the reference policy reaches `target` × ceiling on a live cluster.

    Each rate has a results folder of its own in `out`, so an interrupted search goes on with what it has.

    Args:
        backend: the cluster; its rate is only where the search starts, by default at the simulator's stored one.
        target: share of the ceiling, between 0 and 1.
        policy: the reference policy.
        seeds: traces to average over; by default the first one of the saturation range.
        out: folder; by default `results/saturation-<workload>-<cluster>-live-<key>`.
        on_probe: told after each rate.
        say: told what is done.

    Returns:
        What was found, and the folder.

    Raises:
        ValueError: a target out of range or out of reach, held-out seeds, or a folder of something else.
        OSError: the cluster is not there, or files cannot be written.
        RuntimeError: the cluster is in no state to be measured.
    """
    if not 0 < target < 1:
        raise ValueError(f"target is {target}; it must lie between 0 and 1")
    tell, setting = say or (lambda _: None), backend.setting
    check_pools(registry.parse(policy), setting)
    seeds = SATURATION.take(1) if seeds is None else seeds
    refuse_held_out(seeds, "saturate")
    setting.check_seeds(seeds)
    start = setting.scenario.rate or setting.stored_rate
    if start is not None and setting.scenario.rate is None:
        backend = backend.at_rate(start)
    folder = out or _default_folder(backend.setting, backend)
    tried: list[Probe] = []
    begun = False

    def probe(rate: float) -> Probe:
        nonlocal begun
        at, card = backend.at_rate(rate), policy_card(policy)
        keys = configuration(at.setting, at), describe(at.setting, at.name).model_dump(mode="json")
        runs = []
        with ResultsFolder.opened(folder / f"rate-{rate:g}", *keys) as results:
            for seed in seeds:
                run = results.read(card, seed, records=True)
                if run is None:
                    if not begun:
                        at.begin(tell)
                        begun = True
                    done = run_on(at, Task(at.setting.scenario, policy, card["hash"], seed, results, True), tell)
                    run = done.run
                    results.write(run, done.records)
                runs.append(run)
            results.write_summary(results.runs())
        goodput = math.fsum(run.summary.goodput for run in runs) / len(runs)
        found = Probe(rate, goodput, math.fsum(run.summary.ceiling for run in runs) / len(runs))
        tried.append(found)
        _write(folder, target, policy, seeds, tried, None)
        return found

    result = search(
        backend.setting, target, policy, probe, on_probe, tolerance=LIVE_TOLERANCE, narrow=LIVE_NARROW
    )
    _write(folder, target, policy, seeds, tried, result.rate)
    return result, folder


def _default_folder(setting: Setting, backend: Backend) -> Path:
    """Another configuration but for the rate gets another folder."""
    whole = default_folder(setting, backend)
    key = fingerprint(configuration(setting, backend) | {"rate": None})[:6]
    return whole.with_name(f"saturation-{whole.name.rpartition('-')[0]}-{key}")


def _write(
    folder: Path, target: float, policy: str, seeds: range, tried: list[Probe], rate: float | None
) -> None:
    """Notes what was tried so far, and the rate once it is found."""
    content = {
        "schema_version": RESULTS_SCHEMA,
        "policy": policy,
        "target": target,
        "seeds": list(seeds),
        "probes": [asdict(probe) | {"share": probe.share} for probe in tried],
        "rate": rate,
    }
    write_atomically(folder / RESULT, (json.dumps(content, indent=1) + "\n").encode())
