"""How a policy decides, in words, for `disaggroute explain`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..policies.policy import Policy


def explanation(policy: Policy) -> str:
    """Name, documentation, parameters and hash of a policy."""
    parts = [policy.name, "", inspect.getdoc(type(policy)) or ""]
    if policy.params:
        parts += ["", "Parameters:"]
        width = max(len(name) for name in policy.params)
        parts += [f"  {name:<{width}}  {value}" for name, value in policy.params.items()]
    return "\n".join([*parts, "", f"Hash: {policy.hash}"])
