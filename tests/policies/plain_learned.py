"""`linear` and `network` in plain Python and NumPy, from their formulas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from disaggroute.envs import features as F
from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.feature_arrays import FeatureArrays, Moments
from disaggroute.envs.router_constants import RouterConstants

from .plain import Pick, Plain, Seen, cheapest, open_of


class Linear(Plain):
    def __init__(
        self,
        seed: int,
        constants: RouterConstants,
        block_size: int,
        *,
        prefill: dict[str, float],
        decode: dict[str, float],
        mixed: dict[str, float],
    ) -> None:
        super().__init__(seed)
        self.arrays = FeatureArrays(constants, block_size)
        self.weights = {"prefill": prefill, "decode": decode, "mixed": mixed}
        self.last: dict[int, int] = defaultdict(lambda: -1)

    def costs(self, stage: str, columns: Sequence[F.Feature], request: list[float], rows: Any) -> list[float]:
        """Σ over columns, each with the weight that it has for this request, in the order of the columns."""
        given = self.weights[stage]
        factors = [given.get(column.name, 0.0) for column in columns]
        for of, x in zip(F.REQUEST, request, strict=True):
            for k, column in enumerate(columns):
                factors[k] += given.get(f"{of.name}*{column.name}", 0.0) * x
        costs = []
        for row in rows.tolist():
            cost = 0.0
            for factor, x in zip(factors, row, strict=True):
                cost += factor * x
            costs.append(cost)
        return costs

    def choose(self, seen: Seen) -> Pick:
        request, arrays = self.read(seen)
        if seen.aggregated:
            m = cheapest(self.costs("mixed", F.MIXED, request, arrays["mixed"]), open_of(seen.decode))
            return m, m, 1.0
        prefill = self.costs("prefill", F.PREFILL, request, arrays["prefill"])
        decode = self.costs("decode", F.DECODE, request, arrays["decode"])
        return cheapest(prefill, open_of(seen.prefill)), cheapest(decode, open_of(seen.decode)), 1.0

    def read(self, seen: Seen) -> tuple[list[float], dict[str, npt.NDArray[np.float32]]]:
        """Features of the request, and of the instances by stage."""
        moments = Moments(
            prompt=seen.prompt,
            predicted=seen.predicted,
            slo=0 if seen.tight else 1,
            ttft_target=round(seen.ttft * PS_PER_S),
            tpot_target=round(seen.tpot * PS_PER_S),
            now=seen.now,
            poll_time=seen.poll_time,
            last=self.last[seen.router],
        )
        self.last[seen.router] = seen.now
        request = self.arrays.request(moments).tolist()
        first, second = seen.views
        if seen.aggregated:
            return request, {"mixed": self.arrays.mixed(first, second, moments)}
        return request, {
            "prefill": self.arrays.prefill(first, moments),
            "decode": self.arrays.decode(second, moments),
        }


class Network(Linear):
    """All float32, but for the skip; of each sum the terms are added in order."""

    def __init__(
        self,
        seed: int,
        constants: RouterConstants,
        block_size: int,
        *,
        hidden: list[int],
        weights: dict[str, npt.NDArray[np.float32]],
    ) -> None:
        skip = {stage: weights[f"{stage}.skip"] for stage in ("prefill", "decode", "mixed")}
        super().__init__(seed, constants, block_size, **{stage: self.terms(stage, skip[stage]) for stage in skip})
        self.hidden, self.arrays_by_name = hidden, weights

    @staticmethod
    def terms(stage: str, matrix: npt.NDArray[np.float32]) -> dict[str, float]:
        columns = {"prefill": F.PREFILL, "decode": F.DECODE, "mixed": F.MIXED}[stage]
        factors = ["", *(f"{of.name}*" for of in F.REQUEST)]
        return {
            factor + column.name: float(matrix[r, k])
            for r, factor in enumerate(factors)
            for k, column in enumerate(columns)
        }

    def costs(self, stage: str, columns: Sequence[F.Feature], request: list[float], rows: Any) -> list[float]:
        costs = super().costs(stage, columns, request, rows)
        inputs, contexts, opened = network_inputs(stage, columns, request, rows)
        for i, u in zip(opened, inputs, strict=True):
            costs[i] += self.units(stage, contexts, u)
        return costs

    def units(self, stage: str, shared: npt.NDArray[np.float32], own: npt.NDArray[np.float32]) -> float:
        of = {name.split(".")[1]: array for name, array in self.arrays_by_name.items() if name.startswith(stage)}
        z = summed(of["bias"], of["context"], shared)
        z = leaky(summed(z, of["instance"], own))
        if len(self.hidden) > 1:
            z = leaky(summed(of["second_bias"], of["second"], z))
        parts = np.zeros(16, np.float32)
        terms = np.concatenate([z * of["out"], np.zeros(-len(z) % 16, np.float32)])
        for block in terms.reshape(-1, 16):
            parts = parts + block
        while len(parts) > 1:
            half = len(parts) // 2
            parts = parts[:half] + parts[half:]
        return float(parts[0])


def leaky(z: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.maximum(z, z * np.float32(0.125))


def summed(
    start: npt.NDArray[np.float32], weights: npt.NDArray[np.float32], inputs: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """start + Σ inputs(k) · weights(k), term by term."""
    total = start
    for row, x in zip(weights, inputs, strict=True):
        total = total + row * x
    return total


def network_inputs(
    stage: str, columns: Sequence[F.Feature], request: list[float], rows: npt.NDArray[np.float32]
) -> tuple[list[npt.NDArray[np.float32]], npt.NDArray[np.float32], list[int]]:
    """Inputs of each instance that may be assigned, what they share, and which they are."""
    names = [column.name for column in columns]
    constants = {"prefill": ["tau_prefill"], "decode": ["tau_decode"], "mixed": ["tau_prefill", "tau_decode"]}
    read = names[: names.index("tau_prefill")] + constants[stage] + ["kv_capacity", "index"]
    opened = [i for i, row in enumerate(rows) if row[names.index("available")]]
    inputs = [np.clip(rows[i, [names.index(name) for name in read]], -10, 10) for i in opened]
    told = [np.float32(np.clip(x, -10, 10)) for x in request]
    told.append(np.float32(np.clip(np.log2(len(opened)) / 4, -10, 10)))
    of_prefill = ["queued", "queued_work", "prefill_ratio"]
    of_decode = ["in_flight", "context_ratio", "remaining_work", "step_ratio"]
    wanted = {"prefill": of_prefill, "decode": of_decode, "mixed": of_prefill + of_decode}[stage]
    values = [[u[read.index(name)] for u in inputs] for name in wanted]
    for of_column in values:
        total = of_column[0]
        for x in of_column[1:]:
            total = total + x
        told.append(total / np.float32(len(of_column)))
    told += [min(of_column) for of_column in values]
    told += [max(of_column) for of_column in values]
    return inputs, np.array(told, np.float32), opened
