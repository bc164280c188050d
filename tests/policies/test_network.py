"""Network: what it decides, what it costs to make one, its file, and what is said of bad weights."""

from __future__ import annotations

import base64
import copy
import pickle
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from disaggroute.envs import features, router_constants
from disaggroute.envs.simulator import Simulator, simulate
from disaggroute.envs.simulator import layout as L
from disaggroute.policies import make, parse
from disaggroute.policies.linear import Linear
from disaggroute.policies.network import Network, text_of
from disaggroute.policies.network_shape import Shape
from disaggroute.policies.policy import Policy
from disaggroute.policies.policy_file import PolicyFile

from . import scenes
from .networks import random_network, without_units
from .plain import Seen
from .plain_learned import Network as Plain
from .plain_twins import plain_policy

OF = scenes.trace(300, rate=25)
SHAPES = [(16,), (5,), (40,), (16, 8), (7, 20), (33, 33)]


def routed(policy: Policy, topology: str = "2P4D", **options: Any) -> list[tuple[int, int]]:
    """Pairs of a compiled run under an oracle."""
    on = scenes.cluster(topology)
    constants = router_constants.from_cluster(on)
    records = simulate(OF, on, policy=policy, predictor="oracle", constants=constants, **options).records
    return list(zip(records["prefill"].tolist(), records["decode"].tolist(), strict=True))


def by_object(policy: Policy, topology: str = "2P4D") -> list[tuple[int, int]]:
    """The same by `route`."""
    simulated = scenes.simulator(scenes.cluster(topology), OF)
    pairs = []
    while simulated.run():
        pairs.append(policy.route(simulated.admission()))
        simulated.send(*pairs[-1])
    return pairs


def costs_left(simulated: Simulator, stage: str) -> list[float]:
    """What a decision left in the ledger's rows, of the first router."""
    block = simulated._block
    at = int(block[L.H_O_LEDGER]) + (0 if stage == "prefill" else int(block[L.H_LEDGER_DECODE]))
    group, cost, count = (
        (L.PRE_GROUP, L.PRE_COST, int(block[L.H_PREFILLS]))
        if stage == "prefill"
        else (L.DEC_GROUP, L.DEC_COST, int(block[L.H_DECODES]))
    )
    words = [at + (i >> 3) * group + (i & 7) + cost for i in range(count)]
    return block[words].view(np.float64).tolist()


@pytest.mark.parametrize("hidden", SHAPES, ids=str)
@pytest.mark.parametrize("topology", ["2P4D", "3P9D", "5M"])
def test_costs_are_those_of_the_plain_formula_bit_by_bit(hidden: tuple[int, ...], topology: str) -> None:
    network = random_network(hidden, 7)
    on = scenes.drained(topology, 1)
    constants = router_constants.from_cluster(on)
    plain = plain_policy("network", network.params, 0, constants, on.instances[0].block_size)
    assert isinstance(plain, Plain)
    simulated = scenes.simulator(on, scenes.trace(12, rate=60))
    compared = 0
    while simulated.run():
        admission = simulated.admission()
        seen = Seen.of(admission, admission.prefill, admission.decode, simulated.trace, on.aggregated)
        request, arrays = plain.read(seen)
        pair = network.route(admission)
        for stage, rows in arrays.items():
            available = [row["available"] for row in (seen.prefill if stage == "prefill" else seen.decode)]
            columns = {"prefill": features.PREFILL, "decode": features.DECODE, "mixed": features.MIXED}[stage]
            expected = plain.costs(stage, columns, request, rows)
            if sum(available) > 1:
                found = costs_left(simulated, stage)
                assert [c for c, may in zip(found, available, strict=True) if may] == [
                    c for c, may in zip(expected, available, strict=True) if may
                ]
                compared += 1
        simulated.send(*pair)
    assert compared >= 12


def test_the_units_matter() -> None:
    for hidden in ((16,), (16, 8)):
        network = random_network(hidden, 0)
        for topology in ("2P4D", "4M"):
            pairs, skip = routed(network, topology), routed(without_units(network), topology)
            assert sum(a != b for a, b in zip(pairs, skip, strict=True)) > 30


@pytest.mark.parametrize("topology", ["2P4D", "3M", "16P48D"])
@pytest.mark.parametrize("hidden", [(16,), (24, 8)], ids=str)
def test_the_object_and_the_compiled_loop_decide_alike(topology: str, hidden: tuple[int, ...]) -> None:
    network = random_network(hidden, 3)
    pairs = routed(network, topology)
    assert by_object(network, topology) == pairs
    assert len(set(pairs)) > 1


def test_without_weights_it_decides_as_linear_does_by_default() -> None:
    for topology in ("2P4D", "3M"):
        assert routed(make("network"), topology) == routed(make("linear"), topology)
        assert routed(make("network", hidden=[3, 4]), topology) == routed(make("linear"), topology)


@pytest.mark.parametrize("file", ["mixed-bursty", "mixed-bursty-a40"])
def test_a_network_starts_from_tuned_linear_weights_without_loss(file: str) -> None:
    linear = parse(f"linear@{file}")
    assert isinstance(linear, Linear)
    network = Network.from_linear(linear, Shape((9,)), seed=4)
    assert routed(network) == routed(linear)
    arrays = network.shape.split(network.vector_of_weights)
    assert arrays["prefill.instance"].any() and not arrays["prefill.out"].any()


def test_products_with_the_request_are_kept() -> None:
    text = 'linear(prefill={"index": 0.3, "prompt*index": -1}, decode={"tight*index": 1, "index": -0.5})'
    linear = parse(text)
    assert isinstance(linear, Linear)
    assert routed(Network.from_linear(linear)) == routed(linear)


def test_equal_costs_go_to_the_lowest_index_that_may_be_assigned() -> None:
    shape = Shape((4,))
    network = Network.from_vector(shape, np.zeros(shape.size))
    for topology, closed, pair in (("2P4D", (), (0, 0)), ("3P4D", (0, 3), (1, 1)), ("4M", (0, 1), (2, 2))):
        simulated = scenes.simulator(scenes.drained(topology, *closed), OF)
        assert simulated.run()
        assert network.route(simulated.admission()) == pair


def test_a_pool_of_one_and_a_pool_with_one_left_need_no_scores() -> None:
    network = random_network((16,), 1)
    simulated = scenes.simulator(scenes.drained("1P3D", 1, 3), OF)
    assert simulated.run()
    assert network.route(simulated.admission()) == (0, 1)
    assert set(routed(network, "1P1D")) == {(0, 0)} == set(routed(network, "1M"))


def test_one_set_of_weights_serves_pools_of_any_size() -> None:
    network = random_network((16,), 2)
    for topology in ("1P2D", "3P1D", "40P90D", "2M", "70M"):
        assert len(routed(network, topology)) == len(OF)


def test_the_memory_of_a_decision_is_given_back_after_it() -> None:
    network, on, of = random_network((16,), 0), scenes.cluster("16P48D"), scenes.trace(2_000, rate=100)
    constants = router_constants.from_cluster(on)
    simulate(of, on, policy=network, predictor="oracle", constants=constants)  # 20 MB in all; a stack has 8


def test_the_same_run_gives_the_same_bytes() -> None:
    network = random_network((16, 16), 5)
    assert routed(network) == routed(Network.from_vector(network.shape, network.vector_of_weights))


def test_copies_and_pickles_decide_alike() -> None:
    network = random_network((16,), 6)
    pairs = routed(network)
    for twin in (copy.copy(network), copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert (twin.hash, routed(twin)) == (network.hash, pairs)
    fresh = pickle.loads(pickle.dumps(random_network((16,), 6)))  # before anything was made of its weights
    assert routed(fresh) == pairs


def test_a_vector_makes_the_network_that_its_parameters_make() -> None:
    network = random_network((16, 3), 8)
    again = make("network", **network.params)
    assert isinstance(again, Network)
    assert (again.hash, again.params, str(again)) == (network.hash, network.params, str(network))
    assert again.vector_of_weights.tobytes() == network.vector_of_weights.tobytes()
    assert again.shape == network.shape == Shape((16, 3))
    assert parse(str(network)).hash == network.hash
    assert routed(again) == routed(network)


def test_a_vector_is_copied_and_rounded_to_float32() -> None:
    shape = Shape((2,))
    given = np.full(shape.size, 0.1)
    network = Network.from_vector(shape, given)
    given[:] = 7
    found = network.vector_of_weights
    assert found.dtype == np.float32 and (found == np.float32(0.1)).all()
    found[:] = 7
    assert (network.vector_of_weights == np.float32(0.1)).all()


def test_nothing_that_describes_a_network_is_made_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(vector: Any) -> str:
        raise AssertionError

    monkeypatch.setattr("disaggroute.policies.network.text_of", refuse)
    routed(random_network((16,), 0))


def test_a_network_has_one_text_however_it_was_made() -> None:
    shape = Shape((2,))
    assert Network.from_vector(shape, np.ones(shape.size)).params == {
        "hidden": [2],
        "weights": text_of(np.ones(shape.size, np.float32)),
    }
    assert make("network", hidden=[2]).params == {"hidden": [2], "weights": None}


def test_the_file_is_small_and_gives_the_network_back(tmp_path: Path) -> None:
    network = random_network((16,), 9)
    file = tmp_path / "net.yaml"
    file.write_text(PolicyFile.of(network, {"command": "by hand"}).yaml(), encoding="utf-8")
    assert file.stat().st_size < 14_000
    again = parse(f"network@{file}")
    assert again.hash == network.hash and str(again) == f"network@{file}"


def text(data: bytes) -> str:
    return base64.b64encode(data + zlib.crc32(data).to_bytes(4, "little")).decode()


SIZE = Shape((2,)).size
GOOD = np.ones(SIZE, "<f4")
WRITTEN = text_of(GOOD)


def changed(k: int, value: float) -> str:
    vector = GOOD.copy()
    vector[k] = value
    return text_of(vector)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"weights": "?!"}, "weights: it is no base64 text; it must be what a trained network was written as"),
        ({"weights": WRITTEN[:-1]}, "weights: it is no base64 text"),
        ({"weights": "é"}, "weights: it is no base64 text"),
        ({"weights": ""}, "weights: it is damaged, its checksum does not agree; it must be what a trained network"),
        ({"weights": WRITTEN[:-8]}, "weights: it is damaged"),
        ({"weights": WRITTEN[8:]}, "weights: it is damaged"),
        ({"weights": WRITTEN[:40] + "B" + WRITTEN[41:]}, "weights: it is damaged"),
        ({"weights": text(b"abcde")}, "weights: it is damaged"),
        ({"weights": text(GOOD[:-1].tobytes())}, f"weights holds {SIZE - 1} numbers; hidden [2] needs {SIZE}"),
        ({"weights": text(2 * GOOD.tobytes())}, f"weights holds {2 * SIZE} numbers; hidden [2] needs {SIZE}"),
        ({"weights": text(b"")}, f"weights holds 0 numbers; hidden [2] needs {SIZE}"),
        ({"weights": WRITTEN, "hidden": [3]}, f"weights holds {SIZE} numbers; hidden [3] needs "),
        ({"weights": WRITTEN, "hidden": [2, 2]}, f"weights holds {SIZE} numbers; hidden [2, 2] needs "),
        ({"weights": changed(5, float("nan"))}, "weights: weight 5 is nan; it must be from -1,000,000 to 1,000,000"),
        ({"weights": changed(0, float("-inf"))}, "weights: weight 0 is -inf; it must be from -1,000,000 to 1,000,000"),
        ({"weights": changed(SIZE - 1, 2e6)}, f"weights: weight {SIZE - 1} is 2e+06; it must be from -1,000,000"),
        ({"weights": 3}, "weights is 3; it must be a valid string"),
        ({"hidden": []}, "hidden is []; it "),
        ({"hidden": [1, 2, 3]}, "hidden is [1, 2, 3]; it "),
        ({"hidden": [0]}, "hidden.0 is 0; it must be greater than or equal to 1"),
        ({"hidden": [257]}, "hidden.0 is 257; it must be less than or equal to 256"),
        ({"hidden": [2.5]}, "hidden.0 is 2.5; it must be a valid integer"),
        ({"hidden": [True]}, "hidden.0 is True; it must be a number"),
        ({"hidden": 16}, "hidden is 16; it must be a valid list"),
        ({"wieghts": "x"}, "unknown field 'wieghts'; nearest: weights"),
    ],
)
def test_bad_parameters_are_answered_by_a_short_sentence(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        make("network", **{"hidden": [2], **params})
    assert str(error.value).startswith(f"network: {sentence}")
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("vector", "sentence"),
    [
        (np.zeros(3), f"vector has shape (3,); hidden [2] needs ({SIZE},)"),
        (np.zeros((SIZE, 1)), f"vector has shape ({SIZE}, 1); hidden [2] needs ({SIZE},)"),
        (np.full(SIZE, np.nan), "weight 0 is nan; it must be from -1,000,000 to 1,000,000"),
        (np.arange(SIZE) * 1e5, "weight 11 is 1.1e+06; it must be from -1,000,000 to 1,000,000"),
    ],
)
def test_a_bad_vector_is_refused(vector: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        Network.from_vector(Shape((2,)), vector)
    assert str(error.value) == sentence


def test_a_file_of_other_features_or_damaged_is_refused_and_named(tmp_path: Path) -> None:
    data = yaml.safe_load(PolicyFile.of(random_network((2,), 0), {}).yaml())
    file = tmp_path / "net.yaml"
    file.write_text(yaml.safe_dump({**data, "features_version": 99}))
    with pytest.raises(ValueError, match=f"{file}: features_version is 99, but the features have version"):
        parse(f"network@{file}")
    weights = data["params"]["weights"]
    data["params"]["weights"] = weights[:100] + ("A" if weights[100] != "A" else "B") + weights[101:]
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(ValueError, match=f"{file}: network: weights: it is damaged"):
        parse(f"network@{file}")


def test_the_largest_weights_leave_costs_finite() -> None:
    shape = Shape((256, 256))
    network = Network.from_vector(shape, np.full(shape.size, 1e6))
    simulated = scenes.simulator(scenes.cluster(), OF)
    assert simulated.run()
    network.route(simulated.admission())
    assert np.isfinite(costs_left(simulated, "prefill") + costs_left(simulated, "decode")).all()


def test_deciding_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from disaggroute import simulate\n"
        "from disaggroute.envs import cluster_config, workloads\n"
        "cluster = cluster_config.from_topology('1P2D', 'a40-qwen2.5-3b').build()\n"
        "trace = workloads.make('chat').generate(rate=2, duration_s=5, seed=0)\n"
        "assert len(simulate(trace, cluster, 'network', log_decisions=True).decisions)\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'torch']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_constants_are_needed() -> None:
    simulated = scenes.simulator(scenes.cluster(), OF, constants=False)
    assert simulated.run()
    with pytest.raises(ValueError, match="network: constants is None; it must be the router's constants"):
        make("network").route(simulated.admission())
