"""The best policy known in each scenario: what a score of 1 stands for (`configs/suite/best-known.yaml`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import BaseModel, Field

from ...envs import catalog
from ...envs.cluster_config import STRICT
from ..runs import write_atomically

FILE = "best-known"
"""In `configs/suite`."""

SCHEMA_VERSION = 1

LEAST_GAP = 0.02
"""Goodput that a score divides by at least: two points are what fifty seeds can tell apart."""

HEADING = """\
# The best policy known in each scenario of the suite, on its validation seeds; a score of 1 stands for it.
# `disaggroute experiment suite --update-best` writes this file.
"""


class Best(BaseModel):
    """The best policy known in a scenario.

    Attributes:
        version: of the scenario.
        content: fingerprint of the scenario at that version.
        policy: its text.
        goodput: mean over the validation seeds.
        round_robin: that of the policy whose score is 0, on the same seeds.
        heuristic: name and text of the best tuned heuristic there.
        command: that found it.
    """

    model_config = STRICT

    version: int = Field(ge=1)
    content: str
    policy: str
    goodput: float = Field(ge=0, le=1)
    round_robin: float = Field(ge=0, le=1)
    heuristic: tuple[str, str] | None = None
    command: str

    @property
    def difference(self) -> float:
        """Its goodput above that of score 0."""
        return self.goodput - self.round_robin

    @property
    def gap(self) -> float:
        """What a score divides by."""
        return max(self.difference, LEAST_GAP)


class BestKnown(BaseModel):
    """The whole file.

    Attributes:
        schema_version: `SCHEMA_VERSION` at the time of writing.
        scenarios: by name.
    """

    model_config = STRICT

    schema_version: int = SCHEMA_VERSION
    scenarios: dict[str, Best] = {}

    def of(self, name: str, version: int, content: str) -> Best | None:
        """The best of a scenario at this version; None where nobody has measured it.

        Raises:
            ValueError: the scenario has changed and its version has not.
        """
        best = self.scenarios.get(name)
        if best is None or best.version != version:
            return None
        if best.content != content:
            raise ValueError(
                f"scenario {name} is not what it was when the best known of its version {version} was measured; "
                f"raise its version to {version + 1}, then --update-best"
            )
        return best

    def knows(self, name: str, version: int, content: str) -> bool:
        """Whether it holds this very scenario."""
        best = self.scenarios.get(name)
        return best is not None and (best.version, best.content) == (version, content)

    def without(self, names: Collection[str]) -> BestKnown:
        """The same without some scenarios."""
        return BestKnown(scenarios={name: best for name, best in self.scenarios.items() if name not in names})

    def updated(self, found: Mapping[str, Best]) -> BestKnown:
        """With what a run has found, where that is better, or of another version, or the same policy anew."""
        merged = dict(self.scenarios)
        for name, best in found.items():
            old = merged.get(name)
            kept = (
                old is not None
                and (old.version, old.content) == (best.version, best.content)
                and old.policy != best.policy
                and old.difference >= best.difference
            )
            if not kept:
                merged[name] = best
        return BestKnown(scenarios=merged)

    def yaml(self) -> str:
        """The text of the file."""
        import yaml

        data = self.model_dump(mode="json", exclude_none=True)
        data["scenarios"] = {name: data["scenarios"][name] for name in sorted(data["scenarios"])}
        text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=math.inf)
        return HEADING + text


def read(path: Path | None = None) -> BestKnown:
    """What is best known: by the file that ships, or another one, which need not be there yet.

    Raises:
        ValueError: the file is unreadable, or of another version.
    """
    if path is not None and not path.exists():
        return BestKnown()
    if path is None and FILE not in catalog.names("suite"):
        return BestKnown()
    name = FILE if path is None else str(path)
    data = catalog.read("suite", name)
    version = data.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(f"{name}: schema_version is {version!r}; this version reads {SCHEMA_VERSION}")
    return catalog.validate(BestKnown, data, name)


def write(known: BestKnown, path: Path | None = None) -> Path:
    """Writes the file that ships, in a checkout, or another one.

    Raises:
        OSError: it cannot be written.
    """
    place = path or Path(__file__).resolve().parents[2] / "configs" / "suite" / f"{FILE}.yaml"
    write_atomically(place, known.yaml().encode())
    return place
