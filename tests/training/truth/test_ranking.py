"""Whether policies rank alike, and what is noise."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.training.truth.goodput import segments
from disaggroute.training.truth.ranking import Pair, kendall_tau, rank
from disaggroute.training.truth.truth import Truth, compare_with_simulator

from .conftest import Make
from .live_folder import MS, Way


def tau(a: list[float], b: list[float]) -> float:
    return float(kendall_tau(np.array([a]), np.array([b]))[0])


def test_kendalls_tau_of_known_rankings() -> None:
    assert tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1.0
    assert tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    assert tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / np.sqrt(2 * 3))
    assert np.isnan(tau([1, 1, 1], [1, 2, 3]))


@pytest.mark.parametrize(
    ("measured", "low", "high", "simulated", "verdict"),
    [
        (0.02, 0.01, 0.03, 0.01, "alike"),
        (0.02, None, None, -0.01, "swapped, noise unknown"),
        (0.02, 0.01, 0.03, -0.01, "swapped"),
        (0.02, -0.01, 0.05, -0.01, "within the noise"),
        (0.02, 0.01, 0.03, 0.0, "tied in the simulator"),
        (0.0, None, None, 0.01, "within the noise"),
        (0.0, None, None, 0.0, "alike"),
    ],
)
def test_a_pair_is_judged_by_its_order_and_its_interval(
    measured: float, low: float | None, high: float | None, simulated: float, verdict: str
) -> None:
    assert Pair("a", "b", measured, low, high, simulated).verdict == verdict


def slow(label: str, ms: float, folder_of: Make) -> Truth:
    """A live evaluation in which one policy's requests came so much later, which the simulator cannot know."""
    folder = folder_of(Way())
    from disaggroute.training.truth import live_run

    truth = compare_with_simulator(folder)
    for run in truth.replays[label]:
        stored = run.live.stored
        assert isinstance(stored, live_run.StoredRecords)
        late = stored.records["first_token"] + round(ms * MS) - stored.records["arrival"]
        stored.met[:] &= late <= stored.trace.ttft_target
    return truth


def test_a_request_that_was_sent_late_stays_in_the_segment_in_which_it_was_due(live: Make) -> None:
    run = next(iter(compare_with_simulator(live(Way())).replays.values()))[0]
    before = segments([run], 0)[0]
    last = np.flatnonzero(run.live.stored.measured)[-1]
    run.live.stored.records["arrival"][last] += 30 * 1_000 * MS
    assert segments([run], 0)[0].tolist() == before.tolist()


def test_policies_on_different_seeds_have_no_interval(live: Make) -> None:
    replays = compare_with_simulator(live(Way())).replays
    first, second = list(replays)[:2]
    found = rank({first: replays[first] * 2, second: replays[second]}, 0)
    assert found.interval == "none: the policies' records are not of the same seeds" and found.low is None


def test_a_policy_that_is_worse_only_live_swaps(live: Make) -> None:
    truth = slow("marginal-cost", 250.0, live)
    found = rank(truth.replays, 0, noise=1e-4)
    best = max(found.simulated, key=lambda label: found.simulated[label])
    worst = min(found.measured, key=lambda label: found.measured[label][0])
    assert best == worst == "marginal-cost"
    swapped = {pair.first for pair in found.pairs if pair.verdict == "swapped" and pair.second == "marginal-cost"}
    assert swapped == {"round-robin", "least-loaded"}
    assert found.tau < 1 and found.high is not None and found.high < 1


def test_with_much_noise_no_order_is_certain(live: Make) -> None:
    found = rank(slow("marginal-cost", 250.0, live).replays, 0, noise=1.0)
    assert all(pair.verdict in ("alike", "within the noise") for pair in found.pairs)
    assert found.low is not None and found.high is not None and found.low < 0 < found.high
    assert "by the noise between repeats" in found.interval


def test_short_traces_have_no_interval_and_say_so(live: Make) -> None:
    found = compare_with_simulator(live()).ranking
    assert found.low is None and all(pair.low is None for pair in found.pairs)
    assert found.interval == "none: all traces together have fewer than four blocks of 60 s"
    assert found.tau == 1.0 and {pair.verdict for pair in found.pairs} == {"alike"}
