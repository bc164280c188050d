"""The network in torch gives the costs of the plain formula, ignores padding, and learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disaggroute.envs import features as F
from disaggroute.envs import router_constants
from disaggroute.envs.feature_arrays import FeatureArrays
from disaggroute.policies.network_shape import COLUMNS, STAGES, Shape

from . import scenes
from .networks import random_network
from .plain_learned import Network as Plain
from .test_network import costs_left

torch = pytest.importorskip("torch")

from disaggroute.policies.network_torch import Scorer  # noqa: E402 - after the check for torch

SHAPES = [(16,), (3,), (20, 5)]


def scorer_of(hidden: tuple[int, ...], seed: int) -> tuple[Any, Scorer]:
    network = random_network(hidden, seed)
    return network, Scorer(network.shape, network.vector_of_weights)


def plain_costs(network: Any, stage: str, request: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> list[float]:
    """Costs by the plain formula, +inf where nothing may be assigned."""
    constants = router_constants.from_cluster(scenes.cluster())
    weights = network.shape.split(network.vector_of_weights)
    plain = Plain(0, constants, 16, hidden=list(network.shape.hidden), weights=weights)
    available = [feature.name for feature in COLUMNS[stage]].index("available")
    costs = plain.costs(stage, COLUMNS[stage], request.tolist(), rows)
    return [cost if row[available] else np.inf for cost, row in zip(costs, rows, strict=True)]


def observations(stage: str, batch: int, instances: int, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Requests (B, R) and instances (B, N, F): some beyond the clip, some that may not be assigned."""
    rng = np.random.default_rng(seed)
    request = rng.exponential(2.0, (batch, len(F.REQUEST))).astype(np.float32)
    rows = rng.exponential(2.0, (batch, instances, len(COLUMNS[stage]))).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] *= 20
    rows[..., -1] = rng.random((batch, instances)) < 0.7
    rows[:, rng.integers(instances), -1] = 1
    return request, rows


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SHAPES), st.sampled_from(STAGES), st.integers(1, 3), st.integers(1, 9), st.integers(0, 10_000)
)
def test_costs_are_those_of_the_plain_formula(
    hidden: tuple[int, ...], stage: str, batch: int, instances: int, seed: int
) -> None:
    network, scorer = scorer_of(hidden, seed)
    request, rows = observations(stage, batch, instances, seed)
    found = scorer.costs(stage, torch.from_numpy(request), torch.from_numpy(rows)).detach().numpy()
    for b in range(batch):
        expected = plain_costs(network, stage, request[b], rows[b])
        largest = 1e-5 * np.abs([cost for cost in expected if np.isfinite(cost)]).max()
        np.testing.assert_allclose(found[b], expected, rtol=1e-4, atol=10 * largest + 1e-3)


@pytest.mark.parametrize("hidden", SHAPES, ids=str)
def test_costs_are_those_of_the_compiled_pass(hidden: tuple[int, ...]) -> None:
    network, scorer = scorer_of(hidden, 3)
    on = scenes.cluster("3P5D")
    arrays = FeatureArrays.of_cluster(on)
    simulated = scenes.simulator(on, scenes.trace(30))
    last = -1
    while simulated.run():
        admission = simulated.admission()
        seen = arrays.of_admission(admission, last)
        last = admission.now
        batch = [torch.from_numpy(seen[name])[None] for name in ("request", "prefill", "decode")]
        pair = network.route(admission)
        for stage, costs in zip(("prefill", "decode"), scorer(*batch), strict=True):
            np.testing.assert_allclose(costs.detach()[0], costs_left(simulated, stage), rtol=1e-4, atol=1e-2)
        simulated.send(*pair)


def test_padded_rows_change_nothing_and_cost_infinitely_much() -> None:
    _, scorer = scorer_of((16,), 0)
    request, rows = observations("decode", 2, 4, 1)
    padded = np.concatenate([rows, np.full((2, 3, rows.shape[2]), 5, np.float32)], axis=1)
    padded[:, 4:, -1] = 0
    short, long = (
        scorer.costs("decode", torch.from_numpy(request), torch.from_numpy(given)) for given in (rows, padded)
    )
    np.testing.assert_allclose(short.detach(), long.detach()[:, :4], rtol=1e-5)
    assert torch.isinf(long[:, 4:]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_stands_in_padded_rows_reaches_neither_costs_nor_gradients(value: float) -> None:
    _, scorer = scorer_of((8, 4), 0)
    request, rows = observations("prefill", 2, 4, 2)
    rows[:, -1] = value
    rows[:, -1, -1] = 0
    costs = scorer.costs("prefill", torch.from_numpy(request), torch.from_numpy(rows))
    costs[torch.isfinite(costs)].sum().backward()
    gradients = [p.grad for name, p in scorer.weights.items() if name.startswith("prefill")]
    assert all(g is not None and torch.isfinite(g).all() for g in gradients)


def test_an_observation_after_the_last_request_has_no_finite_cost_and_no_gradient() -> None:
    scorer = Scorer(Shape((4,)))
    costs = scorer.costs("decode", torch.zeros(1, len(F.REQUEST)), torch.zeros(1, 3, len(F.DECODE)))
    assert torch.isinf(costs).all()
    (-costs).softmax(-1).nan_to_num().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in scorer.parameters())


def test_weights_go_in_and_come_out_unchanged() -> None:
    network, scorer = scorer_of((5, 6), 4)
    assert scorer.to_vector().tobytes() == network.vector_of_weights.tobytes()
    other = Scorer(network.shape)
    start = network.shape.initial(np.random.default_rng(0))
    assert other.to_vector().tobytes() == start.tobytes()
    other.load_vector(network.vector_of_weights)
    assert other.to_vector().tobytes() == network.vector_of_weights.tobytes()
    assert sum(p.numel() for p in other.parameters()) == network.shape.size
    other.load_state_dict(Scorer(network.shape).state_dict())
    assert other.to_vector().tobytes() == start.tobytes()


def test_gradients_teach_a_preference() -> None:
    torch.manual_seed(0)
    scorer = Scorer(Shape((8,)))
    request, rows = observations("prefill", 64, 3, 5)
    rows[..., -1] = 1
    wanted = torch.from_numpy(rows[..., 0].argmax(1))  # the longest queue
    given = torch.from_numpy(request), torch.from_numpy(rows)
    optimiser = torch.optim.Adam(scorer.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(-scorer.costs("prefill", *given), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_what_does_not_fit_is_refused() -> None:
    scorer = Scorer(Shape((2,)))
    request, rows = (torch.from_numpy(part) for part in observations("prefill", 1, 2, 0))
    with pytest.raises(ValueError, match="stage is 'both'; it must be one of prefill, decode, mixed"):
        scorer.costs("both", request, rows)
    with pytest.raises(ValueError, match="decode has 22 features; the features have 26"):
        scorer.costs("decode", request, rows)
    with pytest.raises(ValueError, match="request has 22 features; the features have 6"):
        scorer.costs("prefill", rows[:, 0], rows)
    with pytest.raises(ValueError, match=r"vector has shape \(3,\)"):
        scorer.load_vector(np.zeros(3))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SHAPES), st.sampled_from(STAGES), st.integers(1, 3), st.integers(1, 9), st.integers(0, 10_000)
)
def test_costs_of_recorded_admissions_are_the_same_in_numpy(
    hidden: tuple[int, ...], stage: str, batch: int, instances: int, seed: int
) -> None:
    network, _ = scorer_of(hidden, seed)
    request, rows = observations(stage, batch, instances, seed)
    costs = network.costs({"request": request, stage: rows})
    assert list(costs) == [stage] and costs[stage].shape == (batch, instances)
    for k in range(batch):
        expected = np.array(plain_costs(network, stage, request[k], rows[k]))
        open_ = np.isfinite(expected)
        assert costs[stage][k][open_] == pytest.approx(expected[open_], rel=1e-4, abs=1e-3)
