"""Measurements: a row of CSV each, written as they come, so that an interrupted calibration goes on from them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from ...envs.atomic_file import append_line, write_atomically

Kind = Literal["round-trip", "prefill", "decode", "transfer"]

NOT_TOLD = -1.0
"""In place of a number that the engine does not tell."""

MOST = 10**12
"""Tokens, sequences or steps beyond which a number is nonsense."""

Key = tuple[Kind, str, str, int, int, int]


@dataclass(frozen=True)
class Measurement:
    """One row. Times are seconds of the engines, seen by the client unless they say otherwise.

    Attributes:
        kind: round-trip (a question that costs nothing), prefill (of one prompt alone), decode (steps in steady state),
            transfer (the decode leg of a request with one token of output).
        engine: which; for transfers the prefill engine.
        peer: the decode engine of a transfer; else empty.
        round: the plan is gone through several times.
        prompt: tokens of each prompt.
        sequences: requests at a time.
        context: mean of Σ(prompt + generated) over the steps, tokens; decode only, else 0.
        steps: from how many the time of one was found; 1 but for decode.
        seconds: the time.
        engine_seconds: by the engine's own count: of the prefill, of the decode step, or of the transfer alone; −1: not
            told. Of a decode step that the client saw no steady state of, `seconds` is the same.
        bytes_per_token: that a transfer moved; −1: not told.
    """

    kind: Kind
    engine: str
    peer: str
    round: int
    prompt: int
    sequences: int
    context: float
    steps: int
    seconds: float
    engine_seconds: float = NOT_TOLD
    bytes_per_token: float = NOT_TOLD

    @property
    def key(self) -> Key:
        """What was measured; every row has its own."""
        return self.kind, self.engine, self.peer, self.round, self.prompt, self.sequences


_FIELDS = fields(Measurement)
_HEADER = ",".join(field.name for field in _FIELDS)
_READ = {"int": int, "float": float}


class MeasurementFile:
    """The measurements of one calibration.

    Args:
        path: CSV file; it need not exist.

    Raises:
        ValueError: the file holds something else.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Measurement] = []
        if path.exists():
            self._read()
        else:
            write_atomically(path, f"{_HEADER}\n".encode())

    def add(self, row: Measurement) -> None:
        """Appends a row, on the disk before this returns."""
        append_line(self.path, _line(row))
        self.rows.append(row)

    @property
    def done(self) -> set[Key]:
        """Keys of what was measured."""
        return {row.key for row in self.rows}

    def _read(self) -> None:
        try:
            text = self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            text = ""
        lines = text.split("\n")
        if lines[0] != _HEADER:
            raise ValueError(f"{self.path} holds no measurements of this version; name another folder, or say --force")
        whole, rest = lines[1:-1], lines[-1]  # A line that was not ended is of a process that was killed.
        for number, line in enumerate(whole, 2):
            try:
                self.rows.append(_row(next(csv.reader([line]), [])))
            except (ValueError, TypeError, csv.Error):
                raise ValueError(
                    f"{self.path}, line {number}: is no measurement; delete the line, or say --force"
                ) from None
        if rest:
            write_atomically(self.path, "\n".join([_HEADER, *whole, ""]).encode())


def _row(cells: list[str]) -> Measurement:
    read = [_READ.get(str(field.type), str)(cell) for field, cell in zip(_FIELDS, cells, strict=True)]
    row = Measurement(*read)
    if row.kind not in get_args(Kind):
        raise ValueError(row.kind)
    least = 0 if row.kind == "round-trip" else 1
    counts = least <= row.prompt <= MOST and least <= row.sequences <= MOST and 1 <= row.steps <= MOST
    others = all(map(math.isfinite, (row.engine_seconds, row.bytes_per_token)))
    if not (counts and others and 0 < row.seconds < math.inf and 0 <= row.context <= MOST):
        raise ValueError(row)
    return row


def _line(row: Measurement) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(astuple(row))
    return text.getvalue()
