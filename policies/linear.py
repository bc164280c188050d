"""Linear: learned weights over the features."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from ..envs import catalog
from ..envs import features as F
from .compiled import episode
from .compiled.weighing import BEHIND, STAGES
from .compiled_policy import CompiledPolicy
from .policy import HIGHEST, Costs, Features, Parameters
from .registry import register
from .search_space import Dimension

COLUMNS = {"prefill": F.PREFILL, "decode": F.DECODE, "mixed": F.MIXED}
"""Features of an instance, by stage."""

_REQUEST = [feature.name for feature in F.REQUEST]
_NAMES = {stage: [feature.name for feature in columns] for stage, columns in COLUMNS.items()}

_CONSTANTS = {
    stage: [names.index(feature.name) for feature in F.PROFILE if feature.name != "index"]
    for stage, names in _NAMES.items()
}
"""Columns of the profile but the index."""

_FACTORS = ("prompt", "predicted", "tight")
_MULTIPLIED = {
    "prefill": ("index", "queued", "queued_work"),
    "decode": ("index", "in_flight", "context_ratio", "remaining_work"),
    "mixed": ("index", "queued_work", "in_flight", "context_ratio", "remaining_work"),
}
"""Products that a search may weigh."""


def _canonical(stage: str, weights: dict[str, float]) -> dict[str, float]:
    """The same with terms as they are written here.

    Raises:
        ValueError: a term that names no features, or one term twice.
    """
    found: dict[str, float] = {}
    for term, weight in weights.items():
        request, column = _parts(stage, term)
        name = column if request is None else f"{request}*{column}"
        if name in found:
            raise ValueError(f"{name} is given twice; each term may be given once")
        found[name] = weight
    return found


def _parts(stage: str, term: str) -> tuple[str | None, str]:
    *factors, column = (part.strip() for part in term.split("*"))
    try:
        if len(factors) > 1:
            raise ValueError("a term has at most two factors")
        if column not in _NAMES[stage]:
            raise ValueError(catalog.unknown(f"feature of a {stage} instance", column, _NAMES[stage]))
        if factors and factors[0] not in _REQUEST:
            raise ValueError(catalog.unknown("feature of a request", factors[0], _REQUEST))
    except ValueError as error:
        raise ValueError(
            f"term {term!r}: {error}; it must read like {_NAMES[stage][0]} or predicted*index"
        ) from None
    return (factors[0] if factors else None), column


Weight = Annotated[float, Field(ge=-HIGHEST, le=HIGHEST)]


class LinearParameters(Parameters):
    """Parameters of `linear`."""

    prefill: Annotated[dict[str, Weight], AfterValidator(partial(_canonical, "prefill"))] = Field(
        {"prefill_ratio": 1.0}, description="Weights by term, of prefill instances."
    )
    decode: Annotated[dict[str, Weight], AfterValidator(partial(_canonical, "decode"))] = Field(
        {"step_ratio": 1.0}, description="Weights by term, of decode instances."
    )
    mixed: Annotated[dict[str, Weight], AfterValidator(partial(_canonical, "mixed"))] = Field(
        {"prefill_ratio": 1.0, "step_ratio": 1.0}, description="Weights by term, of mixed instances."
    )


@register
class Linear(CompiledPolicy):
    """The instance with the least weighted sum of features, in each pool.

    Formula; ties go to the lowest index:

        cost(i) = Σ over terms of weight · value of the term on i

    A term is a feature of the instance, such as `remaining_work`, or a feature of the request times one of the
    instance, such as `predicted*index`. Features are scaled, as `features.describe()` shows them; a term that is not
    given has weight 0. Products with `index` can tell instances apart that are otherwise alike, so that sizes or
    classes get instances of their own.

    By default it compares what `least-ttft(decode=min-tpot)` does, over the targets: prefill_ratio, step_ratio,
    on a mixed instance their sum. Better weights are what `disaggroute tune` is for. Source: Mania, Guy and Recht,
    "Simple random search of static linear policies is competitive for reinforcement learning", NeurIPS 2018, arXiv
    1803.07055, for linear policies found by search.
    """

    name = "linear"
    accepts = LinearParameters
    number = episode.LINEAR
    needs_constants = True
    parameters: LinearParameters

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """Weights from -3 to 3: of each ledger, polled and index column, and of some products.

        A pool of one has nothing to choose, and the age of the poll, being the same for all, changes nothing.
        """
        stages = {"mixed": decodes} if prefills == 0 else {"prefill": prefills, "decode": decodes}
        defaults = LinearParameters()
        return tuple(
            Dimension(stage, -3.0, 3.0, getattr(defaults, stage).get(term, 0.0), key=term)
            for stage, instances in stages.items()
            if instances > 1
            for term in _searched(stage)
        )

    def vector(self) -> npt.NDArray[np.float64]:
        """What `compiled.weighing.STAGES` describes."""
        return np.concatenate([*(numbers(stage, self.matrix(stage)) for stage in STAGES), np.zeros(BEHIND)])

    def matrix(self, stage: str) -> npt.NDArray[np.float64]:
        """The weights of a stage's instances, also those that are 0.

        Returns:
            (1 + request features, columns): first the weights of the columns, then those of their products with each
            feature of the request.
        """
        names = _NAMES[stage]
        matrix = np.zeros((1 + len(_REQUEST), len(names)))
        weights: Mapping[str, float] = getattr(self.parameters, stage)
        for term, weight in weights.items():
            request, column = _parts(stage, term)
            matrix[0 if request is None else 1 + _REQUEST.index(request), names.index(column)] = weight
        return matrix

    def costs(self, features: Mapping[str, Features]) -> dict[str, Costs]:
        """The weighted sums; see `Policy.costs`."""
        return {stage: terms.sum(axis=-1) for stage, (_, terms) in self.terms(features).items()}

    def terms(self, features: Mapping[str, Features]) -> dict[str, tuple[tuple[str, ...], Costs]]:
        """What each term adds to the cost of each instance.

        Args:
            features: as for `costs`.

        Returns:
            By pool, the names of the terms, and (…, instances, terms): weight · value.
        """
        found = {}
        for stage in _NAMES:
            if stage in features:
                weights = getattr(self.parameters, stage)
                columns = [_values(stage, term, features) * weight for term, weight in weights.items()]
                shape = features[stage].shape[:-1]
                found[stage] = tuple(weights), np.stack(columns, axis=-1) if columns else np.zeros((*shape, 0))
        return found


def _values(stage: str, term: str, features: Mapping[str, Features]) -> Costs:
    """Value of a term on each instance, (…, instances)."""
    request, column = _parts(stage, term)
    values = features[stage][..., _NAMES[stage].index(column)].astype(np.float64)
    return values if request is None else values * features["request"][..., _REQUEST.index(request), None]


def _searched(stage: str) -> list[str]:
    """Terms whose weights a search may choose."""
    profile = {feature.name for feature in F.PROFILE} - {"index"}
    columns = [name for name in _NAMES[stage] if name not in profile and name != "poll_age"]
    return columns + [f"{request}*{column}" for request in _FACTORS for column in _MULTIPLIED[stage]]


def numbers(stage: str, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The stage's part of the vector from its weights, as `Linear.matrix` has them: flags, then the weights."""
    return np.concatenate([[matrix[:, _CONSTANTS[stage]].any()], matrix[1:].any(axis=1), matrix.ravel()])
