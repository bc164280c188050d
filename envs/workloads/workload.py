"""A workload: makes traces of any rate, length and seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .. import profiles, targets, unloaded
from ..cluster import Cluster
from ..profiles import Profile
from ..trace import Trace
from .arrivals import arrival_times
from .config import Family, WorkloadConfig

if TYPE_CHECKING:
    from ..profiles import SloTargets
    from .sampling import Draw
    from .unwritten import Unwritten


@dataclass(frozen=True)
class Workload:
    """Requests of a configuration, to be generated.

    Attributes:
        config: what was asked for.
        families: by name; their order is that of `Trace.families`.
        shares: share of each family, sum 1.
    """

    config: WorkloadConfig
    families: dict[str, Family]
    shares: tuple[float, ...]

    @classmethod
    def from_config(cls, config: WorkloadConfig) -> Workload:
        """Resolves the families of a configuration."""
        mix = config.mix or {config.name: 1.0}
        total = sum(mix.values())
        return cls(config, config.families(), tuple(share / total for share in mix.values()))

    @property
    def name(self) -> str:
        """Name of the workload."""
        return self.config.name

    def mean_tokens(self) -> tuple[float, float]:
        """Mean prompt and output length of a request, tokens."""
        pairs = [(f.prompt.mean(), f.output.mean()) for f in self.families.values()]
        prompt, output = np.average(np.array(pairs), axis=0, weights=self.shares)
        return float(prompt), float(output)

    def generate(
        self,
        rate: float,
        duration_s: float,
        seed: int,
        profile: Profile | str | Path | None = None,
        cluster: Cluster | None = None,
    ) -> Trace:
        """The requests that arrive in `duration_s` seconds.

        Arrivals, bursts, families, lengths and classes have independent random streams; what request k
        is does not depend on the rate or the duration, only when it comes.

        Args:
            rate: mean requests per second.
            duration_s: seconds.
            seed: ≥ 0.
            profile: sets the targets; the configuration's unless given.
            cluster: on which a request is alone, for `relative` targets; by default a prefill and a
                decode instance of the profile.

        Raises:
            ValueError: rate, duration or seed out of range, or an unknown profile.
        """
        arrival = arrival_times(self.config.arrivals, rate, duration_s, seed)
        n = len(arrival)
        chosen = profiles.resolve(self.config.profile if profile is None else profile)
        family, prompt, output, slo = self._draw.requests(n, seed)
        if self.config.targets == "fixed":
            ttft, tpot = targets.fixed(slo, chosen)
        else:
            engine = chosen.engine()
            home = cluster or Cluster(prefill=(engine,), decode=(engine,))
            ttft, tpot = targets.relative(slo, chosen, unloaded.fastest(prompt, output, home).ttft)
        return Trace(arrival, prompt, output, slo, family, ttft, tpot, tuple(self.families), self.name)

    def unwritten(self, rate: float, duration_s: float, seed: int, targets: SloTargets) -> Unwritten:
        """`generate` with fixed targets, up to the arrivals.

        Args:
            rate: as for `generate`.
            duration_s: likewise.
            seed: likewise.
            targets: by SLO class.

        Raises:
            ValueError: rate, duration or seed out of range.
        """
        from .unwritten import Unwritten

        arrival = arrival_times(self.config.arrivals, rate, duration_s, seed)
        return Unwritten(arrival, seed, self._draw, self._longest, targets)

    @cached_property
    def _longest(self) -> tuple[int, int]:
        """Most prompt and output tokens of a request."""
        families = self.families.values()
        return max(family.prompt.max for family in families), max(family.output.max for family in families)

    @cached_property
    def _draw(self) -> Draw:
        """What drawing requests needs."""
        from .sampling import Draw

        shares = np.cumsum(self.shares)
        shares[-1] = 1.0
        families = self.families.values()
        prompts, outputs = [family.prompt for family in families], [family.output for family in families]
        return Draw.of(
            shares,
            [law.table() for law in prompts],
            [law.table() for law in outputs],
            [law.min for law in prompts + outputs],
            np.array([family.tight_share for family in families]),
        )
