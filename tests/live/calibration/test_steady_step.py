"""The time of a decode step: from the arrival times of streamed tokens, and from what an engine counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.live.calibration.measurement import Measurement
from disaggroute.live.calibration.measuring import counted_step, steady_step
from disaggroute.live.calibration.plan import Task
from disaggroute.live.engine_counts import Counted
from disaggroute.live.reply import Reply

ENGINE: Any = type("Named", (), {"name": "decode/0"})()
PROMPT, OUTPUT = 100, 60


def streams(starts: list[int], step: float = 0.01, growth: float = 0.0) -> list[list[float]]:
    """Token times of streams that join at these steps; step number k lasts `step + growth · k`."""
    ends = np.cumsum(step + growth * np.arange(max(starts) + OUTPUT + 1))
    return [[float(when) for when in ends[start : start + OUTPUT]] for start in starts]


def found(times: list[list[float]]) -> Measurement | None:
    task = Task("decode", ENGINE, None, 0, PROMPT, len(times), OUTPUT, 0.0)
    return steady_step(task, [Reply(None, "", PROMPT, OUTPUT, None, tuple(each), 0.0) for each in times])


def test_a_steady_stream_gives_its_step_and_the_mean_context() -> None:
    row = found(streams([0]))
    assert row is not None and row.seconds == pytest.approx(0.01)
    # Tokens 2 and 60 enclose 58 steps, which feed 102 … 159 tokens.
    assert row.steps == 58 and row.context == pytest.approx(np.mean(np.arange(102, 160)))


def test_only_steps_in_which_all_decode_count() -> None:
    times = streams([0, 3, 10])
    # While not all run, steps are three times as long.
    times = [[when + 2 * min(when, 0.11) for when in each] for each in times]
    row = found(times)
    assert row is not None and row.seconds == pytest.approx(0.01) and row.sequences == 3
    # Step 12 on, up to the end of the first stream in step 60; streams have 12, 9 and 2 tokens then.
    assert row.steps == 48
    assert row.context == pytest.approx(3 * PROMPT + sum(out + np.mean(np.arange(48)) for out in (12, 9, 2)))


def test_steps_that_grow_have_the_length_of_the_middle_one() -> None:
    row = found(streams([0, 0], step=0.01, growth=1e-4))
    assert row is not None and row.seconds == pytest.approx(0.01 + 1e-4 * 30.5, rel=0.01)


def test_a_client_that_sleeps_now_and_then_sees_the_same_step() -> None:
    times = streams([0, 0, 0])
    slept = [[max(when, 0.25 + 0.07) if when > 0.25 else when for when in each] for each in times]
    row = found(slept)
    assert row is not None and row.seconds == pytest.approx(0.01, rel=0.02)


def test_a_stream_whose_tokens_come_in_bundles_does_not_matter_beside_others() -> None:
    times = streams([0, 0, 0])
    times[1] = [times[1][min(len(times[1]) - 1, k // 4 * 4 + 3)] for k in range(OUTPUT)]
    row = found(times)
    assert row is not None and row.seconds == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("starts", [[0, OUTPUT], [0, OUTPUT - 5]])
def test_requests_that_did_not_run_together_give_nothing(starts: list[int]) -> None:
    assert found(streams(starts)) is None


def counts(times: list[list[float]], asked: list[float]) -> list[Counted]:
    """What an engine that served seven requests before has counted at these instants."""
    found = []
    for now in asked:
        out = [[when for when in each if when <= now] for each in times]
        gaps = sum(max(len(each) - 1, 0) for each in out)
        gap_s = sum(each[-1] - each[0] for each in out if each)
        ended = sum(len(some) == len(each) for some, each in zip(out, times, strict=True))
        found.append(Counted(7 + ended, 0.0, -1, -1, -1, 7 + sum(map(bool, out)), 500 + gaps, 9.0 + gap_s))
    return found


def counted(times: list[list[float]], asked: list[float], seen: Measurement | None = None) -> Measurement | None:
    task = Task("decode", ENGINE, None, 0, PROMPT, len(times), OUTPUT, 0.0)
    before, *told = counts(times, [-1.0, *asked])
    return counted_step(task, before, told, seen)


def test_between_two_counts_of_a_whole_batch_every_step_has_given_each_request_a_token() -> None:
    times = streams([0, 3, 10], step=0.01, growth=1e-4)
    ends = np.cumsum(0.01 + 1e-4 * np.arange(71))
    # Before all run, at the ends of steps 15, 20 and 45, and when the first has ended.
    row = counted(times, [0.05, *ends[[15, 20, 45]], 5.0])
    assert row is not None and row.sequences == 3
    assert row.steps == 30 and row.engine_seconds == pytest.approx((ends[45] - ends[15]) / 30)
    assert row.context == pytest.approx(3 * PROMPT + sum(out + np.mean(np.arange(30)) for out in (16, 13, 6)))
    assert row.seconds == row.engine_seconds, "the client saw nothing to put beside it"


def test_the_clients_time_stands_beside_the_engines_own() -> None:
    times = streams([0, 0])
    bursts = [[when / 9 for when in each] for each in times]
    row = counted(times, [0.1, 0.4], found(bursts))
    assert row is not None and row.seconds == pytest.approx(0.01 / 9) and row.engine_seconds == pytest.approx(0.01)


@pytest.mark.parametrize("asked", [[], [0.2], [0.2, 0.26], [0.0, 0.05], [0.65, 5.0]])
def test_counts_that_hold_too_few_steps_give_nothing(asked: list[float]) -> None:
    assert counted(streams([0, 10]), asked) is None
