"""The training benchmark makes whole updates with the settings that it states."""

from __future__ import annotations

from typing import Any

import pytest

from disaggroute.benchmarks import training
from disaggroute.benchmarks.training import measure

TINY = {"duration_s": 3, "warmup_s": 1}


def test_whole_updates_are_measured_with_the_stated_settings() -> None:
    torch = pytest.importorskip("torch")
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    pytest.importorskip("disaggroute.training.sb3_vec_env")
    before = torch.get_num_threads()
    made: list[Any] = []

    class Watched(stable_baselines3.PPO):  # type: ignore[misc, name-defined]
        def train(self) -> None:
            made.append((self.num_timesteps, torch.get_num_threads(), self.n_epochs, self.batch_size))
            super().train()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stable_baselines3, "PPO", Watched)
        (result,) = measure(envs=2, steps=8, batch=4, epochs=2, threads=1, updates=3, repeats=2, overrides=TINY)
    # One update that is not counted, then two repeats of three, each after a rollout of 2 · 8 steps.
    assert made == [(16 * k, 1, 2, 4) for k in range(1, 8)]
    assert torch.get_num_threads() == before
    assert (result.name, result.unit, result.repeats) == ("train/ppo", "steps/s", 2)
    assert 0 < result.min <= result.value <= result.max
    assert result.details == {
        "envs": 2, "steps": 8, "batch": 4, "epochs": 2, "threads": 1, "updates": 3, "layer_1": 64, "layer_2": 64
    }


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LIBRARIES", ("json", "no_such_torch"))
    assert training.missing() == "no_such_torch"
    with pytest.raises(ValueError, match=r"no_such_torch is not installed, .* `pip install 'disaggroute\[train\]'`"):
        measure()


def test_with_every_library_there_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LIBRARIES", ("json",))
    assert training.missing() is None


@pytest.mark.parametrize("field", ["envs", "steps", "batch", "epochs", "threads", "updates", "repeats"])
def test_a_count_below_one_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0; it must be at least 1"):
        measure(**{field: 0})


def test_a_batch_that_does_not_divide_the_rollout_is_refused() -> None:
    with pytest.raises(ValueError, match="batch is 5; it must divide the rollout, envs · steps = 16"):
        measure(envs=2, steps=8, batch=5)
