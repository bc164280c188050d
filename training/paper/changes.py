"""What a point of a map makes of a condition: ordinary files of workloads, profiles and clusters, and a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...envs import catalog, cluster_config, profiles, workloads
from ...envs.scenario import DEFAULT_TOPOLOGY
from ...envs.workloads import WorkloadConfig
from ...policies.policy_text import PolicyText
from ..runs import write_atomically
from .config import Condition
from .points import Point

FILES = "files"
"""Folder of what was made for the points of a map, in that of the map."""


def changed_condition(condition: Condition, point: Point, out: Path) -> Condition:
    """A condition at a point.

    Args:
        condition: of the experiment.
        point: what is changed.
        out: the map's folder, which gets the files.

    Raises:
        ValueError: a field that is unknown or out of range, or changes that contradict the condition.
        OSError: a file cannot be written.
    """
    files = out / FILES
    changes: dict[str, Any] = {}
    if point.workload or point.length_spread != 1:
        changes["workload"] = _workload(condition.workload, point, files)
    if (point.profile or point.cluster) and condition.cluster is not None:
        raise ValueError(f"cluster is {condition.cluster}, but {point.name} changes engines; name a topology")
    profile = condition.profile or workloads.make(condition.workload).config.profile
    if point.profile:
        profile = changes["profile"] = _profile(profile, point, files)
    if point.cluster:
        topology = condition.topology or DEFAULT_TOPOLOGY
        config = cluster_config.from_topology(topology, profile, **point.cluster)
        name = f"{config.name}-{point.name}"
        content = config.model_copy(update={"name": name}).model_dump(mode="json", exclude_defaults=True)
        changes |= {"cluster": _written(files / f"{name}.yaml", content), "topology": None}
    usual = {name: field.default for name, field in Condition.model_fields.items()}
    free = {name: value for name, value in point.scenario.items() if getattr(condition, name, None) == usual.get(name)}
    data = catalog.merge(condition.model_dump(), changes | free)
    return catalog.validate(Condition, data, f"condition {condition.name}")


def changed_policy(text: str, point: Point) -> str:
    """A policy at a point: parameters in brackets stay, and so does one that names a file of its own."""
    wanted = PolicyText.read(text)
    if wanted.name not in point.policies or wanted.file is not None:
        return text
    other = PolicyText.read(point.policies[wanted.name])
    return str(PolicyText(other.name, other.file, {**other.params, **wanted.params}))


def _workload(name: str, point: Point, files: Path) -> str:
    """A workload with changed fields and lengths, by its file."""
    config = workloads.make(name, **point.workload).config
    content = config.model_dump(mode="json", exclude_none=True)
    if point.length_spread != 1:
        if config.mix is None:
            content |= _spread(config, point.length_spread)
        else:
            alone = point.model_copy(update={"workload": {}})
            content["mix"] = {_workload(family, alone, files): share for family, share in config.mix.items()}
    content["name"] = f"{config.name}-{point.name}"
    return _written(files / f"{content['name']}.yaml", content)


def _spread(config: WorkloadConfig, factor: float) -> dict[str, Any]:
    """The length laws of a family, every lognormal with `factor` times its σ and the same median."""
    found = {}
    for name in ("prompt", "output"):
        law = getattr(config, name).model_dump(mode="json")
        parts = [part | {"sigma": part["sigma"] * factor} for part in law["parts"]]
        found[name] = law | {"parts": parts}
    return found


def _profile(name: str, point: Point, files: Path) -> str:
    """A profile with changed fields, by its file."""
    content = catalog.merge(catalog.read("profiles", name), point.profile)
    content["name"] = f"{content['name']}-{point.name}"
    path = _written(files / f"{content['name']}.yaml", content)
    profiles.load(path)  # What is out of range should not wait for the first run.
    return path


def _written(path: Path, content: dict[str, Any]) -> str:
    """Writes a YAML file, unless it is there, and gives its path."""
    import yaml

    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()
    if not path.is_file() or path.read_bytes() != text:
        write_atomically(path, text)
    return str(path)
