"""One run, recorded: where each request went, what rules would have chosen, and what some decisions depend on."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...envs.admission import Admission
from ...envs.scenario import Scenario
from ...envs.setting import Prepared, Setting
from ...envs.simulator.choices import reset_policy, route_pending
from ...envs.simulator.simulator import Simulator, resolve_predictor
from ...envs.time_limits import last_time
from ...envs.window import Window
from ...policies import registry
from ...policies.policy import Policy
from ..evaluation import summary_of
from ..metrics import met_targets
from ..stored_records import StoredRecords
from ..summary import Summary
from .probing import Moment, Probes, probe

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordTask:
    """A run to be recorded.

    Attributes:
        scenario: at a known rate.
        label: the policy that decides.
        rules: policies that are asked beside it, at every decision.
        seed: of the trace and of all that is random.
        samples: decisions that are looked at closely.
    """

    scenario: Scenario
    label: str
    rules: tuple[str, ...]
    seed: int
    samples: int


@dataclass(frozen=True, eq=False)
class Recording:
    """A run.

    Attributes:
        label: the policy that decided.
        seed: of the trace.
        summary: its numbers.
        stored: records and trace, warm-up included.
        window: which arrivals count.
        chosen: (n, 2) prefill and decode of each decision about a measured request (aggregated: the same twice).
        rules: by rule, (n, 2) what it would have chosen there.
        moments: the decisions that were looked at closely.
        probes: how often other inputs would have changed these; None for a policy that cannot be copied or asked so.
    """

    label: str
    seed: int
    summary: Summary
    stored: StoredRecords
    window: Window
    chosen: Integers
    rules: dict[str, Integers]
    moments: tuple[Moment, ...]
    probes: Probes | None


def record(task: RecordTask) -> Recording:
    """Runs a policy and records it (in a worker process).

    Raises:
        ValueError: the scenario or a policy is bad input.
        PolicyError: the policy failed, or chose what may not be chosen.
        RuntimeError: requests are still in flight when time ends.
    """
    setting = Setting.of(task.scenario)
    prepared = setting.prepare(task.seed)
    policy, rules = registry.parse(task.label), {label: registry.parse(label) for label in task.rules}
    for each in (policy, *rules.values()):
        reset_policy(each, task.seed)
    predicted, learns = resolve_predictor(setting.predictor, prepared.trace, task.seed)
    simulator = Simulator(
        setting.cluster,
        prepared.trace,
        predicted=predicted,
        learns=learns,
        seed=task.seed,
        constants=setting.constants,
    )
    watched = _Watched(policy, rules, prepared, task.samples)
    until = last_time(setting.cluster, prepared.trace.arrival)
    while simulator.run(until):
        admission = simulator.admission()
        watched.before(admission)
        route_pending(simulator, policy, admission)
        row = simulator.records[admission.index]
        watched.after(admission, int(row["prefill"]), int(row["decode"]))
    if simulator.ended < len(prepared.trace):
        raise RuntimeError(
            f"{setting.name}, seed {task.seed}: {len(prepared.trace) - simulator.ended} requests are still in flight "
            "when time ends; lower the rate or shorten the trace"
        )
    records, measured = simulator.records.copy(), prepared.window.holds(prepared.trace)
    met = met_targets(records, prepared.trace)
    return Recording(
        label=task.label,
        seed=task.seed,
        summary=summary_of(records, prepared, setting),
        stored=StoredRecords(
            records, prepared.trace, prepared.trace.arrival, np.full(len(records), -1), met, measured
        ),
        window=prepared.window,
        chosen=_pairs(watched.chosen),
        rules={label: _pairs(choices) for label, choices in watched.by_rule.items()},
        moments=tuple(watched.moments),
        probes=probe(watched.moments, watched.twins, setting, task.seed),
    )


class _Watched:
    """What is kept of the decisions about measured requests."""

    def __init__(self, policy: Policy, rules: dict[str, Policy], prepared: Prepared, samples: int) -> None:
        self._policy, self._rules = policy, rules
        self._measured = prepared.window.holds(prepared.trace)
        inside = np.flatnonzero(self._measured)
        places = np.linspace(0, len(inside) - 1, min(samples, len(inside)))
        self._sampled = set(inside[np.unique(np.rint(places).astype(np.int64))].tolist())
        self._last: dict[int, int] = {}
        self._asked: dict[str, tuple[int, int]] = {}
        self.chosen: list[tuple[int, int]] = []
        self.by_rule: dict[str, list[tuple[int, int]]] = {label: [] for label in rules}
        self.moments: list[Moment] = []
        self.twins: list[Policy | None] = []

    def before(self, admission: Admission) -> None:
        """Asks the rules, each of which remembers what it would have done; copies the policy where it is sampled."""
        for label, rule in self._rules.items():
            choice: Any = rule.choose(admission)
            self._asked[label] = int(choice[0]), int(choice[1])
        if admission.index in self._sampled:
            last = self._last.get(admission.router, -1)
            self.moments.append(Moment.of(admission, last))
            self.twins.append(_twin(self._policy))

    def after(self, admission: Admission, prefill: int, decode: int) -> None:
        """Keeps the choice."""
        self._last[admission.router] = admission.now
        if self._measured[admission.index]:
            self.chosen.append((prefill, decode))
            for label, choice in self._asked.items():
                self.by_rule[label].append(choice)
        if admission.index in self._sampled:
            self._sampled.discard(admission.index)  # A request that is re-routed is looked at once.
            self.moments[-1] = self.moments[-1].routed(prefill, decode)


def _twin(policy: Policy) -> Policy | None:
    """A copy that remembers the same; None for a policy of another package that cannot be copied."""
    try:
        return copy.deepcopy(policy)
    except Exception:
        return None


def _pairs(choices: Sequence[tuple[int, int]]) -> Integers:
    return np.array(choices, np.int64).reshape(-1, 2)
