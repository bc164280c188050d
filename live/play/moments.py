"""What an agent is shown at a decision: features and masks of a router's state, padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...envs import features
from ...envs.admission import Admission
from ...envs.feature_arrays import FeatureArrays
from ...envs.router_constants import RouterConstants
from ...envs.simulator.router_state import RouterState

Float32s = npt.NDArray[np.float32]
Masks = npt.NDArray[np.int8]
Cell = TypeVar("Cell", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Moment:
    """A decision that is due, or the end of an episode.

    Attributes:
        request: index in the trace; −1 at the end.
        now: ps of the router's clock.
        observation: by name, as in `envs/spaces.py`; zero at the end.
        masks: int8 of each pool, prefill first; of mixed instances one.
    """

    request: int
    now: int
    observation: dict[str, Float32s]
    masks: tuple[Masks, ...]


class Observer:
    """Turns admissions into what an agent is shown.

    Args:
        rows: of the observation per pool, prefill and decode (or 0 and mixed).
        aggregated: whether the instances are mixed.
    """

    def __init__(self, rows: tuple[int, int], *, aggregated: bool) -> None:
        self._rows, self._aggregated = rows, aggregated
        self._known: tuple[RouterConstants, FeatureArrays] | None = None

    def see(self, admission: Admission, state: RouterState) -> Moment:
        """A decision that is due.

        Args:
            admission: that `state` gave.
            state: of the router.
        """
        found = self._features(state).of_admission(admission, state.last_admission)
        prefill_rows, decode_rows = self._rows
        observation = {"request": found["request"]}
        if self._aggregated:
            observation["mixed"] = _padded(found["mixed"], decode_rows)
        else:
            observation["prefill"] = _padded(found["prefill"], prefill_rows)
            observation["decode"] = _padded(found["decode"], decode_rows)
        return Moment(admission.index, admission.now, observation, self._masks(state))

    def end(self, now: int, state: RouterState) -> Moment:
        """Nothing is due any more.

        Args:
            now: ps of the router's clock.
            state: of the router.
        """
        prefill_rows, decode_rows = self._rows
        observation = {"request": np.zeros(len(features.REQUEST), np.float32)}
        if self._aggregated:
            observation["mixed"] = np.zeros((decode_rows, len(features.MIXED)), np.float32)
        else:
            observation["prefill"] = np.zeros((prefill_rows, len(features.PREFILL)), np.float32)
            observation["decode"] = np.zeros((decode_rows, len(features.DECODE)), np.float32)
        return Moment(-1, now, observation, self._masks(state))

    def _features(self, state: RouterState) -> FeatureArrays:
        if self._known is None or self._known[0] is not state.constants:
            self._known = state.constants, FeatureArrays.of_cluster(state.cluster, state.constants)
        return self._known[1]

    def _masks(self, state: RouterState) -> tuple[Masks, ...]:
        opened = np.array([state.is_open(i) for i in range(len(state.cluster.instances))], np.int8)
        prefills = len(state.cluster.prefill)
        pools = (opened,) if self._aggregated else (opened[:prefills], opened[prefills:])
        rows = self._rows[1:] if self._aggregated else self._rows
        return tuple(_padded(pool, size) for pool, size in zip(pools, rows, strict=True))


def _padded(array: npt.NDArray[Cell], rows: int) -> npt.NDArray[Cell]:
    padded = np.zeros((rows, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded
