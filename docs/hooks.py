"""What MkDocs fills into the pages: texts and tables that exist once, in the package.

A page names them by a marker, such as `<!-- fill: environment -->`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

MARKER = re.compile(r"^<!-- fill: ([a-z-]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the markers of a page; MkDocs calls this for each.

    Raises:
        ValueError: a marker that is not known.
    """
    return MARKER.sub(lambda marker: _fill(marker[1]), markdown)


def _fill(name: str) -> str:
    if name not in FILLS:
        raise ValueError(f"unknown marker {name!r}; allowed: {', '.join(FILLS)}")
    return FILLS[name]()


def environment() -> str:
    """The page of the environment: the docstring of its class, in Gymnasium's form, without its first line."""
    from disaggroute.envs.environment import DisaggRouteEnv

    text = inspect.cleandoc(DisaggRouteEnv.__doc__ or "").partition("\n")[2].strip()
    return re.sub(r"docs/([\w/-]+\.md)", r"[\1](\1)", text)


def vector_environment() -> str:
    """The docstring of the vector environment up to its arguments."""
    from disaggroute.envs.vector_environment import DisaggRouteVectorEnv

    return inspect.cleandoc(DisaggRouteVectorEnv.__doc__ or "").partition("\nArgs:")[0].strip()


def features() -> str:
    """The columns of every part of the observation."""
    from disaggroute.envs import features as F

    parts = (("request", F.REQUEST), ("prefill", F.PREFILL), ("decode", F.DECODE))
    rows = [
        (f"`{part}`", str(k), f"`{column.name}`", column.unit, f"{column.scale:g}", column.meaning)
        for part, columns in parts
        for k, column in enumerate(columns)
    ]
    mixed = ", ".join(f"`{column.name}`" for column in F.MIXED)
    text = _table(("part", "column", "feature", "unit", "divisor", "meaning"), rows)
    return f"{text}\n\nThe columns of `mixed`, in order: {mixed}."


def configurations() -> str:
    """The registered configurations."""
    from disaggroute.envs import environment_config
    from disaggroute.envs.setting import Setting

    rows = []
    for name in environment_config.names():
        config = environment_config.EnvironmentConfig.load(name)
        setting = Setting.of(config.scenario)
        rate = config.rate or setting.stored_rate or 0.0
        window = f"{config.warmup_s:g} s + {setting.duration_s:g} s"
        rows.append((f"`{name}`", setting.traffic.name, setting.cluster.name, f"{rate:g}", window, config.reward))
    return _table(("name", "workload", "cluster", "requests/s", "warm start + window", "reward"), rows)


def reference_returns() -> str:
    """Mean return of every baseline in every registered configuration."""
    from disaggroute.training.reference_returns import read

    stored = read()
    policies = list(dict.fromkeys(policy for earned in stored.configurations.values() for policy in earned))
    rows = [
        (f"`{policy}`", *(_mean(earned.get(policy)) for earned in stored.configurations.values()))
        for policy in policies
    ]
    return _table(("policy", *(f"`{name}`" for name in stored.configurations)), rows)


def rewards() -> str:
    """The rewards of the package, by name."""
    from disaggroute.envs import rewards as known

    texts = {name: inspect.getdoc(type(known.make(name))) or "" for name in known.names()}
    rows = [(f"`{name}`", " ".join(text.split())) for name, text in texts.items()]
    return _table(("reward", "what it pays"), rows)


FILLS: dict[str, Callable[[], str]] = {
    "environment": environment,
    "vector-environment": vector_environment,
    "features": features,
    "configurations": configurations,
    "reference-returns": reference_returns,
    "rewards": rewards,
}
"""What a marker may name."""


def _mean(earned: Any) -> str:
    return "" if earned is None else f"{earned.mean_return:,.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
