"""The simulator as Python sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import catalog
from ..about_instances import about_instances
from ..admission import Admission
from ..cluster import Cluster
from ..dealing import deal
from ..records import DECISION, DECODE_VIEW, PREFILL_VIEW, RECORD
from ..router_constants import RouterConstants
from ..trace import Trace
from . import entries
from . import layout as L
from .arena import Allocate, Rows, Words, aligned_words
from .constants import packed
from .loop import DECIDE, GROW
from .state import LEARNS, TRACE_ROW, Tables, check_pair, grown, load_trace, new_block, show_trace
from .telling import Telling

if TYPE_CHECKING:
    from ..predictors import Predictor
    from ..workloads.unwritten import Unwritten

Floats = npt.NDArray[np.float64]

FOREVER = L.FOREVER
"""A time limit that never comes, ps."""

_FIRST_CAPACITY = 1024

_OWN = [
    L.H_CAPACITY,
    L.H_WORDS,
    L.H_TRACE,
    L.H_RECORDS,
    L.H_RECORD_STRIDE,
    L.H_FATES,
    L.H_ENTRIES,
    L.H_MARKS,
    L.H_DECISION_LOG,
    L.H_LOG,
    L.H_PARAMETERS,
]
"""Header words that stay when a state is put back: what they say of memory belongs to the block, not to the state."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a simulator at one moment.

    Attributes:
        block: the state block up to the last slot that was ever used, words.
        requests: (n,) requests of these slots: all in flight, and some that had ended.
        records: (n,) their records as far as they had come.
    """

    block: Words
    requests: npt.NDArray[np.int32]
    records: npt.NDArray[Any]


class Simulator:
    """One simulated cluster with the requests that it is given.

    It runs from decision to decision; whoever holds it decides. Its state is one block of memory, so `snapshot`,
    `restore` and `clone` cost in proportion to what is in flight.

    Args:
        cluster: what to simulate.
        trace: the requests.
        predicted: (N,) predicted output tokens, ≥ 1, or None when `learns` names a predictor.
        learns: "", "bucket", "prompt-bucket" or "prompt-regression".
        seed: of what is random in the cluster: which router gets a request (`envs/dealing.py`).
        constants: the router's constants for compiled policies (`RouterConstants`), or None.
        log_decisions: whether `decisions` is kept.
        log_ended: whether `ended_requests` is kept.
        allocate: gives the memory.
        room: requests for which memory is set aside at once, for a simulator that will begin again with more.
        told: whether steps are told of (`stepping.py`).
        keep_records: whether `records` is there; may be left out if steps are told of.

    Raises:
        ValueError: a request cannot fit the cluster, `predicted` has the wrong length or a value below 1, both or
            neither of `predicted` and `learns` are given, `learns` is unknown, or the constants are of another cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        trace: Trace,
        *,
        predicted: npt.NDArray[np.int32] | None = None,
        learns: str = "",
        seed: int = 0,
        constants: RouterConstants | None = None,
        log_decisions: bool = False,
        log_ended: bool = False,
        allocate: Allocate = aligned_words,
        room: int = 0,
        told: bool = False,
        keep_records: bool = True,
    ) -> None:
        if len(cluster.instances) > L.MAX_INSTANCES:
            raise ValueError(
                f"{cluster.name}: {len(cluster.instances)} instances; allowed are up to {L.MAX_INSTANCES} instances"
            )
        self.cluster = cluster
        self.constants = constants
        self._kept = keep_records
        self._records: npt.NDArray[Any] = np.zeros(0, RECORD)
        self._tables = Tables.of(cluster)
        self._allocate = allocate
        self._block = new_block(cluster, self._tables, _FIRST_CAPACITY, allocate, with_rows=not keep_records)
        self._telling = Telling(allocate, room, keep_records) if told else None
        self._parameters = np.zeros(1)
        if constants is not None:
            groups, block_size = int(self._block[L.H_PRE_GROUPS]), cluster.instances[0].block_size
            self._believed = believed(constants, groups, block_size)
            self._block[L.H_CONSTANTS], self._block[L.H_ABOUT] = (a.ctypes.data for a in self._believed)
        self._empty = self._block[: self._block[L.H_O_SLOTS]].copy()
        self._decisions: npt.NDArray[Any] | None = np.zeros(0, DECISION) if log_decisions else None
        self._ended: npt.NDArray[np.int64] | None = np.zeros(0, np.int64) if log_ended else None
        self._rows = self._new_rows(room, L.ROW_WORDS - L.RECORD_WORDS if told else 0)
        self.begin(trace, predicted=predicted, learns=learns, seed=seed)

    def begin(
        self, trace: Trace, *, predicted: npt.NDArray[np.int32] | None = None, learns: str = "", seed: int = 0
    ) -> None:
        """Begins again with an empty cluster and other requests, in the same memory; records and logs start anew.

        Args:
            trace: the requests.
            predicted: as for the constructor.
            learns: likewise.
            seed: likewise.

        Raises:
            ValueError: a request cannot fit the cluster, or what the constructor says of `predicted` and `learns`;
                the simulator is then as it was.
        """
        trace.check_fits(self.cluster)
        if predicted is not None:
            predicted = _checked(predicted, len(trace))
        if learns not in LEARNS:
            raise ValueError(catalog.unknown("learning predictor", learns, [name for name in LEARNS if name]))
        if (predicted is None) == (not learns):
            both = "missing" if predicted is None else "given"
            raise ValueError(f"predicted and learns are both {both}; exactly one is needed")
        routers = deal(self.cluster, len(trace), seed) if self.cluster.routers > 1 else None
        self._trace: Trace | Callable[[], Trace] = trace
        load_trace(self._block, trace, routers, predicted, learns, self._emptied(len(trace)))
        self._begin_logs(len(trace))

    def begin_unwritten(self, requests: Unwritten, trace: Callable[[], Trace], *, learns: str) -> None:
        """`begin` with requests that fit the cluster, of one router, and a predictor that learns.

        Args:
            requests: written here, and not kept.
            trace: makes the trace that they stand for.
            learns: name of the predictor.
        """
        self._trace = trace
        rows = self._emptied(len(requests))
        requests.write(rows)
        show_trace(self._block, requests.arrival, learns, rows)
        self._begin_logs(len(requests))

    @property
    def trace(self) -> Trace:
        """The requests."""
        if not isinstance(self._trace, Trace):
            self._trace = self._trace()
        return self._trace

    def _emptied(self, count: int) -> npt.NDArray[Any]:
        """Empties the state block; returns memory for so many requests as the core reads them."""
        own = self._block[_OWN]
        self._block[: len(self._empty)] = self._empty
        self._block[_OWN] = own
        self._requests = self._rows[0].first(count)
        return self._requests

    def _begin_logs(self, count: int) -> None:
        """Prepares what is kept of so many requests, and told."""
        _, of_records, of_decisions, of_ended = self._rows
        if self._kept:
            self._records = of_records.first(count)
            self._block[L.H_RECORDS] = self._records.ctypes.data
            self._block[L.H_RECORD_STRIDE] = self._records.strides[0]
        if self._telling is not None:
            self._telling.begin(self._block, count)
        if self._decisions is not None:
            cluster = self.cluster
            room = count * (1 + len(cluster.events) * int(cluster.on_kill == "reroute"))
            self._decisions = of_decisions.first(room)
            self._block[L.H_DECISION_LOG] = self._decisions.ctypes.data
        if self._ended is not None and self._kept:
            self._ended = of_ended.first(count)
            self._block[L.H_LOG] = self._ended.ctypes.data

    def _new_rows(self, room: int = 0, beside: int = 0) -> tuple[Rows, Rows, Rows, Rows]:
        """Memory of the requests as the core reads them, of records, decisions and ended requests."""
        kinds = (TRACE_ROW, 0), (RECORD, beside), (DECISION, 0), (np.int64, 0)
        requests, records, decisions, ended = (Rows(dtype, self._allocate, room, more) for dtype, more in kinds)
        return requests, records, decisions, ended

    @property
    def address(self) -> int:
        """Address of the state block, for compiled functions; it changes when the block grows."""
        return int(self._block.ctypes.data)

    @property
    def block(self) -> Words:
        """The state block; another one when it has grown."""
        return self._block

    @property
    def records(self) -> npt.NDArray[Any]:
        """One row per request (dtype RECORD), valid for those that have ended.

        Raises:
            RuntimeError: records are not kept.
        """
        if not self._kept:
            raise RuntimeError("this simulator keeps no records")
        return self._records

    @property
    def told(self) -> Words:
        """(N, 2) what the last step tells of: requests that ended, and requests whose miss became certain."""
        assert self._telling is not None
        return self._telling.told

    @property
    def now(self) -> int:
        """Simulated time, ps."""
        return int(self._block[L.H_NOW])

    @property
    def in_flight(self) -> int:
        """Requests in flight."""
        return int(self._block[L.H_LIVE])

    @property
    def ended(self) -> int:
        """Requests that have ended."""
        return int(self._block[L.H_ENDED])

    @property
    def decisions(self) -> npt.NDArray[Any]:
        """The decisions made so far (dtype DECISION); empty unless `log_decisions` was given."""
        if self._decisions is None:
            return np.zeros(0, DECISION)
        return self._decisions[: int(self._block[L.H_DECISIONS])]

    @property
    def ended_requests(self) -> npt.NDArray[np.int64]:
        """Requests in the order in which they ended; empty unless `log_ended` was given."""
        if self._ended is None:
            return np.zeros(0, np.int64)
        return self._ended[: int(self._block[L.H_LOGGED])]

    def set_parameters(self, parameters: npt.NDArray[np.float64]) -> None:
        """Gives a compiled policy its parameters."""
        self._parameters = np.ascontiguousarray(parameters, np.float64)
        self._block[L.H_PARAMETERS] = self._parameters.ctypes.data

    def policy_state(self, router: int = 0) -> Words:
        """The words in which a compiled policy keeps its state for one router (a view)."""
        at = int(self._block[L.H_O_POLICY]) + router * L.POLICY_WORDS
        return self._block[at : at + L.POLICY_WORDS]

    def run_with(self, runner: Any, *arguments: Any, until: int = FOREVER) -> int:
        """Runs a compiled loop `runner(address, *arguments, until)`, growing the block when it is full."""
        while True:
            status = int(runner(self.address, *arguments, until))
            if status != GROW:
                return status
            self.grow()

    def grow(self) -> None:
        """Makes room for twice as many requests in flight, after a compiled loop has returned GROW.

        Raises:
            MemoryError: more requests in flight than the core can number.
        """
        self._block = grown(self._block, self._allocate)
        if self._telling is not None:
            self._telling.grow(self._block)

    def run(self, until: int = FOREVER) -> bool:
        """Runs until a request awaits a decision; False if all have ended or the time limit (ps) came first."""
        if self._block[L.H_PENDING] >= 0:
            return True
        return self.run_with(entries.run, 0, 0, until=until) == DECIDE

    def admission(self) -> Admission:
        """The decision that is due.

        Raises:
            RuntimeError: no request awaits a decision.
        """
        pending = int(self._block[L.H_PENDING])
        if pending < 0:
            raise RuntimeError("no request awaits a decision; call run() first")
        at = int(self._block[L.H_O_SLOTS]) + pending * int(self._block[L.H_SLOT_BYTES]) // 8
        cells = self._block[at : at + L.SLOT_WORDS].view(np.int32)
        request, place = int(cells[L.S_REQUEST]), int(cells[L.S_PLACE])
        prefill = np.empty((int(self._block[L.H_ROUTED]), len(PREFILL_VIEW)), np.int64)
        decode = np.empty((int(self._block[L.H_DECODES]), len(DECODE_VIEW)), np.int64)
        entries.view(self.address, prefill.ctypes.data, decode.ctypes.data)
        return Admission(
            index=request,
            now=self.now,
            router=(place >> L.ROUTER_SHIFT) & L.ROUTER_MASK,
            prompt=int(cells[L.S_PROMPT]),
            predicted=int(cells[L.S_PREDICTED]),
            slo=int(self.trace.slo[request]),
            ttft_target=int(self.trace.ttft_target[request]),
            tpot_target=int(self.trace.tpot_target[request]),
            prefill=prefill,
            decode=decode,
            poll_time=int(self._block[L.H_VISIBLE]),
            aggregated=self.cluster.aggregated,
            constants=self.constants,
            address=self.address,
            owner=self._block,
        )

    def send(self, prefill: int, decode: int, probability: float = 1.0) -> None:
        """Sends the pending request to a pair of instances (aggregated: the same index twice).

        Raises:
            RuntimeError: no request awaits a decision.
            ValueError: an index is out of range or the instance may not be assigned.
        """
        if self._block[L.H_PENDING] < 0:
            raise RuntimeError("no request awaits a decision; call run() first")
        check_pair(self._block, prefill, decode)
        entries.send_pending(self.address, prefill, decode, probability)

    def snapshot(self) -> Snapshot:
        """A copy of the state, for `restore`; of the records only those of requests in flight."""
        slots = int(self._block[L.H_O_SLOTS])
        block = self._block[: slots + int(self._block[L.H_HIGH]) * L.SLOT_WORDS].copy()
        requests = block[slots:].view(np.int32).reshape(-1, 2 * L.SLOT_WORDS)[:, L.S_REQUEST]
        return Snapshot(block, requests, self.records[requests])

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot of this simulator, or goes on from one of its clone.

        Records of requests that had ended by then stay as they are, and so does what `set_parameters` gave.
        """
        while len(self._block) < len(snapshot.block):
            self.grow()
        own = self._block[_OWN]
        self._block[: len(snapshot.block)] = snapshot.block
        self._block[_OWN] = own
        self._records[snapshot.requests] = snapshot.records

    def clone(self) -> Simulator:
        """An independent copy that goes on from here with records and decisions of its own."""
        twin = object.__new__(Simulator)
        twin.__dict__.update(self.__dict__)
        twin._block = new_block(self.cluster, self._tables, int(self._block[L.H_CAPACITY]))
        entries.clone_into(self.address, int(twin._block.ctypes.data), 1)
        twin._allocate = aligned_words
        twin._rows = twin._new_rows()
        twin._records = self.records.copy()
        twin._telling = None
        twin._requests = self._requests.copy()
        twin._block[L.H_TRACE] = twin._requests.ctypes.data
        twin._block[L.H_RECORDS] = twin._records.ctypes.data
        twin._block[L.H_RECORD_STRIDE] = RECORD.itemsize
        if self._decisions is not None:
            twin._decisions = self._decisions.copy()
            twin._block[L.H_DECISION_LOG] = twin._decisions.ctypes.data
        if self._ended is not None:
            twin._ended = self._ended.copy()
            twin._block[L.H_LOG] = twin._ended.ctypes.data
        return twin


@lru_cache(maxsize=8)
def believed(constants: RouterConstants, groups: int, block_size: int) -> tuple[Floats, Floats]:
    """The router's constants as policies read them, and as features do: one copy for all simulators.

    Args:
        constants: s and tokens.
        groups: groups of eight prefill rows that the state block has.
        block_size: tokens per KV block.
    """
    return packed(constants, groups), np.ascontiguousarray(about_instances(constants, block_size).T)


def _checked(predicted: npt.ArrayLike, requests: int) -> npt.NDArray[np.int32]:
    given = np.asarray(predicted)
    if given.size and (given.dtype.kind not in "iu" or int(given.max()) > np.iinfo(np.int32).max):
        raise ValueError(f"predicted has dtype {given.dtype} and reaches {given.max()}; it must hold int32 tokens")
    column = np.ascontiguousarray(given, np.int32)
    if column.shape != (requests,):
        raise ValueError(f"predicted has shape {column.shape}; it must be ({requests},)")
    if (column < 1).any():
        k = int(np.argmax(column < 1))
        raise ValueError(f"predicted of request {k} is {column[k]}; it must be at least 1 token")
    return column


def resolve_predictor(
    predictor: Predictor | str | npt.NDArray[np.int32], trace: Trace, seed: int
) -> tuple[npt.NDArray[np.int32] | None, str]:
    """Predicted lengths of a trace, (N,) tokens, or the name under which the core learns them in the run.

    Raises:
        ValueError: an unknown predictor or a parameter out of range.
    """
    if isinstance(predictor, np.ndarray):
        return predictor, ""
    if isinstance(predictor, str) and predictor and predictor in LEARNS:
        return None, predictor
    from .. import predictors

    chosen = predictors.parse(predictor) if isinstance(predictor, str) else predictor
    if not isinstance(chosen, predictors.Predictor):
        raise ValueError(f"predictor is {predictor!r}; it must be a Predictor, its name, or an array of tokens")
    return chosen.static(trace, seed), chosen.learns

