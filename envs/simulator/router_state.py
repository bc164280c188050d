"""What one router in front of real engines knows: its ledger, the polls, its learner (docs/model.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .. import catalog
from ..admission import Admission
from ..cluster import MAX_TIME_PS, MAX_TOKENS, Cluster
from ..records import DECODE_VIEW, PREFILL_VIEW
from ..router_constants import RouterConstants
from ..trace import MAX_TARGET_PS, SLO_CLASSES
from . import layout as L
from . import router_entries as core
from .arena import Words
from .simulator import believed
from .state import LEARNS, Tables, check_pair, grown, new_block

_FIRST_CAPACITY = 1_024

_KEPT = [L.H_NOW, L.H_VISIBLE, L.H_LAST, L.H_DECISIONS]
"""Header words that another topology takes over."""


class NoInstance(RuntimeError):
    """A pool has no instance that may be assigned."""


class RouterState:
    """The state of one router, driven by what it does and by what its engines answer.

    It is the simulator's ledger, learner and polls, so an admission shows policies and features what the simulator
    would show. A request is asked for (`ask`), routed by whatever policy, and sent (`send`), which gives its handle;
    the events of its life name that handle, up to `finished` or `failed`.

    Times are ps from any moment on, such as the router's start. A time before the last admission counts as that one;
    after 100 days the state's own clock is put back, and differences of times stay.

    Args:
        cluster: the instances; of the rules only `first_token` matters here.
        constants: what the router believes of the instances.
        learns: the predictor that learns: "bucket", "prompt-bucket" or "prompt-regression"; "": every `ask` says ô.

    Raises:
        ValueError: `learns` is unknown, the constants are of another cluster, or there are too many instances.
    """

    def __init__(self, cluster: Cluster, constants: RouterConstants, *, learns: str = "bucket") -> None:
        if learns not in LEARNS:
            raise ValueError(catalog.unknown("learning predictor", learns, [name for name in LEARNS if name]))
        if len(cluster.instances) > L.MAX_INSTANCES:
            raise ValueError(
                f"{cluster.name}: {len(cluster.instances)} instances; allowed are up to {L.MAX_INSTANCES}"
            )
        if (len(constants), constants.prefills) != (len(cluster.instances), len(cluster.prefill)):
            raise ValueError(
                f"constants are for {len(constants)} instances with {constants.prefills} prefill instances; "
                f"{cluster.name} has {len(cluster.instances)} with {len(cluster.prefill)}"
            )
        self.cluster = cluster
        self.constants = constants
        self.learns = learns
        self._own = replace(cluster, routers=1, events=())
        self._tables = Tables.of(self._own)
        self._awaits = False
        self._asked = 0
        self._origin = 0
        self._rows = np.zeros((0, L.TRACE_WORDS), np.int64)
        self._set_block(new_block(self._own, self._tables, _FIRST_CAPACITY))
        self._believed = believed(constants, int(self._block[L.H_PRE_GROUPS]), cluster.instances[0].block_size)
        self._block[L.H_CONSTANTS], self._block[L.H_ABOUT] = (a.ctypes.data for a in self._believed)
        self._block[L.H_LEARNS] = LEARNS[learns]
        self._engines[:, L.E_POLLED] = L.FOREVER  # no tick is later, so polls are what they were set to

    def _set_block(self, block: Words) -> None:
        self._block = block
        self._address = int(block.ctypes.data)
        # A trace row per slot: arrival and targets stand there.
        rows = np.zeros((int(block[L.H_CAPACITY]), L.TRACE_WORDS), np.int64)
        rows[: len(self._rows)] = self._rows
        self._rows = rows
        block[L.H_TRACE] = self._rows.ctypes.data
        at = int(block[L.H_O_ENGINES])
        rows = block[at : at + len(self.cluster.instances) * L.ENGINE_WORDS]
        self._engines = rows.reshape(-1, L.ENGINE_WORDS)
        self._sizes = int(block[L.H_ROUTED]), int(block[L.H_DECODES])

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        return int(self._block[L.H_LIVE]) - int(self._awaits)

    @property
    def last_admission(self) -> int:
        """When a request was last sent, ps, −1 if none was."""
        last = int(self._block[L.H_LAST])
        return last if last < 0 else last + self._origin

    # --- a decision -----------------------------------------------------------------------------------

    def ask(
        self,
        prompt: int,
        slo: int,
        ttft_target: int,
        tpot_target: int,
        now: int,
        predicted: int | None = None,
        index: int | None = None,
    ) -> Admission:
        """A request needs its instances: what a policy may know of the moment.

        Args:
            prompt: tokens, ≥ 1.
            slo: index into SLO_CLASSES.
            ttft_target: ps.
            tpot_target: ps.
            now: ps.
            predicted: ô, tokens, ≥ 1; None: what the router has learned.
            index: names the request in the admission; None: how many were asked for before it.

        Returns:
            The admission; it may be routed until `send` or `withdraw`.

        Raises:
            NoInstance: none of a pool may be assigned.
            RuntimeError: another request awaits a decision.
            ValueError: a value is out of range, or ô is missing and nothing learns it.
            MemoryError: more requests in flight than can be numbered.
        """
        if self._awaits:
            raise RuntimeError("a request awaits its decision already; send or withdraw it first")
        self._check_request(prompt, slo, ttft_target, tpot_target, predicted)
        time = max(self._time(now), int(self._block[L.H_NOW]), int(self._block[L.H_VISIBLE]))
        routed, decodes = self._sizes
        first = routed * len(PREFILL_VIEW)
        views = np.empty(first + decodes * len(DECODE_VIEW), np.int64)
        at = views.ctypes.data
        while True:
            given = 0 if predicted is None else predicted
            expected = core.ask(
                self._address, prompt, slo, given, ttft_target, tpot_target, time, at, at + 8 * first
            )
            if expected > 0:
                break
            if expected == core.CLOSED:
                raise NoInstance(f"{self.cluster.name}: {self._closed_pool()} instance may be assigned")
            self._set_block(grown(self._block))
        self._awaits = True
        number = self._asked if index is None else index
        self._asked += 1
        return Admission(
            number,
            int(self._block[L.H_NOW]),
            0,
            prompt,
            expected,
            slo,
            ttft_target,
            tpot_target,
            views[:first].reshape(routed, -1),
            views[first:].reshape(decodes, -1),
            int(self._block[L.H_VISIBLE]),
            self.cluster.aggregated,
            self.constants,
            self._address,
            self._block,
        )

    def _check_request(self, prompt: int, slo: int, ttft: int, tpot: int, predicted: int | None) -> None:
        if not 1 <= prompt <= MAX_TOKENS:
            raise ValueError(f"prompt is {prompt} tokens; it must lie between 1 and {MAX_TOKENS}")
        if not 0 <= slo < len(SLO_CLASSES):
            raise ValueError(f"slo is {slo}; it must be 0 (tight) or 1 (loose)")
        for name, target in (("ttft_target", ttft), ("tpot_target", tpot)):
            if not 0 <= target <= MAX_TARGET_PS:
                raise ValueError(f"{name} is {target} ps; it must lie between 0 and {MAX_TARGET_PS}")
        if predicted is None:
            if not self.learns:
                raise ValueError("predicted is None; without a predictor that learns it must be given")
        elif not 1 <= predicted <= MAX_TOKENS:
            raise ValueError(f"predicted is {predicted} tokens; it must lie between 1 and {MAX_TOKENS}")

    def _time(self, now: int) -> int:
        """The time on the state's own clock, which is put back when it has run for too long."""
        if now < 0:
            raise ValueError(f"now is {now} ps; it must be at least 0")
        time = now - self._origin
        if time > MAX_TIME_PS:
            self._put_clock_back(time - MAX_TIME_PS // 2)
            time = now - self._origin
        return time

    def _event_time(self, now: int | None) -> int:
        """The time of an event on the state's own clock, no earlier than the last admission."""
        last = int(self._block[L.H_NOW])
        return last if now is None else max(last, self._time(now))

    def _put_clock_back(self, by: int) -> None:
        self._origin += by
        for field in (L.H_NOW, L.H_VISIBLE, L.H_LAST):
            time = int(self._block[field])
            self._block[field] = time if time < 0 else max(0, time - by)
        core.put_clock_back(self._address, min(by, core.FARTHEST))

    def _closed_pool(self) -> str:
        if self.cluster.aggregated:
            return "no mixed"
        return "no prefill" if self._block[L.H_OPEN_PREFILLS] == 0 else "no decode"

    def check(self, prefill: int, decode: int) -> None:
        """Refuses a pair that a request may not be sent to.

        Raises:
            ValueError: an index is no integer, out of range or of an instance that may not be assigned, or two
                different mixed instances.
        """
        check_pair(self._block, prefill, decode)

    def send(self, prefill: int, decode: int) -> int:
        """The request that was asked for goes to a pair of instances (aggregated: the same index twice).

        Returns:
            Its handle.

        Raises:
            RuntimeError: no request awaits a decision.
            ValueError: as `check`.
        """
        if not self._awaits:
            raise RuntimeError("no request awaits a decision; call ask() first")
        check_pair(self._block, prefill, decode)
        self._awaits = False
        return int(core.send(self._address, int(prefill), int(decode)))

    def withdraw(self) -> None:
        """The request that was asked for goes nowhere.

        Raises:
            RuntimeError: no request awaits a decision.
        """
        if not self._awaits:
            raise RuntimeError("no request awaits a decision; call ask() first")
        self._awaits = False
        core.withdraw(self._address)

    # --- events of a request --------------------------------------------------------------------------

    def prefill_done(self, handle: int, now: int | None = None) -> None:
        """Its prefill is done; with `first_token: prefill` that gave its first token, which counts here.

        Args:
            handle: of the request.
            now: ps; None: the time of the last admission. So it is for the other events.

        Raises:
            ValueError: no request in flight has this handle, its prefill was done before, or the time is negative.
        """
        status = core.prefill_done(self._address, handle, self._event_time(now))
        if status:
            raise _refused(status, handle, "its prefill was done before")

    def first_token(self, handle: int, now: int | None = None) -> None:
        """The first token from its decode (or mixed) instance is out; it counts as a token.

        A mixed instance has done the prefill then.

        Args:
            handle: of the request.
            now: ps.

        Raises:
            ValueError: no request in flight has this handle, its prefill is not done, it had a token before, or the
                time is negative.
        """
        status = core.first_token(self._address, handle, self._event_time(now))
        if status:
            raise _refused(status, handle, "its prefill is not done, or its first token is out already")

    def token(self, handle: int, count: int = 1, now: int | None = None) -> None:
        """More tokens are out, after the first one.

        Args:
            handle: of the request.
            count: how many, ≥ 1.
            now: ps, of the last of them.

        Raises:
            ValueError: no request in flight has this handle, it has no first token, the count is below 1, or the time
                is negative.
        """
        status = core.tokens(self._address, handle, count, self._event_time(now))
        if status:
            raise _refused(status, handle, "its first token is not out", f"count is {count}; it must be at least 1")

    def finished(self, handle: int, output: int) -> None:
        """All its tokens are out, told one by one or not; the learner takes in how many there are.

        Args:
            handle: of the request.
            output: output tokens, ≥ 0; nothing is learned from 0.

        Raises:
            ValueError: no request in flight has this handle, its prefill is not done, or the output is negative.
        """
        status = core.finished(self._address, handle, output)
        if status:
            raise _refused(status, handle, "its prefill is not done", f"output is {output}; it must be at least 0")

    def failed(self, handle: int) -> None:
        """It ends without its output, wherever it stands.

        Raises:
            ValueError: no request in flight has this handle.
        """
        status = core.failed(self._address, handle)
        if status:
            raise _refused(status, handle)

    # --- polls and instances --------------------------------------------------------------------------

    def polled(self, instance: int, used_blocks: int, running: int, waiting: int) -> None:
        """What an instance reports of itself; seen by the next decision.

        Args:
            instance: index in the cluster, prefill instances first.
            used_blocks: KV blocks in use.
            running: requests in the engine's batch.
            waiting: requests that wait.

        Raises:
            ValueError: there is no such instance, or a number is negative or does not fit 32 bits.
        """
        self._check_instance(instance)
        for name, number in (("used_blocks", used_blocks), ("running", running), ("waiting", waiting)):
            if not 0 <= number < 1 << 31:
                raise ValueError(f"{name} of instance {instance} is {number}; it must lie between 0 and {2**31 - 1}")
        self._engines[instance, L.E_POLL_USED : L.E_POLL_WAITING + 1] = used_blocks, running, waiting

    def poll_time(self, now: int) -> None:
        """When the last complete round of polls was made, ps.

        Raises:
            ValueError: the time is negative.
        """
        self._block[L.H_VISIBLE] = max(0, self._time(now))

    def set_open(self, instance: int, may: bool) -> None:
        """Whether an instance may be assigned from now on.

        Args:
            instance: index in the cluster, prefill instances first.
            may: True: it may.

        Raises:
            RuntimeError: a request awaits its decision.
            ValueError: there is no such instance.
        """
        if self._awaits:
            raise RuntimeError("a request awaits its decision; open and close instances before or after")
        self._check_instance(instance)
        core.set_open(self._address, instance, int(may))

    def is_open(self, instance: int) -> bool:
        """Whether an instance may be assigned.

        Raises:
            ValueError: there is no such instance.
        """
        self._check_instance(instance)
        return bool(self._engines[instance, L.E_STATE] == L.STATE_UP)

    def _check_instance(self, instance: int) -> None:
        if not 0 <= instance < len(self._engines):
            raise ValueError(f"instance {instance} does not exist; allowed are 0 to {len(self._engines) - 1}")

    # --- the whole ------------------------------------------------------------------------------------

    def snapshot(self) -> list[dict[str, int | str]]:
        """One row per instance, prefill instances first: role, index in its pool, and what decisions see of it.

        The columns are those of PREFILL_VIEW or DECODE_VIEW; a mixed instance has both.
        """
        routed, decodes = self._sizes
        prefill = np.empty((routed, len(PREFILL_VIEW)), np.int64)
        decode = np.empty((decodes, len(DECODE_VIEW)), np.int64)
        core.look(self._address, prefill.ctypes.data, decode.ctypes.data)
        first = [dict(zip(PREFILL_VIEW, row, strict=True)) for row in prefill.tolist()]
        second = [dict(zip(DECODE_VIEW, row, strict=True)) for row in decode.tolist()]
        if self.cluster.aggregated:
            pools = {"mixed": [a | b for a, b in zip(first, second, strict=True)]}
        else:
            pools = {"prefill": first, "decode": second}
        return [{"role": role, "index": i, **row} for role, pool in pools.items() for i, row in enumerate(pool)]

    def resized(self, cluster: Cluster, constants: RouterConstants, mapping: Mapping[int, int]) -> RouterState:
        """The same router in front of another topology.

        Requests in flight go on under their handles. One whose instance is gone (for the prefill instance: while it is
        needed) leaves the ledger; its events are taken as before, and count for the learner alone. Instances keep
        their polls and whether they are open; new ones are open.

        Args:
            cluster: the instances.
            constants: what the router believes of them.
            mapping: of each instance that stays its old index and its new one, prefill instances first.

        Raises:
            RuntimeError: a request awaits its decision.
            ValueError: an index out of range or named twice, an instance that changes its role, or as the constructor.
        """
        if self._awaits:
            raise RuntimeError("a request awaits its decision; send or withdraw it first")
        twin = RouterState(cluster, constants, learns=self.learns)
        for old, new in mapping.items():
            self._check_instance(old)
            twin._check_instance(new)
            if _role(self.cluster, old) != _role(cluster, new):
                raise ValueError(
                    f"mapping: instance {old} ({_role(self.cluster, old)}) becomes {new} ({_role(cluster, new)}); "
                    "an instance keeps its role"
                )
        if len(set(mapping.values())) < len(mapping):
            raise ValueError("mapping names a new instance twice; each stays one instance")
        twin._take_over(self, mapping)
        return twin

    def _take_over(self, old: RouterState, mapping: Mapping[int, int]) -> None:
        while len(self._block) - self._block[L.H_O_SLOTS] < old._block[L.H_CAPACITY] * L.SLOT_WORDS:
            self._set_block(grown(self._block))
        self._asked, self._origin = old._asked, old._origin
        self._block[_KEPT] = old._block[_KEPT]
        self._learned()[:] = old._learned()
        self._rows[: len(old._rows)] = old._rows
        polls = slice(L.E_POLL_USED, L.E_POLL_WAITING + 1)
        places = np.full((2, len(old.cluster.instances)), -1, np.int64)
        before, after = len(old.cluster.prefill), len(self.cluster.prefill)
        for i, j in mapping.items():
            if i < before or before == 0:
                places[0, i] = j
            if i >= before:
                places[1, i - before] = j - after
            self._engines[j, polls] = old._engines[i, polls]
            self.set_open(j, old.is_open(i))
        core.take_over(self._address, old._address, *(row.ctypes.data for row in places))

    def _learned(self) -> npt.NDArray[np.int64]:
        at = int(self._block[L.H_O_LEARNER])
        return self._block[at : at + L.LEARNER_WORDS]


def _role(cluster: Cluster, instance: int) -> str:
    if cluster.aggregated:
        return "mixed"
    return "prefill" if instance < len(cluster.prefill) else "decode"


def _refused(status: int, handle: int, out_of_turn: str = "", bad_count: str = "") -> ValueError:
    if status == core.BAD_COUNT:
        return ValueError(bad_count)
    if status == core.OUT_OF_TURN:
        return ValueError(f"request {handle}: {out_of_turn}")
    return ValueError(f"request {handle} is not in flight; it was not sent or has ended")
