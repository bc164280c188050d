"""What became of a file's rows on the way to a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..cluster import Cluster
from ..trace import slots_needed


@dataclass(frozen=True)
class Preparation:
    """Counts of requests, to be printed with every use of a trace file.

    Attributes:
        path: the file.
        format: its format.
        rows: in the file.
        failed: without prompt or output tokens, dropped.
        outside: of the slice.
        over_context: longer than the context limit of an instance.
        over_kv: within it, but larger than the KV cache of an instance.
        kept: in the trace.
        infeasible: of those kept, miss a target even alone on the empty cluster.
        targets: where the targets come from.
        rate: requests per second of the trace.
    """

    path: str
    format: str
    rows: int
    failed: int
    outside: int
    over_context: int
    over_kv: int
    kept: int
    infeasible: int
    targets: str
    rate: float

    @property
    def filtered_share(self) -> float:
        """Share of the slice's requests that do not fit an instance."""
        filtered = self.over_context + self.over_kv
        return filtered / (filtered + self.kept)

    @property
    def ceiling(self) -> float:
        """1 − share of the kept requests that miss even alone."""
        return 1.0 - self.infeasible / self.kept

    def __str__(self) -> str:
        """A few lines to print."""
        return "\n".join(
            (
                f"{self.path} ({self.format}): {self.kept:,} of {self.rows:,} requests, "
                f"{self.rate:.3f} per second",
                f"left out: {self.failed:,} without tokens, {self.outside:,} outside the slice, "
                f"{self.over_context:,} over the context limit, {self.over_kv:,} over the KV cache "
                f"(filtered share {self.filtered_share:.2%})",
                f"infeasible with {self.targets} targets: {self.infeasible:,} miss even alone "
                f"({1 - self.ceiling:.2%}; ceiling {self.ceiling:.4f})",
            )
        )


def fits(
    prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32], cluster: Cluster
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether each request is within the context limit, and within the KV cache, of every instance.

    Args:
        prompt: (N,) tokens.
        output: (N,) tokens.
        cluster: the instances.

    Returns:
        (N,) and (N,); `Trace.check_fits` accepts a request of which both are true.
    """
    whole = prompt.astype(np.int64) + output
    context = np.ones(len(whole), np.bool_)
    kv = np.ones(len(whole), np.bool_)
    for role, need in slots_needed(prompt, output, cluster).items():
        for engine in set(getattr(cluster, role)):
            context &= whole <= engine.max_model_len
            kv &= -(-need // engine.block_size) <= engine.num_blocks
    return context, kv
