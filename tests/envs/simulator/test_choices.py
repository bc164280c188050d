"""A policy that fails or chooses nonsense ends the run with a sentence that names it, the request and the pools."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disaggroute.envs.admission import Admission
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.simulator import PolicyError, simulate
from disaggroute.envs.trace import SLO_CLASSES as CLASSES

from ...policies import scenes

NAN = float("nan")


class Misled:
    """Chooses well until request 5; then what it was told to."""

    def __init__(self, choice: Callable[[Admission], Any]) -> None:
        self.choice = choice

    def reset(self, seed: int) -> None:
        """Has nothing to forget."""

    def route(self, admission: Admission) -> Any:
        if admission.index == 5:
            return self.choice(admission)
        open_ones = [int(view[:, -1].argmax()) for view in (admission.prefill, admission.decode)]
        return open_ones[1] if admission.aggregated else open_ones[0], open_ones[1]


def fall(choice: Callable[[Admission], Any] | Any, on: Cluster | None = None, **options: Any) -> str:
    """The sentence."""
    policy = Misled(choice if callable(choice) else lambda _: choice)
    with pytest.raises(PolicyError) as error:
        simulate(scenes.trace(), on or scenes.cluster(), policy=policy, predictor="oracle", **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        (None, "it chose None: it must be a tuple of a prefill and a decode index"),
        ((0,), "it chose (0,): it must be a tuple of a prefill and a decode index"),
        ([0, 0], "it chose [0, 0]: it must be a tuple of a prefill and a decode index"),
        ((0, 0, 1.0, 1.0), "it chose (0, 0, 1.0, 1.0): it must be a tuple of a prefill and a decode index"),
        (("0", 0), "it chose ('0', 0): prefill instance is '0'; it must be an integer"),
        ((0, 0.0), "it chose (0, 0.0): decode instance is 0.0; it must be an integer"),
        ((NAN, 0), "it chose (nan, 0): prefill instance is nan; it must be an integer"),
        ((0, None), "it chose (0, None): decode instance is None; it must be an integer"),
        ((True, 0), "it chose (True, 0): prefill instance is True; it must be an integer"),
        ((0, 4), "it chose (0, 4): decode instance 4 does not exist; allowed are 0 to 3"),
        ((-1, 0), "it chose (-1, 0): prefill instance -1 does not exist; allowed are 0 to 1"),
        ((0, 0, NAN), "it chose (0, 0, nan): the probability is nan; it must be above 0, up to 1"),
        ((0, 0, 0), "it chose (0, 0, 0): the probability is 0; it must be above 0, up to 1"),
        ((0, 0, 1.5), "it chose (0, 0, 1.5): the probability is 1.5; it must be above 0, up to 1"),
        ((0, 0, True), "it chose (0, 0, True): the probability is True; it must be above 0, up to 1"),
        ((0, 0, "1"), "it chose (0, 0, '1'): the probability is '1'; it must be above 0, up to 1"),
    ],
)
@pytest.mark.parametrize("observe", [False, True])
def test_a_choice_that_may_not_be_is_named(choice: Any, problem: str, observe: bool) -> None:
    assert f": {problem}; prefill instances have queued" in fall(choice, observe=observe)


def test_the_sentence_names_policy_request_and_pools() -> None:
    of = scenes.trace()
    assert fall((0, 9), scenes.drained("2P4D", 1)) == (
        f"policy Misled, request 5 ({of.prompt[5]} prompt tokens, {of.output[5]} predicted, {CLASSES[of.slo[5]]}, "
        f"{of.arrival[5] / 10**12:.3f} s): it chose (0, 9): decode instance 9 does not exist; allowed are 0 to 3; "
        "prefill instances have queued: 5, 0 (closed); decode instances have in flight: 5, 0, 0, 0"
    )


def test_an_instance_that_is_draining_may_not_be_chosen() -> None:
    assert "it chose (0, 1): decode instance 1 is down or draining" in fall((0, 1), scenes.drained("2P4D", 3))


def test_two_different_mixed_instances_may_not_be_chosen() -> None:
    sentence = fall((0, 1), scenes.cluster("3M"))
    assert "it chose (0, 1): prefill 0 and decode 1 differ; a mixed instance serves both; " in sentence
    assert sentence.endswith("mixed instances have in flight: 5, 0, 0")


def test_large_pools_are_told_in_short() -> None:
    sentence = fall(None, scenes.drained("2P20D", 5))
    assert sentence.endswith("decode instances have in flight: 0 to 5 on 20 instances, 1 closed")


@pytest.mark.parametrize("observe", [False, True])
def test_an_exception_is_named_and_stays_the_cause(observe: bool) -> None:
    def fails(_: Admission) -> tuple[int, int]:
        raise LookupError("no\n such weight")

    with pytest.raises(PolicyError, match=r"request 5 \(.*it raised LookupError: no such weight; prefill") as error:
        simulate(scenes.trace(), scenes.cluster(), policy=Misled(fails), predictor="oracle", observe=observe)
    assert isinstance(error.value.__cause__, LookupError)


def test_an_exception_without_a_text_is_named_by_its_kind() -> None:
    def fails(_: Admission) -> tuple[int, int]:
        raise AssertionError

    assert "): it raised AssertionError; prefill instances" in fall(fails)


def test_a_policy_with_a_name_goes_by_it() -> None:
    class Named(Misled):
        name = "named"

        def __str__(self) -> str:
            return "named(x=1)"

    with pytest.raises(PolicyError, match=r"^policy named\(x=1\), request 5 "):
        simulate(scenes.trace(), scenes.cluster(), policy=Named(lambda _: None), predictor="oracle")


def test_a_choice_may_come_with_its_probability() -> None:
    class Sure(Misled):
        def choose(self, admission: Admission) -> Any:
            return (*self.route(admission), np.float32(0.25))

    result = simulate(
        scenes.trace(), scenes.cluster(), policy=Sure(lambda _: (0, 0)), predictor="oracle", log_decisions=True
    )
    assert (result.decisions["probability"] == 0.25).all()


def test_the_error_comes_through_from_a_worker_process() -> None:
    error = PolicyError("policy x, request 1: it chose None")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


class Forgetful(Misled):
    """Cannot forget."""

    def __init__(self, error: Exception) -> None:
        super().__init__(lambda _: None)
        self.error = error

    def reset(self, seed: int) -> None:
        """Fails."""
        raise self.error


def test_a_policy_that_cannot_be_reset_is_named() -> None:
    with pytest.raises(PolicyError) as error:
        simulate(scenes.trace(), scenes.cluster(), policy=Forgetful(KeyError("x")), predictor="oracle", seed=3)
    assert str(error.value) == "policy Forgetful, reset with seed 3: it raised KeyError: 'x'"
    with pytest.raises(ValueError, match="seed is 3; mine are even"):
        simulate(scenes.trace(), scenes.cluster(), policy=Forgetful(ValueError("seed is 3; mine are even")), seed=3)
