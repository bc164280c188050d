"""Small random clusters and traces on which two simulators can be compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from disaggroute.envs.cluster import MAX_TIME_PS, Action, Cluster, ClusterEvent, EngineSpec
from disaggroute.envs.simulator.reference import run_reference
from disaggroute.envs.simulator.reference_instance import Request
from disaggroute.envs.trace import Trace

MOST_REQUESTS = 40
LEARNING = ("bucket", "prompt-bucket", "prompt-regression")


@dataclass(frozen=True, eq=False)
class Case:
    """A trace on a cluster with a fixed routing.

    Attributes:
        label: the call that makes it again.
        assignment: (N,) prefill and (N,) decode indices within the pools.
        predicted: (N,) static predictions, or the name of a learning predictor.
        seed: of the draws by which requests are dealt to routers at random.
    """

    label: str
    trace: Trace
    cluster: Cluster
    assignment: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    predicted: npt.NDArray[np.int64] | str
    seed: int = 0


def random_case(
    seed: int,
    *,
    requests: int | None = None,
    tiny: bool | None = None,
    aggregated: bool | None = None,
    failures: bool | None = None,
    first_token: Literal["decode", "prefill"] | None = None,
) -> Case:
    """A case made from a seed.

    Args:
        seed: of everything that is not given.
        requests: length of the trace, at most 40; a shorter one is mostly the start of a longer one.
        tiny: whether times are small integers (in a third of the cases: small multiples of a large one),
            which forces ties.
        aggregated: whether the instances are mixed.
        failures: whether there is a schedule of kills, drains and returns.
        first_token: which leg's first token the client sees.
    """
    knobs = (requests, tiny, aggregated, failures, first_token)
    shape, engines, lengths, schedule, routing, magnitude, meetings = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(7)
    )
    # All of these are drawn whatever is given, so that a knob changes nothing but its own part.
    low, high = shape.choice([(1, 6), (5, 18), (15, MOST_REQUESTS)])
    drawn_requests = int(shape.integers(low, high + 1))
    drawn_tiny, drawn_aggregated, drawn_failures = (shape.random(3) < (0.5, 0.15, 0.27)).tolist()
    n = drawn_requests if requests is None else requests
    tiny = drawn_tiny if tiny is None else tiny
    aggregated = drawn_aggregated if aggregated is None else aggregated
    failures = drawn_failures if failures is None else failures
    trace = _trace(lengths, tiny)
    cluster = _cluster(engines, trace, tiny, aggregated)
    if first_token is not None:
        cluster = replace(cluster, first_token=first_token)
    p, d = (column[:n] for column in _assignment(routing, cluster))
    predicted = _predicted(routing, trace)
    if failures:
        cluster = replace(cluster, events=_schedule(schedule, trace, cluster, tiny))
    trace = trace.select(slice(0, n))
    if tiny and magnitude.random() < 0.35:
        trace, cluster = _magnified(magnitude, trace, cluster, (p, d))
    for _ in range(int(meetings.choice([0, 0, 1, 4]))):
        trace = _met(meetings, trace, cluster, (p, d))
    if failures and schedule.random() < 0.5:
        cluster = _aimed(schedule, trace, cluster, (p, d))
    given = ("requests", "tiny", "aggregated", "failures", "first_token")
    label = ", ".join([str(seed), *(f"{g}={k!r}" for g, k in zip(given, knobs, strict=True) if k is not None)])
    return Case(
        label=f"random_case({label})",
        trace=trace,
        cluster=cluster,
        assignment=(p, d),
        predicted=predicted if isinstance(predicted, str) else predicted[:n],
        seed=seed,
    )


def cases() -> st.SearchStrategy[Case]:
    """Hypothesis strategy over `random_case`; it shrinks to few requests, no failures, small seeds."""
    return st.builds(
        random_case,
        st.integers(0, 2**32 - 1),
        requests=st.integers(1, MOST_REQUESTS),
        tiny=st.booleans(),
        aggregated=st.sampled_from([False] * 5 + [True]),
        failures=st.sampled_from([False] * 3 + [True]),
    )


def _trace(rng: np.random.Generator, tiny: bool) -> Trace:
    n = MOST_REQUESTS
    longest = int(rng.choice([6, 20, 60] if tiny else [20, 100, 300]))
    prompt = rng.integers(1, longest + 1, n)
    output = np.minimum(rng.geometric(1 / rng.choice([2, 8, 20]), n), 60)
    output[rng.random(n) < 0.1] = 1
    if tiny:
        gaps = rng.integers(0, rng.choice([1, 4, 40, 200]) + 1, n) * (rng.random(n) < 0.6)
    else:
        gaps = rng.exponential(rng.choice([1e9, 1e10, 5e10]), n).astype(np.int64) * (rng.random(n) < 0.9)
    arrival = np.cumsum(gaps) + int(rng.integers(0, 3))
    return Trace(
        arrival=arrival,
        prompt=prompt.astype(np.int32),
        output=output.astype(np.int32),
        slo=(rng.random(n) < 0.5).astype(np.int8),
        family=np.zeros(n, np.int8),
        ttft_target=np.full(n, 10**11, np.int64),
        tpot_target=np.full(n, 10**10, np.int64),
        name="random",
    )


def _cluster(rng: np.random.Generator, trace: Trace, tiny: bool, aggregated: bool) -> Cluster:
    first_token: Literal["decode", "prefill"] = "prefill" if rng.random() < 0.4 else "decode"
    block_size = int(rng.choice([1, 2, 3, 4, 16]))
    # Few blocks to spare over what the largest request needs; blocks are scarce in one pool or in both.
    scarce_prefill, scarce_decode = rng.random(2) < 0.7
    same = rng.random() < 0.3

    def pool(size: int, scarce: bool) -> tuple[EngineSpec, ...]:
        made = [_engine(rng, trace, tiny, block_size, bool(scarce)) for _ in range(size)]
        return (made[0],) * size if same else tuple(made)

    sizes = (int(rng.integers(1, 4)), int(rng.integers(1, 5)))
    latency = None
    if not aggregated and rng.random() < 0.4:
        latency = rng.integers(1, 8 if tiny else 5 * 10**9, sizes)
    poll = rng.choice([1, 2, 7, 50, 1000]) if tiny else rng.choice([1, 10**9, 10**10 + 1, 5 * 10**10])
    return Cluster(
        prefill=() if aggregated else pool(sizes[0], scarce_prefill),
        decode=() if aggregated else pool(sizes[1], scarce_decode),
        mixed=pool(sizes[0], scarce_decode) if aggregated else (),
        first_token=first_token,
        poll_interval=int(poll),
        on_kill="reroute" if rng.random() < 0.5 else "fail",
        routers=int(rng.choice([1, 1, 2, 3])),
        dealing="random" if rng.random() < 0.5 else "round-robin",
        latency=latency,
        name="random",
    )


def _engine(rng: np.random.Generator, trace: Trace, tiny: bool, block_size: int, scarce: bool) -> EngineSpec:
    p, o = trace.prompt.astype(int), trace.output.astype(int)
    needed = -(-int((p + o).max()) // block_size)
    spare = int(rng.integers(0, needed // 2 + 2)) if scarce else int(rng.integers(needed, 6 * needed + 40))
    seqs = int(rng.choice([1, 2, 3, 4, 8, 8]))
    budget = seqs + int(rng.choice([0, 1, 3, 10, 60, 400]))

    def draw(low: int, high: int, realistic: float) -> int:
        return int(rng.integers(low, high + 1)) if tiny else round(realistic * rng.uniform(0.5, 2))

    batch = np.zeros(seqs + 1, np.int64)
    kind = rng.integers(3)
    if kind == 0:
        batch[1:] = draw(0, 3, 3e7) * np.arange(1, seqs + 1)
    elif kind == 1:
        batch[1:] = rng.integers(0, 9 if tiny else 5 * 10**8, seqs)
    egress = draw(0, 5, 1e7) if rng.random() < 0.5 else draw(3, 30, 3e9)
    return EngineSpec(
        base_decode=draw(1, 20, 1.3e10),
        base_prefill=draw(1, 20, 1e10),
        base_mixed=draw(1, 20, 1.4e10),
        batch=batch,
        per_context=draw(0, 3, 5.5e4),
        per_token=draw(0, 3, 5e7),
        per_token_sq=draw(0, 3, 2.3e3) if rng.random() < 0.5 else 0,
        block_size=block_size,
        num_blocks=needed + spare,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=int((p + o).max()) + int(rng.integers(0, 50)),
        egress_per_block=egress,
        latency=draw(1, 5, 1e9),
        lease=draw(0, 60, 1e11),
    )


def _schedule(rng: np.random.Generator, trace: Trace, cluster: Cluster, tiny: bool) -> tuple[ClusterEvent, ...]:
    count = int(rng.integers(1, 7))
    # Most of the interesting things happen around the first arrivals, also in a case that was cut short.
    window = int(trace.arrival[int(rng.choice([0, 5, 15, -1]))]) + (100 if tiny else 3 * 10**11)
    times = np.sort(rng.integers(0, window, count))
    if rng.random() < 0.3:
        times = np.sort(rng.choice(trace.arrival, count))
    actions: tuple[Action, ...] = ("kill", "kill", "drain", "return")
    events: list[ClusterEvent] = []
    for time in times.tolist():
        action = actions[int(rng.integers(len(actions)))]
        instance = int(rng.integers(len(cluster.instances)))
        if events and rng.random() < 0.5:
            action, instance = "return", events[-1].instance
        events.append(ClusterEvent(time, instance, action))
    return tuple(events)


def _met(
    rng: np.random.Generator,
    trace: Trace,
    cluster: Cluster,
    assignment: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> Trace:
    """The trace with one request that arrives earlier, when a token comes out, or 1 ps before or after that.

    So a decision, and the offer or the join that follows it at once, meets the end of a step within a leap.
    """
    tokens = _token_times(trace, cluster, assignment)
    later = np.searchsorted(trace.arrival, tokens, side="right")  # the next request to arrive after each token
    early = np.flatnonzero(later < len(trace))
    if not len(early):
        return trace
    chosen = int(rng.choice(early))
    before, moved = int(trace.arrival[later[chosen] - 1]), int(later[chosen])
    arrival = trace.arrival.copy()
    arrival[moved] = max(before, int(tokens[chosen] + rng.choice([-1, 0, 0, 0, 1])))
    return replace(trace, arrival=arrival)


def _token_times(
    trace: Trace, cluster: Cluster, assignment: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    times: list[int] = []
    emit = Request.emit

    def noting(request: Request, now: int) -> None:
        times.append(now)
        emit(request, now)

    with patch.object(Request, "emit", noting):
        run_reference(trace, cluster, assignment=assignment, predicted=trace.output.astype(np.int64))
    return np.unique(np.array(times, np.int64))


def _aimed(
    rng: np.random.Generator,
    trace: Trace,
    cluster: Cluster,
    assignment: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> Cluster:
    """The cluster with one kill more: of an instance of some request, at some stage of its life or as that ends."""
    undisturbed = replace(cluster, events=())
    run = run_reference(trace, undisturbed, assignment=assignment, predicted=trace.output.astype(np.int64))
    stages = ("arrival", "prefill_start", "prefill_end", "reserve", "transfer_end", "first_token", "last_token")
    times = np.stack([run.records[name] for name in stages])
    lasts = (times[:-1] >= 0) & (times[1:] > times[:-1])
    stage = int(rng.choice(np.flatnonzero(lasts.any(axis=1))))
    request = int(rng.choice(np.flatnonzero(lasts[stage])))
    start, end = times[stage, request], times[stage + 1, request]
    time = int(rng.choice([start, end, rng.integers(start, end)]))
    instance = int(assignment[0][request])
    if rng.random() < 0.5:
        instance = len(cluster.prefill) + int(assignment[1][request])
    blocked = _blocked(trace, run.records, assignment)
    if len(blocked) and rng.random() < 0.5:  # its offer goes, and a smaller one behind it may fit
        request, other = rng.choice(blocked).tolist()
        time = int(rng.integers(run.records["prefill_end"][other], run.records["reserve"][request]))
        instance = int(assignment[0][request])
    aimed = [ClusterEvent(time, instance, "kill")]
    if rng.random() < 0.5:
        until = max(time, int(rng.choice([end, times.max()])))
        aimed.append(ClusterEvent(int(rng.integers(time, until + 1)), instance, "return"))
    events = tuple(sorted([*cluster.events, *aimed], key=lambda event: event.time))
    try:
        trace.check_fits(replace(cluster, events=events))
    except ValueError:  # too late an event
        return cluster
    return replace(cluster, events=events)


def _blocked(
    trace: Trace,
    records: npt.NDArray[np.void],
    assignment: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> npt.NDArray[np.int64]:
    """Pairs of requests: one waits for its reservation, a smaller one from another prefill instance behind it."""
    p, d = assignment
    offered, reserved = records["prefill_end"], records["reserve"]
    waits = (offered[:, None] <= offered) & (offered < reserved[:, None]) & (offered[:, None] >= 0)
    apart = (d[:, None] == d) & (p[:, None] != p) & (trace.prompt[:, None] > trace.prompt)
    return np.argwhere(waits & apart)


def _magnified(
    rng: np.random.Generator,
    trace: Trace,
    cluster: Cluster,
    assignment: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> tuple[Trace, Cluster]:
    """All times become multiples of a large unit, but for arrivals 1 ps before or after one.

    Ties and near misses then happen where float64 no longer tells neighbouring integers apart.
    """
    unit = int(rng.choice([10**6 + 3, 10**9 + 7, 10**12 + 39]))
    near = rng.choice([-1, 0, 0, 1], MOST_REQUESTS)[: len(trace)]
    if rng.random() < 0.7:
        unit = _largest_unit(trace, cluster, assignment)
    while True:
        made = _at_unit(trace, cluster, unit, near)
        try:
            made[0].check_fits(made[1])
        except ValueError:  # what could happen at worst takes longer than what did happen
            assert unit > 1
            unit = unit // 2 | 1
        else:
            return made


def _at_unit(trace: Trace, cluster: Cluster, unit: int, near: npt.NDArray[np.int64]) -> tuple[Trace, Cluster]:
    arrival = np.maximum.accumulate(np.maximum(0, trace.arrival * unit + near))

    def magnified(engine: EngineSpec) -> EngineSpec:
        bases = ("base_decode", "base_prefill", "base_mixed", "batch")
        names = (*bases, "per_context", "per_token", "per_token_sq", "egress_per_block", "latency", "lease")
        return replace(engine, **{name: getattr(engine, name) * unit for name in names})

    return replace(trace, arrival=arrival), replace(
        cluster,
        prefill=tuple(map(magnified, cluster.prefill)),
        decode=tuple(map(magnified, cluster.decode)),
        mixed=tuple(map(magnified, cluster.mixed)),
        latency=None if cluster.latency is None else cluster.latency * unit,
        poll_interval=cluster.poll_interval * unit,
        events=tuple(replace(event, time=event.time * unit) for event in cluster.events),
    )


def _largest_unit(
    trace: Trace, cluster: Cluster, assignment: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
) -> int:
    """A unit with which the case lasts about 2^58 ps, so that no time leaves int64, however it is routed."""
    undisturbed = replace(cluster, events=())
    run = run_reference(trace, undisturbed, assignment=assignment, predicted=trace.output.astype(np.int64))
    spans = [cluster.poll_interval, *(event.time for event in cluster.events)]
    spans += [max(engine.lease, 30) for engine in cluster.instances]  # other constants are at most 30
    lasts = int(run.records["end"].max()) + max(spans)
    return min(2**58 // lasts, MAX_TIME_PS // (int(trace.arrival[-1]) + 1)) | 1


def _assignment(rng: np.random.Generator, cluster: Cluster) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    pools = (len(cluster.mixed or cluster.prefill), len(cluster.mixed or cluster.decode))
    columns: list[npt.NDArray[np.int64]] = []
    for size in pools:
        column = rng.integers(0, size, MOST_REQUESTS)
        column[rng.random(MOST_REQUESTS) < rng.choice([0, 0.5, 1])] = rng.integers(size)
        columns.append(column)
    return (columns[1], columns[1]) if cluster.aggregated else (columns[0], columns[1])


def _predicted(rng: np.random.Generator, trace: Trace) -> npt.NDArray[np.int64] | str:
    if rng.random() < 0.5:
        return str(rng.choice(LEARNING))
    wrong = trace.output * rng.lognormal(0, 1, len(trace))
    return np.maximum(1, np.round(wrong)).astype(np.int64)
