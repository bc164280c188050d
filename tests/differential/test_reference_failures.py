"""Kills, drains and returns in the reference, with times computed by hand from docs/model.md."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.envs.cluster import Cluster, ClusterEvent
from disaggroute.envs.records import FAILED, FINISHED, REJECTED
from disaggroute.envs.simulator.reference import run_reference

from .scenarios import assign, engine, requests, times


def test_a_killed_decode_instance_leaves_the_prefill_blocks_held_for_the_lease() -> None:
    cluster = Cluster(
        prefill=(engine(num_blocks=1),), decode=(engine(), engine()), events=(ClusterEvent(30, 1, "kill"),)
    )
    run = run_reference(requests((0, 4, 2), (31, 4, 2)), cluster, assignment=assign((0, 0), (0, 1)))
    # The first's prompt ends at 24 and is in transit 24–32 when its decode instance dies at 30. The only
    # prefill block is held until 24 + 50. The second: 74 + 24 + 3 + 5 + 10 + 10 = 126.
    assert times(run, "status") == [FAILED, FINISHED]
    assert times(run, "end") == [30, 126]
    assert times(run, "prefill_start") == [0, 74]


def test_a_lease_that_is_over_frees_the_blocks_at_the_kill() -> None:
    cluster = Cluster(
        prefill=(engine(num_blocks=1, lease=2),),
        decode=(engine(), engine()),
        events=(ClusterEvent(30, 1, "kill"),),
    )
    run = run_reference(requests((0, 4, 2), (29, 4, 2)), cluster, assignment=assign((0, 0), (0, 1)))
    assert times(run, "prefill_start") == [0, 30]  # max(30, 24 + 2)


def test_a_transfer_that_is_cut_short_has_started_but_not_ended() -> None:
    cluster = Cluster(prefill=(engine(),), decode=(engine(), engine()), events=(ClusterEvent(30, 1, "kill"),))
    run = run_reference(requests((0, 4, 2), (0, 4, 2)), cluster, assignment=assign((0, 0), (0, 0)))
    # Prompts end at 28; served 28–31 and 31–34; the kill at 30 comes before the second service.
    assert times(run, "reserve") == [28, 28]
    assert times(run, "transfer_start") == [28, -1]
    assert times(run, "transfer_end") == [-1, -1]
    assert times(run, "end") == [30, 30]


def test_bookings_of_the_egress_server_stand_when_the_decode_instance_dies() -> None:
    cluster = Cluster(
        prefill=(engine(egress_per_block=20),),
        decode=(engine(), engine()),
        events=(ClusterEvent(30, 1, "kill"),),
    )
    run = run_reference(requests((0, 4, 1), (0, 4, 1)), cluster, assignment=assign((0, 0), (0, 1)))
    # Prompts end at 28. The first's service 28–48 was booked; the second's follows.
    assert times(run, "transfer_start") == [28, 48]


def test_a_request_in_prefill_is_lost_when_its_prompt_ends_and_the_decode_instance_is_down() -> None:
    down = Cluster(prefill=(engine(),), decode=(engine(), engine()), events=(ClusterEvent(5, 1, "kill"),))
    run = run_reference(requests((0, 4, 1)), down, assignment=assign((0, 0)))
    assert (times(run, "prefill_end"), times(run, "end"), times(run, "status")) == ([24], [24], [FAILED])
    back = Cluster(
        prefill=(engine(),),
        decode=(engine(), engine()),
        events=(ClusterEvent(5, 1, "kill"), ClusterEvent(23, 1, "return")),
    )
    run = run_reference(requests((0, 4, 1)), back, assignment=assign((0, 0)))
    assert (times(run, "end"), times(run, "status")) == ([42], [FINISHED])


def test_a_killed_decode_instance_loses_the_tokens_of_its_step() -> None:
    cluster = Cluster(prefill=(engine(),), decode=(engine(),), events=(ClusterEvent(51, 1, "kill"),))
    run = run_reference(requests((0, 4, 9)), cluster, assignment=assign((0, 0)))
    # Tokens at 42 and 52; the kill comes before the second.
    row = run.records[0]
    assert (row["generated"], row["first_token"], row["last_token"], row["end"]) == (1, 42, 42, 51)
    later = Cluster(prefill=(engine(),), decode=(engine(),), events=(ClusterEvent(52, 1, "kill"),))
    run = run_reference(requests((0, 4, 9)), later, assignment=assign((0, 0)))
    assert run.records[0]["generated"] == 2  # step ends precede kills


def test_a_killed_prefill_instance_takes_its_offers_and_reservations_with_it() -> None:
    cluster = Cluster(
        prefill=(engine(max_num_seqs=1), engine()),
        decode=(engine(num_blocks=2),),
        latency=np.array([[100], [5]]),
        events=(ClusterEvent(60, 0, "kill"),),
    )
    run = run_reference(
        requests((0, 8, 1), (0, 8, 1), (5, 4, 1), (6, 4, 1), (7, 8, 1)),
        cluster,
        assignment=assign((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)),
    )
    # The first reserves both blocks at 28 and is in transit until 134; the second waits for them. The third
    # (prefilled 28–52) is offered behind it; the fourth is being prefilled 52–76; the fifth is queued.
    # At 60 all on prefill 0 are lost; the freed blocks let the second in: pull 60–71, token at 81.
    assert times(run, "status") == [FAILED, FINISHED, FAILED, FAILED, FAILED]
    assert times(run, "end") == [60, 81, 60, 60, 60]
    assert times(run, "reserve") == [28, 60, -1, -1, -1]
    assert times(run, "prefill_end") == [28, 28, 52, -1, -1]
    assert times(run, "prefill_start") == [0, 0, 28, 52, -1]


def test_transferred_requests_outlive_their_prefill_instance() -> None:
    cluster = Cluster(prefill=(engine(), engine()), decode=(engine(),), events=(ClusterEvent(32, 0, "kill"),))
    run = run_reference(requests((0, 4, 2)), cluster, assignment=assign((0, 0)))
    assert times(run, "transfer_end") == [32]  # transfer ends precede kills
    assert times(run, "status") == [FINISHED]


def test_a_returned_prefill_instance_is_empty_and_its_egress_free() -> None:
    cluster = Cluster(
        prefill=(engine(num_blocks=2, egress_per_block=500),),
        decode=(engine(),),
        events=(ClusterEvent(40, 0, "kill"), ClusterEvent(40, 0, "return")),
    )
    run = run_reference(requests((0, 8, 1), (40, 8, 1)), cluster, assignment=assign((0, 0), (0, 0)))
    assert times(run, "status") == [FAILED, FINISHED]
    assert times(run, "prefill_start") == [0, 40]
    assert times(run, "transfer_start") == [28, 68]


def test_a_lease_ends_with_the_instance_that_held_it() -> None:
    cluster = Cluster(
        prefill=(engine(num_blocks=2),),
        decode=(engine(), engine()),
        events=(
            ClusterEvent(30, 1, "kill"),
            ClusterEvent(40, 0, "kill"),
            ClusterEvent(41, 0, "return"),
        ),
    )
    run = run_reference(requests((0, 8, 1), (42, 8, 1)), cluster, assignment=assign((0, 0), (0, 1)))
    assert times(run, "prefill_start") == [0, 42]


def test_a_lost_request_without_a_token_is_routed_again() -> None:
    cluster = Cluster(
        prefill=(engine(num_blocks=2),),
        decode=(engine(), engine()),
        on_kill="reroute",
        events=(ClusterEvent(30, 1, "kill"),),
    )
    run = run_reference(requests((0, 4, 2)), cluster, assignment=assign((0, 0)))
    # In transit at 30. Again: prefill 30–54, pull 54–57–62, tokens at 72 and 82.
    row = run.records[0]
    assert (row["arrival"], row["prefill_start"], row["prefill_end"]) == (0, 30, 54)
    assert (row["transfer_end"], row["end"], row["status"]) == (62, 82, FINISHED)
    assert (row["reroutes"], row["decode"]) == (1, 1)
    assert run.decisions.tolist() == [0, 0]
    assert run.decode_views[1, :, -1].tolist() == [0, 1]
    assert run.decode_views[1, :, 0].tolist() == [0, 0]  # the first attempt has left the ledger


def test_a_lost_request_with_a_token_fails_even_where_others_are_routed_again() -> None:
    cluster = Cluster(
        prefill=(engine(),),
        decode=(engine(), engine()),
        on_kill="reroute",
        events=(ClusterEvent(45, 1, "kill"),),
    )
    run = run_reference(requests((0, 4, 9), (40, 4, 1)), cluster, assignment=assign((0, 0), (0, 0)))
    # The first has had its token at 42. The second's prompt ends at 64, its decode instance is down.
    assert times(run, "status") == [FAILED, FINISHED]
    assert times(run, "reroutes") == [0, 1]
    assert times(run, "prefill_start") == [0, 64]


def test_rerouted_requests_come_before_arrivals_by_index() -> None:
    cluster = Cluster(
        prefill=(engine(), engine()),
        decode=(engine(),),
        on_kill="reroute",
        events=(ClusterEvent(10, 0, "kill"),),
    )
    run = run_reference(
        requests((0, 4, 1), (0, 4, 1), (10, 4, 1)), cluster, assignment=assign((0, 0), (0, 0), (1, 0))
    )
    assert run.decisions.tolist() == [0, 1, 0, 1, 2]
    assert run.prefill_views[-1, :, 0].tolist() == [0, 2]


def test_a_draining_instance_gets_nothing_new_until_it_returns() -> None:
    cluster = Cluster(
        prefill=(engine(),),
        decode=(engine(), engine()),
        events=(ClusterEvent(10, 1, "drain"), ClusterEvent(20, 1, "return")),
    )
    run = run_reference(
        requests((9, 4, 1), (10, 4, 1), (20, 4, 1)), cluster, assignment=assign((0, 0), (0, 0), (0, 0))
    )
    assert times(run, "decode") == [0, 1, 0]
    assert times(run, "status") == [FINISHED] * 3
    assert run.decode_views[:, :, -1].tolist() == [[1, 1], [0, 1], [1, 1]]


def test_an_assignment_passes_on_cyclically() -> None:
    cluster = Cluster(
        prefill=(engine(),),
        decode=(engine(), engine(), engine()),
        events=(ClusterEvent(0, 3, "drain"), ClusterEvent(0, 1, "kill")),
    )
    run = run_reference(requests((0, 4, 1)), cluster, assignment=assign((0, 2)))
    assert times(run, "decode") == [1]


def test_a_request_that_meets_an_empty_pool_is_rejected_without_a_decision() -> None:
    cluster = Cluster(prefill=(engine(),), decode=(engine(),), events=(ClusterEvent(3, 1, "drain"),))
    run = run_reference(requests((0, 4, 1), (3, 4, 1)), cluster, assignment=assign((0, 0), (0, 0)))
    assert times(run, "status") == [FINISHED, REJECTED]
    assert times(run, "end") == [42, 3]
    assert times(run, "prefill") == times(run, "decode") == [0, -1]
    assert times(run, "prefill_start") == [0, -1]
    assert run.decisions.tolist() == [0]


def test_a_killed_mixed_instance_loses_all_its_requests() -> None:
    cluster = Cluster(mixed=(engine(max_num_seqs=1), engine()), events=(ClusterEvent(30, 0, "kill"),))
    run = run_reference(
        requests((0, 4, 9), (0, 4, 1), (30, 4, 1)), cluster, assignment=assign((0, 0), (0, 0), (0, 0))
    )
    assert times(run, "status") == [FAILED, FAILED, FINISHED]
    assert times(run, "decode") == [0, 0, 1]
    assert times(run, "end") == [30, 30, 54]


def test_a_route_to_an_instance_that_may_not_be_assigned_is_refused() -> None:
    cluster = Cluster(prefill=(engine(),), decode=(engine(), engine()), events=(ClusterEvent(0, 1, "drain"),))
    with pytest.raises(ValueError, match="route gave decode 0 to request 0; allowed now are 1"):
        run_reference(requests((0, 4, 1)), cluster, route=lambda admission: (0, 0))
