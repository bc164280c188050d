"""What every policy is: a name, parameters, and a choice at each admission."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from ..envs import catalog
from ..envs.admission import Admission
from .policy_text import PolicyText
from .search_space import Dimension

Features = npt.NDArray[np.float32]
Costs = npt.NDArray[np.float64]

HIGHEST = 1e6
"""Upper end of weights, sizes and prices: costs stay finite whatever the load."""


class Parameters(BaseModel):
    """Parameters of a policy: numbers, words, lists and None, each with a default, a range and a description."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Choice(NamedTuple):
    """A decision, and how likely the policy was to make it.

    Attributes:
        prefill: index in the prefill pool.
        decode: index in the decode pool; aggregated: both name the same mixed instance.
        probability: of this pair, given what the policy saw.
    """

    prefill: int
    decode: int
    probability: float


@dataclass(frozen=True)
class Origin:
    """The policy file that a policy was made from.

    Attributes:
        file: as it was named.
        params: all parameters of the policy in the file, defaults included.
    """

    file: str
    params: dict[str, Any]


class Policy(ABC):
    """Picks a prefill and a decode instance for each request.

    A subclass has a `name`, may name its parameters in `accepts`, and implements `route`; one that remembers
    something between requests forgets it in `reset`.

    Args:
        **params: fields of `accepts`.

    Raises:
        ValueError: an unknown parameter or a value out of range; names the field, the value and what is
        allowed.
    """

    name: ClassVar[str]
    """Name in the registry."""

    accepts: ClassVar[type[Parameters]] = Parameters
    """The parameters, as a pydantic model."""

    source: ClassVar[str] = ""
    """Hash of its module, where the class was named by its place (`registry.import_policy`); part of `hash`."""

    origin: Origin | None = None
    """The policy file it was made from, if any; the hash knows nothing of it."""

    def __init__(self, **params: Any) -> None:
        self.parameters = catalog.validate(self.accepts, params, self.name)

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """What `disaggroute tune` may choose; empty when there is nothing to tune.

        Every point between the bounds must give parameters that the policy accepts.

        Args:
            prefills: instances of the prefill pool (0: aggregated).
            decodes: instances of the decode pool, or mixed ones.
        """
        return ()

    def check_pools(self, prefills: int, decodes: int) -> None:  # noqa: B027 - most fit any
        """Refuses pools that the parameters are not made for.

        Args:
            prefills: instances of the prefill pool (0: aggregated).
            decodes: instances of the decode pool, or mixed ones.

        Raises:
            ValueError: a parameter is made for pools of other sizes.
        """

    @property
    def params(self) -> dict[str, Any]:
        """All parameters, defaults included; JSON-able: `make(name, **params)` is the same policy."""
        return self.parameters.model_dump(mode="json")

    @property
    def hash(self) -> str:
        """12 hex digits of a hash over name, parameters and `source`, the same in every process."""
        text = json.dumps([self.name, self.params, *([self.source] if self.source else [])], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def reset(self, seed: int) -> None:  # noqa: B027 - most policies remember nothing
        """Forgets everything; what is random follows from the seed."""

    @abstractmethod
    def route(self, admission: Admission) -> tuple[int, int]:
        """Picks a prefill and a decode instance that may be assigned (aggregated: the same one twice)."""

    def choose(self, admission: Admission) -> Choice:
        """`route` with the probability of the choice: 1 here, so a policy that draws overrides it."""
        return Choice(*self.route(admission), 1.0)

    def costs(self, features: Mapping[str, Features]) -> dict[str, Costs] | None:
        """What each instance would cost, where the policy picks the least costs of features; None: it does not.

        For whoever wants to know what a choice depends on, such as `disaggroute explain`; nobody routes by it.

        Args:
            features: of any number of admissions, as `FeatureArrays` makes them: `request` (…, R) with `prefill`
                (…, P, F) and `decode` (…, D, F), or with `mixed` (…, M, F).

        Returns:
            By pool (prefill and decode, or mixed), (…, instances). The policy picks the least one among the instances
            that may be assigned, the lowest index of several; which may be is not looked at.
        """
        return None

    def __str__(self) -> str:
        """The text that `registry.parse` turns into this policy: its name, its file, and what is not as there.

        Without a file: what is not as by default.
        """
        origin = self.origin
        usual = origin.params if origin else self.accepts.model_construct().model_dump(mode="json")
        changed = {key: value for key, value in self.params.items() if key not in usual or value != usual[key]}
        return str(PolicyText(self.name, origin.file if origin else None, changed))

    def __repr__(self) -> str:
        """The text of `str`, marked as a policy."""
        return f"<policy {self}>"
