"""Admissions that nobody has made: any views shown to any policy, compiled ones too.

A compiled policy reads the state block behind an admission and not its views. A stage has a block of its own and
writes into it what the views say, so that a recorded admission can be shown again, whole or with something changed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .admission import Admission
from .cluster import Cluster
from .router_constants import RouterConstants
from .simulator import layout as L
from .simulator.simulator import believed
from .simulator.state import TRACE_ROW, Tables, new_block
from .trace import TIGHT

_OPEN, _CLOSED = 0, int(np.array(np.inf).view(np.int64))

_PREFILL_FIELDS = (L.PRE_QUEUED, L.PRE_TOKENS, L.PRE_STRICT, L.PRE_OPEN)
_DECODE_FIELDS = (
    L.DEC_IN_FLIGHT,
    L.DEC_PENDING,
    L.DEC_COMMITTED,
    L.DEC_OUTPUT,
    L.DEC_STATIC,
    L.DEC_CONTEXT,
    L.DEC_STRICT,
    L.DEC_OPEN,
)
"""Where the ledger's columns of the views stand, in their order, and then whether an instance may be assigned.

Nothing streams on a stage, so that remaining output and context are what is written down."""

_POLLED_FIELDS = (L.E_POLL_USED, L.E_POLL_RUNNING, L.E_POLL_WAITING)

Integers = npt.NDArray[np.int64]


class Stage:
    """A router's memory that shows whatever it is told, for policies to decide upon.

    Nothing runs on it: an admission from here can be routed, and never sent.

    Args:
        cluster: the instances.
        constants: what the router believes of them.
    """

    def __init__(self, cluster: Cluster, constants: RouterConstants) -> None:
        self.cluster, self.constants = cluster, constants
        self._tables = Tables.of(cluster)
        self._block = block = new_block(cluster, self._tables, 1)
        self._believed = believed(constants, int(block[L.H_PRE_GROUPS]), cluster.instances[0].block_size)
        block[L.H_CONSTANTS], block[L.H_ABOUT] = (array.ctypes.data for array in self._believed)
        self._row = np.zeros(1, TRACE_ROW)
        block[L.H_TRACE] = self._row.ctypes.data
        block[L.H_REQUESTS] = 1
        at = int(block[L.H_O_ENGINES])
        self._engines = block[at : at + len(cluster.instances) * L.ENGINE_WORDS].reshape(-1, L.ENGINE_WORDS)
        self._engines[:, L.E_POLLED] = L.FOREVER  # no tick is later, so polls are what they are set to
        slot = int(block[L.H_O_SLOTS])
        self._cells = block[slot : slot + L.SLOT_WORDS].view(np.int32)
        block[L.H_PENDING] = block[L.H_HIGH] = block[L.H_LIVE] = 0
        self._places = [_places(block, router) for router in range(cluster.routers)]

    def show(self, admission: Admission, last: int = -1) -> Admission:
        """The same admission as policies can decide upon it here; the one before is shown no more.

        Args:
            admission: what is to be seen; its address and its constants are not looked at.
            last: the router's admission before it, ps; negative if there was none.

        Raises:
            ValueError: the views are of another cluster.
        """
        block, router = self._block, admission.router
        first, view = admission.prefill, admission.decode
        sizes = int(block[L.H_ROUTED]), int(block[L.H_DECODES])
        if (len(first), len(view)) != sizes:
            raise ValueError(
                f"views have {len(first)} and {len(view)} rows; {self.cluster.name} has {sizes[0]} and {sizes[1]}"
            )
        for places, rows in zip(self._places[router], (first, view), strict=True):
            block[places[:-1]] = rows[:, : len(places) - 1].T
            block[places[-1]] = np.where(rows[:, -1] != 0, _OPEN, _CLOSED)
        polled = view if admission.aggregated else np.concatenate([first[:, -4:], view[:, -4:]])
        self._engines[:, _POLLED_FIELDS] = polled[:, -4:-1]
        self._engines[:, L.E_STATE] = np.where(polled[:, -1] != 0, L.STATE_UP, L.STATE_DOWN)
        block[L.H_OPEN_PREFILLS], block[L.H_OPEN_DECODES] = (first[:, -1] != 0).sum(), (view[:, -1] != 0).sum()
        block[L.H_NOW], block[L.H_VISIBLE] = admission.now, admission.poll_time
        block[L.H_LAST + router] = last
        cells, loose = self._cells, admission.slo != TIGHT
        cells[L.S_REQUEST], cells[L.S_PROMPT], cells[L.S_PREDICTED] = 0, admission.prompt, admission.predicted
        cells[L.S_PLACE] = router << L.ROUTER_SHIFT | (L.LOOSE_FLAG if loose else 0)
        row = self._row[0]
        row["ttft_target"], row["tpot_target"] = admission.ttft_target, admission.tpot_target
        row["prompt"], row["predicted"] = admission.prompt, admission.predicted
        row["who"] = router | int(admission.slo) << L.ROUTER_BITS
        address = int(block.ctypes.data)
        return replace(admission, constants=self.constants, address=address, owner=block)


def _places(block: Integers, router: int) -> tuple[Integers, Integers]:
    """Words of a router's ledger, (fields, instances), of prefill and of decode instances."""
    ledger = int(block[L.H_O_LEDGER]) + router * int(block[L.H_LEDGER_STRIDE])

    def words(start: int, group: int, fields: tuple[int, ...], count: int) -> Integers:
        i = np.arange(count)
        found: Integers = start + (i // L.LANES) * group + i % L.LANES + np.array(fields)[:, None]
        return found

    decode = ledger + int(block[L.H_LEDGER_DECODE])
    return (
        words(ledger, L.PRE_GROUP, _PREFILL_FIELDS, int(block[L.H_ROUTED])),
        words(decode, L.DEC_GROUP, _DECODE_FIELDS, int(block[L.H_DECODES])),
    )
