"""What every policy promises: name, parameters, hash, a state of its own."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from disaggroute.envs.admission import Admission
from disaggroute.envs.simulator import simulate
from disaggroute.policies import Choice, Policy, make, names, parse
from disaggroute.policies.compiled_policy import CompiledPolicy

from . import scenes

NEED_CONSTANTS = (
    "least-ttft",
    "min-tpot",
    "best-fit",
    "size-interval",
    "card",
    "marginal-cost",
    "simulator-naive",
    "linear",
    "network",
)


def routed(policy: Policy, seed: int = 0, requests: int = 60) -> list[tuple[int, int]]:
    """Pairs that the object picks in a run."""
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(requests))
    policy.reset(seed)
    pairs = []
    while simulated.run():
        pairs.append(policy.route(simulated.admission()))
        simulated.send(*pairs[-1])
    return pairs


class Last(Policy):
    """Always the last pair; not compiled."""

    name = "last"

    def route(self, admission: Admission) -> tuple[int, int]:
        return len(admission.prefill) - 1, len(admission.decode) - 1


@pytest.mark.parametrize("name", names())
def test_name_and_params_make_the_same_policy_again(name: str) -> None:
    policy = make(name)
    again = make(policy.name, **json.loads(json.dumps(policy.params)))
    assert (again.name, again.params, again.hash) == (policy.name, policy.params, policy.hash)
    assert name == policy.name


@pytest.mark.parametrize(
    "text", ["marginal-cost(w_q=0.25, tau=single, sample=2)", "random", "simulator-naive"]
)
def test_the_text_of_a_policy_names_it(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(str(parse(text))).hash == parse(text).hash


def test_the_hash_tells_names_and_parameters_apart_and_defaults_not() -> None:
    texts = ["round-robin", "random", "marginal-cost", "marginal-cost(w_q=1)", "marginal-cost(w_q=2)"]
    assert len({parse(text).hash for text in texts}) == len(texts)
    assert parse("marginal-cost(w_b=1)").hash == make("marginal-cost").hash


def test_the_hash_is_the_same_in_another_process() -> None:
    code = "from disaggroute.policies import make; print(make('marginal-cost', w_q=0.3).hash)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == make("marginal-cost", w_q=0.3).hash


@pytest.mark.parametrize("name", names())
def test_reset_starts_over(name: str) -> None:
    policy = make(name)
    assert routed(policy, seed=3) == routed(policy, seed=3)


@pytest.mark.parametrize("name", ["random", "power-of-two"])
def test_a_policy_that_draws_follows_its_seed(name: str) -> None:
    assert routed(make(name), seed=3) != routed(make(name), seed=4)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_goes_on_from_where_the_original_stands(duplicate: object) -> None:
    policy = make("random")
    policy.reset(1)
    simulated = scenes.simulator(scenes.cluster(), scenes.trace())
    admission = scenes.admission_after(simulated, policy, 5)
    twin = duplicate(policy)  # type: ignore[operator]
    picks = [policy.route(admission) for _ in range(20)]
    assert [twin.route(admission) for _ in range(20)] == picks
    assert len(set(picks)) > 1


def test_two_policies_take_turns_on_one_simulator_without_disturbing_each_other() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(40))
    first, second = make("round-robin"), make("round-robin")
    turns: list[tuple[int, int]] = []
    while simulated.run():
        policy = (first, second)[len(turns) % 2]
        turns.append(policy.route(simulated.admission()))
        simulated.send(*turns[-1])
    cycle = [(k % 2, k % 4) for k in range(20)]
    assert turns[::2] == turns[1::2] == cycle


def test_an_object_does_not_touch_the_state_of_the_compiled_loop() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace())
    compiled = make("random")
    assert isinstance(compiled, CompiledPolicy)
    compiled.prepare(simulated, 7)
    before = simulated.policy_state(0).copy()
    scenes.admission_after(simulated, make("power-of-two"), 10)
    assert (simulated.policy_state(0) == before).all()


def test_a_run_can_begin_with_the_compiled_loop_and_end_with_another_policy() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(100))
    warm = make("least-loaded")
    assert isinstance(warm, CompiledPolicy)
    warm.run_compiled(simulated, 0, until=scenes.SECOND)
    begun = simulated.ended + simulated.in_flight
    assert 0 < begun < 100
    other = make("random")
    while simulated.run():
        simulated.send(*other.route(simulated.admission()))
    assert simulated.ended == 100


def test_a_policy_in_plain_python_runs_like_any_other() -> None:
    records = simulate(scenes.trace(), scenes.cluster(), policy=Last()).records
    assert set(records["prefill"].tolist()) == {1} and set(records["decode"].tolist()) == {3}


def test_a_policy_that_does_not_draw_states_certainty() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace())
    admission = scenes.admission_after(simulated, Last(), 1)
    assert Last().choose(admission) == Choice(1, 3, 1.0)


@pytest.mark.parametrize("name", NEED_CONSTANTS)
def test_constants_that_a_policy_needs_are_asked_for(name: str) -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(), constants=False)
    policy = make(name)
    assert isinstance(policy, CompiledPolicy)
    with pytest.raises(ValueError, match=f"{name}: constants is None; it must be the router's constants"):
        policy.run_compiled(simulated, 0)
    assert simulated.run()
    with pytest.raises(ValueError, match="constants is None"):
        policy.route(simulated.admission())


def test_an_admission_that_was_sent_cannot_be_routed() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace())
    assert simulated.run()
    admission = simulated.admission()
    simulated.send(0, 0)
    with pytest.raises(ValueError, match="request 0 was sent already"):
        make("round-robin").route(admission)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1; it must be at least 0"):
        make("random").reset(-1)


def test_listing_the_policies_does_not_load_the_compiler() -> None:
    code = "import sys; from disaggroute import policies; policies.names(); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", names())
def test_every_policy_is_documented_on_its_page_and_in_its_class(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    section = page.partition(f"## `{name}`")[2].partition("\n## ")[0]
    assert "Source:" in section
    assert all(f"`{key}`" in section for key in make(name).params) or name == "simulator-naive"
    assert "Formula" in (type(make(name)).__doc__ or "") or name == "simulator-naive"


def test_length_threshold_sends_long_outputs_to_the_upper_half() -> None:
    policy = make("length-threshold", threshold=100)
    of = scenes.trace()
    decodes = np.array([decode for _, decode in routed(policy)])
    assert ((decodes >= 2) == (of.output > 100)).all()


def test_a_copy_remembers_the_same_and_goes_on_by_itself() -> None:
    on = scenes.cluster()
    simulated = scenes.simulator(on, scenes.trace())
    assert simulated.run()
    admission, policy = simulated.admission(), parse("round-robin")
    policy.route(admission)
    twin = copy.deepcopy(policy)
    assert policy.route(admission) == (1, 1) and policy.route(admission) == (0, 2)
    assert twin.route(admission) == (1, 1)
    assert (twin.hash, str(twin)) == (policy.hash, str(policy))
