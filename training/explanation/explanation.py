"""An explanation: a policy and another one on the same traces, looked at from all sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...envs.scenario import Scenario
from ...envs.setting import Setting
from ...policies import registry
from ..comparison import interval_in_words
from ..compilation import compile_all
from ..description import Description, describe
from ..evaluation import OnRun, check_evaluation, check_pools, configuration, policy_card
from ..executors.choice import executor_of
from ..executors.executor import Executor
from ..policy_style import Style, policy_styles
from ..seeds import refuse_held_out
from .agreement import RULES, Agreement, agreements
from .assignment import GroupShares, Requests, shares, tenths
from .dependence import Costs, Dependence, cost_dependence, input_dependence
from .effects import Effect, Tail, effects, tails
from .recording import Recording, RecordTask, record

SAMPLES = 120
"""Decisions of each run that are looked at closely."""


@dataclass(frozen=True, eq=False)
class Portrait:
    """What one of the two policies does.

    Attributes:
        label: the policy.
        card: its name, parameters and hash.
        assignment: by pool, each group's shares of its instances.
        inputs: how often another value of an input would have changed a choice; None where that cannot be asked.
        costs: what its costs depend on; None for a policy without.
        agreement: with each rule.
    """

    label: str
    card: dict[str, Any]
    assignment: dict[str, list[GroupShares]]
    inputs: tuple[Dependence, ...] | None
    costs: Costs | None
    agreement: list[Agreement]


@dataclass(frozen=True, eq=False)
class Explanation:
    """A policy beside another one.

    Attributes:
        setting: what was run.
        seeds: one trace each.
        policy: what is explained.
        against: the other one.
        effects: goodput before and after, all requests first.
        tails: the far end before and after.
        interval: how intervals were made, in words.
        styles: how the two look.
    """

    setting: Setting
    seeds: range
    policy: Portrait
    against: Portrait
    effects: list[Effect]
    tails: list[Tail]
    interval: str
    styles: dict[str, Style]

    @property
    def portraits(self) -> tuple[Portrait, Portrait]:
        """What is explained, and the other one."""
        return self.policy, self.against

    @property
    def pools(self) -> dict[str, int]:
        """Instances by role."""
        return self.setting.pools

    @property
    def description(self) -> Description:
        """What was run, for people."""
        return describe(self.setting)

    @property
    def title(self) -> str:
        """What was run, in one line."""
        return f"{self.policy.label} against {self.against.label}: {self.description.title(self.seeds)}"


def check_explanation(setting: Setting, policy: str, against: str, seeds: range) -> tuple[str, str]:
    """Checks what can be checked before a rate is known.

    Returns:
        The labels of the two policies.

    Raises:
        ValueError: an unknown name, a value out of range, held-out seeds, or one policy twice.
    """
    first, second = policy.strip(), against.strip()
    if _identity(first) == _identity(second):
        raise ValueError(f"against is {second}, the policy that is explained; name another one by --against")
    refuse_held_out(seeds, "explain")
    check_evaluation(setting, (first, second), seeds, records="none")
    return first, second


def explain(
    scenario: Scenario,
    policy: str,
    against: str,
    seeds: range,
    *,
    samples: int = SAMPLES,
    workers: int | Executor | None = None,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> Explanation:
    """Runs two policies on the same traces and looks at what they do.

    Args:
        scenario: what drives which cluster; its rate must be known.
        policy: what is explained.
        against: what it is compared with.
        seeds: one trace each.
        samples: decisions of each run that are looked at closely.
        workers: processes, None for one per core; or an executor, which is used and kept.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: an unknown name, a value out of range, seeds that may not be used, or one policy twice.
        PolicyError: a policy failed, or chose what may not be chosen.
    """
    setting = Setting.of(scenario)
    labels = check_explanation(setting, policy, against, seeds)
    setting.prepare(seeds[0])  # Bad input shows here, before a process exists.
    # Each of the two is a rule beside the other one, too.
    beside = {label: rules_beside(label, other, setting) for label, other in (labels, labels[::-1])}
    compile_all(say or (lambda _: None), interactive=True)
    tasks = [RecordTask(scenario, label, beside[label], seed, samples) for seed in seeds for label in labels]
    done: dict[tuple[str, int], Recording] = {}
    if on_run:
        on_run(0, len(tasks))
    with executor_of(workers) as pool:
        for found in pool.run(record, tasks):
            done[found.label, found.seed] = found
            if on_run:
                on_run(len(done), len(tasks))
    runs = {label: [done[label, seed] for seed in seeds] for label in labels}
    single = setting.traffic.single
    changes = effects(runs[labels[0]], runs[labels[1]], single=single)
    edges = tenths(Requests.of(runs[labels[0]]))
    first, second = (_portrait(label, runs[label], setting, edges) for label in labels)
    return Explanation(
        setting=setting,
        seeds=seeds,
        policy=first,
        against=second,
        effects=changes,
        tails=tails(runs[labels[0]], runs[labels[1]]),
        interval=interval_in_words(changes[0].after, len(seeds), single),
        styles=policy_styles(labels),
    )


def explanation_configuration(setting: Setting, policy: str, against: str, seeds: range) -> dict[str, Any]:
    """What a folder of an explanation belongs to; JSON-able."""
    cards = {"policy": policy_card(policy), "against": policy_card(against)}
    return configuration(setting) | cards | {"seeds": [seeds[0], len(seeds)]}


def _portrait(label: str, runs: Sequence[Recording], setting: Setting, edges: dict[str, Any]) -> Portrait:
    requests = Requests.of(runs)
    return Portrait(
        label=label,
        card=policy_card(label),
        assignment={pool: shares(requests, pool, size, edges) for pool, size in setting.pools.items()},
        inputs=input_dependence(runs, tuple(setting.pools)),
        costs=cost_dependence(registry.parse(label), runs, setting),
        agreement=agreements(runs, tuple(setting.pools)),
    )


def rules_beside(label: str, other: str, setting: Setting) -> tuple[str, ...]:
    """The other policy and the simple rules that fit the cluster, but for whatever is the policy itself."""
    own = _identity(label)
    found: dict[tuple[object, object], str] = {}
    for rule in (other, *RULES):
        try:
            check_pools(registry.parse(rule), setting)
        except ValueError:
            continue
        found.setdefault(_identity(rule), rule)
    return tuple(rule for identity, rule in found.items() if identity != own)


def _identity(label: str) -> tuple[object, object]:
    card = policy_card(label)
    return card["name"], card["hash"]
