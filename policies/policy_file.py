"""Policy files: the parameters of a policy, stored with where they came from (YAML).

    schema_version: 1
    policy: marginal-cost
    features_version: 1
    params: {w_q: 0.21, …}
    provenance: {command: disaggroute tune …, …}

`NAME@FILE` names a policy by such a file. Those that ship with the package lie in `configs/policies/NAME/` and go by
their short names.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..envs import catalog
from .policy import Policy

SCHEMA_VERSION = 1
"""Version of the fields of a policy file."""

KIND = "policies"
"""Folder of `configs/`, with one folder for each policy."""


class PolicyFile(BaseModel):
    """What a policy file holds.

    Attributes:
        schema_version: `SCHEMA_VERSION` at the time of writing.
        policy: name of the policy.
        features_version: `envs.features.VERSION` at the time of writing.
        params: its parameters; what is not given is as by default.
        provenance: how they were found, for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int
    policy: str
    features_version: int
    params: dict[str, Any]
    provenance: dict[str, Any] = {}

    @staticmethod
    def of(policy: Policy, provenance: dict[str, Any]) -> PolicyFile:
        """The file of a policy, with all its parameters, so that other defaults change nothing.

        Args:
            policy: the policy.
            provenance: how its parameters were found; JSON-able.
        """
        from ..envs.features import VERSION

        return PolicyFile(
            schema_version=SCHEMA_VERSION,
            policy=policy.name,
            features_version=VERSION,
            params=policy.params,
            provenance=provenance,
        )

    def yaml(self) -> str:
        """The text of the file."""
        import yaml

        heading = f"# Parameters of a policy; `{self.policy}@FILE` names it by this file.\n"
        # No line is folded: a command is there to be copied.
        text: str = yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True, width=math.inf)
        return heading + text


def shipped(name: str) -> tuple[str, ...]:
    """Short names of the shipped files of a policy, sorted."""
    return tuple(path.removeprefix(f"{name}/") for path in catalog.names(KIND) if path.startswith(f"{name}/"))


def load(name: str, file: str) -> PolicyFile:
    """The policy file that `NAME@FILE` names.

    Args:
        name: of the policy.
        file: a path that ends in .yaml or .yml, or the short name of a shipped file.

    Raises:
        ValueError: there is no such file (the message gives the shipped ones), it is unreadable, of another policy, or
            of another version of its fields or of the features.
    """
    if file.endswith((".yaml", ".yml")):
        if not Path(file).exists():
            ready = ", ".join(shipped(name)) or "none"
            raise ValueError(f"{name}: there is no policy file {file}; shipped for {name}: {ready}")
        data = catalog.read(KIND, file)
    else:
        if file not in shipped(name):
            sentence = catalog.unknown("policy file", file, shipped(name))
            raise ValueError(f"{name}: {sentence}; a path ends in .yaml")
        data = catalog.read(KIND, f"{name}/{file}")
    return _checked(data, name, file)


def _checked(data: dict[str, Any], name: str, file: str) -> PolicyFile:
    from ..envs.features import VERSION

    # First, since other versions may have other fields.
    version = data.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(f"{file}: schema_version is {version!r}; this version reads {SCHEMA_VERSION}")
    stored = catalog.validate(PolicyFile, data, file)
    if stored.policy != name:
        raise ValueError(f"{file}: policy is {stored.policy!r}, asked for as {name}@{file}; the two must agree")
    if stored.features_version != VERSION:
        raise ValueError(
            f"{file}: features_version is {stored.features_version}, but the features have version {VERSION}; "
            "tune the policy again"
        )
    return stored
