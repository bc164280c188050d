"""What a comparison leaves: one JSON object, and a CSV file of quantiles."""

from __future__ import annotations

import csv
import io

from pydantic import BaseModel, ConfigDict

from ..machine import Machine
from ..measurement import Result
from .delays import Distance

PHASES = {
    "simulation": "simulation alone",
    "replay": "file to summary",
    "process": "whole process",
}
"""What speeds are measured of."""

VARIANTS = {
    "own": "ours",
    "same": "ours, same routes",
    "free": "ours, free recompute",
}
"""Runs of ours that are compared with Dynamo's: by our round robin; on the instances that Dynamo chose; on these, and a
preempted request is computed anew in no time."""


class Comparison(BaseModel):
    """One run of ours beside Dynamo's.

    Attributes:
        ttft: of all requests.
        tpot: of those with two output tokens or more.
        preemptions: in Dynamo's run and in ours.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttft: Distance
    tpot: Distance
    preemptions: tuple[int, int]


class Peers(BaseModel):
    """A comparison.

    Attributes:
        machine: where it was run.
        versions: of the packages in the peer's environment.
        requests: in the trace.
        capacity: requests per second that the cluster completes at most.
        rate: requests per second of the trace.
        seed: of the trace.
        results: `peers/dynamo/PHASE`, `peers/disaggroute/PHASE` (requests per CPU second), `peers/ratio/PHASE` (how
            many times faster ours is, round by round), `peers/NAME/start-up` (CPU s).
        comparisons: by the name of the variant.
        command: makes it again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Machine
    versions: dict[str, str]
    requests: int
    capacity: float
    rate: float
    seed: int
    results: tuple[Result, ...]
    comparisons: dict[str, Comparison]
    command: str = ""

    def json_text(self) -> str:
        """The comparison as one JSON object."""
        return self.model_dump_json(indent=2, exclude_none=True)

    def csv_text(self) -> str:
        """Quantiles and distances, a row for each variant, delay and measure; s."""
        file = io.StringIO()
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("variant", "delay", "measure", "dynamo", "disaggroute"))
        for variant, comparison in self.comparisons.items():
            for delay, distance in (("ttft", comparison.ttft), ("tpot", comparison.tpot)):
                for level, pair in distance.quantiles.items():
                    rows.writerow((variant, delay, f"q{level}", *map(_digits, pair)))
                rows.writerow((variant, delay, "mean", *map(_digits, distance.means)))
                for name in ("ks", "wasserstein", "paired"):
                    rows.writerow((variant, delay, name, "", _digits(getattr(distance, name))))
            rows.writerow((variant, "", "preemptions", *comparison.preemptions))
        return file.getvalue()


def _digits(value: float) -> str:
    return f"{value:.9g}"
