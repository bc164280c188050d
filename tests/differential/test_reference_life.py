"""A request's life in the reference, with times computed by hand from docs/model.md."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.envs.cluster import Cluster
from disaggroute.envs.simulator.reference import run_reference

from .scenarios import assign, engine, requests, times


def test_a_lone_request_follows_the_step_time_formula() -> None:
    prefill = engine(per_token_sq=1)
    decode = engine(batch=np.array([0, 2, 9, 9, 9]), per_context=1)
    run = run_reference(
        requests((7, 6, 3)), Cluster(prefill=(prefill,), decode=(decode,)), assignment=assign((0, 0))
    )
    row = run.records[0]
    # Prefill: 20 + 6 tokens + 6² = 62 ps. Pull: 2 blocks · 3 + 5 = 11 ps.
    assert (row["arrival"], row["prefill_start"], row["prefill_end"]) == (7, 7, 69)
    assert (row["reserve"], row["transfer_start"], row["transfer_end"]) == (69, 69, 80)
    # Steps that feed tokens 6, 7, 8: 10 + A[1] + K = 18, 19, 20 ps.
    assert (row["first_token"], row["last_token"], row["end"]) == (98, 137, 137)
    assert (row["max_stall"], row["generated"], row["status"]) == (20, 3, 0)
    assert (row["preemptions"], row["reroutes"], row["prefill"], row["decode"], row["router"]) == (
        0,
        0,
        0,
        0,
        0,
    )


def test_a_long_prompt_is_prefilled_in_chunks_and_the_next_one_fills_its_last_step() -> None:
    prefill = engine(per_token_sq=1, max_num_batched_tokens=4)
    run = run_reference(
        requests((0, 10, 1), (0, 3, 1)),
        Cluster(prefill=(prefill,), decode=(engine(),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # Chunks of the first: 4 (s = 16): 40 ps; 4 (s = 48): 72 ps; 2 (s = 36) beside 2 of the second (s = 4):
    # 20 + 4 + 40 = 64 ps; then 1 of the second (s = 9 − 4): 26 ps.
    assert times(run, "prefill_start") == [0, 112]
    assert times(run, "prefill_end") == [176, 202]


def test_prompts_share_a_step_up_to_the_running_limit() -> None:
    run = run_reference(
        requests((0, 4, 1), (0, 4, 1), (0, 4, 1)),
        Cluster(prefill=(engine(max_num_seqs=2),), decode=(engine(),)),
        assignment=assign(*[(0, 0)] * 3),
    )
    assert times(run, "prefill_start") == [0, 0, 28]  # 20 + 8
    assert times(run, "prefill_end") == [28, 28, 52]  # 20 + 4


def test_pulls_leave_a_prefill_instance_one_after_the_other_by_decode_index() -> None:
    run = run_reference(
        requests((0, 4, 1), (0, 8, 1)),
        Cluster(prefill=(engine(),), decode=(engine(), engine())),
        assignment=assign((0, 1), (0, 0)),
    )
    # Both prompts end at 20 + 12 = 32. Decode 0 makes its pass first: its pull of 2 blocks is served 32–38.
    # The pull of 1 block is served 38–41. The latency of 5 does not occupy the server.
    assert times(run, "reserve") == [32, 32]
    assert times(run, "transfer_start") == [38, 32]
    assert times(run, "transfer_end") == [46, 43]


def test_prefill_blocks_are_held_until_the_transfer_ends() -> None:
    run = run_reference(
        requests((0, 5, 1), (0, 5, 1)),
        Cluster(prefill=(engine(num_blocks=3),), decode=(engine(),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # Each prompt takes 2 of the 3 blocks: the second starts when the first is across, at 25 + 6 + 5 = 36.
    assert times(run, "transfer_end") == [36, 72]
    assert times(run, "prefill_start") == [0, 36]


def test_an_offered_request_waits_until_the_blocks_of_all_its_tokens_are_free() -> None:
    run = run_reference(
        requests((0, 5, 2), (0, 5, 2)),
        Cluster(prefill=(engine(),), decode=(engine(num_blocks=2),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # Both prompts end at 30. The first reserves both blocks: pull 30–41, tokens at 51 and 61. Then the
    # second: pull 61–72, tokens at 82 and 92.
    assert times(run, "reserve") == [30, 61]
    assert times(run, "first_token") == [51, 82]
    assert times(run, "end") == [61, 92]


def test_the_running_limit_also_stops_reservations() -> None:
    run = run_reference(
        requests((0, 4, 3), (50, 4, 1)),
        Cluster(prefill=(engine(),), decode=(engine(max_num_seqs=1),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # The first runs 32–62. The second's prompt ends at 74, so nothing is in its way.
    assert times(run, "reserve") == [24, 74]
    run = run_reference(
        requests((0, 4, 6), (20, 4, 1)),
        Cluster(prefill=(engine(),), decode=(engine(max_num_seqs=1),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # The first runs 32–92. The second's prompt (24–48) ends meanwhile, and is not even reserved before 92.
    assert times(run, "prefill_end") == [24, 48]
    assert times(run, "reserve") == [24, 92]


def test_an_overflow_preempts_the_newest_which_is_prefilled_again_and_keeps_its_tokens() -> None:
    run = run_reference(
        requests((0, 7, 4), (0, 7, 4)),
        Cluster(prefill=(engine(),), decode=(engine(num_blocks=4),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # Prompts end at 34, both reserve 2 blocks; transfers end at 45 and 51. The first runs 45–55, both 55–65.
    # At 65 the first feeds token 9 and needs a third block: the second is preempted, with one token out.
    # At 75 the second would need blocks(8) = 2 and 1 is free. The first ends at 85.
    # The second recomputes 8 tokens 85–113, which emits its token 2; tokens 3 and 4 at 123 and 133.
    assert times(run, "first_token") == [55, 65]
    assert times(run, "end") == [85, 133]
    assert times(run, "preemptions") == [0, 1]
    assert times(run, "max_stall") == [10, 48]
    assert times(run, "generated") == [4, 4]


def test_a_pass_that_preempted_everything_is_repeated_at_once() -> None:
    run = run_reference(
        requests((0, 8, 3), (0, 8, 1)),
        Cluster(prefill=(engine(), engine()), decode=(engine(num_blocks=4, max_num_seqs=1),)),
        assignment=assign((0, 0), (1, 0)),
    )
    # Both prompts end at 28, reserve 2 of 4 blocks each and arrive at 39. One may run: the first, 39–49.
    # At 49 it feeds token 9, finds no third block and preempts itself. The repeated pass lets the second
    # join: 49–59. Then the first recomputes 9 tokens: 59–88 is its token 2, 98 its token 3.
    assert times(run, "transfer_end") == [39, 39]
    assert times(run, "first_token") == [49, 59]
    assert times(run, "end") == [98, 59]
    assert times(run, "preemptions") == [1, 0]
    assert run.facts.repeated_passes == 1


def test_a_preempted_request_goes_before_those_that_wait() -> None:
    run = run_reference(
        requests((0, 4, 6), (0, 4, 6), (0, 4, 6)),
        Cluster(prefill=(engine(),), decode=(engine(num_blocks=3),)),
        assignment=assign(*[(0, 0)] * 3),
    )
    # Prompts end at 32; 1 block each; transfers end at 40, 43, 46. The first runs alone 40–50. At 50 it feeds
    # token 5; the other two hold their blocks but do not run, so it preempts itself, and the repeated pass
    # lets them join: 50–60. At 60 the second feeds token 5: the third is preempted and goes before the
    # first. The second goes on: 70, 80, 90, 100, 110 (its token 9 takes the free third block at 100); one
    # free block is too few for blocks(5) = 2. The third recomputes 5 tokens 110–135 (token 2), then 145,
    # 155, 165, 175; beside it 1 block is free. The first recomputes 175–200, then 210, 220, 230, 240.
    assert times(run, "preemptions") == [1, 0, 1]
    assert times(run, "first_token") == [50, 60, 60]
    assert times(run, "end") == [240, 110, 175]


def test_several_victims_of_one_pass_are_queued_oldest_first() -> None:
    run = run_reference(
        requests((0, 4, 6), (0, 4, 6), (0, 4, 6)),
        Cluster(prefill=(engine(egress_per_block=0),), decode=(engine(num_blocks=3),)),
        assignment=assign(*[(0, 0)] * 3),
    )
    # All arrive at 32 + 5 and run 37–47. At 47 each feeds token 5: the first takes the third's block, the
    # second preempts itself. The first goes on alone: 57, 67, 77, 87, 97 (its token 9 takes the free block).
    # The second recomputes 5 tokens 97–122, then 132, 142, 152, 162; the third likewise from 162.
    assert times(run, "preemptions") == [0, 1, 1]
    assert times(run, "first_token") == [47, 47, 47]
    assert times(run, "end") == [97, 162, 227]


def test_with_the_prefills_token_the_decode_instance_runs_one_step_less() -> None:
    run = run_reference(
        requests((0, 8, 3)),
        Cluster(prefill=(engine(),), decode=(engine(per_context=1),), first_token="prefill"),
        assignment=assign((0, 0)),
    )
    row = run.records[0]
    # Token 1 at the end of prefill, 28. The pull moves the prompt's 2 blocks: 28–39. Steps feed tokens 9 and
    # 10: 19 and 20 ps.
    assert (row["prefill_end"], row["first_token"], row["reserve"], row["transfer_end"]) == (28, 28, 28, 39)
    assert (row["last_token"], row["max_stall"], row["generated"]) == (78, 30, 3)


def test_with_the_prefills_token_one_output_token_needs_no_decode_instance() -> None:
    run = run_reference(
        requests((0, 8, 1), (0, 8, 1)),
        Cluster(prefill=(engine(num_blocks=2),), decode=(engine(),), first_token="prefill"),
        assignment=assign((0, 0), (0, 0)),
    )
    # Its blocks are free at once: the second starts at 28.
    assert times(run, "end") == [28, 56]
    assert times(run, "last_token") == [28, 56]
    assert times(run, "reserve") == times(run, "transfer_start") == times(run, "transfer_end") == [-1, -1]


def test_one_output_token_takes_one_decode_step() -> None:
    run = run_reference(
        requests((0, 4, 1)), Cluster(prefill=(engine(),), decode=(engine(),)), assignment=assign((0, 0))
    )
    row = run.records[0]
    assert (row["first_token"], row["last_token"], row["end"], row["max_stall"]) == (42, 42, 42, 0)


def test_a_mixed_instance_prefills_and_decodes_in_one_step() -> None:
    run = run_reference(
        requests((0, 4, 3), (10, 6, 2)),
        Cluster(mixed=(engine(per_context=1),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # Prefill of the first: 24. At 24 it feeds token 5 beside 6 prefill tokens: 30 + 5 + 6 = 41, to 65.
    # Then both decode: K = 6 + 7: 23, to 88.
    assert times(run, "prefill_start") == [0, 24]
    assert times(run, "prefill_end") == times(run, "first_token") == [24, 65]
    assert times(run, "end") == [88, 88]
    assert times(run, "reserve") == times(run, "transfer_start") == times(run, "transfer_end") == [-1, -1]
    assert times(run, "prefill") == times(run, "decode") == [0, 0]


def test_a_last_chunk_of_one_token_is_prefill_not_decode() -> None:
    run = run_reference(
        requests((0, 6, 2)),
        Cluster(mixed=(engine(max_num_batched_tokens=5, per_context=100),)),
        assignment=assign((0, 0)),
    )
    # 5 tokens: 25; 1 token: 21; then a decode step with K = 7: 710.
    assert times(run, "first_token") == [46]
    assert times(run, "end") == [756]


def test_a_partly_prefilled_request_is_preempted_before_the_older_ones() -> None:
    run = run_reference(
        requests((0, 4, 4), (1, 8, 1)),
        Cluster(mixed=(engine(num_blocks=3, max_num_seqs=2, max_num_batched_tokens=4),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # The first: prefill 0–24. At 24 it feeds token 5 and takes block 2; the second needs blocks(8) = 2, 1 is
    # free. It decodes 24–34, 34–44, 44–54 (tokens 5, 6, 7) and ends; the second is prefilled 54–78–102.
    assert times(run, "end") == [54, 102]
    run = run_reference(
        requests((0, 3, 6), (1, 8, 1)),
        Cluster(mixed=(engine(num_blocks=3, max_num_seqs=2, max_num_batched_tokens=4),)),
        assignment=assign((0, 0), (0, 0)),
    )
    # The first: prefill 0–23 (token 1). At 23 it feeds token 4 in its only block; the second fits (2 of 2)
    # and takes a chunk of 3 in 1 block: 30 + 3, to 56. At 56 the first feeds token 5: block 2 (none left);
    # the second's chunk to 6 needs a second block: it preempts itself. The first goes on: 66, 76, 86, 96.
    # Then the second starts anew: 4 tokens 96–120, 4 tokens 120–144.
    assert times(run, "end") == [96, 144]
    assert times(run, "prefill_start") == [0, 23]
    assert times(run, "preemptions") == [0, 1]


def test_a_latency_matrix_replaces_the_engines_latency() -> None:
    run = run_reference(
        requests((0, 4, 1), (0, 4, 1)),
        Cluster(prefill=(engine(),), decode=(engine(), engine()), latency=np.array([[7, 90]])),
        assignment=assign((0, 0), (0, 1)),
    )
    # Prompts end at 28; served 28–31 and 31–34.
    assert times(run, "transfer_end") == [38, 124]


def test_a_trace_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"request 0 .* needs 3 KV blocks"):
        run_reference(
            requests((0, 8, 2)),
            Cluster(prefill=(engine(),), decode=(engine(num_blocks=2),)),
            assignment=assign((0, 0)),
        )


def test_an_empty_trace_gives_an_empty_run() -> None:
    cluster = Cluster(prefill=(engine(),), decode=(engine(), engine()))
    run = run_reference(requests(), cluster, assignment=assign())
    assert len(run.records) == len(run.decisions) == 0
    assert run.prefill_views.shape == (0, 1, 7)
    assert run.decode_views.shape == (0, 2, 11)
