"""Lookahead: candidates are tried in a simulated belief of the cluster."""

from __future__ import annotations

import ctypes
import hashlib
import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from ..envs.admission import Admission
from ..envs.records import RECORD
from ..envs.router_constants import RouterConstants
from ..envs.simulator import FOREVER, Simulator
from ..envs.simulator import layout as L
from ..envs.simulator.arena import Words, aligned_words
from ..envs.simulator.believed_cluster import believed_cluster
from ..envs.simulator.compile import address_of
from ..envs.simulator.known import KNOWN_WORDS
from ..envs.simulator.simulator import believed
from ..envs.simulator.state import TRACE_ROW, Tables, new_block
from . import registry
from .compiled import lookahead as core
from .compiled.baselines import WORD_RANDOM
from .compiled_policy import CompiledPolicy, initial_state
from .policy import Choice, Parameters, Policy
from .registry import register

MOST_IN_FLIGHT = 4_096
"""With more requests of a router in flight than this its base policy decides."""

_PS_PER_S = 1e12


def _compiled(text: str) -> str:
    """The text of a base policy.

    Raises:
        ValueError: no policy reads like that, or it is not compiled.
    """
    if not isinstance(registry.parse(text), CompiledPolicy):
        raise ValueError("the base must be a built-in policy other than lookahead, such as size-interval")
    return text


class LookaheadParameters(Parameters):
    """Parameters of `lookahead`."""

    base: Annotated[str, AfterValidator(_compiled)] = Field(
        "size-interval", description="Names the candidates, and routes the requests of the futures."
    )
    budget: int = Field(
        200, ge=1, le=100_000, description="Most requests that are routed in the trials of one decision."
    )
    samples: int = Field(4, ge=1, le=1_000, description="Futures in which each candidate is tried.")
    candidates: int = Field(8, ge=1, le=8, description="Most pairs that are tried.")
    horizon_s: float = Field(30.0, ge=0, le=3_600, description="Latest arrival of a future, s from now.")
    recent: int = Field(16, ge=2, le=core.WINDOW, description="Arrivals by which the rate is told.")
    overrun: float = Field(
        0.25, ge=0, le=100, description="Tokens to come over tokens out, when all that were predicted are out."
    )
    spread: float = Field(
        0.0, ge=0, le=1, description="Lengths: 0 as predicted, 1 exponential with that mean, drawn for each future."
    )
    softness: float = Field(0.3, ge=0, le=1, description="Half width of the soft edge of a miss, over the target.")
    margin: float = Field(
        0.0, ge=0, le=1_000, description="Misses by which another pair must be better than the base's."
    )
    budget_ms: float | None = Field(
        None, gt=0, le=60_000, description="Wall time after which no further future is tried, ms; live only."
    )


@register
class Lookahead(Policy):
    """Tries each candidate pair in a belief of the cluster and takes the one after which fewest requests miss.

    Formula; ties go to the base's own pick, then to the lowest rank:

        pick    = arg min over the candidates c of Σ over futures f, Σ over requests i of loss(i | c, f)
        loss(i) = miss(r) + 0.001·r / (1 + r),   r = max(TTFT / target, TPOT / target) of request i
        miss(r) = 1 if r > 1 else 0; with softness s: (r − 1 + s) / 2s, between 0 and 1

    The belief is what the router's own ledger says of each request in flight, with ô as length, run by the simulator
    with the router's constants. A future is what arrives next: Poisson at the rate of the last `recent` arrivals, each
    request one of the last 128 that the router saw, up to `horizon_s`, routed by the base policy; then all is run to
    its end. The requests i are those in flight, the pending one and the future's. The candidates are the `candidates`
    pairs that the base ranks highest. Each is tried in the same `samples` futures of as many requests as fit the
    budget. It never sees an output length that is not out, or an arrival that has not been.

    Source: rollout of a base policy, Bertsekas, Tsitsiklis and Wu, "Rollout algorithms for combinatorial optimization",
    Journal of Heuristics 3(3), 1997; the belief is ours.
    """

    name = "lookahead"
    accepts = LookaheadParameters
    parameters: LookaheadParameters

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        base = registry.parse(self.parameters.base)
        assert isinstance(base, CompiledPolicy)
        self._base = base
        self._history = _new_history(0)
        self._desk: tuple[object, _Desk] | None = None

    @property
    def hash(self) -> str:
        """That of any policy, and over the base's as well: its file may change."""
        text = json.dumps([self.name, self.params, self._base.hash], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def check_pools(self, prefills: int, decodes: int) -> None:
        """Refuses pools that the base is not made for.

        Raises:
            ValueError: a parameter of the base is made for pools of other sizes.
        """
        self._base.check_pools(prefills, decodes)

    def reset(self, seed: int) -> None:
        """Forgets everything; what is random follows from the seed.

        Raises:
            ValueError: the seed is negative.
        """
        self._history[:] = _new_history(seed)
        self._base.reset(seed)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes along: not the desk, which is full of addresses."""
        return {**self.__dict__, "_desk": None}

    def route(self, admission: Admission) -> tuple[int, int]:
        """Picks a prefill and a decode instance that may be assigned (aggregated: one mixed instance, twice).

        Raises:
            ValueError: as for the base policy, the router's constants are missing, or with them a request could take
                longer than times may last.
        """
        return self.choose(admission)[:2]

    def choose(self, admission: Admission, clock: Callable[[], float] = time.perf_counter) -> Choice:
        """`route` with the probability of the choice, which is 1.

        Raises:
            ValueError: as `route`.
        """
        start = clock()
        desk = self._desk_at(admission)
        out = np.zeros(2, np.int64)
        with self._base.shown(admission):
            samples = core.begin_pending(admission.address, desk.address)
            limit = self.parameters.budget_ms
            if limit is None:
                core.try_pending(admission.address, desk.address, samples)
                tried = samples
            else:
                tried = 0
                while tried < samples and (tried == 0 or 1e3 * (clock() - start) < limit):
                    core.try_pending(admission.address, desk.address, 1)
                    tried += 1
            core.end_pending(desk.address, tried, out.ctypes.data)
        return Choice(int(out[0]), int(out[1]), 1.0)

    def run_compiled(self, simulator: Simulator, seed: int, until: int = FOREVER) -> bool:
        """Runs the compiled loop from a fresh state to the end, or to `until` (ps); always True.

        Raises:
            ValueError: as `route`, the seed is negative, or `budget_ms` is given.
        """
        if self.parameters.budget_ms is not None:
            raise ValueError(
                f"{self.name}: budget_ms is {self.parameters.budget_ms}; in a simulated run it must be none, since "
                "wall time differs from run to run"
            )
        constants = _constants(self.name, simulator.constants)
        self._base.prepare(simulator, seed)
        desk = _Desk(self.parameters, self._base, simulator.block, constants, _new_history(seed))
        simulator.run_with(core.run_lookahead, desk.address, until=until)
        return True

    def _desk_at(self, admission: Admission) -> _Desk:
        """The desk for the cluster of an admission: made anew when another one comes."""
        constants = _constants(self.name, admission.constants)
        key = constants, _limits(admission.owner)
        if self._desk is None or self._desk[0] != key:
            self._desk = key, _Desk(self.parameters, self._base, admission.owner, constants, self._history)
        return self._desk[1]


class _Desk:
    """The memory that decisions on one cluster need, and the words by which compiled code finds it."""

    def __init__(
        self,
        parameters: LookaheadParameters,
        base: CompiledPolicy,
        block: Words,
        constants: RouterConstants,
        history: Words,
    ) -> None:
        cluster = believed_cluster(block, constants)
        prefills, decodes = len(cluster.prefill), len(cluster.decode) or len(cluster.mixed)
        instances = len(cluster.instances)
        requests = MOST_IN_FLIGHT + parameters.budget + 2
        tables = Tables.of(cluster)
        self._kept: list[Any] = [cluster, tables, history]
        blocks = [new_block(cluster, tables, requests) for _ in range(3)]
        self.rows = rows = np.zeros(requests, TRACE_ROW)
        self.records = records = np.zeros(requests, RECORD)
        vector = base.vector_for(prefills, decodes)
        beliefs = believed(constants, int(block[L.H_PRE_GROUPS]), cluster.instances[0].block_size)
        for each in blocks:
            each[L.H_REQUESTS] = core.ENDLESS
            each[L.H_TRACE] = rows.ctypes.data
            each[L.H_RECORDS] = records.ctypes.data
            each[L.H_RECORD_STRIDE] = RECORD.itemsize
            each[L.H_CONSTANTS], each[L.H_ABOUT] = (a.ctypes.data for a in beliefs)
            each[L.H_PARAMETERS] = vector.ctypes.data
        self.pairs = aligned_words(2 * parameters.candidates)
        self.known = aligned_words(MOST_IN_FLIGHT * KNOWN_WORDS)
        self.words = aligned_words(core.DESK_WORDS)
        numbers: dict[int, int] = {
            **{field: address_of(function, arguments) for field, (function, arguments) in _FUNCTIONS.items()},
            **{field: each.ctypes.data for field, each in zip(_BLOCKS, blocks, strict=True)},
            core.W_ROWS: self.known.ctypes.data,
            core.W_ROOM: MOST_IN_FLIGHT,
            core.W_SCRATCH: self._room(MOST_IN_FLIGHT + 3 * instances),
            core.W_RANKS: self._room(2 * instances),
            core.W_PAIRS: self.pairs.ctypes.data,
            core.W_TOTALS: self._room(parameters.candidates),
            core.W_HISTORY: history.ctypes.data,
            core.W_BASE: base.number,
            core.W_MOST: parameters.candidates,
            core.W_BUDGET: parameters.budget,
            core.W_SAMPLES: parameters.samples,
            core.W_HORIZON: round(parameters.horizon_s * _PS_PER_S),
            core.W_RECENT: parameters.recent,
        }
        self.words[list(numbers)] = list(numbers.values())
        fractions = [parameters.overrun, parameters.spread, parameters.softness, parameters.margin]
        at = [core.W_OVERRUN, core.W_SPREAD, core.W_SOFTNESS, core.W_MARGIN]
        self.words[at] = np.array(fractions).view(np.int64)
        self._kept += [*blocks, vector, beliefs]

    def _room(self, words: int) -> int:
        """Address of so many words."""
        room = aligned_words(words)
        self._kept.append(room)
        return int(room.ctypes.data)

    @property
    def address(self) -> int:
        """Address of the words, for compiled functions."""
        return int(self.words.ctypes.data)


_BLOCKS = (core.W_EMPTY, core.W_BELIEF, core.W_TRIAL)

_FUNCTIONS: dict[int, tuple[Callable[..., int], int]] = {
    core.W_RUN: (core.run_on, 2),
    core.W_CHOOSE: (core.base_choice, 3),
    core.W_PREPARE: (core.prepare_trials, 2),
    core.W_TRY: (core.try_all, 2),
}
"""What is called by its address, with the number of its arguments."""


def _new_history(seed: int) -> npt.NDArray[np.int64]:
    """What every router has seen: nothing; and its random word."""
    history = np.zeros((L.MAX_ROUTERS, core.HISTORY_WORDS), np.int64)
    # Not the word with which the base starts.
    history[:, core.A_SEED] = ~initial_state(seed)[:, WORD_RANDOM]
    return history


def _limits(block: Words) -> bytes:
    """What of a cluster a belief depends on, beside the constants."""
    instances, decodes = int(block[L.H_ENGINES]), int(block[L.H_DECODES])
    rules = block[[L.H_PREFILLS, L.H_MIXED, L.H_FIRST_PREFILL, L.H_POLL, L.H_BLOCK]].tobytes()
    first = int(block[int(block[L.H_O_ENGINES]) + L.E_SPEC])
    specs = np.frombuffer(ctypes.string_at(first, instances * L.SPEC_WORDS * 8), np.int64)
    numbers = specs.reshape(instances, L.SPEC_WORDS)[:, : L.P_BATCH].tobytes()
    links = (instances - decodes) * decodes
    return rules + numbers + (ctypes.string_at(int(block[L.H_T_LATENCY]), 8 * links) if links else b"")


def _constants(name: str, constants: RouterConstants | None) -> RouterConstants:
    if constants is None:
        raise ValueError(
            f"{name}: constants is None; it must be the router's constants, such as "
            "router_constants.from_cluster(cluster)"
        )
    return constants
