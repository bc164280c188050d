"""What the environment on a live cluster refuses before it asks an engine anything, with a sentence for each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml

import disaggroute
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.play import player as player_module

PROFILE = "a40-qwen2.5-3b"
FIELDS = {
    "name": "nowhere",
    "model": "tiny",
    "profile": PROFILE,
    "prefill": [{"url": "http://127.0.0.1:1"}],
    "decode": [{"url": "http://127.0.0.1:2"}],
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no cluster": ({"cluster": None}, "cluster is missing; backend live needs a name"),
    "unknown cluster": ({"cluster": "cpu-smok"}, "cpu-smoke"),
    "bad cluster": ({"cluster": FIELDS | {"decode": []}}, "decode is empty"),
    "unknown backend": ({"backend": "life"}, "unknown backend 'life'.*live"),
    "no rate": ({"rate": None}, "rate is missing; chat-nowhere needs one in requests/s"),
    "too small": ({"pad_to": [1, 0]}, r"pad_to is \[1, 0\]; it must hold 2 numbers .*, at least \[1, 1\]"),
    "topology": ({"topology": "2P4D"}, "topology is '2P4D'; with backend live the cluster's file says it"),
    "profile": ({"profile": PROFILE}, "profile is .*; with backend live the cluster's file says it"),
    "hidden state": ({"observability": "full"}, "observability is full; with backend live"),
    "scaled constants": ({"constants_scale": 0.5}, r"constants_scale is 0\.5; with backend live"),
    "pictures": ({"render_mode": "rgb_array"}, "render_mode is 'rgb_array'; a live cluster is not rendered"),
    "no number": ({"rest_s": -1}, "rest_s is -1; it must be a number of at least 0"),
    "unknown field": ({"tpology": "2P4D"}, "tpology"),
}


def made(**arguments: Any) -> Any:
    usual = {"backend": "live", "cluster": FIELDS, "config": "chat", "rate": 1.0}
    return gym.make(disaggroute.ENVIRONMENT, **usual | arguments)


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused_with_a_sentence(case: str) -> None:
    arguments, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=sentence):
        made(**arguments)


def test_engines_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player_module, "MEET_S", 0.0)
    env = made()
    with pytest.raises(ConnectionError, match=r"no prefill engine answers \(prefill/0: http://127\.0\.0\.1:1: Connect"):
        env.reset(seed=0)
    env.close()


def test_many_at_a_time_are_refused() -> None:
    with pytest.raises(ValueError, match="backend is live; many environments at a time need the simulator"):
        gym.make_vec(disaggroute.ENVIRONMENT, num_envs=2, backend="live", cluster=FIELDS)


def test_a_live_environment_has_no_simulator_to_take_snapshots_of() -> None:
    env = made()
    with pytest.raises(RuntimeError, match="backend live has no simulator"):
        env.unwrapped.simulator  # noqa: B018


def test_the_cluster_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "here.yaml").write_text(yaml.safe_dump(FIELDS))
    env = made(cluster=tmp_path / "here.yaml")
    assert env.unwrapped.cluster == LiveCluster.load(FIELDS)
    assert env.spec is not None and env.spec.kwargs["cluster"] == str(tmp_path / "here.yaml")


def test_a_library_that_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("disaggroute.live")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httptools", None)
    with pytest.raises(ImportError, match=r"httptools.* is not installed, and backend live needs it; `pip install"):
        made()

