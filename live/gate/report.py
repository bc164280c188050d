"""What gates found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA_VERSION = 1

Verdict = Literal["passed", "failed", "refused", "not run"]
"""Refused: the check would prove nothing here."""


@dataclass
class Check:
    """One gate.

    Attributes:
        name: what it looks at.
        verdict: what came of it.
        words: what was seen, in a sentence.
        requests: that it took.
        problems: what is wrong, each with the engines that it concerns.
    """

    name: str
    verdict: Verdict = "not run"
    words: str = ""
    requests: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WarmUp:
    """The first two requests over a pair, or to an engine that does both legs in one.

    Attributes:
        prefill: name of the prefill engine; empty for a mixed one.
        decode: name of the decode or mixed engine.
        first_s: from sending the prefill leg to the second token, s of the engines; the first one sets up the transfer.
        second_s: the same of the request after it.
    """

    prefill: str
    decode: str
    first_s: float
    second_s: float

    @property
    def name(self) -> str:
        """Of the pair."""
        return f"{self.prefill} → {self.decode}" if self.prefill else self.decode


@dataclass
class GateReport:
    """All gates of a cluster.

    Attributes:
        cluster: its name.
        model: what it serves.
        checks: the gates, in order; those after one that failed were not run.
        warm_ups: of all pairs.
    """

    cluster: str
    model: str
    checks: list[Check]
    warm_ups: list[WarmUp] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all gates are open."""
        return all(check.verdict == "passed" for check in self.checks)

    @property
    def problems(self) -> list[str]:
        """What is wrong, a sentence each."""
        return [problem for check in self.checks for problem in check.problems]

    def json_bytes(self) -> bytes:
        """The report as a JSON file."""
        content = {"schema_version": SCHEMA_VERSION, "passed": self.passed, **asdict(self)}
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()

    def tables(self) -> list[Table]:
        """The report for the terminal."""
        from rich.table import Table

        gates = Table(title=f"gates of {self.cluster}")
        for heading in ("gate", "verdict", "seen"):
            gates.add_column(heading)
        for check in self.checks:
            gates.add_row(check.name, check.verdict, check.words)
        tables = [gates]
        if self.warm_ups:
            pairs = Table(title="warm-up, s of the engines")
            pairs.add_column("pair" if self.warm_ups[0].prefill else "engine")
            for heading in ("first request", "second"):
                pairs.add_column(heading, justify="right")
            for each in self.warm_ups:
                pairs.add_row(each.name, f"{each.first_s:.3f}", f"{each.second_s:.3f}")
            tables.append(pairs)
        return tables
