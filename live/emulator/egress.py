"""The egress of a prefill engine: pulls leave it one after the other (docs/model.md, "Transfer")."""

from __future__ import annotations

from typing import NamedTuple

from ...envs.cluster import EngineSpec


class Booking(NamedTuple):
    """When a pull is served, ps: it waits, is sent, and arrives after the latency."""

    wait: int
    service: int
    latency: int

    @property
    def total(self) -> int:
        """From the start of the pull to its end, ps."""
        return self.wait + self.service + self.latency


class Egress:
    """A server that sends blocks, first come first served.

    Args:
        spec: gives the time per block and the latency.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self.clear()

    def clear(self) -> None:
        """It is free now, at time 0."""
        self._free_at = 0

    def book(self, blocks: int, now: int, factor: float = 1.0) -> Booking:
        """Serves a pull that starts at `now` (ps); with a factor it lasts that many times as long."""
        start = max(now, self._free_at)
        service, latency = blocks * self._spec.egress_per_block, self._spec.latency
        if factor != 1.0:  # else it stays exact
            service, latency = round(service * factor), round(latency * factor)
        self._free_at = start + service
        return Booking(start - now, service, latency)
