"""The catalog: where named YAML configurations are found, read and checked.

Names come from this package's `configs/KIND/NAME.yaml`, from installed packages that bring files of their own, and
from files that a program registers; a path to a YAML file is accepted wherever a name is. A file in
a folder of its own has the folder in its name: `marginal-cost/mixed-bursty-a40`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .error_text import error_text
from .yaml_file import read_mapping

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pydantic import BaseModel, ValidationError

    Model = TypeVar("Model", bound=BaseModel)

KINDS = ("profiles", "workloads", "clusters", "environments", "policies", "experiments", "suite", "training", "live")
"""Folders of `configs/`."""

ENTRY_POINTS = "disaggroute."
"""Start of the groups of entry points by which other packages bring files of a kind.

`anything = "package.folder"` in the group `disaggroute.workloads` brings every `NAME.yaml` in that folder.
"""

LONGEST_NAME = 100
"""Characters of a name; it stands in titles and file names."""

_IN_WORDS = {"live": "live cluster", "suite": "scenario of the suite"}
"""What a file of a kind is, where that is not the kind's name without its s."""

_PLAIN = {
    "tuple_type": "Input should be a valid list",
    "dict_type": "Input should be a valid mapping",
    "model_type": "Input should be a valid mapping",
}
"""Complaints that name a type of Python, in the words of a file."""

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
    others = {name for k, name in _registered if k == kind} | _brought(kind)[0].keys()
    return tuple(sorted({*_files(_folder(kind)), *others}))


def read(kind: str, name_or_path: str | Path) -> dict[str, Any]:
    """Reads one configuration as a plain mapping.

    Args:
        kind: one of KINDS.
        name_or_path: a name from `names(kind)`, or a path that ends in .yaml or .yml.

    Raises:
        ValueError: unknown name (the message gives the nearest ones) or one that two packages bring, missing
            file, bad YAML, or a document that is not a mapping.
    """
    text = str(name_or_path)
    source = Path(text) if text.endswith((".yaml", ".yml")) else _source(kind, text)
    return read_mapping(source, text)


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
        made = model.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{label}: {_sentence(model, error)}") from error
    complaint = _misread(data, made, "")
    if complaint:
        raise ValueError(f"{label}: {complaint}")
    return made


def check_name(name: str) -> str:
    """The name, if titles and files can carry it: for pydantic's `AfterValidator`.

    Raises:
        ValueError: it is empty, too long, or holds what cannot be printed.
    """
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable()):
        raise ValueError(f"{_short(name)} must be 1 to {LONGEST_NAME} printable characters")
    return name


def unknown(what: str, name: str, allowed: Iterable[str]) -> str:
    """The sentence for a name that is not known, with the nearest ones (or all, when none is near)."""
    allowed = sorted(allowed)
    near = difflib.get_close_matches(name, allowed, n=3, cutoff=0.5)
    if near:
        return f"unknown {what} {_short(name)}; nearest: {', '.join(near)}"
    return f"unknown {what} {_short(name)}; allowed: {', '.join(allowed) or 'none'}"


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` applied; nested mappings are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _source(kind: str, name: str) -> Path | Traversable:
    """The file of a name. What ships cannot be replaced: its names mean the same everywhere."""
    if name in _files(_folder(kind)):
        return _folder(kind) / f"{name}.yaml"
    if (kind, name) in _registered:
        return _registered[kind, name]
    brought, complaints = _brought(kind)
    if name not in brought:
        sentence = unknown(_IN_WORDS.get(kind, kind.removesuffix("s")), name, names(kind)) + "; a path ends in .yaml"
        if kind == "clusters" and name in names("live"):
            sentence += "; a live cluster has this name: --backend live"
        raise ValueError("; ".join([sentence, *complaints]))
    if len(brought[name]) > 1:
        places = " and ".join(str(file) for file in brought[name])
        raise ValueError(f"{kind}: the name {name!r} is brought by several packages; give the path: {places}")
    return brought[name][0]


@cache
def _brought(kind: str) -> tuple[dict[str, list[Traversable]], list[str]]:
    """Files of other packages by name, and a sentence for each package that cannot be read."""
    found: dict[str, list[Traversable]] = {}
    complaints: list[str] = []
    if kind == "policies":  # That group brings classes.
        return found, complaints
    for point in sorted(entry_points(group=ENTRY_POINTS + kind), key=lambda point: (point.name, point.value)):
        try:
            folder = resources.files(point.value)
            for name in sorted(_files(folder)):
                found.setdefault(name, []).append(folder / f"{name}.yaml")
        except Exception as error:  # Whatever another package does when it is imported.
            sentence = f"the package {point.value} of the entry point {point.name!r} cannot be read"
            complaints.append(f"{sentence} ({error_text(error)})")
    return found, complaints


def _folder(kind: str) -> Traversable:
    if kind not in KINDS:
        raise ValueError(unknown("kind of configuration", kind, KINDS))
    return resources.files(__name__.split(".")[0]) / "configs" / kind


def _files(folder: Traversable, inside: str = "") -> Iterator[str]:
    """Names of the YAML files in a folder and in those below it."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name.endswith(".yaml"):
            yield inside + entry.name.removesuffix(".yaml")
        elif entry.is_dir():
            yield from _files(entry, f"{inside}{entry.name}/")


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    first = _most_telling(error.errors(include_url=False))
    kind, message = first["type"], first["msg"]
    path = tuple(part for part in first["loc"] if not _names_a_choice(str(part), model))
    if kind == "string_type" and path[-1] == "str":  # one of several types
        path, message = path[:-1], "Input should be text or a mapping"
    above, fields = _fields_at(model, path[:-1])
    path = (*above, *path[-1:])
    where = ".".join(str(part) for part in path)
    if kind == "extra_forbidden":
        inside = f" of {'.'.join(str(part) for part in above)}" if above else ""
        return unknown(f"field{inside}", str(path[-1]), fields)
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
    message = re.split(" after validation|, unable to ", _PLAIN.get(kind, message))[0]
    for opening in ("Input", "Value", "String", "List", "Tuple"):
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


def _misread(given: Any, made: Any, where: str) -> str | None:
    """What a model took for something else: true for 1, and text that no file can hold; None if there is nothing.

    Args:
        given: a value as it was written.
        made: what the model made of it.
        where: the field.
    """
    if isinstance(given, bool) and isinstance(made, int | float) and not isinstance(made, bool):
        return f"{where} is {given}; it must be a number"
    if isinstance(given, str) and not given.isprintable():
        try:
            given.encode()
        except UnicodeEncodeError:
            return f"{where} is {_short(given)}; it must be Unicode text"
    if isinstance(given, Mapping):
        made = made[0] if isinstance(made, list) and made else made
        inside = made if isinstance(made, Mapping) else getattr(made, "__dict__", {})
        pairs = [(key, value, inside.get(key)) for key, value in given.items()]
    elif isinstance(given, list | tuple) and isinstance(made, list | tuple):
        pairs = [(k, *pair) for k, pair in enumerate(zip(given, made, strict=False))]
    else:
        return None
    complaints = (_misread(value, its, f"{where}.{key}".lstrip(".")) for key, value, its in pairs)
    return next(filter(None, complaints), None)


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], set[str]]:
    """The path without union tags, which nobody has written, and the field names of the models that it leads to.

    Indices and keys lead nowhere.
    """
    owners, shown = [model], []
    for part in path:
        inner = [
            m
            for owner in owners
            if part in owner.model_fields
            for m in _models_in(owner.model_fields[str(part)].annotation)
        ]
        chosen = [owner for owner in owners if part in _tags(owner)] if owners[1:] and not inner else []
        if not chosen:
            shown.append(part)
        owners = chosen or inner or owners
    return tuple(shown), {name for owner in owners for name in owner.model_fields}


def _tags(model: type[BaseModel]) -> set[Any]:
    """Values by which a model may be chosen from a union."""
    from typing import Literal, get_args, get_origin

    literals = (field.annotation for field in model.model_fields.values() if get_origin(field.annotation) is Literal)
    return {value for annotation in literals for value in get_args(annotation)}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    from typing import get_args

    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [m for part in get_args(annotation) for m in _models_in(part)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
