"""Network: a scorer with hidden units that all instances of a pool share."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, model_validator

from ..envs.simulator.arena import aligned_words
from .compiled import episode
from .compiled.network import CELLS, HEADER_WORDS, LANES, SKIP_WORD, SKIP_WORDS, STAGE_WORDS
from .compiled_policy import CompiledPolicy
from .linear import Linear, numbers
from .network_costs import costs_of
from .network_shape import INPUTS, MOST_LAYERS, MOST_UNITS, STAGES, SUMMARY, Float32s, Shape, contexts
from .policy import HIGHEST, Costs, Features, Parameters
from .registry import register

_CHECKSUM_BYTES = 4


def text_of(vector: Float32s) -> str:
    """Weights as a text: base64 of little-endian float32 and a CRC-32 of these bytes."""
    data = np.asarray(vector, "<f4").tobytes()
    return base64.b64encode(data + zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")).decode()


def vector_of(text: str) -> Float32s:
    """The weights in a text of `text_of`.

    Raises:
        ValueError: it is no such text, or it is damaged.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is no base64 text; it must be what a trained network was written as") from None
    data, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if len(data) % 4 or zlib.crc32(data) != int.from_bytes(checksum, "little") or len(checksum) < _CHECKSUM_BYTES:
        raise ValueError("it is damaged, its checksum does not agree; it must be what a trained network was written as")
    return _checked(np.frombuffer(data, "<f4").astype(np.float32))


def _checked(vector: Float32s) -> Float32s:
    """The vector, if costs stay finite under it.

    Raises:
        ValueError: a weight that is no number, or too large.
    """
    if not np.abs(vector).max(initial=0.0) <= HIGHEST:  # so that NaN is refused too
        k = int(np.argmin(np.abs(vector) <= HIGHEST))
        raise ValueError(f"weight {k} is {vector[k]:g}; it must be from {-HIGHEST:,.0f} to {HIGHEST:,.0f}")
    return vector


def _sound(text: str | None) -> str | None:
    if text is not None:
        vector_of(text)
    return text


class NetworkParameters(Parameters):
    """Parameters of `network`."""

    hidden: tuple[Annotated[int, Field(ge=1, le=MOST_UNITS)], ...] = Field(
        (16,), min_length=1, max_length=MOST_LAYERS, description="Units of each hidden layer."
    )
    weights: Annotated[str | None, AfterValidator(_sound)] = Field(
        None, description="All weights, in base64; none: those of linear's defaults."
    )

    @model_validator(mode="after")
    def _fits(self) -> NetworkParameters:
        if self.weights is not None:
            count, size = len(vector_of(self.weights)), Shape(self.hidden).size
            if count != size:
                raise ValueError(f"weights holds {count} numbers; hidden {list(self.hidden)} needs {size}")
        return self


@register
class Network(CompiledPolicy):
    """The instance of least cost in each pool, by a small neural network that all instances of a pool share.

    Formula; ties go to the lowest index:

        cost(i) = cost of `linear`(i) + out · h(i),    h(i) = act(bias + context · c + instance · u(i))

    u(i) are features of the instance, c what the pool shares: features of the request, the number of instances that may
    be assigned, and mean, least and greatest of some columns over them (docs/policies.md has the lists), all clipped to
    ±10; act(z) = max(z, z/8). A second layer reads the first. One set of weights serves pools of any size: nothing but
    the feature `index` tells instances apart that are otherwise alike.

    Without weights it decides as `linear` does by default. Trained ones come in a policy file: `network@FILE`.
    """

    name = "network"
    accepts = NetworkParameters
    number = episode.NETWORK
    needs_constants = True

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        given = self.parameters.weights
        self._shape = Shape(self.parameters.hidden)
        self._weights = _by_default(self._shape) if given is None else vector_of(given)

    @classmethod
    def from_vector(cls, shape: Shape, vector: npt.ArrayLike) -> Network:
        """The network of these weights, quickly: what describes it (params, hash) is made when it is asked for.

        Args:
            shape: the hidden layers.
            vector: (shape.size,) weights, in the order of `Shape.arrays`; rounded to float32, and copied.

        Raises:
            ValueError: another number of weights, or one that is no number or too large.
        """
        weights = np.array(vector, np.float32)
        if weights.shape != (shape.size,):
            raise ValueError(f"vector has shape {weights.shape}; hidden {list(shape.hidden)} needs ({shape.size},)")
        policy = cls.__new__(cls)
        policy._shape, policy._weights = shape, _checked(weights)
        policy.begin()
        return policy

    @classmethod
    def from_linear(cls, linear: Linear, shape: Shape | None = None, seed: int = 0, scale: float = 1.0) -> Network:
        """A network that decides as a linear policy does, up to the rounding of its weights to float32.

        `linear` is the special case without hidden units: its weights, products with features of the request included,
        become the skip; the units are those of `Shape.initial`.

        Args:
            linear: gives the weights.
            shape: the hidden layers; None: the default ones.
            seed: of the weights of the units.
            scale: as for `Shape.initial`.
        """
        shape = shape or Shape()
        vector = shape.initial(np.random.default_rng(seed), scale)
        arrays = shape.split(vector)
        for stage in STAGES:
            arrays[f"{stage}.skip"][:] = linear.matrix(stage)
        return cls.from_vector(shape, vector)

    @cached_property
    def parameters(self) -> NetworkParameters:  # type: ignore[override]
        """Hidden layers and weights."""
        return NetworkParameters(hidden=self._shape.hidden, weights=text_of(self._weights))

    @property
    def shape(self) -> Shape:
        """The hidden layers."""
        return self._shape

    @property
    def vector_of_weights(self) -> Float32s:
        """(shape.size,) all weights, in the order of `Shape.arrays`; a copy."""
        return self._weights.copy()

    def costs(self, features: Mapping[str, Features]) -> dict[str, Costs]:
        """The formula in NumPy, exact to float32's precision; see `Policy.costs`."""
        return costs_of(self._shape, self._weights, features)

    def vector(self) -> npt.NDArray[np.float64]:
        """What `compiled.network.HEADER` describes."""
        plan = _plan(self._shape)
        words = aligned_words(plan.words).view(np.float64)
        words[: len(plan.header)] = plan.header
        arrays = self._shape.split(self._weights)
        skip = [numbers(stage, arrays[f"{stage}.skip"].astype(np.float64)) for stage in STAGES]
        words[SKIP_WORD : SKIP_WORD + SKIP_WORDS] = np.concatenate(skip)
        cells = words[plan.dense :].view(np.float32)
        cells[:] = np.append(self._weights, np.float32(0.0))[plan.sources]
        return words


class _Plan:
    """Where the weights of a shape go in the parameter vector.

    Attributes:
        header: `compiled.network.HEADER`, and `STAGE` of each stage.
        dense: word at which the dense parts begin.
        words: of the vector.
        sources: for each cell of the dense parts the weight that it holds, the number of weights where it holds 0.
    """

    def __init__(self, shape: Shape) -> None:
        places = {k: array.astype(np.int64) for k, array in shape.split(np.arange(float(shape.size))).items()}
        blocks = [-(-units // LANES) for units in shape.hidden]
        self.dense = SKIP_WORD + -(-SKIP_WORDS // LANES) * LANES
        self.header = np.zeros(SKIP_WORD)
        self.header[: len(blocks)] = blocks
        parts, at = [], self.dense
        for k, stage in enumerate(STAGES):
            columns = [INPUTS[stage].index(name) for name in SUMMARY[stage]]
            about = [at, len(INPUTS[stage]), CELLS[k], contexts(stage), len(columns), *columns]
            start = HEADER_WORDS + k * STAGE_WORDS
            self.header[start : start + len(about)] = about
            of = {name.removeprefix(f"{stage}."): array for name, array in places.items() if name.startswith(stage)}
            layers = [_blocks(np.vstack([of["bias"], of["context"], of["instance"]]), shape.size)]
            if len(blocks) > 1:
                second = np.full((blocks[0] * LANES, shape.hidden[1]), shape.size)
                second[: shape.hidden[0]] = of["second"]
                layers.append(_blocks(np.vstack([of["second_bias"], second]), shape.size))
            layers.append(_blocks(of["out"][np.newaxis], shape.size))
            parts += layers
            at += sum(map(len, layers)) // 2
        self.words = at
        self.sources = np.concatenate(parts)


def _blocks(rows: npt.NDArray[np.int64], nothing: int) -> npt.NDArray[np.int64]:
    """(R, U) as blocks of LANES units, each row by row, the last one filled up with `nothing`."""
    count = -(-rows.shape[1] // LANES)
    whole = np.full((len(rows), count * LANES), nothing)
    whole[:, : rows.shape[1]] = rows
    return whole.reshape(len(rows), count, LANES).transpose(1, 0, 2).ravel()


@cache
def _plan(shape: Shape) -> _Plan:
    return _Plan(shape)


@cache
def _by_default(shape: Shape) -> Float32s:
    """No units, the skip of linear's defaults."""
    weights = shape.initial(np.random.default_rng(0), 0.0)
    weights.flags.writeable = False
    return weights
