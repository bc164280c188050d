"""How far the delays of the same requests lie apart."""

from __future__ import annotations

import numpy as np

from disaggroute.benchmarks.peers.delays import Delays, Distance


def test_equal_delays_are_no_distance_apart() -> None:
    values = np.random.default_rng(0).lognormal(size=500)
    distance = Distance.between(values, values)
    assert (distance.ks, distance.wasserstein, distance.paired) == (0, 0, 0)
    assert all(theirs == ours for theirs, ours in distance.quantiles.values())


def test_the_distances_are_those_of_their_definitions() -> None:
    theirs, ours = np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.0, 3.0, 2.0, 6.0])
    distance = Distance.between(theirs, ours)
    # Sorted: 1 2 3 4 and 2 3 4 6. The distribution functions differ by one request of four, everywhere from 1 to 6.
    assert distance.ks == 0.25
    assert distance.wasserstein == (1 + 1 + 1 + 2) / 4
    assert distance.paired == np.median([3, 1, 1, 2])
    assert distance.means == (2.5, 3.75) and distance.quantiles["0.5"] == (2.5, 3.5)


def test_a_request_with_one_token_has_no_tpot_and_is_left_out() -> None:
    delays = Delays.of(np.array([1.0, 1.0]), np.array([0.0, 6.0]), np.array([1, 4]))
    assert np.isnan(delays.tpot[0]) and delays.tpot[1] == 2
    assert Distance.between(delays.tpot, delays.tpot).means == (2, 2)
