"""Faults on demand: what an emulated engine can be told to do wrong, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...envs import catalog

Kind = Literal[
    "crash",
    "stall",
    "slow_link",
    "missing_kv_params",
    "late_kv_params",
    "stream_error",
    "drop_connection",
    "error_500",
    "unhealthy",
    "old_metric_names",
]

NEEDS: dict[str, str] = {
    "stall": "seconds",
    "slow_link": "factor",
    "late_kv_params": "seconds",
    "stream_error": "tokens",
    "drop_connection": "tokens",
}
"""The field that a kind of fault cannot do without."""

ONCE = ("crash", "stall")
"""Faults that happen when they are set, and leave nothing to clear."""


class Fault(BaseModel):
    """One fault.

    Attributes:
        kind: crash (the process ends at once); stall (for `seconds` nothing advances and nothing is answered);
            slow_link (pulls from this engine last `factor` times as long); missing_kv_params (a prefill leg answers
            without them); late_kv_params (its answer comes `seconds` late); stream_error (an error in the answer
            after `tokens` tokens); drop_connection (likewise, without a word); error_500; unhealthy (`/health` says
            503); old_metric_names (the usage of the KV cache under the name that old engines give it).
        requests: how many of the requests that it concerns it still hits; None: until it is cleared. For slow_link
            these are pulls, for unhealthy and old_metric_names calls.
        seconds: engine seconds.
        factor: of time.
        tokens: output tokens that come out before.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Kind
    requests: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, ge=0, le=1e6)
    factor: float | None = Field(None, gt=0, le=1e6)
    tokens: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Fault:
        needed = NEEDS.get(self.kind)
        for name in ("seconds", "factor", "tokens"):
            value = getattr(self, name)
            if name == needed and value is None:
                raise ValueError(f"{self.kind} needs {name}")
            if name != needed and value is not None:
                raise ValueError(f"{self.kind} has no {name}")
        return self


def parse(text: str) -> Fault:
    """A fault from its short form, `KIND` or `KIND:field=value,…`, as in `drop_connection:tokens=3,requests=2`.

    Raises:
        ValueError: it does not read like that, or names what does not exist.
    """
    kind, _, rest = text.partition(":")
    fields: dict[str, Any] = {"kind": kind}
    for part in rest.split(",") if rest else []:
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"fault {text!r}: {part!r} must read like field=value")
        fields[name] = value
    return catalog.validate(Fault, fields, f"fault {text!r}")


class Faults:
    """The faults that are set.

    Args:
        faults: those from the start.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._set: list[Fault] = []
        for fault in faults:
            self.set(fault)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._set)

    def set(self, fault: Fault) -> None:
        """Adds a fault."""
        self._set.append(fault.model_copy())

    def clear(self, kind: str | None = None) -> None:
        """Removes the faults of a kind, or all."""
        self._set = [fault for fault in self._set if kind is not None and fault.kind != kind]

    def take(self, kind: Kind) -> Fault | None:
        """The oldest fault of a kind, if there is one; it has then hit one more request."""
        for fault in self._set:
            if fault.kind == kind:
                if fault.requests is not None:
                    fault.requests -= 1
                    if fault.requests == 0:
                        self._set.remove(fault)
                return fault
        return None
