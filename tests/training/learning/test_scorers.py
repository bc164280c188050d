"""Scorers: what is trained decides as the policy that it becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.policies import policy_file, registry
from disaggroute.policies.agent import PolicyAgent
from disaggroute.policies.linear import Linear
from disaggroute.policies.network import Network
from disaggroute.policies.network_shape import Shape
from disaggroute.policies.policy import Policy
from disaggroute.training.learning.config import PolicyConfig
from disaggroute.training.learning.network_scorer import NetworkScorer
from disaggroute.training.learning.scorers import PooledValue, scorer

LINEAR, NETWORK = PolicyConfig(name="linear"), PolicyConfig(name="network", hidden=(5,))
BOTH = pytest.mark.parametrize("policy", [LINEAR, NETWORK], ids=["linear", "network"])


def costs(trained: Any, observation: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        names = ("request", "prefill", "decode")
        prefill, decode = trained(*(torch.from_numpy(observation[name])[None] for name in names))
    return prefill[0], decode[0]


@BOTH
def test_its_policy_chooses_what_costs_least(policy: PolicyConfig) -> None:
    env = DisaggRouteEnv("mixed-bursty", duration_s=20, warmup_s=2)
    env.action_space.seed(0)
    chosen = set()
    for seed in range(5):
        trained = scorer(policy, seed)
        agent = PolicyAgent(trained.policy(), env)
        observation, _ = env.reset(seed=seed)
        for _ in range(20):
            action = tuple(agent.act())
            assert tuple(int(cost.argmin()) for cost in costs(trained, observation)) == action
            chosen.add(action)
            observation, _, ended, _, _ = env.step(env.action_space.sample())
            assert not ended
    assert len(chosen) > 1


@BOTH
def test_the_seed_draws_its_weights(policy: PolicyConfig) -> None:
    first, again, other = (scorer(policy, seed).policy().hash for seed in (1, 1, 2))
    assert first == again != other


def test_random_weights_decide_among_mixed_instances_as_linear_does() -> None:
    mixed = arrays_of(NetworkScorer((6,), None, 3).policy())
    plain = arrays_of(Network.from_linear(Linear(), Shape((6,))))
    assert np.array_equal(mixed["mixed.skip"], plain["mixed.skip"]) and plain["mixed.skip"].any()
    assert not mixed["mixed.out"].any(), "the units have no say"


@pytest.mark.parametrize("file", sorted(policy_file.shipped("network")))
def test_networks_that_ship_decide_among_mixed_instances_as_linear_does(file: str) -> None:
    arrays = arrays_of(registry.parse(f"network@{file}"))
    plain = arrays_of(Network.from_linear(Linear()))
    assert np.array_equal(arrays["mixed.skip"], plain["mixed.skip"]) and not arrays["mixed.out"].any()


def arrays_of(policy: Policy) -> dict[str, npt.NDArray[np.floating]]:
    assert isinstance(policy, Network)
    return policy.shape.split(policy.vector_of_weights)


@BOTH
def test_it_begins_with_the_weights_of_a_policy(policy: PolicyConfig) -> None:
    start = 'linear(prefill={"queued": 2, "tight*index": -1}, decode={"in_flight": 1})'
    trained = scorer(policy.model_copy(update={"start": start}), seed=0)
    env = DisaggRouteEnv("mixed-bursty", duration_s=20, warmup_s=2)
    agent = PolicyAgent(start, env)
    observation, _ = env.reset(seed=1)
    for _ in range(20):
        action = agent.act()
        assert tuple(int(cost.argmin()) for cost in costs(trained, observation)) == tuple(action)
        observation, _, ended, _, _ = env.step(action)
        assert not ended


def test_an_instance_that_may_not_be_assigned_is_out_of_the_question() -> None:
    trained = scorer(LINEAR, seed=0)
    rng = np.random.default_rng(0)
    observation = {
        "request": rng.random(6, np.float32),
        "prefill": rng.random((3, 22), np.float32),
        "decode": rng.random((4, 26), np.float32),
    }
    observation["prefill"][:, -1] = [0, 1, 0]
    observation["decode"][:, -1] = [1, 0, 1, 1]
    prefill, decode = costs(trained, observation)
    assert int(prefill.argmin()) == 1
    assert decode[1] > 1e6 > decode[0].abs()


def test_a_value_does_not_depend_on_rows_that_may_not_be_assigned() -> None:
    value = PooledValue(8)
    rng = np.random.default_rng(0)
    sizes = (1, 6), (1, 3, 22), (1, 4, 26)
    request, prefill, decode = (torch.from_numpy(rng.random(size, np.float32)) for size in sizes)
    prefill[..., -1] = torch.tensor([1.0, 1.0, 0.0])
    decode[..., -1] = torch.tensor([1.0, 1.0, 1.0, 0.0])
    before = value(request, prefill, decode)
    prefill[0, 2, :-1], decode[0, 3, :-1] = 5.0, -5.0
    assert torch.equal(value(request, prefill, decode), before)
    assert torch.equal(value(request, prefill[:, :2], decode[:, :3]), before), "as if they were not there"


@pytest.mark.parametrize(
    ("policy", "start", "sentence"),
    [
        (LINEAR, "least-loaded", "policy.start is 'least-loaded'; a linear policy begins with a linear one"),
        (LINEAR, 'linear(decode={"base_decode": 1})', "start weighs base_decode of decode instances"),
        (NETWORK, "least-loaded", "policy.start is least-loaded; a network begins with a network or a linear policy"),
        (NETWORK, "network", r"policy.hidden is \[5\], but policy.start has \[16\]; leave it out"),
    ],
)
def test_it_does_not_begin_with_other_policies(policy: PolicyConfig, start: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        scorer(policy.model_copy(update={"start": start}), seed=0)


def test_a_trained_linear_policy_is_written_with_all_its_terms() -> None:
    policy = scorer(LINEAR, seed=0).policy()
    assert registry.parse(str(policy)).hash == policy.hash
