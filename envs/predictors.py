"""Predictors of the output length: what the router believes at admission.

Some are static: ô of every request is known before the run. Others learn from what finishes during the
run (docs/model.md, last section); the simulator does that, and `learns` tells it how.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import catalog
from .cluster import MAX_TOKENS
from .streams import stream
from .trace import Trace

Learns = Literal["", "bucket", "prompt-bucket", "prompt-regression"]

Static = Callable[[Trace, int], npt.NDArray[np.int32]]


@dataclass(frozen=True)
class Predictor:
    """A way to get ô.

    Attributes:
        name: registry name.
        parameters: as given, for the label.
        learns: the rule that learns in the run; "" for a static predictor.
        predict: of a static predictor, (trace, seed) → (N,) tokens ≥ 1.
    """

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()
    learns: Learns = ""
    predict: Static | None = field(default=None, compare=False, repr=False)

    def static(self, trace: Trace, seed: int) -> npt.NDArray[np.int32] | None:
        """ô of every request, (N,) tokens ≥ 1; None if it learns in the run."""
        return None if self.predict is None else self.predict(trace, seed)

    def __str__(self) -> str:
        """The text that `parse` turns into this predictor."""
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.parameters)})"


def bucket() -> Predictor:
    """Running mean by SLO class and power-of-two bucket of the prompt length."""
    return Predictor("bucket", learns="bucket")


def prompt(mode: str = "bucket") -> Predictor:
    """From the prompt length alone: `bucket` (running mean by power of two) or `regression`.

    Raises:
        ValueError: another mode.
    """
    modes: dict[str, Learns] = {"bucket": "prompt-bucket", "regression": "prompt-regression"}
    if mode not in modes:
        raise ValueError(f"prompt: mode is {mode!r}; it must be bucket or regression")
    return Predictor("prompt", (("mode", mode),), modes[mode])


def oracle() -> Predictor:
    """The true output length."""
    return Predictor("oracle", predict=lambda trace, seed: trace.output.copy())


def noisy(error: float = 0.5) -> Predictor:
    """The true length times a lognormal error of mean 1: max(1, round(o·exp(e·z − e²/2))), z normal.

    Request k has the k-th z of the seed's noise stream.

    Args:
        error: e ≥ 0.

    Raises:
        ValueError: the error is negative, not finite or above 10.
    """
    e = _number("noisy", "error", error, 0.0)
    if e > 10:
        raise ValueError(f"noisy: error is {error}; it must be at most 10")

    def predict(trace: Trace, seed: int) -> npt.NDArray[np.int32]:
        z = stream(seed, "noise").standard_normal(len(trace))
        guess = np.rint(trace.output * np.exp(e * z - e * e / 2))
        return np.clip(guess, 1, MAX_TOKENS).astype(np.int32)

    return Predictor("noisy", (("error", e),), predict=predict)


def constant(tokens: int = 128) -> Predictor:
    """The same length for every request.

    Raises:
        ValueError: fewer than 1 token, or no whole number.
    """
    value = _number("constant", "tokens", tokens, 1.0)
    if value != int(value) or value > MAX_TOKENS:
        raise ValueError(f"constant: tokens is {tokens}; it must be a whole number of at most {MAX_TOKENS}")
    return Predictor(
        "constant",
        (("tokens", int(value)),),
        predict=lambda trace, seed: np.full(len(trace), int(value), np.int32),
    )


_registry: dict[str, Callable[..., Predictor]] = {
    "bucket": bucket,
    "prompt": prompt,
    "oracle": oracle,
    "noisy": noisy,
    "constant": constant,
}


def names() -> tuple[str, ...]:
    """Names of the predictors, sorted."""
    return tuple(sorted(_registry))


def register(name: str, factory: Callable[..., Predictor]) -> None:
    """Adds a predictor under a name.

    Raises:
        ValueError: the name is taken.
    """
    if name in _registry:
        raise ValueError(f"predictors: the name {name!r} is taken; choose another one")
    _registry[name] = factory


def make(name: str, **parameters: Any) -> Predictor:
    """The predictor of this name.

    Raises:
        ValueError: unknown name or parameter, or a value out of range.
    """
    if name not in _registry:
        raise ValueError(catalog.unknown("predictor", name, _registry))
    return _call(name, (), parameters)


def parse(text: str) -> Predictor:
    """The predictor that a text such as `bucket`, `noisy(0.5)` or `prompt(mode=regression)` names.

    Raises:
        ValueError: the text does not read like that, or what `make` raises.
    """
    match = re.fullmatch(r"\s*([a-z][a-z0-9-]*)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        raise ValueError(f"predictor is {text!r}; it must read like bucket, noisy(0.5) or noisy(error=0.5)")
    name, inside = match.groups()
    if name not in _registry:
        raise ValueError(catalog.unknown("predictor", name, _registry))
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for part in (inside or "").split(","):
        key, equals, value = (piece.strip() for piece in part.rpartition("="))
        if equals:
            named[key] = _value(value)
        elif value:
            positional.append(_value(value))
    return _call(name, tuple(positional), named)


def _call(name: str, positional: tuple[Any, ...], named: dict[str, Any]) -> Predictor:
    import inspect

    factory = _registry[name]
    try:
        inspect.signature(factory).bind(*positional, **named)
    except TypeError as error:
        allowed = ", ".join(inspect.signature(factory).parameters) or "none"
        raise ValueError(f"{name}: {error}; allowed parameters: {allowed}") from error
    return factory(*positional, **named)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _number(name: str, key: str, value: Any, low: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < float("inf"):
        raise ValueError(f"{name}: {key} is {value!r}; it must be a number of at least {low:g}")
    return float(value)
