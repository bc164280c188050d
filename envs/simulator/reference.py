"""The plain simulator of docs/model.md: one step at a time, written for reading.

The fast core is held to this one timestamp by timestamp. Nothing here is clever: sums are made anew where
they are needed, and every engine advances step by step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..cluster import Cluster, ClusterEvent
from ..records import DECODE_VIEW, FAILED, FINISHED, PREFILL_VIEW, RECORD, REJECTED
from ..trace import Trace
from .reference_instance import Instance, Phase, Request
from .reference_outcome import Admission, Facts, ReferenceRun, Route
from .reference_router import Router, make_predictor

__all__ = ["Admission", "ReferenceRun", "run_reference"]


DEALING = 8
"""Which child of a seed deals requests to routers."""


def run_reference(
    trace: Trace,
    cluster: Cluster,
    *,
    route: Route | None = None,
    assignment: tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]] | None = None,
    predicted: npt.NDArray[np.generic] | str = "bucket",
    observe: bool = True,
    seed: int = 0,
) -> ReferenceRun:
    """Runs a trace on a cluster until every request has ended.

    Args:
        trace: the requests.
        cluster: the instances and their rules.
        route: picks (prefill, decode) within their pools; both the same in an aggregated cluster.
        assignment: (N,) prefill and (N,) decode indices instead; one that may not be assigned when the
            request comes gives way to the next index upwards, cyclically, that may.
        predicted: (N,) static predictions in tokens, or "bucket", "prompt-bucket", "prompt-regression".
        observe: whether to keep the views.
        seed: of the draws by which requests are dealt to routers at random.

    Raises:
        ValueError: a request that does not fit, both or neither of `route` and `assignment`, an index
            outside its pool, a route to an instance that may not be assigned, or bad predictions.
    """
    return _Simulation(trace, cluster, route, assignment, predicted, observe, seed).run()


class _Simulation:
    """One run; the methods follow the order within an instant."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        route: Route | None,
        assignment: tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]] | None,
        predicted: npt.NDArray[np.generic] | str,
        observe: bool,
        seed: int = 0,
    ) -> None:
        trace.check_fits(cluster)
        if (route is None) == (assignment is None):
            raise ValueError("route and assignment are both given or both missing; exactly one is needed")
        self.cluster = cluster
        self.facts = Facts()
        self.prefill, self.decode = _build_pools(cluster, self.facts)
        self.instances = self.prefill if cluster.aggregated else self.prefill + self.decode
        self.latency = None if cluster.aggregated else cluster.latency_matrix()
        self.prefill_emits = not cluster.aggregated and cluster.first_token == "prefill"
        drawn = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(DEALING,)))
        at_random = drawn.integers(cluster.routers, size=len(trace)).tolist()
        self.requests = [
            Request(
                index=i,
                arrival=int(trace.arrival[i]),
                prompt=int(trace.prompt[i]),
                output=int(trace.output[i]),
                slo=int(trace.slo[i]),
                router=at_random[i] if cluster.dealing == "random" else i % cluster.routers,
            )
            for i in range(len(trace))
        ]
        self.status = [FINISHED] * len(self.requests)
        self.routers = [Router(make_predictor(predicted, len(trace))) for _ in range(cluster.routers)]
        self.route = route
        self.assignment = None if assignment is None else self._checked(assignment)
        self.observe = observe
        self.to_come = list(self.requests)  # of the trace, not arrived
        self.to_reroute: list[Request] = []  # lost at this instant
        self.schedule = list(cluster.events)
        self.tick = -1
        self.polled: dict[Instance, tuple[int, int, int]] = {}
        self.admissions: list[Admission] = []

    def run(self) -> ReferenceRun:
        """Goes from instant to instant until every request has ended."""
        while any(request.phase is not Phase.ENDED for request in self.requests):
            now = self.next_instant()
            self.poll(now)
            self.end_steps(now)
            self.end_transfers(now)
            self.end_leases(now)
            self.apply_schedule(now)
            self.admit_arrivals(now)
            self.make_passes(now)
        return self.outcome()

    def next_instant(self) -> int:
        """The earliest time at which something happens."""
        happenings: set[tuple[int, str, int]] = set()
        for instance in self.instances:
            if instance.step is not None:
                happenings.add((instance.step.end, "instance", instance.index))
            for request in instance.reserved:
                if request.phase is Phase.IN_TRANSIT:
                    happenings.add((request.pull_end, "instance", instance.index))
            for lease in instance.leases:
                happenings.add((lease.until, "instance", instance.index))
        if self.schedule:
            happenings.add((self.schedule[0].time, "instance", self.schedule[0].instance))
        if self.to_come:
            happenings.add((self.to_come[0].arrival, "arrival", 0))
        now = min(time for time, _, _ in happenings)
        self.facts.ties += sum(time == now for time, _, _ in happenings) > 1
        return now

    # --- 1. polls -----------------------------------------------------------------------------------

    def poll(self, now: int) -> None:
        """Nothing has changed since the last instant, so every tick up to now sees the present state."""
        tick = now // self.cluster.poll_interval
        if tick > self.tick:
            self.tick = tick
            self.polled = {instance: instance.poll() for instance in self.instances}

    # --- 2. step ends -------------------------------------------------------------------------------

    def end_steps(self, now: int) -> None:
        """By instance index; complete prompts are offered in the order of the batch."""
        for instance in self.instances:
            if instance.step is not None and instance.step.end == now:
                finished, prompts = instance.end_step(now)
                for request in finished:
                    self.finish(request, now)
                for request in prompts:
                    self.end_prefill(request, now)

    def end_prefill(self, request: Request, now: int) -> None:
        """The prompt is offered to the decode instance, unless the request is done or that one is down."""
        assert request.prefill is not None and request.decode is not None
        if self.prefill_emits:
            request.emit(now)
            if request.generated == request.output:
                del request.prefill.blocks[request]
                self.finish(request, now)
                return
        if request.decode.state == "down":
            self.keep_for_lease(request, now)
            self.lose(request, now)
            return
        request.phase = Phase.OFFERED
        request.decode.waiting.append(request)

    def finish(self, request: Request, now: int) -> None:
        """The last token is out; the router's predictor learns."""
        self.end(request, FINISHED, now)
        self.routers[request.router].predictor.learn(request)

    def end(self, request: Request, status: int, now: int) -> None:
        """The request leaves the cluster and the ledger."""
        request.phase = Phase.ENDED
        request.end = now
        self.status[request.index] = status
        router = self.routers[request.router]
        if request in router.in_flight:
            router.in_flight.remove(request)

    # --- 3. transfer ends ---------------------------------------------------------------------------

    def end_transfers(self, now: int) -> None:
        """The prefill instance's blocks are free; the request may join."""
        for instance in self.instances:
            for request in instance.reserved:
                if request.phase is Phase.IN_TRANSIT and request.pull_end == now:
                    assert request.prefill is not None
                    request.phase = Phase.ARRIVED
                    request.transfer_end = now
                    del request.prefill.blocks[request]

    def end_leases(self, now: int) -> None:
        """Blocks kept for a decode that never came are free."""
        for instance in self.instances:
            instance.leases = [lease for lease in instance.leases if lease.until > now]

    # --- 4. cluster events --------------------------------------------------------------------------

    def apply_schedule(self, now: int) -> None:
        """Kills, drains and returns, in the order of the schedule."""
        while self.schedule and self.schedule[0].time == now:
            self.apply(self.schedule.pop(0), now)

    def apply(self, event: ClusterEvent, now: int) -> None:
        """One entry of the schedule; whatever does not change the instance's state does nothing."""
        instance = self.instances[event.instance]
        if event.action == "return":
            instance.state = "up"
        elif event.action == "drain" and instance.state == "up":
            instance.state = "draining"
        elif event.action == "kill" and instance.state != "down":
            self.kill(instance, now)

    def kill(self, instance: Instance, now: int) -> None:
        """Everything that is on the instance is lost."""
        self.facts.kills += 1
        on_prefill = (Phase.QUEUED, Phase.PREFILLING, Phase.OFFERED, Phase.IN_TRANSIT)
        on_decode = (Phase.OFFERED, Phase.IN_TRANSIT, Phase.ARRIVED, Phase.RUNNING, Phase.PREEMPTED)
        for request in self.requests:
            if instance.role == "mixed":
                if request.decode is instance and request.phase is not Phase.ENDED:
                    self.lose(request, now)
            elif request.prefill is instance and request.phase in on_prefill:
                assert request.decode is not None
                request.decode.drop(request)
                self.lose(request, now)
            elif request.decode is instance and request.phase in on_decode:
                if request.phase in (Phase.OFFERED, Phase.IN_TRANSIT):
                    self.keep_for_lease(request, now)
                self.lose(request, now)
        instance.go_down()

    def keep_for_lease(self, request: Request, now: int) -> None:
        """The prefill instance keeps the KV until the lease ends."""
        assert request.prefill is not None
        until = max(now, request.prefill_end + request.prefill.engine.lease)
        request.prefill.keep_until(until, request)
        self.end_leases(now)

    def lose(self, request: Request, now: int) -> None:
        """A lost request fails, or is routed again at this instant if no token of it has come out."""
        self.facts.lost += 1
        if request.transfer_start > now:
            request.transfer_start = -1  # booked, but not reached
        if self.cluster.on_kill == "reroute" and request.generated == 0:
            self.routers[request.router].in_flight.remove(request)
            request.forget_attempt()
            request.reroutes += 1
            self.to_reroute.append(request)
            self.facts.reroutes += 1
        else:
            self.end(request, FAILED, now)

    # --- 5. arrivals --------------------------------------------------------------------------------

    def admit_arrivals(self, now: int) -> None:
        """Re-routed requests by index, then the trace's, one by one."""
        rerouted, self.to_reroute = sorted(self.to_reroute, key=lambda request: request.index), []
        for request in rerouted:
            self.admit(request, now)
        while self.to_come and self.to_come[0].arrival == now:
            self.admit(self.to_come.pop(0), now)

    def admit(self, request: Request, now: int) -> None:
        """Routes a request, puts it into the ledger and into a queue; or rejects it."""
        if not all(any(i.state == "up" for i in pool) for pool in (self.prefill, self.decode)):
            self.facts.rejected += 1
            self.end(request, REJECTED, now)
            return
        router = self.routers[request.router]
        request.predicted = router.predictor.predict(request)
        admission = self.view(request, now)
        self.admissions.append(admission)
        p, d = self.decide(admission)
        request.prefill, request.decode = self.prefill[p], self.decode[d]
        router.in_flight.append(request)
        request.phase = Phase.QUEUED
        request.prefill.waiting.append(request)

    def view(self, request: Request, now: int) -> Admission:
        """What the request's router sees now."""
        router = self.routers[request.router]
        from_prefill = 1 if self.prefill_emits else 0
        prefill = [(*router.prefill_ledger(i), *self.polled[i], int(i.state == "up")) for i in self.prefill]
        decode = [
            (*router.decode_ledger(i, from_prefill), *self.polled[i], int(i.state == "up"))
            for i in self.decode
        ]
        return Admission(
            index=request.index,
            now=now,
            router=request.router,
            prompt=request.prompt,
            predicted=request.predicted,
            slo=request.slo,
            prefill_view=np.array(prefill, np.int64),
            decode_view=np.array(decode, np.int64),
            poll_time=self.tick * self.cluster.poll_interval,
        )

    def decide(self, admission: Admission) -> tuple[int, int]:
        """Indices within the pools, from the assignment or the route."""
        if self.assignment is not None:
            wish_p, wish_d = (column[admission.index] for column in self.assignment)
            return _next_available(self.prefill, wish_p), _next_available(self.decode, wish_d)
        assert self.route is not None
        p, d = self.route(admission)
        for what, pool, k in (("prefill", self.prefill, p), ("decode", self.decode, d)):
            if not 0 <= k < len(pool) or pool[k].state != "up":
                may = ", ".join(str(i.pool_index) for i in pool if i.state == "up")
                raise ValueError(f"route gave {what} {k} to request {admission.index}; allowed now are {may}")
        if self.cluster.aggregated and p != d:
            raise ValueError(f"route gave {p} and {d} to request {admission.index}; a mixed instance is both")
        return p, d

    # --- 6. scheduling passes -----------------------------------------------------------------------

    def make_passes(self, now: int) -> None:
        """By instance index, every instance that is up and between steps.

        An idle engine to which nothing happened makes a pass too: it finds what its last one left.
        """
        for instance in self.instances:
            if instance.state != "down" and instance.step is None:
                for request in instance.make_pass(now):
                    self.start_pull(request, now)

    def start_pull(self, request: Request, now: int) -> None:
        """Books the egress server of the prefill instance, first come first served."""
        assert request.prefill is not None and request.decode is not None and self.latency is not None
        source = request.prefill
        request.transfer_start = max(now, source.egress_free_at)
        self.facts.egress_queueing += request.transfer_start > now
        service = source.engine.blocks(request.prompt) * source.engine.egress_per_block
        source.egress_free_at = request.transfer_start + service
        latency = int(self.latency[source.pool_index, request.decode.pool_index])
        request.pull_end = source.egress_free_at + latency

    # --- outcome ------------------------------------------------------------------------------------

    def outcome(self) -> ReferenceRun:
        """The records and the views."""
        records = np.zeros(len(self.requests), RECORD)
        own = [name for name in RECORD.names or () if name not in ("prefill", "decode", "status")]
        for request, row in zip(self.requests, records, strict=True):
            for name in own:
                row[name] = getattr(request, name)
            row["prefill"] = -1 if request.prefill is None else request.prefill.pool_index
            row["decode"] = -1 if request.decode is None else request.decode.pool_index
            row["status"] = self.status[request.index]
        seen = self.admissions if self.observe else []
        prefill_shape = (-1, len(self.prefill), len(PREFILL_VIEW))
        decode_shape = (-1, len(self.decode), len(DECODE_VIEW))
        return ReferenceRun(
            records=records,
            decisions=np.array([a.index for a in self.admissions], np.int64),
            prefill_views=np.array([a.prefill_view for a in seen], np.int64).reshape(prefill_shape),
            decode_views=np.array([a.decode_view for a in seen], np.int64).reshape(decode_shape),
            predicted=np.array([a.predicted for a in self.admissions], np.int64),
            poll_times=np.array([a.poll_time for a in self.admissions], np.int64),
            facts=self.facts,
        )

    def _checked(
        self, assignment: tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]
    ) -> tuple[list[int], list[int]]:
        columns: list[list[int]] = []
        pools = (("prefill", self.prefill), ("decode", self.decode))
        n = len(self.requests)
        for (what, pool), column in zip(pools, assignment, strict=True):
            values = [int(value) for value in column]
            if len(values) != n:
                raise ValueError(f"assignment has {len(values)} {what} indices; it must have {n}")
            bad = [value for value in values if not 0 <= value < len(pool)]
            if bad:
                raise ValueError(f"assignment has {what} index {bad[0]}; allowed are 0 to {len(pool) - 1}")
            columns.append(values)
        if self.cluster.aggregated and columns[0] != columns[1]:
            raise ValueError("assignment has different prefill and decode indices; a mixed instance is both")
        return columns[0], columns[1]


def _build_pools(cluster: Cluster, facts: Facts) -> tuple[list[Instance], list[Instance]]:
    """Prefill and decode instances; in an aggregated cluster the same list twice."""
    if cluster.aggregated:
        mixed = [Instance(i, i, "mixed", engine, facts) for i, engine in enumerate(cluster.mixed)]
        return mixed, mixed
    prefill = [Instance(i, i, "prefill", engine, facts) for i, engine in enumerate(cluster.prefill)]
    after = len(prefill)
    decode = [Instance(after + i, i, "decode", engine, facts) for i, engine in enumerate(cluster.decode)]
    return prefill, decode


def _next_available(pool: list[Instance], wish: int) -> int:
    """The wished index, or the next one upwards, cyclically, that may be assigned."""
    order = [(wish + step) % len(pool) for step in range(len(pool))]
    return next(k for k in order if pool[k].state == "up")
