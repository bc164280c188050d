"""What the reference's routers see, with values computed by hand from docs/model.md."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.envs.cluster import Cluster, ClusterEvent
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator.reference import Admission, ReferenceRun, run_reference

from .scenarios import LOOSE, TIGHT, assign, engine, requests, times


def prefill_seen(run: ReferenceRun, decision: int, instance: int = 0) -> dict[str, int]:
    return dict(zip(PREFILL_VIEW, run.prefill_views[decision, instance].tolist(), strict=True))


def decode_seen(run: ReferenceRun, decision: int, instance: int = 0) -> dict[str, int]:
    return dict(zip(DECODE_VIEW, run.decode_views[decision, instance].tolist(), strict=True))


def test_the_ledger_follows_a_request_from_admission_to_its_last_token() -> None:
    run = run_reference(
        requests((0, 4, 3), (1, 5, 1), (42, 4, 1), (62, 4, 1), slo=[TIGHT, LOOSE, LOOSE, LOOSE]),
        Cluster(prefill=(engine(), engine()), decode=(engine(), engine())),
        assignment=assign((0, 0), (1, 1), (1, 1), (1, 1)),
        predicted=np.array([2, 9, 9, 9]),
    )
    # The first: prefill 0–24, tokens at 42, 52, 62.
    before = prefill_seen(run, 0)
    assert (before["queued"], before["queued_tokens"], before["queued_strict"]) == (0, 0, 0)
    admitted = prefill_seen(run, 1)
    assert (admitted["queued"], admitted["queued_tokens"], admitted["queued_strict"]) == (1, 4, 1)
    admitted = decode_seen(run, 1)
    assert (admitted["in_flight"], admitted["pending"], admitted["strict"]) == (1, 1, 1)
    assert (admitted["committed"], admitted["committed_output"]) == (6, 2)
    assert (admitted["remaining_output"], admitted["context"]) == (2, 4)
    # At 42 its first token is out: step ends precede arrivals.
    decoding = decode_seen(run, 2)
    assert prefill_seen(run, 2)["queued"] == 0
    assert (decoding["in_flight"], decoding["pending"], decoding["committed"]) == (1, 0, 6)
    assert (decoding["remaining_output"], decoding["context"]) == (1, 5)
    # At 62 it is over.
    assert list(decode_seen(run, 3).values())[:7] == [0] * 7


def test_remaining_output_never_falls_below_zero() -> None:
    run = run_reference(
        requests((0, 4, 9), (72, 4, 1)),
        Cluster(prefill=(engine(),), decode=(engine(),)),
        assignment=assign((0, 0), (0, 0)),
        predicted=np.array([2, 2]),
    )
    seen = decode_seen(run, 1)  # tokens at 42, 52, 62, 72
    assert (seen["remaining_output"], seen["committed_output"], seen["context"]) == (0, 2, 8)


def test_the_prefills_token_counts_as_output_but_the_request_stays_pending() -> None:
    run = run_reference(
        requests((0, 8, 3), (30, 4, 1), (58, 4, 1)),
        Cluster(prefill=(engine(),), decode=(engine(per_context=1),), first_token="prefill", poll_interval=1),
        assignment=assign((0, 0), (0, 0), (0, 0)),
        predicted=np.array([5, 5, 5]),
    )
    # Token 1 at 28, blocks(9) reserved at 28, in transit until 39, token 2 at 58. The second's prompt is
    # prefilled 30–54 and ends there.
    seen = decode_seen(run, 1)
    assert (seen["in_flight"], seen["pending"], seen["remaining_output"], seen["context"]) == (1, 1, 4, 9)
    assert (seen["used"], seen["running"], seen["waiting"]) == (3, 0, 1)
    assert prefill_seen(run, 1)["queued"] == 0
    assert prefill_seen(run, 1)["used"] == 2
    seen = decode_seen(run, 2)
    assert (seen["in_flight"], seen["pending"], seen["remaining_output"], seen["context"]) == (1, 0, 3, 10)


def test_a_poll_shows_the_state_before_its_tick() -> None:
    def polled(interval: int, arrival: int) -> tuple[int, tuple[int, int, int]]:
        run = run_reference(
            requests((0, 9, 1), (arrival, 4, 1)),
            Cluster(prefill=(engine(max_num_batched_tokens=8),), decode=(engine(),), poll_interval=interval),
            assignment=assign((0, 0), (0, 0)),
        )
        seen = prefill_seen(run, 1)
        return int(run.poll_times[1]), (seen["used"], seen["running"], seen["waiting"])

    # Prefill steps 0–28 (8 tokens, 2 blocks) and 28–49 (1 token, a third block); in transit 49–63.
    assert polled(interval=10, arrival=9) == (0, (0, 0, 0))
    assert polled(interval=10, arrival=10) == (10, (2, 1, 0))
    assert polled(interval=28, arrival=28) == (28, (2, 1, 0))
    assert polled(interval=29, arrival=29) == (29, (3, 1, 0))
    assert polled(interval=49, arrival=60) == (49, (3, 1, 0))
    assert polled(interval=50, arrival=60) == (50, (3, 0, 0))
    assert polled(interval=63, arrival=63) == (63, (3, 0, 0))
    assert polled(interval=64, arrival=64) == (64, (0, 0, 0))


def test_polled_waiting_counts_offered_in_transit_and_arrived_requests() -> None:
    run = run_reference(
        requests((0, 4, 2), (0, 4, 2), (0, 4, 2), (0, 4, 2), (40, 4, 1), (45, 4, 1)),
        Cluster(prefill=(engine(),), decode=(engine(num_blocks=3),), poll_interval=1),
        assignment=assign(*[(0, 0)] * 6),
    )
    # Prompts end at 36. Three of four get a block; served 36, 39, 42; transfers end at 44, 47, 50.
    seen = decode_seen(run, 4)
    assert (seen["used"], seen["running"], seen["waiting"]) == (3, 0, 4)
    seen = decode_seen(run, 5)
    assert (seen["used"], seen["running"], seen["waiting"]) == (3, 1, 3)


def test_an_instance_that_is_down_reports_zeros_at_the_next_poll() -> None:
    run = run_reference(
        requests((0, 4, 9), (50, 4, 1), (61, 4, 1)),
        Cluster(
            prefill=(engine(),),
            decode=(engine(), engine()),
            poll_interval=20,
            events=(ClusterEvent(50, 1, "kill"),),
        ),
        assignment=assign((0, 0), (0, 1), (0, 1)),
    )
    stale = decode_seen(run, 1)
    assert (stale["in_flight"], stale["used"], stale["running"], stale["available"]) == (0, 1, 1, 0)
    fresh = decode_seen(run, 2)
    assert (fresh["used"], fresh["running"], fresh["waiting"]) == (0, 0, 0)


def test_a_mixed_instance_has_both_views_of_one_poll() -> None:
    run = run_reference(
        requests((0, 4, 3), (10, 6, 2), (30, 4, 1)),
        Cluster(mixed=(engine(per_context=1),), poll_interval=1),
        assignment=assign(*[(0, 0)] * 3),
        predicted=np.array([5, 5, 5]),
    )
    # The first emits at 24; at 30 it decodes (2 blocks) beside the second's prefill (2 blocks).
    prefill, decode = prefill_seen(run, 2), decode_seen(run, 2)
    assert (prefill["queued"], prefill["queued_tokens"]) == (1, 6)
    assert (decode["in_flight"], decode["pending"], decode["context"]) == (2, 1, 11)
    for seen in (prefill, decode):
        assert (seen["used"], seen["running"], seen["waiting"]) == (4, 2, 0)


def test_routers_take_turns_and_know_only_their_own_requests() -> None:
    run = run_reference(
        requests(*[(0, 4, 2)] * 4),
        Cluster(prefill=(engine(),), decode=(engine(),), routers=2),
        assignment=assign(*[(0, 0)] * 4),
    )
    assert times(run, "router") == [0, 1, 0, 1]
    assert run.prefill_views[:, 0, 0].tolist() == [0, 0, 1, 1]


def test_a_route_sees_what_is_recorded() -> None:
    seen: list[Admission] = []

    def route(admission: Admission) -> tuple[int, int]:
        seen.append(admission)
        return 0, admission.index % 2

    run = run_reference(
        requests((0, 4, 3), (30, 5, 1), slo=[TIGHT, LOOSE]),
        Cluster(prefill=(engine(),), decode=(engine(), engine()), poll_interval=7),
        route=route,
        predicted=np.array([3, 8]),
    )
    assert [(a.index, a.now, a.prompt, a.predicted, a.slo, a.poll_time) for a in seen] == [
        (0, 0, 4, 3, TIGHT, 0),
        (1, 30, 5, 8, LOOSE, 28),
    ]
    assert times(run, "decode") == [0, 1]
    assert np.array_equal(run.decode_views[1], seen[1].decode_view)


LATE = 1_000_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Learnt: 4 → 2 (tight), 8 → 7 (tight), 8 → 8 (loose). In turn: a seen key, an unseen key of a seen
        # class, and an unseen prompt length of the loose class. Means round half up: (7 + 8) / 2 = 8.
        ("bucket", [7, 5, 8]),  # (2 + 7) / 2 rounds to 5
        ("prompt-bucket", [8, 6, 6]),  # 17 / 3 = 5.67
        # n = 3, Σp = 20, Σo = 17, Σp² = 144, Σpo = 128: b = 44 / 32 = 1.375, a = −3.5.
        ("prompt-regression", [9, 19, 1]),  # at 9: 8.875 + ½; at 16: 18.5 + ½; at 1: −2.125
    ],
)
def test_predictors_learn_from_finished_requests(name: str, expected: list[int]) -> None:
    run = run_reference(
        requests(
            (0, 4, 2), (0, 8, 7), (0, 8, 8), (LATE, 9, 1), (LATE, 16, 1), (LATE, 1, 1),
            slo=[TIGHT, TIGHT, LOOSE, TIGHT, TIGHT, LOOSE],
        ),
        Cluster(prefill=(engine(),), decode=(engine(),)),
        assignment=assign(*[(0, 0)] * 6),
        predicted=name,
    )  # fmt: skip
    assert run.predicted.tolist() == [128, 128, 128, *expected]
    assert times(run, "predicted") == [128, 128, 128, *expected]


def test_an_unknown_predictor_is_refused() -> None:
    with pytest.raises(ValueError, match="predicted is 'median'; allowed are bucket"):
        run_reference(
            requests((0, 4, 2)),
            Cluster(prefill=(engine(),), decode=(engine(),)),
            assignment=assign((0, 0)),
            predicted="median",
        )
