"""Policies as flat vectors of weights, for what searches over them.

A space says which weights of a policy are free; a vector holds these alone, and `policy` makes the policy of a vector.
`quick` makes one that decides alike and costs less than checking a file's parameters does, for thousands of candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ...envs import catalog
from ...envs import features as F
from ...policies import registry
from ...policies.linear import COLUMNS, Linear
from ...policies.policy import HIGHEST, Policy
from .config import PolicyConfig

if TYPE_CHECKING:
    from ...policies.network_shape import Shape

Floats = npt.NDArray[np.float64]

Pools = Sequence[tuple[int, int]]
"""Prefill and decode instances of each cluster (aggregated: 0 and the mixed ones)."""


class Space(Protocol):
    """Free weights of a policy."""

    @property
    def start(self) -> Floats:
        """(n,) where a search begins."""

    @property
    def scale(self) -> Floats:
        """(n,) sizes of steps that change decisions about as much in each weight."""

    def policy(self, vector: Floats) -> Policy:
        """The policy of (n,) weights, as a policy file stores it."""

    def quick(self, vector: Floats) -> Policy:
        """A policy that decides alike, quickly made."""


def stages_of(pools: Pools) -> tuple[str, ...]:
    """Stages in which at least one cluster has a choice.

    Raises:
        ValueError: none has one.
    """
    found = []
    for stage, many in (
        ("prefill", any(prefills > 1 for prefills, _ in pools)),
        ("decode", any(decodes > 1 for prefills, decodes in pools if prefills)),
        ("mixed", any(mixed > 1 for prefills, mixed in pools if not prefills)),
    ):
        found += [stage] * many
    if not found:
        raise ValueError("scenarios: no cluster has a pool of two instances or more, so there is nothing to learn")
    return tuple(found)


class WeighedLinear(Linear):
    """`linear` from a finished vector, without parameters to be checked."""

    def __init__(self, numbers: Floats) -> None:
        super().__init__()
        self._numbers = numbers

    def vector(self) -> Floats:
        """The vector as it was given."""
        return self._numbers


@dataclass(frozen=True)
class LinearSpace:
    """Weights of `linear`.

    Attributes:
        terms: (stage, term) of each free weight.
        base: parameters of the policy that it starts from; what is not free stays.
    """

    terms: tuple[tuple[str, str], ...]
    base: Mapping[str, Any]

    @staticmethod
    def of(pools: Pools, which: str, start: Policy | None) -> LinearSpace:
        """The space for clusters with these pools.

        Args:
            pools: of the clusters.
            which: "searched": the terms that `tune` may choose; "all": every column, and every product.
            start: a `linear` policy; None: its defaults.

        Raises:
            ValueError: `start` is another policy, or nothing is there to choose.
        """
        stages, base = stages_of(pools), start or registry.make("linear")
        if not isinstance(base, Linear):
            raise ValueError(f"policy.start is {base}; a linear policy can begin with another linear one alone")
        if which == "all":
            request = [feature.name for feature in F.REQUEST]
            terms = [
                (stage, f"{factor}*{column.name}" if factor else column.name)
                for stage in stages
                for factor in ("", *request)
                for column in COLUMNS[stage]
            ]
        else:
            sizes = [(2, 2)] * bool({"prefill", "decode"} & set(stages)) + [(0, 2)] * ("mixed" in stages)
            known = [dimension for pair in sizes for dimension in Linear.search_space(*pair)]
            terms = [(dimension.name, str(dimension.key)) for dimension in known if dimension.name in stages]
        return LinearSpace(tuple(terms), base.params)

    @property
    def start(self) -> Floats:
        """Weights of the policy that it starts from."""
        return np.array([float(self.base[stage].get(term, 0.0)) for stage, term in self.terms])

    @property
    def scale(self) -> Floats:
        """1: features are scaled to be of order 1."""
        return np.ones(len(self.terms))

    def policy(self, vector: Floats) -> Policy:
        """The policy; weights are rounded to six digits, so that what is tried can be read and copied."""
        return self._linear(vector)

    def quick(self, vector: Floats) -> Policy:
        """A policy that decides alike."""
        fixed, places = self._layout
        numbers = fixed.copy()
        numbers[places] = _six_digits(vector)
        return WeighedLinear(numbers)

    def _linear(self, vector: Floats) -> Linear:
        params: dict[str, Any] = {}
        for (stage, term), weight in zip(self.terms, _six_digits(vector), strict=True):
            if weight != 0 or term in self.base[stage]:  # A term that is not there has weight 0.
                params.setdefault(stage, {})[term] = weight
        return Linear(**catalog.merge(self.base, params))

    @cached_property
    def _layout(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """The vector that `Linear` compiles to, flags for all free terms set, and where the free weights are in it."""
        count = len(self.terms)
        # Each weight is told by its value: no flag is above 1.
        marked = self._linear(2.0 + np.arange(count, dtype=np.float64)).vector()
        plain = self._linear(np.zeros(count)).vector()
        changed = np.flatnonzero((marked != plain) & (marked >= 2.0))
        places = changed[np.argsort(marked[changed], kind="stable")]
        return marked, places


@dataclass(frozen=True)
class NetworkSpace:
    """Weights of `network` of the stages that have a choice.

    Attributes:
        shape: the hidden layers.
        stages: whose weights are free.
        base: (shape.size,) weights that it starts from.
        columns: by stage the columns whose weights in the linear part are free, and nothing else; None: all weights.
    """

    shape: Shape
    stages: tuple[str, ...]
    base: npt.NDArray[np.float32]
    columns: Mapping[str, Sequence[str]] | None = None

    @staticmethod
    def of(
        pools: Pools,
        config: PolicyConfig,
        start: Policy | None,
        seed: int,
        scale: float,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> NetworkSpace:
        """The space for clusters with these pools.

        Args:
            pools: of the clusters.
            config: hidden layers.
            start: a network, whose layers it then has, or a linear policy that it decides like at first; None: the
                defaults of `linear`.
            seed: of the first weights of the hidden units, where `start` gives none.
            scale: of those.
            columns: by stage the columns whose weights in the linear part are free; None: all weights.

        Raises:
            ValueError: `start` is of other layers, or another policy, or nothing is there to choose, or a column that
                is none of a stage with a choice.
        """
        from ...policies.network import Network
        from ...policies.network_shape import Shape

        stages = stages_of(pools)
        if columns is not None:
            _check_columns(columns, stages)
        if isinstance(start, Network):
            if config.hidden not in (None, tuple(start.shape.hidden)):
                raise ValueError(
                    f"policy.hidden is {list(config.hidden or ())}, but policy.start has {list(start.shape.hidden)}; "
                    "leave hidden out"
                )
            return NetworkSpace(start.shape, stages, start.vector_of_weights, columns)
        if start is not None and not isinstance(start, Linear):
            raise ValueError(f"policy.start is {start}; a network can begin with a network or a linear policy")
        shape = Shape(Shape().hidden if config.hidden is None else config.hidden)
        first = Network.from_linear(start or Linear(), shape, seed, scale)
        return NetworkSpace(shape, stages, first.vector_of_weights, columns)

    @cached_property
    def free(self) -> npt.NDArray[np.int64]:
        """Places of the free weights in the network's vector."""
        places = self.shape.split(np.arange(self.shape.size, dtype=np.float64))
        if self.columns is not None:
            free = [places[f"{stage}.skip"][:, _at(stage, names)].ravel() for stage, names in self.columns.items()]
            return np.concatenate(free).astype(np.int64)
        free = [array.ravel() for name, array in places.items() if name.partition(".")[0] in self.stages]
        return np.concatenate(free).astype(np.int64)

    @property
    def start(self) -> Floats:
        """Weights that it starts from."""
        return self.base[self.free].astype(np.float64)

    @property
    def scale(self) -> Floats:
        """1 for the linear part and the biases, else 1/√(inputs of a unit), so that its sum changes by about 1."""
        sizes = self.shape.arrays
        scales = {name: np.ones(size) for name, size in sizes.items()}
        for stage in self.stages:
            inputs = sizes[f"{stage}.context"][0] + sizes[f"{stage}.instance"][0]
            for part in ("context", "instance"):
                scales[f"{stage}.{part}"] /= np.sqrt(inputs)
            for part in ("second", "out"):
                if f"{stage}.{part}" in scales:
                    scales[f"{stage}.{part}"] /= np.sqrt(sizes[f"{stage}.{part}"][0])
        found: Floats = self.shape.join(scales).astype(np.float64)[self.free]
        return found

    def policy(self, vector: Floats) -> Policy:
        """The network; weights are rounded to float32."""
        from ...policies.network import Network

        weights = self.base.copy()
        weights[self.free] = vector
        return Network.from_vector(self.shape, weights)

    def quick(self, vector: Floats) -> Policy:
        """The same."""
        return self.policy(vector)


@dataclass(frozen=True)
class Vectors:
    """A baseline and the policies of some vectors, for `run_trials`.

    Attributes:
        space: of the vectors.
        vectors: (k, n) weights.
        baseline: a policy by name that comes first; empty: none.
    """

    space: Space
    vectors: Floats
    baseline: str = ""

    def __len__(self) -> int:
        """How many policies."""
        return bool(self.baseline) + len(self.vectors)

    def part(self, first: int, last: int) -> Vectors:
        """Those from number `first` to before `last`."""
        before = bool(self.baseline)
        rows = self.vectors[max(first - before, 0) : max(last - before, 0)]
        return Vectors(self.space, rows, self.baseline if first == 0 else "")

    def made(self) -> Iterator[Policy]:
        """The policies, one after the other."""
        if self.baseline:
            yield registry.parse(self.baseline)
        yield from (self.space.quick(vector) for vector in self.vectors)


def space_of(
    config: PolicyConfig,
    pools: Pools,
    seed: int,
    *,
    terms: str,
    scale: float,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> Space:
    """The space of what a configuration wants to be trained.

    Args:
        config: the policy.
        pools: of the clusters.
        seed: of first weights that are random.
        terms: of `linear`: "searched" or "all".
        scale: of the first weights of hidden units.
        columns: of a network, by stage: whose weights in the linear part are free, and nothing else; None: all.

    Raises:
        ValueError: the policy cannot start from `start`, or has no such columns.
    """
    start = registry.parse(config.start) if config.start else None
    if config.name == "linear":
        if columns is not None:
            raise ValueError("parameters.columns is for a network; linear has parameters.terms")
        return LinearSpace.of(pools, terms, start)
    return NetworkSpace.of(pools, config, start, seed, scale, columns)


def _check_columns(columns: Mapping[str, Sequence[str]], stages: Sequence[str]) -> None:
    if not any(columns.values()):
        raise ValueError("parameters.columns names no column; leave it out to search all weights")
    for stage, names in columns.items():
        if stage not in stages:
            raise ValueError(f"parameters.columns has {stage}; the clusters have a choice in {', '.join(stages)}")
        known = [feature.name for feature in COLUMNS[stage]]
        for name in names:
            if name not in known:
                raise ValueError(catalog.unknown(f"column of {stage} in parameters.columns", name, known))
        if len(set(names)) < len(names):
            raise ValueError(f"parameters.columns.{stage} is {list(names)}; each column stands there once")


def _at(stage: str, names: Sequence[str]) -> list[int]:
    known = [feature.name for feature in COLUMNS[stage]]
    return [known.index(name) for name in names]


def _six_digits(vector: Floats) -> list[float]:
    return [float(f"{weight:.6g}") for weight in np.clip(vector, -HIGHEST, HIGHEST).tolist()]
