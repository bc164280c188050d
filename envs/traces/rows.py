"""Rows of trace files: CSV with a header, or one JSON object per line."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from sys import intern
from typing import Any

import numpy as np
import numpy.typing as npt

from .columns import Column
from .content import Content


@dataclass(frozen=True, eq=False)
class Rows:
    """The wanted columns of a file.

    Attributes:
        path: for messages.
        values: by column name.
        lines: line number of each row.
        blank: blank lines that were passed over.
        prefix_offsets: (rows + 1,) into `prefix_ids`, or None.
        prefix_ids: ids of prompt blocks.
    """

    path: str
    values: dict[str, list[Any]]
    lines: array[int]
    blank: int
    prefix_offsets: npt.NDArray[np.int64] | None = None
    prefix_ids: npt.NDArray[np.int64] | None = None

    def column(self, name: str) -> Column:
        """One column, to be converted."""
        return Column(self.path, name, self.values[name], self.lines)


def header(content: Content) -> list[str]:
    """Column names in the first line of a CSV file.

    Raises:
        ValueError: the line is not CSV.
    """
    try:
        return [name.strip() for name in next(csv.reader([content.text.split("\n", 1)[0]]), [])]
    except csv.Error as error:
        raise ValueError(f"{content.path}, line 1: is not valid CSV ({error})") from error


def keys(content: Content) -> list[str]:
    """Keys of the first JSON object.

    Raises:
        ValueError: the line is not a JSON object.
    """
    text = content.text.lstrip()
    skipped = content.text[: len(content.text) - len(text)].count("\n")
    return list(_object(content, skipped + 1, text.split("\n", 1)[0]))


def from_csv(content: Content, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Rows:
    """Reads a CSV file with a header.

    Raises:
        ValueError: a missing column, a row with another number of fields, or no rows.
    """
    names = header(content)
    _all_there(content, required, names, 1)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{content.path}, line 1: column {twice!r} stands twice; each must stand once")
    wanted = {name: names.index(name) for name in (*required, *optional) if name in names}
    values: dict[str, list[Any]] = {name: [] for name in wanted}
    lines = array("q")
    blank = 0
    reader = csv.reader(_lines(content.text), strict=True)
    try:
        next(reader)
        for row in reader:
            if not row:
                blank += 1
                continue
            if len(row) != len(names):
                raise ValueError(
                    f"{content.path}, line {reader.line_num}: has {len(row)} fields; "
                    f"it must have {len(names)}, as the header"
                )
            lines.append(reader.line_num)
            for name, place in wanted.items():
                values[name].append(intern(row[place]) if name in optional else row[place])
    except csv.Error as error:
        raise ValueError(f"{content.path}, line {reader.line_num}: is not valid CSV ({error})") from error
    _some(content, lines)
    return Rows(content.path, values, lines, blank)


def from_jsonl(
    content: Content, required: tuple[str, ...], optional: tuple[str, ...] = (), prefix: str | None = None
) -> Rows:
    """Reads a file of one JSON object per line.

    Args:
        content: the file.
        required: keys that every object has.
        optional: keys that the objects may have; read if the first one has them.
        prefix: key of the list of prefix block ids; an object without it has none.

    Raises:
        ValueError: a line that is not a JSON object, lacks a key, or has other prefix ids than integers.
    """
    first = keys(content)
    wanted = (*required, *(name for name in optional if name in first))
    values: dict[str, list[Any]] = {name: [] for name in wanted}
    lines, ids, offsets = array("q"), array("q"), array("q", [0])
    blank = 0
    text_lines = content.text.split("\n")
    if text_lines[-1] == "":
        text_lines.pop()
    for number, text in enumerate(text_lines, 1):
        if not text.strip():
            blank += 1
            continue
        row = _object(content, number, text)
        _all_there(content, wanted, list(row), number)
        lines.append(number)
        for name in wanted:
            values[name].append(row[name])
        if prefix is not None:
            try:
                ids.extend(row.get(prefix, ()))
            except (TypeError, OverflowError) as error:
                raise ValueError(
                    f"{content.path}, line {number}: {prefix} must be a list of whole numbers"
                ) from error
            offsets.append(len(ids))
    _some(content, lines)
    if prefix is None or not ids:
        return Rows(content.path, values, lines, blank)
    return Rows(content.path, values, lines, blank, np.array(offsets, np.int64), np.array(ids, np.int64))


def _lines(text: str) -> Iterator[str]:
    """Lines with their ends, one at a time: a copy of a large file would cost much memory."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _object(content: Content, number: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))
        raise ValueError(f"{content.path}, line {number}: is not valid JSON ({reason})") from error
    if not isinstance(row, dict):
        kind = type(row).__name__
        raise ValueError(f"{content.path}, line {number}: is a JSON {kind}; it must be an object")
    return row


def _all_there(content: Content, required: tuple[str, ...], names: list[str], line: int) -> None:
    for name in required:
        if name not in names:
            has = ", ".join(map(repr, names)) or "none"
            raise ValueError(f"{content.path}, line {line}: column {name!r} is missing; there are {has}")


def _some(content: Content, lines: array[int]) -> None:
    if not lines:
        raise ValueError(f"{content.path}: has no rows; it must hold at least one request")
