"""Columns of a trace file, converted and checked; every complaint names a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..catalog import LONGEST_NAME
from ..cluster import MAX_TIME_PS
from ..profile_constants import PS_PER_NS

MAX_TOKENS = 2**30
"""Lengths above this are taken for errors."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Column:
    """One column as read: the file's values (text or JSON) with their line numbers.

    Attributes:
        path: for messages.
        name: the file's name of the column.
        values: as read.
        lines: line number of each value.
    """

    path: str
    name: str
    values: Sequence[Any]
    lines: Sequence[int]

    def times(self, unit_ns: int, from_first: bool) -> Ints:
        """Times in ps, read to the nearest nanosecond.

        Args:
            unit_ns: nanoseconds in the file's unit.
            from_first: count from the earliest one.

        Raises:
            ValueError: a value that is no number, is negative, or lies beyond 100 days.
        """
        values = self._numbers("a number")
        self._refuse(values < 0, "it must not be negative")
        if from_first:
            values = values - values.min()
        self._refuse(values > MAX_TIME_PS / (unit_ns * PS_PER_NS), "a trace must end within 100 days")
        nanoseconds: Ints = np.rint(values * unit_ns).astype(np.int64)
        return nanoseconds * PS_PER_NS

    def picoseconds(self) -> Ints:
        """Whole picoseconds.

        Raises:
            ValueError: a value that is no whole number, or is negative.
        """
        try:
            values = np.array([int(value) for value in self.values], np.int64)
        except (TypeError, ValueError, OverflowError):
            values = self._each(_int64, "a whole number of picoseconds")
        self._refuse(values < 0, "it must not be negative")
        return values

    def timestamps(self) -> Ints:
        """Dates and times as ps from the earliest one, read to the nanosecond; UTC is the one offset read.

        Raises:
            ValueError: a value that is no date and time, or lies beyond 100 days.
        """
        texts = [str(value).strip().removesuffix("Z").removesuffix("+00:00") for value in self.values]
        try:
            stamps = np.array(texts, "datetime64[ns]")
        except ValueError:
            stamps = Column(self.path, self.name, texts, self.lines)._each(_timestamp, "a date and time")
        self._refuse(np.isnat(stamps), "it must be a date and time")
        elapsed = (stamps - stamps.min()).astype(np.int64)
        self._refuse(elapsed > MAX_TIME_PS // PS_PER_NS, "a trace must end within 100 days")
        since_first: Ints = elapsed * PS_PER_NS
        return since_first

    def tokens(self) -> Ints:
        """Lengths in tokens, 0 allowed.

        Raises:
            ValueError: a value that is no whole number, is negative, or above MAX_TOKENS.
        """
        values = self._numbers("a whole number of tokens")
        self._refuse(values < 0, "it must not be negative")
        self._refuse(values > MAX_TOKENS, f"it must be at most {MAX_TOKENS}")
        self._refuse(values != np.floor(values), "it must be a whole number of tokens")
        return values.astype(np.int64)

    def choice(self, allowed: Sequence[str]) -> npt.NDArray[np.int8]:
        """Index of each value among the allowed words.

        Raises:
            ValueError: another word.
        """
        places = {word: place for place, word in enumerate(allowed)}
        found = np.array([places.get(str(value).strip(), -1) for value in self.values], np.int8)
        self._refuse(found < 0, f"it must be {' or '.join(allowed)}")
        return found

    def labels(self) -> list[str]:
        """The values as words; an empty one becomes `trace`.

        Raises:
            ValueError: a value that is too long for a title, or holds what cannot be printed.
        """
        words = [str(value).strip() or "trace" for value in self.values]
        bad = {word for word in set(words) if len(word) > LONGEST_NAME or not word.isprintable()}
        if bad:
            self._refuse(
                np.array([word in bad for word in words]), f"it must be at most {LONGEST_NAME} printable characters"
            )
        return words

    def _numbers(self, what: str) -> npt.NDArray[np.float64]:
        try:
            if bool in set(map(type, self.values)):
                raise TypeError  # JSON's true is no number
            values = np.fromiter(map(float, self.values), np.float64, len(self.values))
        except (TypeError, ValueError, OverflowError):
            values = self._each(_number, what).astype(np.float64)
        self._refuse(~np.isfinite(values), f"it must be {what}")
        return values

    def _each(self, convert: Callable[[Any], Any], what: str) -> npt.NDArray[Any]:
        """Converts one by one, to name the line of the first that fails."""
        out = []
        for value, line in zip(self.values, self.lines, strict=True):
            try:
                out.append(convert(value))
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(
                    f"{self.path}, line {line}: {self.name} is {_show(value)}; it must be {what}"
                ) from error
        return np.array(out)

    def _refuse(self, bad: npt.NDArray[np.bool_], why: str) -> None:
        if bad.any():
            k = int(np.argmax(bad))
            raise ValueError(
                f"{self.path}, line {self.lines[k]}: {self.name} is {_show(self.values[k])}; {why}"
            )


def _number(value: Any) -> float:
    if isinstance(value, bool) or value is None:
        raise TypeError
    return float(value)


def _int64(value: Any) -> int:
    return int(np.int64(int(value)))


def _timestamp(text: str) -> np.datetime64:
    return np.datetime64(text, "ns")


def _show(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    if text in ("''", "None"):
        return "empty"
    return text if len(text) <= 40 else text[:37] + "..."
