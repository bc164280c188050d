"""Features: one formula for admissions, logs and compiled code, in documented units."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from rich.console import Console

from disaggroute.envs import features as F
from disaggroute.envs import router_constants
from disaggroute.envs.cluster import PS_PER_S, Cluster, EngineSpec
from disaggroute.envs.feature_arrays import FeatureArrays, Moments
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator import Simulator, simulate

from ..differential.cases import Case, random_case

MS = PS_PER_S // 1000
US = MS // 1000


def engine(**changes: Any) -> EngineSpec:
    """13 ms + 0.03 ms·B + 0.05 µs·K; prefill 10 ms + 0.05 ms·n + 2 ns·n²; 1,000 blocks of 16 tokens."""
    fields: dict[str, Any] = {
        "base_decode": 13 * MS,
        "base_prefill": 10 * MS,
        "base_mixed": 13 * MS,
        "batch": np.arange(33) * 30 * US,
        "per_context": US // 20,
        "per_token": 50 * US,
        "per_token_sq": 2 * US // 1000,
        "block_size": 16,
        "num_blocks": 1000,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 8192,
        "max_model_len": 10_000,
        "egress_per_block": US,
        "latency": MS,
        "lease": PS_PER_S,
    }
    return EngineSpec(**(fields | changes))


PAIR = Cluster(prefill=(engine(), engine()), decode=(engine(), engine(num_blocks=500), engine()))
MOMENT = Moments(
    prompt=500,
    predicted=200,
    slo=0,
    ttft_target=175 * MS,
    tpot_target=40 * MS,
    now=1_030 * MS,
    poll_time=1_000 * MS,
    last=900 * MS,
)


def in_units(array: Any, columns: tuple[F.Feature, ...]) -> dict[str, float]:
    """One row by name, with the divisors taken back."""
    assert array.dtype == np.float32 and array.shape == (len(columns),)
    return {c.name: float(x) * c.scale for c, x in zip(columns, array.tolist(), strict=True)}


def prefill_view(**values: int) -> list[int]:
    return [values.get(name, 0) for name in PREFILL_VIEW]


def decode_view(**values: int) -> list[int]:
    return [values.get(name, 0) for name in DECODE_VIEW]


def test_the_request_is_told_in_tokens_and_seconds() -> None:
    found = in_units(FeatureArrays.of_cluster(PAIR).request(MOMENT), F.REQUEST)
    expected = {"prompt": 500, "predicted": 200, "tight": 1, "ttft_target": 0.175, "tpot_target": 0.04}
    assert found == pytest.approx(expected | {"since_last": 0.13}, rel=1e-6)


def test_the_first_admission_has_no_time_since_the_last() -> None:
    first = Moments(**{**vars(MOMENT), "last": -1})
    assert in_units(FeatureArrays.of_cluster(PAIR).request(first), F.REQUEST)["since_last"] == 0


def test_a_prefill_instance_is_told_by_hand_made_numbers() -> None:
    view = prefill_view(
        queued=3, queued_tokens=4000, queued_strict=1, used=250, running=2, waiting=1, available=1
    )
    found = FeatureArrays.of_cluster(PAIR).prefill(np.array([prefill_view(), view]), MOMENT)
    tau = (10 + 0.05 * 1000 + 2e-6 * 1000**2) / 1000 / 1000
    work, own = 4000 * tau, (10 + 0.05 * 500 + 2e-6 * 500**2) / 1000
    assert in_units(found[1], F.PREFILL) == pytest.approx(
        {
            "queued": 3,
            "queued_strict": 1,
            "queued_ratio": 4000 / 16_000,
            "queued_work": work,
            "own_prefill": own,
            "prefill_ratio": (work + own) / 0.175,
            "polled_usage": 0.25,
            "polled_running": 2,
            "polled_waiting": 1,
            "poll_age": 0.03,
            "tau_prefill": tau,
            "tau_decode": (13 + 16 * 0.03 + 16 * 1024 * 5e-5) / 1000,
            "kv_capacity": 16_000,
            "base_prefill": 0.01,
            "per_token": 5e-5,
            "per_token_sq": 2e-9,
            "base_decode": 0.013,
            "per_sequence": 3e-5,
            "per_context": 5e-8,
            "role": -1,
            "index": 1,
            "available": 1,
        },
        rel=1e-5,
    )


def test_a_decode_instance_is_told_by_hand_made_numbers() -> None:
    view = decode_view(
        in_flight=4,
        pending=1,
        committed=3000,
        committed_output=900,
        remaining_output=600,
        context=2400,
        strict=2,
        used=100,
        running=3,
        waiting=1,
        available=0,
    )
    found = FeatureArrays.of_cluster(PAIR).decode(np.array([decode_view(), view, decode_view()]), MOMENT)
    tau = (13 + 16 * 0.03 + 16 * 1024 * 5e-5) / 1000
    step = (13 + 5 * 0.03 + (2400 + 500) * 5e-5) / 1000
    row = in_units(found[1], F.DECODE)
    assert {name: row[name] for name in list(row)[:14]} == pytest.approx(
        {
            "in_flight": 4,
            "pending": 1,
            "strict": 2,
            "committed_ratio": 3000 / 8000,
            "context_ratio": 2400 / 8000,
            "pressure": 3700 / 8000,
            "committed_work": 900 * tau,
            "remaining_work": 600 * tau,
            "projected_step": step,
            "step_ratio": step / 0.04,
            "polled_usage": 100 * 16 / 8000,
            "polled_running": 3,
            "polled_waiting": 1,
            "poll_age": 0.03,
        },
        rel=1e-5,
    )
    assert (row["role"], row["index"], row["available"]) == (1, 0.5, 0)


def test_the_projected_step_is_the_step_that_the_engine_would_make() -> None:
    e = engine()
    view = decode_view(in_flight=9, context=4321)
    found = FeatureArrays.of_cluster(PAIR).decode(np.array([view] * 3), MOMENT)
    step = in_units(found[0], F.DECODE)["projected_step"]
    assert step == pytest.approx(e.step_time(10, 4321 + 500) / PS_PER_S, rel=1e-6)


def test_wrong_constants_change_what_the_router_believes_and_nothing_else() -> None:
    exact = router_constants.from_cluster(PAIR)
    views = np.array([decode_view(in_flight=4, committed_output=900, context=10)] * 3)
    right = in_units(FeatureArrays.of_cluster(PAIR).decode(views, MOMENT)[0], F.DECODE)
    wrong = in_units(FeatureArrays(exact.scaled(0.5), 16).decode(views, MOMENT)[0], F.DECODE)
    halved = {name for name in right if wrong[name] == pytest.approx(right[name] / 2) and right[name]}
    times = {"tau_prefill", "tau_decode", "base_prefill", "per_token", "per_token_sq", "base_decode"}
    times |= {"per_sequence", "per_context", "committed_work", "projected_step", "step_ratio"}
    assert halved == times
    assert all(wrong[name] == right[name] for name in right.keys() - times)


def all_seen(case: Case) -> tuple[Any, Any, dict[str, np.ndarray[Any, Any]]]:
    """The run's log, its records, and the features of every admission, one at a time."""
    arrays = FeatureArrays.of_cluster(case.cluster)
    predicted = np.ones(len(case.trace), np.int32) * 7
    simulator = Simulator(case.cluster, case.trace, predicted=predicted, log_decisions=True)
    last = dict.fromkeys(range(case.cluster.routers), -1)
    rows: dict[str, list[Any]] = {}
    wish = dict(enumerate(zip(*case.assignment, strict=True)))
    while simulator.run():
        admission = simulator.admission()
        for name, array in arrays.of_admission(admission, last[admission.router]).items():
            rows.setdefault(name, []).append(array)
        last[admission.router] = admission.now
        p, d = (int(i) for i in wish[admission.index])
        simulator.send(p, d)
    return simulator.decisions, simulator.records, {name: np.stack(found) for name, found in rows.items()}


@pytest.mark.parametrize("seed", range(12))
def test_a_decision_log_gives_the_features_of_the_chosen_pair(seed: int) -> None:
    case = random_case(seed, failures=False, aggregated=seed % 4 == 0)
    decisions, records, seen = all_seen(case)
    assert (decisions["decode"] == records[decisions["request"]]["decode"]).all()
    found = FeatureArrays.of_cluster(case.cluster).of_decisions(decisions, case.trace, records["router"])
    at = np.arange(len(decisions))
    expected = {"request": seen["request"]}
    for role, index in (("prefill", "prefill"), ("decode", "decode"), ("mixed", "decode")):
        if role in seen:
            expected[role] = seen[role][at, decisions[index]]
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_views_of_many_admissions_give_what_each_gives_alone(seed: int) -> None:
    case = random_case(seed, failures=False, aggregated=False, requests=20)
    decisions, records, seen = all_seen(case)
    arrays = FeatureArrays.of_cluster(case.cluster)
    predicted = np.ones(len(case.trace), np.int32) * 7
    run = simulate(case.trace, case.cluster, assignment=case.assignment, predictor=predicted, observe=True)
    moments = Moments.of_decisions(decisions, case.trace, records["router"])
    np.testing.assert_array_equal(arrays.prefill(run.prefill_views, moments), seen["prefill"])
    np.testing.assert_array_equal(arrays.decode(run.decode_views, moments), seen["decode"])


def test_compiled_code_gives_the_same_bits_from_the_same_formula() -> None:
    row = numba.njit(error_model="numpy")(F.mixed_row)
    rng = np.random.default_rng(0)
    cluster = Cluster(mixed=(engine(), engine(num_blocks=333)))
    arrays = FeatureArrays.of_cluster(cluster)
    prefill, decode = rng.integers(0, 5000, (2, 7)), rng.integers(0, 5000, (2, 11))
    found = arrays.mixed(prefill, decode, MOMENT)
    for m in range(2):
        first, view = (tuple(map(float, v[m])) for v in (prefill, decode))
        about = tuple(arrays.about[:, m].tolist())
        values = row(first, view, 500.0, 200.0, 0.175, 0.04, 0.03, about)
        scaled = (np.array(values) / F.scales(F.MIXED)).astype(np.float32)
        np.testing.assert_array_equal(scaled, found[m])


def test_usual_values_are_of_order_one() -> None:
    arrays = FeatureArrays.of_cluster(PAIR)
    busy = decode_view(in_flight=30, pending=5, committed=9000, committed_output=6000, remaining_output=3000)
    for array in (arrays.request(MOMENT), arrays.decode(np.array([busy] * 3), MOMENT)):
        assert 0 < float(np.abs(array).max()) < 5


def test_names_are_unique_and_every_column_is_explained() -> None:
    for columns in (F.REQUEST, F.PREFILL, F.DECODE, F.MIXED):
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
        assert all(column.meaning and column.unit and column.scale > 0 for column in columns)


def test_the_description_shows_every_column() -> None:
    console = Console(width=160, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(F.describe())
    text = capture.get()
    assert all(column.name in text for column in (*F.REQUEST, *F.PREFILL, *F.DECODE))


def test_features_of_the_wrong_role_are_refused() -> None:
    arrays = FeatureArrays.of_cluster(Cluster(mixed=(engine(),)))
    with pytest.raises(ValueError, match="role is decode; this cluster has mixed instances"):
        arrays.decode(np.array([decode_view()]), MOMENT)
    with pytest.raises(ValueError, match="role is mixed; this cluster has prefill and decode instances"):
        FeatureArrays.of_cluster(PAIR).mixed(np.array([prefill_view()]), np.array([decode_view()]), MOMENT)


def test_views_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"views have shape \(3, 7\); the last two sizes must be \(3, 11\)"):
        FeatureArrays.of_cluster(PAIR).decode(np.zeros((3, 7), np.int64), MOMENT)


def test_a_pair_outside_the_pools_is_refused() -> None:
    case = random_case(1, failures=False, aggregated=False)
    decisions, _, _ = all_seen(case)
    decisions = decisions.copy()
    decisions["decode"][-1] = 99
    with pytest.raises(ValueError, match="decisions: decode is 99; allowed are 0 to"):
        FeatureArrays.of_cluster(case.cluster).of_decisions(decisions, case.trace)
