"""`evaluate --backend live` as people use it: killed anywhere and gone on with, and refused in a sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.envs.backend import Outcome
from disaggroute.envs.setting import Prepared
from disaggroute.live.backend import LiveBackend
from disaggroute.live.emulated_cluster import EmulatedCluster
from disaggroute.policies import registry

from .test_killed_evaluation import alive, children, heed_interrupts

PROFILE = "a40-qwen2.5-3b"

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to look for processes")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of a cluster that is up."""
    file = tmp_path_factory.mktemp("cluster") / "small.yaml"
    with EmulatedCluster("1P2D", PROFILE, time_scale=0.1) as engines:
        fields = engines.cluster(name="small").model_dump(mode="json", exclude_none=True)
        file.write_text(yaml.safe_dump(fields))
        yield file


def command(cluster: Path, *words: str) -> list[str]:
    usual = ["--backend", "live", "--cluster", str(cluster), "--no-gates", "--no-figures"]
    return ["evaluate", "chat", *usual, *words]


def start(cluster: Path, out: Path, policies: str = "least-loaded") -> subprocess.Popen[str]:
    window = ["--rate", "5", "--duration", "25", "--warmup", "2", "--seeds", "1", "--policies", policies]
    words = command(cluster, *window, "--out", str(out))
    program = [sys.executable, "-m", "disaggroute"]
    return subprocess.Popen(
        [*program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_live_evaluation_goes_on_wherever_it_was_killed_and_counts_each_request_once(
    cluster: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r"

    def attempt(number: int) -> Path:
        return next(iter(out.glob(f"live/*/10000/attempt-{number}")), tmp_path / "none")

    for number, cut in enumerate(
        (
            lambda: attempt(1).exists(),  # the router starts
            lambda: lines(attempt(2) / "client.jsonl") >= 1,  # the first request is on its way
            lambda: lines(attempt(3) / "router.jsonl") >= 40,  # in the middle of it all
        ),
        start=1,
    ):
        process = start(cluster, out)
        wait_for(process, cut)
        routers = children(process.pid)
        # The second time by Ctrl-C, which says how to go on.
        process.send_signal(signal.SIGINT if number == 2 else signal.SIGKILL)
        _, err = process.communicate()
        assert "Traceback" not in err
        if number == 2:
            assert process.returncode == 1 and "the same command goes on from the finished runs" in err
        for pid in routers:
            while alive(pid):
                time.sleep(0.01)
        assert not list(out.glob("runs/*/*.json")) and not list(out.glob("records/*/*"))
        assert attempt(number).exists() and not attempt(number + 1).exists()

    process = start(cluster, out)
    said, err = process.communicate()
    assert process.returncode == 0, err
    assert "chat on small (live): 5 requests/s, 25 s measured after 2 s" in said
    table = pq.read_table(out / "records.parquet")
    assert table["request"].to_pylist() == list(range(table.num_rows)) and table.num_rows > 60
    assert set(table["status"].to_pylist()) == {"finished"}
    assert lines(attempt(4) / "client.jsonl") == table.num_rows + 2

    other = start(cluster, out, "round-robin")
    _, err = other.communicate()
    assert other.returncode == 2
    assert f"policies is round-robin, but {out} was measured with least-loaded, in turn; name the same ones" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "rate is missing; give --rate, or find one with `disaggroute saturate chat --backend live --cluster "),
        (["--rate", "5", "--workers", "2"], "workers is 2, but the backend is live: runs follow each other"),
        (["--rate", "5", "--executor", "ray"], "executor is ray, but the backend is live: runs follow each other"),
        (["--rate", "5", "--topology", "1P2D"], "topology is 1P2D, but the backend is live: its engines are those"),
        (["--rate", "5", "--profile", PROFILE], f"profile is {PROFILE}, but the backend is live: it stands in the"),
        (["--rate", "5", "--constants-scale", "0.135"], "constants_scale is 0.135, but the backend is live"),
        (["--rate", "5", "--predictor", "orcale"], "unknown predictor 'orcale'; nearest: oracle"),
        (["--rate", "5", "--on-engine-loss", "cry"], "on_engine_loss is 'cry'"),
        (["--rate", "5", "--policies", "rond-robin"], "unknown policy 'rond-robin'; nearest: "),
        (["--rate", "5", "--first-seed", "30000"], "seed 30000 is held out for claims"),
        (["--rate", "5", "--live-options", "none.yaml"], "none.yaml"),
        (["--rate", "5", "--records", "some"], "records is 'some'; allowed are first, all, none"),
    ],
)
def test_what_a_live_evaluation_cannot_do_is_one_sentence(
    cluster: Path, words: list[str], sentence: str, tmp_path: Path
) -> None:
    refused(command(cluster, *words), sentence, tmp_path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--backend", "live", "--rate", "5"], "cluster is missing; the backend live needs --cluster"),
        (["--backend", "live", "--rate", "5", "--cluster", "nowhere"], "unknown live cluster 'nowhere'"),
        (["--cluster", "emulated-2p4d"], "a path ends in .yaml; a live cluster has this name: --backend live"),
        (["--backend", "lvie"], "unknown backend 'lvie'; nearest: live"),
        (["--no-gates"], "--no-gates is for a live cluster; give --backend live too, or leave it out"),
        (["--no-reset"], "--no-reset is for a live cluster"),
        (["--on-engine-loss", "stop"], "--on-engine-loss stop is for a live cluster"),
        (["--live-options", "o.yaml"], "--live-options o.yaml is for a live cluster"),
    ],
)
def test_options_that_do_not_fit_each_other_are_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    refused(["evaluate", "chat", *words], sentence, tmp_path)


def test_a_cluster_that_is_not_up_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        f"name: mine\nmodel: tiny\nprofile: {PROFILE}\nprefill: [{{url: 'http://127.0.0.1:1'}}]\n"
        "decode: [{url: 'http://127.0.0.1:2'}]\n"
    )
    refused(command(file, "--rate", "5"), "mine is not up (prefill/0: http://127.0.0.1:1: ", tmp_path)


def test_a_search_on_a_live_cluster_prints_the_rate_and_keeps_what_it_tried(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator answers for the engines here."""

    def simulated(using: LiveBackend, prepared: Prepared, policy: str, seed: int, **_: Any) -> Outcome:
        result = using.setting.simulate(prepared, registry.parse(policy), seed, log_decisions=True)
        return Outcome(result.records, result.decisions)

    monkeypatch.setattr(LiveBackend, "run", simulated)
    words = ["saturate", "chat", "--backend", "live", "--cluster", str(cluster), "--no-gates", "--start", "4"]
    done = CliRunner().invoke(app, [*words, "--duration", "60", "--out", str(tmp_path / "s")], prog_name="disaggroute")
    assert done.exit_code == 0, done.stderr
    kept = json.loads((tmp_path / "s" / "saturation.json").read_text())
    assert float(done.stdout) == kept["rate"] and done.stderr.startswith("4 requests/s: goodput ")
    assert f"what was tried is in {tmp_path / 's' / 'saturation.json'}" in done.stderr
    assert len(kept["probes"]) == len(list((tmp_path / "s").glob("rate-*")))


def test_a_search_in_the_simulator_has_no_folder(tmp_path: Path) -> None:
    words = ["saturate", "chat", "--out", "here"]
    refused(words, "out is here, but a search in the simulator keeps no runs", tmp_path)


def refused(words: list[str], sentence: str, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(app, words, prog_name="disaggroute")
    assert done.exit_code == 2 and sentence in done.stderr, done.stderr
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert not (folder / "results").exists()
