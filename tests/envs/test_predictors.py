from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.envs import predictors, workloads
from disaggroute.envs.trace import Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return workloads.make("reasoning").generate(rate=50, duration_s=200, seed=0)


def static(predictor: predictors.Predictor, trace: Trace, seed: int = 0) -> np.ndarray:
    guess = predictor.static(trace, seed)
    assert guess is not None
    assert guess.dtype == np.int32
    assert guess.min() >= 1
    return guess


def test_the_oracle_knows_and_keeps_the_trace_unchanged(trace: Trace) -> None:
    guess = static(predictors.make("oracle"), trace)
    assert (guess == trace.output).all()
    assert guess is not trace.output


def test_the_constant_is_constant(trace: Trace) -> None:
    assert set(static(predictors.make("constant", tokens=7), trace)) == {7}


def test_noise_is_unbiased_and_of_the_size_asked_for(trace: Trace) -> None:
    ratio = static(predictors.make("noisy", error=0.5), trace) / trace.output
    assert ratio.mean() == pytest.approx(1.0, abs=0.02)
    assert np.log(ratio).std() == pytest.approx(0.5, abs=0.02)


def test_noise_follows_its_formula(trace: Trace) -> None:
    z = np.random.default_rng(np.random.SeedSequence(3).spawn(7)[6]).standard_normal(len(trace))
    expected = np.maximum(1, np.rint(trace.output * np.exp(1.5 * z - 1.5**2 / 2)))
    assert (static(predictors.make("noisy", error=1.5), trace, seed=3) == expected).all()


def test_no_noise_is_the_oracle(trace: Trace) -> None:
    assert (static(predictors.make("noisy", error=0), trace) == trace.output).all()


def test_noise_belongs_to_the_request_and_not_to_the_length_of_the_trace(trace: Trace) -> None:
    noisy = predictors.make("noisy", error=1.0)
    assert (static(noisy, trace)[:100] == static(noisy, trace.select(slice(0, 100)))).all()
    assert (static(noisy, trace, 1) != static(noisy, trace, 2)).any()


@pytest.mark.parametrize(
    ("text", "learns"),
    [
        ("bucket", "bucket"),
        ("prompt", "prompt-bucket"),
        ("prompt(regression)", "prompt-regression"),
        ("prompt(mode=bucket)", "prompt-bucket"),
    ],
)
def test_predictors_that_learn_say_how_and_give_nothing_before_the_run(
    text: str, learns: str, trace: Trace
) -> None:
    predictor = predictors.parse(text)
    assert predictor.learns == learns
    assert predictor.static(trace, 0) is None


@pytest.mark.parametrize(
    "text", ["oracle", "noisy(error=0.5)", "constant(tokens=64)", "prompt(mode=regression)"]
)
def test_a_predictors_text_reads_back(text: str) -> None:
    assert str(predictors.parse(text)) == text
    assert predictors.parse(str(predictors.parse(text))) == predictors.parse(text)


def test_positional_and_named_parameters_mean_the_same() -> None:
    assert predictors.parse(" noisy( 0.5 ) ") == predictors.make("noisy", error=0.5)
    assert predictors.make("noisy", error=0.5) != predictors.make("noisy", error=0.6)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nosy", "unknown predictor 'nosy'; nearest: noisy"),
        ("noisy(", r"it must read like bucket, noisy\(0\.5\)"),
        ("noisy(-1)", r"noisy: error is -1; it must be a number of at least 0"),
        ("noisy(inf)", "noisy: error is inf; it must be a number of at least 0"),
        ("noisy(big)", "noisy: error is 'big'; it must be a number of at least 0"),
        ("noisy(1, 2)", "noisy: too many positional arguments; allowed parameters: error"),
        ("noisy(errors=1)", "noisy: .*'errors'; allowed parameters: error"),
        ("oracle(1)", "oracle: too many positional arguments; allowed parameters: none"),
        ("constant(0)", "constant: tokens is 0; it must be a number of at least 1"),
        ("constant(1.5)", r"constant: tokens is 1\.5; it must be a whole number"),
        ("prompt(mean)", "prompt: mode is 'mean'; it must be bucket or regression"),
    ],
)
def test_a_bad_text_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        predictors.parse(text)


def test_a_predictor_of_ones_own_is_one_function(monkeypatch: pytest.MonkeyPatch, trace: Trace) -> None:
    monkeypatch.setattr(predictors, "_registry", dict(predictors._registry))

    def half() -> predictors.Predictor:
        return predictors.Predictor(
            "half", predict=lambda t, seed: np.maximum(1, t.output // 2).astype(np.int32)
        )

    predictors.register("half", half)
    assert "half" in predictors.names()
    assert (static(predictors.parse("half"), trace) <= trace.output).all()
    with pytest.raises(ValueError, match="the name 'half' is taken"):
        predictors.register("half", half)


def test_make_answers_an_unknown_name() -> None:
    arguments: dict[str, Any] = {"error": 1}
    with pytest.raises(ValueError, match="unknown predictor 'noise'"):
        predictors.make("noise", **arguments)
