"""A live run replayed: the same requests, instants and instances; what failed as what it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from disaggroute.envs.cluster_config import from_topology
from disaggroute.envs.records import FAILED, FINISHED, REJECTED
from disaggroute.training.results import read_results
from disaggroute.training.truth.live_run import LiveRun, read_live_runs
from disaggroute.training.truth.replay import FEWEST, Replay, replay
from disaggroute.training.truth.truth import compare_with_simulator

from .conftest import Make
from .live_folder import MS, Way


def runs(folder: Path) -> list[LiveRun]:
    return read_live_runs(read_results(folder))[0]


def replayed(folder: Path, k: int = 0) -> Replay:
    return replay(runs(folder)[k], from_topology("2P2D", "a40-qwen2.5-3b").build())


def test_engines_that_do_as_the_model_says_are_replayed_to_the_picosecond(live: Make) -> None:
    way = Way(before=1.0, leg=0.5, after=1.5)
    for k in range(3):
        run = replayed(live(way, name=f"live-{k}"), k)
        measured, simulated = run.live.stored.records, run.simulated
        assert run.requests == int(run.live.stored.measured.sum()) > FEWEST
        assert np.array_equal(simulated["arrival"], measured["arrival"] + 1 * MS)
        assert np.array_equal(simulated["prefill_end"] + MS // 2, measured["prefill_end"])
        assert np.array_equal(simulated["first_token"] + 2 * MS, measured["first_token"])
        assert np.array_equal(simulated["last_token"] + 2 * MS, measured["last_token"])


def test_instants_are_those_at_which_requests_were_sent_and_not_those_that_were_intended(live: Make) -> None:
    def late(columns: dict[str, np.ndarray]) -> None:
        columns["lateness_ps"][:] = 7 * MS  # The trace wanted them earlier; nothing else changes.

    run = replayed(live(Way(), late))
    assert np.array_equal(run.simulated["first_token"], run.live.stored.records["first_token"])


def test_requests_that_failed_are_shortened_or_left_out(live: Make) -> None:
    first = 100

    def fail(columns: dict[str, np.ndarray]) -> None:
        columns["_status"][first : first + 3] = FAILED
        columns["_status"][first + 3] = REJECTED
        columns["last_token_ps"][first : first + 4] = -1
        # After five tokens; between the legs; before the prefill had ended; and refused.
        columns["generated"][first : first + 4] = (5, 0, 0, 0)
        columns["first_token_ps"][first + 1 : first + 4] = -1
        columns["prefill_end_ps"][first + 2 : first + 4] = -1
        columns["prefill_start_ps"][first + 3] = -1
        columns["prefill"][first + 3] = columns["decode"][first + 3] = -1

    run = replayed(live(Way(), fail))
    assert run.live.output[first : first + 4].tolist() == [5, 1, 0, 0]
    assert run.simulated["generated"][first : first + 2].tolist() == [5, 1]
    assert (run.simulated["status"][first + 2 : first + 4] == REJECTED).all()
    assert not run.compared[first : first + 4].any()
    assert (run.shortened, run.left_out, run.retried) == (2, 2, 0)


def test_a_request_that_was_tried_again_is_replayed_but_not_compared(live: Make) -> None:
    def again(columns: dict[str, np.ndarray]) -> None:
        columns["attempts"][200:210] = 2

    run = replayed(live(Way(), again))
    assert run.retried == 10 and not run.compared[200:210].any()
    assert (run.simulated["status"][200:210] == FINISHED).all()


def test_a_run_with_too_few_finished_requests_is_refused(live: Make) -> None:
    def fail(columns: dict[str, np.ndarray]) -> None:
        columns["_status"][20:] = FAILED

    words = r"round-robin, seed [23]: \d+ requests finished in the window; .* at least 30"
    with pytest.raises(ValueError, match=words):
        compare_with_simulator(live(Way(), fail))


def test_an_instance_that_the_cluster_has_not_is_refused(live: Make) -> None:
    def elsewhere(columns: dict[str, np.ndarray]) -> None:
        columns["decode"][3] = 9

    with pytest.raises(ValueError, match=r"decode of request \d+ is 9; allowed are 0 to 1"):
        compare_with_simulator(live(Way(), elsewhere))
