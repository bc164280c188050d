"""Policies by name: built in, registered by a program, or brought by another package."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from ..envs import catalog
from ..envs.error_text import error_text
from . import policy_file
from .policy import Origin, Policy
from .policy_text import PolicyText

ENTRY_POINTS = "disaggroute.policies"
"""Group of entry points, `name = "package.module:Class"`, by which other packages bring policies."""

VARIABLE = "DISAGGROUTE_POLICIES"
"""Environment variable with further entry points, `name=package.module:Class`, separated by commas: what
`import_policy` has found, so that the processes that this one starts know it too."""

_MODULES = {
    "round-robin": "round_robin",
    "random": "random_choice",
    "least-loaded": "least_loaded",
    "power-of-two": "power_of_two",
    "length-threshold": "length_threshold",
    "least-ttft": "projected_latency",
    "min-tpot": "projected_latency",
    "best-fit": "best_fit",
    "size-interval": "size_interval",
    "card": "card",
    "marginal-cost": "marginal_cost",
    "simulator-naive": "marginal_cost",
    "linear": "linear",
    "network": "network",
    "lookahead": "lookahead",
}
"""Module of each built-in policy; it is imported when the policy is asked for."""

_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_KINDS = {
    "null": "none",
    "boolean": "true or false",
    "number": "number",
    "integer": "whole number",
    "string": "text",
    "array": "list",
}

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_CLASS = re.compile(r"\s*(?P<place>[^\W\d][\w.]*:[^\W\d]\w*)(?P<params>\(.*\))?\s*", re.DOTALL)
_classes: dict[str, type[Policy]] = {}

P = TypeVar("P", bound=type[Policy])


def register(policy: P) -> P:
    """Class decorator: adds a policy under its `name`, for this process.

    Defining the same class again (a notebook cell that is run twice) replaces it.

    Raises:
        ValueError: the name is missing, malformed or taken by another class.
    """
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{policy.__qualname__}: name is {name!r}; it must be lower-case letters, digits and hyphens"
        )
    holder = _classes.get(name, policy)
    home = f"{__package__}.{_MODULES[name]}" if name in _MODULES else holder.__module__
    if (home, holder.__qualname__) != (policy.__module__, policy.__qualname__):
        raise ValueError(f"{policy.__qualname__}: the name {name!r} is taken; choose another one")
    _classes[name] = policy
    return _marked(policy)


def names() -> tuple[str, ...]:
    """Names of the policies: the built-in ones in the order of the documentation, then the others, sorted."""
    return (*_MODULES, *sorted((_classes.keys() | _entry_points().keys()) - _MODULES.keys()))


def policy_class(name: str) -> type[Policy]:
    """The class of a policy.

    Raises:
        ValueError: an unknown name (the message gives the nearest ones), or an entry point that brings no
        such policy.
    """
    if name in _classes:
        return _classes[name]
    if name in _MODULES:
        importlib.import_module(f".{_MODULES[name]}", __package__)
        return _classes[name]
    if name in _entry_points():
        return _loaded(*_entry_points()[name])
    raise ValueError(catalog.unknown("policy", name, names()))


def make(name: str, **params: Any) -> Policy:
    """The policy of this name with these parameters.

    Raises:
        ValueError: an unknown name, an unknown parameter, a value out of range, or a class of another package that
            cannot be made.
    """
    maker = policy_class(name)
    try:
        policy = maker(**params)
        hash(policy.hash)  # One that cannot be told from others is of no use.
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"policy {name!r} cannot be made from {_home(maker)} ({error_text(error)})") from error
    return policy


def parse(text: str) -> Policy:
    """The policy that a text names: `round-robin`, `marginal-cost(w_q=0.1, sample=2)` or `marginal-cost@FILE`.

    FILE is a policy file: a path that ends in .yaml, or the short name of a shipped one. Its parameters may be
    followed by others in brackets, which take their place: `marginal-cost@FILE(w_q=0.1)`. `PolicyText.read` says
    how values and file names are written.

    Raises:
        ValueError: the text does not read like that, the file is unreadable or of another policy, or what `make`
            raises.
    """
    wanted = PolicyText.read(text)
    if wanted.file is None:
        return make(wanted.name, **wanted.params)
    policy_class(wanted.name)  # An unknown policy has no files; the sentence should say the former.
    stored = policy_file.load(wanted.name, wanted.file)
    try:
        policy = make(wanted.name, **stored.params)
    except ValueError as error:
        raise ValueError(f"{wanted.file}: {error}") from None
    origin = Origin(wanted.file, policy.params)
    if wanted.params:
        policy = make(wanted.name, **{**policy.params, **wanted.params})
    policy.origin = origin
    return policy


def import_policy(text: str) -> str:
    """The text of a policy whose class is named by its place: `package.module:Class`, with parameters if wanted.

    The class is imported, from the current folder too, and is known under its `name` to this process and to those
    that it starts. Its hash covers the source of its module, so that runs of an older version are not taken for its.

    Args:
        text: such a text; any other one is given back as it is.

    Raises:
        ValueError: it cannot be imported, is no policy class, or its name is taken.
    """
    match = _CLASS.fullmatch(text)
    if match is None:
        return text
    place = match["place"]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = EntryPoint("policy", place, ENTRY_POINTS).load()
    except Exception as error:  # Whatever somebody's module does when it is imported.
        raise ValueError(f"policy {place} cannot be loaded ({error_text(error)})") from error
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ValueError(f"policy {place} is no class derived from disaggroute.policies.Policy")
    name = register(found).name
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*_added(), _pair(found)]))
    _entry_points.cache_clear()
    _marked(found)
    return name + (match["params"] or "")


def describe(name: str) -> str:
    """What a policy does, its formula and source, and its parameters with their defaults and ranges.

    Raises:
        ValueError: an unknown name.
    """
    policy = policy_class(name)
    lines = [name, "", inspect.cleandoc(policy.__doc__ or "")]
    schema = policy.accepts.model_json_schema()["properties"] if policy.accepts.model_fields else {}
    if schema:
        lines += ["", "Parameters:"]
    for key, field in schema.items():
        default = "none" if field.get("default") is None else field["default"]
        text = f"  {key} = {default}  ({_allowed(field)})  {field.get('description', '')}"
        lines.append(text.rstrip())
    return "\n".join(lines)


@cache
def _entry_points() -> dict[str, list[EntryPoint]]:
    """Entry points by name; more than one where several packages bring the same name."""
    found: dict[str, dict[str, EntryPoint]] = {}
    pairs = (pair.partition("=") for pair in _added())
    added = [EntryPoint(name, place, ENTRY_POINTS) for name, _, place in pairs]
    for point in (*entry_points(group=ENTRY_POINTS), *added):
        found.setdefault(point.name, {})[point.value] = point
    return {name: [points[value] for value in sorted(points)] for name, points in found.items()}


def _loaded(point: EntryPoint, *others: EntryPoint) -> type[Policy]:
    if others:
        places = " and ".join(each.value for each in (point, *others))
        raise ValueError(f"policy {point.name!r} is brought by several packages: {places}; keep one of them")
    try:
        found = point.load()
    except Exception as error:  # Whatever another package does when it is imported.
        raise ValueError(f"policy {point.name!r} cannot be loaded from {point.value} ({error_text(error)})") from error
    if not (isinstance(found, type) and issubclass(found, Policy) and found.name == point.name):
        raise ValueError(f"policy {point.name!r}: {point.value} is no Policy class with that name")
    _classes[point.name] = _marked(found)
    return found


def _added() -> list[str]:
    """What the environment variable holds."""
    return [pair for pair in os.environ.get(VARIABLE, "").split(",") if pair]


def _pair(policy: type[Policy]) -> str:
    """How the environment variable names a class."""
    return f"{policy.name}={policy.__module__}:{policy.__qualname__}"


def _marked(policy: P) -> P:
    """The class, with the hash of its module's source if it was named by its place."""
    file = getattr(sys.modules.get(policy.__module__), "__file__", None)
    if file and os.path.isfile(file) and _pair(policy) in _added():
        policy.source = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    return policy


def _home(maker: type[Policy]) -> str:
    return f"{maker.__module__}:{maker.__qualname__}"


def _allowed(field: dict[str, Any]) -> str:
    """The range of a parameter, from its JSON schema."""
    options = [_allowed(option) for option in field.get("anyOf", ())]
    if options:
        return " or ".join(options)
    if "const" in field or "enum" in field:
        return " or ".join(str(value) for value in field.get("enum", [field.get("const")]))
    words = [f"{text} {field[key]:,g}" for key, text in _BOUNDS.items() if key in field]
    kind = _KINDS.get(field.get("type", ""), "anything")
    return " ".join([kind, ", ".join(words)]).strip()
