"""Dealing: which router gets which request, as a load balancer in front of several routers decides."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .cluster import Cluster
from .streams import stream


def deal(cluster: Cluster, requests: int, seed: int) -> npt.NDArray[np.int64]:
    """The router of each request, (requests,), by its place in the trace.

    A request keeps its router when it is routed again.

    Args:
        cluster: whose routers, and how they are dealt requests.
        requests: length of the trace.
        seed: of the stream `routers`, where requests are dealt at random.

    Raises:
        ValueError: the seed is negative or no integer, and requests are dealt at random.
    """
    if cluster.dealing == "random":
        return stream(seed, "routers").integers(cluster.routers, size=requests)
    return np.arange(requests, dtype=np.int64) % cluster.routers
