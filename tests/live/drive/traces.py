"""A small trace, written by hand."""

from __future__ import annotations

import numpy as np

from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.trace import Trace


def trace(*rows: tuple[float, int, int], slo: int = 0) -> Trace:
    """Requests: arrival in s, prompt and output tokens."""
    arrival, prompt, output = zip(*rows, strict=True)
    n = len(rows)
    return Trace(
        arrival=np.round(np.array(arrival) * PS_PER_S).astype(np.int64),
        prompt=np.array(prompt, np.int32),
        output=np.array(output, np.int32),
        slo=np.full(n, slo, np.int8),
        family=np.zeros(n, np.int8),
        ttft_target=np.full(n, PS_PER_S, np.int64),
        tpot_target=np.full(n, PS_PER_S // 10, np.int64),
    )
