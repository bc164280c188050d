"""The text that names a policy: `NAME`, `NAME(key=value, …)`, `NAME@FILE` or `NAME@FILE(key=value, …)`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

_PATTERN = re.compile(
    r"""\s*(?P<name>[a-z][a-z0-9-]*)
        \s*(?:@\s*(?P<file>"(?:[^"\\]|\\.)*"|[^"(),[\]{}]*[^"(),[\]{}\s])\s*)?
        (?:\((?P<inside>.*)\))?\s*""",
    re.DOTALL | re.VERBOSE,
)

_BARE = re.compile(r'[^"(),[\]{}\s]([^"(),[\]{}]*[^"(),[\]{}\s])?')
"""File names that need no quotes."""

_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class PolicyText:
    """What such a text says.

    Attributes:
        name: of the policy.
        file: a policy file: a path, or the short name of a shipped one; None without one.
        params: parameters that are given in brackets.
    """

    name: str
    file: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(text: str) -> PolicyText:
        """Reads a text.

        Values are numbers, words, `none`, `true` and `false`; anything else in JSON. A file name that holds commas,
        brackets or double quotes stands in double quotes, as in JSON.

        Raises:
            ValueError: it does not read like that; the message says which part.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"policy is {text!r}; it must be Unicode text") from None
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"policy is {text!r}; it must read like least-loaded or marginal-cost(w_q=0.1, sample=2), or "
                "marginal-cost@FILE, with FILE in double quotes where it holds commas, brackets or quotes"
            )
        name, file = match["name"], match["file"]
        if file is not None and file.startswith('"'):
            try:
                file = json.loads(file)
            except json.JSONDecodeError:
                raise ValueError(f"{name}: the file name {file} is not quoted as in JSON") from None
        params: dict[str, Any] = {}
        for part in split_at_commas(match["inside"] or ""):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not (key and equals and value):
                raise ValueError(f"{name}: {part!r} is no parameter; it must read like name=value")
            if key in params:
                raise ValueError(f"{name}: {key} is given twice; each parameter may be given once")
            try:
                params[key] = _value(value)
            except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets beyond count
                raise ValueError(f"{name}: {key} cannot be read ({error})") from None
        return PolicyText(name, file, params)

    def __str__(self) -> str:
        """The text; `read` gives the same back."""
        text = self.name
        if self.file is not None:
            text += "@" + (self.file if _BARE.fullmatch(self.file) else json.dumps(self.file, ensure_ascii=False))
        if self.params:
            text += f"({', '.join(f'{key}={_word(value)}' for key, value in self.params.items())})"
        return text


def policy_name(text: str) -> str:
    """The name in a text, without file and parameters."""
    return re.split(r"[@(]", text, maxsplit=1)[0].strip()


def split_at_commas(text: str) -> list[str]:
    """Parts between commas that stand in no brackets and no double quotes; empty ones are left out."""
    cuts = [-1, *_commas(text), len(text)]
    parts = [text[start + 1 : end].strip() for start, end in pairwise(cuts)]
    return [part for part in parts if part]


def _commas(text: str) -> Iterator[int]:
    """Places of the commas outside brackets and quotes."""
    closing: list[str] = []
    quoted = escaped = False
    for place, sign in enumerate(text):
        if quoted:
            quoted = escaped or sign != '"'
            escaped = sign == "\\" and not escaped
        elif sign == '"':
            quoted = True
        elif sign in _PAIRS:
            closing.append(_PAIRS[sign])
        elif closing and sign == closing[-1]:
            closing.pop()
        elif sign == "," and not closing:
            yield place


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text.lower() == "true" if text.lower() in ("true", "false") else text.strip("'")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
