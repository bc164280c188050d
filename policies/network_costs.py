"""The network's costs in NumPy, for recorded admissions: the formula of `network_shape.py` in float64.

Decisions come from the compiled network, whose hidden units are float32; costs agree with those to float32's precision.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .network_shape import CLIP, INPUTS, LEAK, LOG_SCALE, STAGES, SUMMARY, Float32s, Shape, columns_at

Floats = npt.NDArray[np.float64]


def costs_of(shape: Shape, vector: Float32s, features: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, Floats]:
    """Costs by pool.

    Args:
        shape: the hidden layers.
        vector: (shape.size,) weights.
        features: as for `Policy.costs`: `request` (…, features), and of each pool (…, instances, features).

    Returns:
        By pool (…, instances), also of instances that may not be assigned; those count in no summary.
    """
    arrays = {name: array.astype(np.float64) for name, array in shape.split(vector).items()}
    request = features["request"].astype(np.float64)
    return {
        stage: _of_stage(stage, arrays, request, features[stage].astype(np.float64))
        for stage in STAGES
        if stage in features
    }


def _of_stage(stage: str, arrays: Mapping[str, Floats], request: Floats, instances: Floats) -> Floats:
    of = {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith(f"{stage}.")}
    slopes = of["skip"][0] + request @ of["skip"][1:]
    cost: Floats = (instances * slopes[..., None, :]).sum(-1)
    shared = _shared(stage, request, instances)
    own = np.clip(instances[..., columns_at(stage, INPUTS[stage])], -CLIP, CLIP)
    units = _act(of["bias"] + (shared @ of["context"])[..., None, :] + own @ of["instance"])
    if "second" in of:
        units = _act(of["second_bias"] + units @ of["second"])
    cost += units @ of["out"]
    return cost


def _shared(stage: str, request: Floats, instances: Floats) -> Floats:
    """(…, shared inputs): the request, the number of instances that may be assigned, and the summary over these."""
    available = instances[..., columns_at(stage, ("available",))[0]] != 0
    count = np.maximum(available.sum(-1, keepdims=True), 1)
    columns = np.clip(instances[..., columns_at(stage, SUMMARY[stage])], -CLIP, CLIP)
    mask = available[..., None]
    mean = np.where(mask, columns, 0.0).sum(-2) / count
    some = mask.any(-2)
    least = np.where(some, np.where(mask, columns, np.inf).min(-2), 0.0)
    greatest = np.where(some, np.where(mask, columns, -np.inf).max(-2), 0.0)
    told = np.concatenate([request, np.log2(count) / LOG_SCALE], -1)
    return np.concatenate([np.clip(told, -CLIP, CLIP), mean, least, greatest], -1)


def _act(z: Floats) -> Floats:
    return np.maximum(z, LEAK * z)
