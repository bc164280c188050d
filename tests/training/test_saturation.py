"""The saturation search, on traffic whose answer is known and on a small cluster."""

from __future__ import annotations

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training import saturation
from disaggroute.training.saturation import Probe, Saturation, saturate

CHAT = Scenario.make(workload="chat", topology="1P1D", duration_s=10, warmup_s=2)


@pytest.fixture
def falling_goodput(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Round robin's goodput falls as 1/(1 + (rate/40)²) under a ceiling of 0.9."""
    tried: list[float] = []

    def probe(scenario: Scenario, *_: object) -> Probe:
        assert scenario.rate is not None
        tried.append(scenario.rate)
        return Probe(scenario.rate, 0.9 / (1 + (scenario.rate / 40) ** 2), 0.9)

    monkeypatch.setattr(saturation, "_probe", probe)
    return tried


@pytest.mark.parametrize("start", [None, 0.5, 17.0, 1_000.0])
def test_the_rate_is_found_from_wherever_the_search_starts(
    falling_goodput: list[float], start: float | None
) -> None:
    scenario = CHAT if start is None else CHAT.at_rate(start)
    found = saturate(scenario, target=0.8, workers=1)
    assert found.rate == pytest.approx(20.0, rel=2e-3) and found.found.share == pytest.approx(0.8, abs=5e-4)
    assert len(falling_goodput) == len(set(falling_goodput)) < 30


@pytest.mark.parametrize(("share", "in_doubt"), [(0.84, False), (0.865, False), (0.909, True), (0.79, True)])
def test_a_rate_whose_share_is_far_from_the_target_is_in_doubt(share: float, in_doubt: bool) -> None:
    found = Probe(3.0, share, 1.0)
    doubt = Saturation(found, 0.84, "round-robin", (found,)).doubt
    assert bool(doubt) == in_doubt and (not in_doubt or f"is {share:.3f}: the goodput of so short a window" in doubt)


def test_a_target_that_no_rate_reaches_is_refused_with_the_reachable_range(
    falling_goodput: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saturation, "rate_limits", lambda _: (10.0, 80.0))
    for target in (0.97, 0.15):
        with pytest.raises(
            ValueError, match=rf"target is {target}; .* round-robin reaches 0\.\d+ to 0\.\d+ of"
        ):
            saturate(CHAT, target=target, workers=1)


@pytest.mark.parametrize("target", [0.0, 1.0, -1.0, float("nan")])
def test_a_target_must_lie_between_0_and_1(target: float) -> None:
    with pytest.raises(ValueError, match="it must lie between 0 and 1"):
        saturate(CHAT, target=target)


def test_held_out_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"seed 30000 is held out .* saturate may not use it"):
        saturate(CHAT, seeds=range(30_000, 30_003))


def test_an_unknown_reference_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy 'rr'"):
        saturate(CHAT, policy="rr")


def test_a_small_cluster_saturates_where_round_robin_falls_to_the_target() -> None:
    told: list[Probe] = []
    found = saturate(
        CHAT.at_rate(40), target=0.8, seeds=range(20_000, 20_002), workers=1, on_probe=told.append
    )
    assert found.found.share == pytest.approx(0.8, abs=0.05)
    assert found.probes == tuple(told)
    below = [p.share for p in told if p.rate < 0.8 * found.rate]
    assert all(share > 0.8 for share in below)
