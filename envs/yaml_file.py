"""YAML files, read as plain mappings; each complaint is one sentence that names the file, and the line if it can."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .regular_file import check_regular

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MOST_VALUES = 1_000_000
"""Values that a file may hold, counted wherever an alias stands for them."""


def read_mapping(source: Path | Traversable, name: str) -> dict[str, Any]:
    """Reads a file that holds one mapping.

    Args:
        source: the file.
        name: what to call it.

    Raises:
        ValueError: a missing file, one that is no regular file, bad YAML, a key that stands twice, aliases that stand
            for too much, or a document that is not a mapping.
    """
    import yaml

    text = _text(source, name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, loader)
        if _values(root, {}) > MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
        twice = _repeated_key(root, set())
        data = None if twice else yaml.load(text, loader)
    except RecursionError:
        raise ValueError(f"{name}: is not valid YAML (it is nested too deeply)") from None
    except (yaml.YAMLError, ValueError) as error:  # the latter from numbers and dates out of range
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{name}{where}: is not valid YAML ({getattr(error, 'problem', error)})") from error
    if twice:
        raise ValueError(f"{name}, line {twice.start_mark.line + 1}: {twice.value} stands twice; give it once")
    if not isinstance(data, dict):
        what = "nothing" if data is None else f"a {type(data).__name__}"
        raise ValueError(f"{name}: holds {what}; it must be a mapping of fields")
    return data


def _text(source: Path | Traversable, name: str) -> str:
    try:
        if isinstance(source, Path):
            check_regular(source)
        return source.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name}: the file cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: is not UTF-8 text (byte {error.start})") from error


def _values(node: Any, known: dict[int, float]) -> float:
    """Values in a document, counted wherever an alias stands for them; infinite where one leads back to itself."""
    if node is None or not isinstance(node.value, list):
        return 1
    if id(node) not in known:
        known[id(node)] = float("inf")
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]


def _repeated_key(node: Any, seen: set[int]) -> Any:
    """The first key node that stands twice in a mapping of a YAML document; None if there is none."""
    if id(node) in seen or not isinstance(node.value if node else None, list):
        return None
    seen.add(id(node))  # An alias leads to the same node, once is enough.
    found = set()
    for part in node.value:
        key, value = part if isinstance(part, tuple) else (None, part)
        if key is not None and isinstance(key.value, str):
            if (key.tag, key.value) in found:
                return key
            found.add((key.tag, key.value))
        inside = _repeated_key(value, seen)
        if inside is not None:
            return inside
    return None
