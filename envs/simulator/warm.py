"""Compiling the core ahead of use, so that worker processes find it in the cache."""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster, EngineSpec
from ..router_constants import from_cluster
from ..trace import Trace
from .engine import Engine
from .router_state import RouterState
from .simulate import simulate
from .simulator import Simulator


def tiny_engine() -> EngineSpec:
    """An engine with round constants, for a first run."""
    return EngineSpec(
        base_decode=10,
        base_prefill=10,
        base_mixed=10,
        batch=np.zeros(9, np.int64),
        per_context=1,
        per_token=1,
        per_token_sq=0,
        block_size=16,
        num_blocks=100,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=1000,
        egress_per_block=1,
        latency=1,
        lease=10,
    )


def tiny_trace() -> Trace:
    """Three requests."""
    times, tokens, classes = np.ones(3, np.int64), np.full(3, 8, np.int32), np.zeros(3, np.int8)
    return Trace(times, tokens, tokens, classes, classes, 1000 * times, 100 * times)


def tiny_cluster() -> Cluster:
    """A prefill and a decode instance."""
    return Cluster(prefill=(tiny_engine(),), decode=(tiny_engine(),))


def warm_up() -> None:
    """Runs every compiled entry point of the simulator once."""
    cluster = tiny_cluster()
    trace = tiny_trace()
    zeros = np.zeros(3, np.int64)
    simulate(trace, cluster, assignment=(zeros, zeros))
    simulate(trace, cluster, assignment=(zeros, zeros), observe=True)
    Simulator(cluster, trace, learns="bucket").clone()
    warm_up_router()
    warm_up_engine()


def warm_up_router() -> None:
    """Runs every compiled entry point of a live router's state once."""
    cluster = tiny_cluster()
    constants = from_cluster(cluster)
    state = RouterState(cluster, constants)
    state.ask(8, 0, 1_000, 100, 0)
    state.withdraw()
    handles = []
    for _ in range(2):
        state.ask(8, 0, 1_000, 100, 0)
        handles.append(state.send(0, 0))
    state = state.resized(cluster, constants, {0: 0, 1: 1})
    state.prefill_done(handles[0])
    state.first_token(handles[0])
    state.token(handles[0])
    state.finished(handles[0], 2)
    state.failed(handles[1])
    state.set_open(0, True)
    state.snapshot()


def warm_up_engine() -> None:
    """Runs every compiled entry point of an engine that is driven alone."""
    spec = tiny_engine()
    prefill = Engine(spec, "prefill")
    prefill.submit("held", 4, 4, 0)
    prefill.advance(1000)
    prefill.release("held", 1000)
    decode = Engine(spec, "decode")
    decode.submit("pulled", 4, 40, 0)
    decode.advance(0)
    decode.pulled("pulled", 10)
    decode.advance(30)
    decode.next_token_time()
    decode.tokens("pulled", 30)
    decode.usage(31)
    decode.abort("pulled", 31)
    decode.submit("waiting", 4, 40, 31)
    decode.abort("waiting", 31)
