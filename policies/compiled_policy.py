"""Policies whose choice is compiled: one function for the episode loop and for the Python object."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ..envs.admission import Admission
from ..envs.simulator import FOREVER, Simulator
from ..envs.simulator import layout as L
from .compiled import episode
from .compiled.baselines import WORD_RANDOM
from .policy import Choice, Policy

_Header = ctypes.c_int64 * L.HEADER_WORDS


class CompiledPolicy(Policy):
    """A policy that `policies/compiled/episode.py` knows by number.

    `route` and the compiled loop call the same chooser on the same ledger and start from the same state, so
    they decide alike. An object keeps its state to itself: several may take turns on one simulator.
    """

    number: ClassVar[int]
    """Number of the chooser in `policies/compiled/episode.py`."""

    needs_constants: ClassVar[bool] = False
    """Whether it reads the router's constants."""

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self.begin()

    def begin(self) -> None:
        """Makes what a new object has beside its parameters."""
        self._vectors: dict[tuple[int, int], npt.NDArray[np.float64]] = {}
        self._out = np.zeros(3, np.int64)
        self.reset(0)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """One that remembers the same and goes on by itself; parameters never change, so both have them."""
        twin = copy(self)
        twin._state, twin._out = self._state.copy(), self._out.copy()
        return twin

    def vector(self) -> npt.NDArray[np.float64]:
        """The parameters in the order in which the chooser reads them."""
        return np.zeros(1)

    def vector_for(self, prefills: int, decodes: int) -> npt.NDArray[np.float64]:
        """The same for pools of these sizes (aggregated: 0 and the mixed instances), where they matter.

        Raises:
            ValueError: a parameter is made for pools of other sizes.
        """
        return self.vector()

    def check_pools(self, prefills: int, decodes: int) -> None:
        """Refuses pools that the parameters are not made for.

        Raises:
            ValueError: a parameter is made for pools of other sizes.
        """
        self._fitted(prefills, decodes)

    def reset(self, seed: int) -> None:
        """Forgets everything; what is random follows from the seed.

        Raises:
            ValueError: the seed is negative.
        """
        self._state = initial_state(seed)

    def route(self, admission: Admission) -> tuple[int, int]:
        """Picks a prefill and a decode instance that may be assigned (aggregated: one mixed instance, twice).

        Raises:
            ValueError: the request was sent already, constants that the policy needs are missing, or a parameter is
                made for pools of other sizes.
        """
        return self.choose(admission)[:2]

    def choose(self, admission: Admission) -> Choice:
        """`route` with the probability of the choice.

        Raises:
            ValueError: as `route`.
        """
        with self.shown(admission):
            episode.choose_pending(admission.address, self.number, self._out.ctypes.data)
        return Choice(int(self._out[0]), int(self._out[1]), float(self._out[2:].view(np.float64)[0]))

    @contextmanager
    def shown(self, admission: Admission) -> Iterator[None]:
        """Within it the block behind the admission has this object's parameters and state.

        The chooser finds them through the block.

        Raises:
            ValueError: as `route`.
        """
        self._check_constants(admission.constants is not None)
        header = _Header.from_address(admission.address)
        if header[L.H_PENDING] < 0:
            raise ValueError(
                f"request {admission.index} was sent already; an admission can be routed until then"
            )
        prefills = 0 if admission.aggregated else len(admission.prefill)
        parameters = self._fitted(prefills, len(admission.decode)).ctypes.data
        kept = header[L.H_O_POLICY], header[L.H_PARAMETERS]
        header[L.H_O_POLICY] = (self._state.ctypes.data - admission.address) // 8
        header[L.H_PARAMETERS] = parameters
        try:
            yield
        finally:
            header[L.H_O_POLICY], header[L.H_PARAMETERS] = kept

    def prepare(self, simulator: Simulator, seed: int) -> None:
        """Puts parameters and initial state into a simulator, for `episode.run_episode` with `number`.

        Raises:
            ValueError: the simulator has no constants and the policy needs them, a parameter is made for pools of
                other sizes, or the seed is negative.
        """
        self._check_constants(simulator.constants is not None)
        cluster = simulator.cluster
        simulator.set_parameters(self._fitted(len(cluster.prefill), len(cluster.decode) or len(cluster.mixed)))
        state = initial_state(seed)
        for router in range(simulator.cluster.routers):
            simulator.policy_state(router)[:] = state[router]

    def run_compiled(self, simulator: Simulator, seed: int, until: int = FOREVER) -> bool:
        """Runs the compiled loop from a fresh state to the end, or to `until` (ps); always True.

        Raises:
            ValueError: as `prepare`.
        """
        self.prepare(simulator, seed)
        simulator.run_with(episode.run_episode, self.number, until=until)
        return True

    def _fitted(self, prefills: int, decodes: int) -> npt.NDArray[np.float64]:
        pools = prefills, decodes
        if pools not in self._vectors:
            self._vectors[pools] = np.ascontiguousarray(self.vector_for(*pools), np.float64)
        return self._vectors[pools]

    def _check_constants(self, given: bool) -> None:
        if self.needs_constants and not given:
            raise ValueError(
                f"{self.name}: constants is None; it must be the router's constants, such as "
                "router_constants.from_cluster(cluster)"
            )


def initial_state(seed: int) -> npt.NDArray[np.int64]:
    """State words of every router: zeros, and a random state from the seed and the router.

    Returns:
        (MAX_ROUTERS, POLICY_WORDS) words.

    Raises:
        ValueError: the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be at least 0")
    state = np.zeros((L.MAX_ROUTERS, L.POLICY_WORDS), np.int64)
    state[:, WORD_RANDOM] = _random_words(seed)
    return state


@lru_cache(maxsize=1_024)  # Many policies run with the same seed, and a run needs it three times.
def _random_words(seed: int) -> npt.NDArray[np.int64]:
    drawn = [np.random.SeedSequence([seed, router]).generate_state(1, np.uint64) for router in range(L.MAX_ROUTERS)]
    words = np.concatenate(drawn).view(np.int64)
    words.flags.writeable = False
    return words
