"""Times stay inside int64: what could leave it is refused in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.envs.cluster import MAX_TIME_PS, Cluster, ClusterEvent, EngineSpec
from disaggroute.envs.simulator import simulate
from disaggroute.envs.simulator.reference import run_reference
from disaggroute.envs.trace import Trace


def engine(**changes: Any) -> EngineSpec:
    constants = dict.fromkeys(("base_decode", "base_prefill", "base_mixed"), 10)
    constants |= dict.fromkeys(("per_context", "per_token", "egress_per_block", "latency"), 1)
    constants |= {"per_token_sq": 0, "block_size": 16, "num_blocks": 1000, "max_num_seqs": 4, "lease": 0}
    constants |= {"max_num_batched_tokens": 64, "max_model_len": 10_000}
    return EngineSpec(**{"batch": np.zeros(5, np.int64), **constants, **changes})  # type: ignore[arg-type]


def trace(**changes: Any) -> Trace:
    ones, zeros = np.ones(1, np.int64), np.zeros(1, np.int64)
    columns = dict.fromkeys(("prompt", "output", "ttft_target", "tpot_target"), ones)
    columns |= dict.fromkeys(("arrival", "slo", "family"), zeros)
    return Trace(**{**columns, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("base_decode", 1 << 62, "base_decode is 4611686018427387904; it must be at most 288230376151711744"),
        ("latency", 10**400, "latency is about 1e400; it must be at most"),
        ("per_token", 1.5, r"per_token is 1\.5; it must be a whole number"),
        ("per_token", float("nan"), "per_token is nan; it must be a whole number"),
        ("lease", -1, "lease is -1; it must be at least 0"),
        ("block_size", 1 << 20, "block_size is 1048576; it must be at most 65536"),
        ("num_blocks", None, "num_blocks is None; it must be a whole number"),
        ("max_num_seqs", 1 << 30, "max_num_seqs is 1073741824; it must be at most 131072"),
        ("batch", np.array([0, 1, 2, 3, -1]), "batch has dtype int64 and reaches from -1 to 3"),
        ("batch", np.zeros(5), "batch has dtype float64"),
    ],
)
def test_an_engine_out_of_range_is_refused(field: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^custom: {sentence}"):
        engine(**{field: value})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"poll_interval": 0}, "poll_interval is 0; it must be at least 1"),
        ({"routers": 1.5}, r"routers is 1\.5; it must be a whole number"),
        ({"routers": 0}, "routers is 0; it must be at least 1"),
        ({"routers": -1}, "routers is -1; it must be at least 1"),
        ({"routers": 9}, "routers is 9; it must be at most 8"),
        ({"dealing": "hash"}, "dealing is 'hash'; allowed are round-robin and random"),
        ({"first_token": "both"}, "first_token is 'both'; allowed are decode and prefill"),
        ({"on_kill": "wait"}, "on_kill is 'wait'; allowed are fail and reroute"),
        ({"latency": np.array([[1.0]])}, "latency has dtype float64; it must hold integers, in ps"),
        ({"latency": np.array([[1 << 60]])}, r"latency has shape \(1, 1\); .* between 0 and"),
        ({"events": (ClusterEvent(-1, 0, "kill"),)}, "time of the event on instance 0 is -1"),
    ],
)
def test_a_cluster_out_of_range_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^custom: {sentence}"):
        Cluster(prefill=(engine(),), decode=(engine(),), **fields)


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("arrival", np.array([0.5]), "arrival has dtype float64; it must hold integers"),
        ("arrival", 7, r"arrival has shape \(\)"),
        ("prompt", np.array([[1]]), r"prompt has shape \(1, 1\)"),
        ("prompt", np.array([1 << 31]), "prompt of request 0 is 2147483648; it must be at most 2147483647"),
        ("slo", np.array([300]), "slo of request 0 is 300"),
        ("ttft_target", np.array([1 << 62]), "ttft_target of request 0 is 4611686018427387904; it must be at"),
        ("tpot_target", np.array([-1]), "tpot_target of request 0 is -1; it must not be negative"),
    ],
)
def test_a_column_that_would_not_survive_the_conversion_is_refused(column: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^trace: {sentence}"):
        trace(**{column: value})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"base_decode": 1 << 57}, "a request of 40 output tokens could take"),
        ({"per_token_sq": 1 << 57}, "a request of 30 prompt tokens could take"),
        ({"egress_per_block": 1 << 58}, "sending 10 KV blocks could take"),
        ({"batch": np.array([0, 0, 0, 0, 1 << 57])}, "40 steps of 4 sequences could take"),
    ],
)
def test_an_engine_so_slow_that_times_would_overflow_is_refused(changes: Any, sentence: str) -> None:
    several = np.zeros(5, np.int64)
    requests = Trace(several, several + 30, several + 40, several, several, several + 1, several + 1)  # type: ignore[arg-type]
    slow = engine(**changes)
    with pytest.raises(ValueError, match=sentence):
        simulate(requests, Cluster(prefill=(slow,), decode=(slow,)), assignment=(several, several))


def test_a_run_that_outlasts_int64_ends_in_a_sentence() -> None:
    slow = engine(base_decode=1 << 54, max_num_seqs=1, batch=np.zeros(2, np.int64))
    many = np.zeros(300, np.int64)
    requests = Trace(many + MAX_TIME_PS, many + 5, many + 2, many, many, many + 1, many + 1)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"requests are still in flight after 105 days"):
        simulate(requests, Cluster(prefill=(slow,), decode=(slow,)), assignment=(many, many))


def test_the_largest_times_give_what_the_reference_gives() -> None:
    slow = engine(base_decode=1 << 50, base_prefill=1 << 51, per_context=1 << 40, per_token=1 << 45)
    few = np.zeros(8, np.int64)
    requests = Trace(np.linspace(0, 1 << 60, 8).astype(np.int64), few + 30, few + 9, few, few, few + 1, few + 1)  # type: ignore[arg-type]
    cluster = Cluster(prefill=(slow,), decode=(slow,))
    found = simulate(requests, cluster, assignment=(few, few), predictor="oracle").records
    wanted = run_reference(requests, cluster, assignment=(few, few), predicted=requests.output.astype(np.int64))
    assert (found == wanted.records).all()


@pytest.mark.parametrize("predictor", [5, None, np.zeros(1), np.array([1 << 40])])
def test_a_predictor_of_another_kind_is_refused(predictor: Any) -> None:
    pair = Cluster(prefill=(engine(),), decode=(engine(),))
    with pytest.raises(ValueError, match=r"^predict(or is|ed has)"):
        simulate(trace(), pair, assignment=([0], [0]), predictor=predictor)
    with pytest.raises(ValueError, match="assignment: prefill has dtype float64; it must hold integers"):
        simulate(trace(), pair, assignment=([0.0], [0]))


@pytest.mark.parametrize("egress", [1, 10**14])
def test_sending_is_judged_by_all_requests_together(egress: int) -> None:
    """One request alone would be sent in time; so would a trace of small ones, but not of all these."""
    slow = Cluster((engine(egress_per_block=egress, num_blocks=1 << 16),), (engine(),))
    many = np.full(40_000, 16, np.int64)
    columns = dict.fromkeys(("output", "ttft_target", "tpot_target"), np.ones(40_000, np.int64))
    columns |= dict.fromkeys(("arrival", "slo", "family"), np.zeros(40_000, np.int64))
    trace(prompt=many[:1]).check_fits(slow)
    if egress == 1:
        trace(prompt=many, **columns).check_fits(slow)
    else:
        with pytest.raises(ValueError, match="sending 40000 KV blocks could take"):
            trace(prompt=many, **columns).check_fits(slow)
