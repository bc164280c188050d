"""What a tuning run has tried, stored generation by generation, and as one table.

`generations/00000.json` holds places and goodputs of one generation of all restarts, and the default's;
`evaluations.csv` has one row per candidate.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from .runs import RESULTS_SCHEMA, ResultsFolder, write_atomically


class Generation(BaseModel):
    """One generation of all restarts, judged on the same traces.

    Attributes:
        schema_version: `RESULTS_SCHEMA` at the time of writing.
        experiment: key of the tuning run.
        number: from 0.
        seeds: (S) traces.
        default: (S) goodput of the default on each.
        places: (restarts, candidates, n) of the search space.
        goodput: (restarts, candidates, S) on each trace.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int
    experiment: str
    number: int
    seeds: tuple[int, ...]
    default: tuple[float, ...]
    places: tuple[tuple[tuple[float, ...], ...], ...]
    goodput: tuple[tuple[tuple[float, ...], ...], ...]

    @model_validator(mode="after")
    def _fits_together(self) -> Generation:
        traces = len(self.seeds)
        shapes = [len(points) for points in self.places], [len(values) for values in self.goodput]
        rows = [self.default, *(row for values in self.goodput for row in values)]
        if traces == 0 or shapes[0] != shapes[1] or any(len(row) != traces for row in rows):
            raise ValueError("the goodputs are not those of the places on the traces")
        return self


@dataclass(frozen=True)
class Candidate:
    """A point that was tried.

    Attributes:
        restart: from 0.
        generation: from 0.
        number: of the evaluation within its restart, from 1.
        places: (n) of the search space.
        goodput: mean over the traces of its generation.
        default: the default's mean on the same traces.
    """

    restart: int
    generation: int
    number: int
    places: tuple[float, ...]
    goodput: float
    default: float

    @property
    def gain(self) -> float:
        """Goodput beyond the default's on the same traces; traces of other generations may be easier."""
        return self.goodput - self.default


def candidates(generations: Iterable[Generation]) -> list[Candidate]:
    """All that was tried, restart by restart, in the order of trying."""
    found = []
    for generation in generations:
        default = _mean(generation.default)
        for restart, (points, values) in enumerate(zip(generation.places, generation.goodput, strict=True)):
            first = generation.number * len(points) + 1
            for k, (places, goodput) in enumerate(zip(points, values, strict=True)):
                mean = _mean(goodput)
                found.append(Candidate(restart, generation.number, first + k, places, mean, default))
    return sorted(found, key=lambda candidate: (candidate.restart, candidate.number))


@dataclass(frozen=True)
class TuningLog:
    """The generations of a tuning run in its folder."""

    folder: ResultsFolder

    def read(self, number: int) -> Generation | None:
        """A stored generation, or None when it is still to do.

        Raises:
            ValueError: the file is unreadable or of another run.
        """
        path = self._path(number)
        if not path.exists():
            return None
        try:
            stored = Generation.model_validate_json(path.read_bytes())
        except ValidationError:
            raise ValueError(f"{path} is not a readable generation; delete it and start again") from None
        if (stored.schema_version, stored.experiment, stored.number) != (RESULTS_SCHEMA, self.folder.key, number):
            raise ValueError(f"{path} belongs to another tuning run; name another folder")
        return stored

    def write(self, generation: Generation) -> None:
        """Stores a generation.

        Raises:
            OSError: it cannot be written.
        """
        text = json.dumps(json.loads(generation.model_dump_json())) + "\n"
        write_atomically(self._path(generation.number), text.encode())

    def write_table(self, tried: Sequence[Candidate], params: Sequence[dict[str, Any]]) -> Path:
        """Writes `evaluations.csv`.

        Args:
            tried: one row each, in this order.
            params: their values by dimension.

        Raises:
            OSError: it cannot be written.
        """
        text = io.StringIO()
        columns = ["schema_version", "experiment", "restart", "generation", "evaluation"]
        columns += ["goodput", "default_goodput", *(params[0] if params else ())]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row, values in zip(tried, params, strict=True):
            head = [RESULTS_SCHEMA, self.folder.key, row.restart + 1, row.generation + 1, row.number]
            writer.writerow([*head, row.goodput, row.default, *values.values()])
        path = self.folder.path / "evaluations.csv"
        write_atomically(path, text.getvalue().encode())
        return path

    def _path(self, number: int) -> Path:
        return self.folder.path / "generations" / f"{number:05d}.json"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
