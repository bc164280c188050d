"""The catalog: where named YAML configurations are found, read and checked.

Names come from the package's `configs/KIND/NAME.yaml` and from files that other packages
register; a path to a YAML file is accepted wherever a name is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pydantic import BaseModel, ValidationError

    Model = TypeVar("Model", bound=BaseModel)

KINDS = ("profiles", "workloads", "clusters", "environments", "experiments", "training")
"""Folders of `configs/`."""

_registered: dict[tuple[str, str], Path] = {}


def register(kind: str, name: str, path: str | Path) -> None:
    """Adds a YAML file under a name, for this process.

    Raises:
        ValueError: the kind is unknown, or the name is taken.
    """
    if name in names(kind):
        raise ValueError(f"{kind}: the name {name!r} is taken; register {path} under another one")
    _registered[kind, name] = Path(path)


def names(kind: str) -> tuple[str, ...]:
    """Names that `read` knows, sorted.

    Raises:
        ValueError: the kind is unknown.
    """
    shipped = {f.name.removesuffix(".yaml") for f in _folder(kind).iterdir() if f.name.endswith(".yaml")}
    return tuple(sorted(shipped | {name for k, name in _registered if k == kind}))


def read(kind: str, name_or_path: str | Path) -> dict[str, Any]:
    """Reads one configuration as a plain mapping.

    Args:
        kind: one of KINDS.
        name_or_path: a name from `names(kind)`, or a path that ends in .yaml or .yml.

    Raises:
        ValueError: unknown name (the message gives the nearest ones), missing file, bad YAML, or
            a document that is not a mapping.
    """
    import yaml

    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        source: Path | Traversable = Path(text)
    elif (kind, text) in _registered:
        source = _registered[kind, text]
    else:
        source = _folder(kind) / f"{text}.yaml"
        if text not in names(kind):
            raise ValueError(unknown(kind.removesuffix("s"), text, names(kind)) + "; a path ends in .yaml")
    try:
        content = source.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{text}: the file cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{text}: is not UTF-8 text (byte {error.start})") from error
    try:
        root = yaml.compose(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        data = yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{text}{where}: is not valid YAML ({getattr(error, 'problem', error)})") from error
    twice = _repeated_key(root, set())
    if twice is not None:
        raise ValueError(f"{text}, line {twice.start_mark.line + 1}: {twice.value} stands twice; give it once")
    if not isinstance(data, dict):
        raise ValueError(f"{text}: holds a {type(data).__name__}; it must be a mapping of fields")
    return data


def validate(model: type[Model], data: Mapping[str, Any], label: str) -> Model:
    """Builds a pydantic model, turning its first complaint into one sentence.

    Args:
        model: the class to build.
        data: its fields.
        label: what the data is, put in front of the sentence.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{label}: {_sentence(model, error)}") from error


def unknown(what: str, name: str, allowed: Iterable[str]) -> str:
    """The sentence for a name that is not known, with the nearest ones (or all, when none is near)."""
    allowed = sorted(allowed)
    near = difflib.get_close_matches(name, allowed, n=3, cutoff=0.5)
    if near:
        return f"unknown {what} {name!r}; nearest: {', '.join(near)}"
    return f"unknown {what} {name!r}; allowed: {', '.join(allowed) or 'none'}"


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` applied; nested mappings are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _folder(kind: str) -> Traversable:
    if kind not in KINDS:
        raise ValueError(unknown("kind of configuration", kind, KINDS))
    return resources.files(__name__.split(".")[0]) / "configs" / kind


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    first = _most_telling(error.errors(include_url=False))
    kind, message = first["type"], first["msg"]
    path = tuple(part for part in first["loc"] if not _names_a_choice(str(part), model))
    where = ".".join(str(part) for part in path)
    if kind == "extra_forbidden":
        inside = f" of {'.'.join(str(part) for part in path[:-1])}" if path[1:] else ""
        return unknown(f"field{inside}", str(path[-1]), _fields_at(model, path[:-1]))
    if kind == "missing":
        return f"{where} is missing; it is required"
    if kind == "value_error":
        message = str(first["ctx"]["error"])
        return f"{where}: {message}" if where else message
    if kind.startswith("union_tag"):
        ctx = first["ctx"]
        key, allowed = str(ctx["discriminator"]).strip("'"), ctx.get("expected_tags")
        value = f" is '{ctx['tag']}'" if "tag" in ctx else " is missing"
        return f"{where}.{key}{value}; it must be " + (f"one of {allowed}" if allowed else "given")
    if kind == "invalid_key":
        return f"{where} is the name of a field; it must be text"
    if kind == "int_parsing_size":
        return f"{where} is {_short(first['input'])}; it must be a whole number of fewer digits"
    for opening in ("Input", "Value", "String"):
        message = message.replace(f"{opening} should ", "must ", 1)
    return f"{where} is {_short(first['input'])}; it {message[0].lower()}{message[1:]}"


def _most_telling(complaints: list[Any]) -> Any:
    """The first complaint; where text or a mapping is allowed and a mapping was given, that about its fields."""
    first = complaints[0]
    if first["type"] == "string_type" and isinstance(first["input"], Mapping):
        above = first["loc"][:-1]
        inside = [each for each in complaints[1:] if each["loc"][: len(above)] == above]
        return inside[0] if inside else first
    return first


def _names_a_choice(part: str, model: type[BaseModel]) -> bool:
    """Whether this part of a path is `Inner` or `function-after[check(), Inner]`: of several types, the model Inner."""
    inner = {m.__name__ for field in model.model_fields.values() for m in _models_in(field.annotation)}
    return re.split(r"\W+", part.rstrip("]"))[-1] in inner


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


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> set[str]:
    """Field names of the models at `path`; indices, keys and union tags in it lead nowhere."""
    owners = [model]
    for part in path:
        inner = [
            m
            for owner in owners
            if part in owner.model_fields
            for m in _models_in(owner.model_fields[str(part)].annotation)
        ]
        owners = inner or owners
    return {name for owner in owners for name in owner.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    from typing import get_args

    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [m for part in get_args(annotation) for m in _models_in(part)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
