"""`disaggroute live up`, `status` and `down` as people type them, on emulated engines; then the router on them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LIVE = [sys.executable, "-m", "disaggroute", "live"]

FILE = """
name: quick
model: tiny
profile: a40-qwen2.5-3b
time_scale: 0.2
prefill: 1
decode: 1
launch:
  kind: emulator
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Run]:
    """Runs a command of `disaggroute live` in a folder where `quick.yaml` is."""
    (tmp_path / "quick.yaml").write_text(FILE)
    environment = {key: value for key, value in os.environ.items() if key not in ("DISAGGROUTE_STATE", "COLUMNS")}

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*LIVE, *words], capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    yield run
    if (tmp_path / ".disaggroute").exists():
        run("down", "quick.yaml")


def test_engines_go_up_are_served_on_and_go_down(live: Run, tmp_path: Path) -> None:
    said = live("up", "quick.yaml")
    assert re.fullmatch(
        r"prefill/0 at http://127\.0\.0\.1:\d+\ndecode/0 at http://127\.0\.0\.1:\d+\n"
        r"quick is up; `disaggroute live serve quick\.yaml` serves on it, `live down quick\.yaml` ends it\n",
        said.stdout,
    )
    assert "prefill/0 ready" in said.stderr
    rows = [line.split() for line in live("status").stdout.splitlines() if "/0" in line]
    assert [row[:2] for row in rows] == [["prefill/0", "prefill"], ["decode/0", "decode"]]
    assert all(row[3:5] == ["yes", "yes"] and row[6] == "0.32.0" for row in rows)
    assert [row[-1] for row in rows] == ["prefill-0.log", "decode-0.log"]

    assert "quick was up already" in live("up", "quick.yaml").stdout
    os.kill(int(rows[1][2]), signal.SIGKILL)
    row = next(line.split() for line in live("status", "quick.yaml", code=1).stdout.splitlines() if "decode/0" in line)
    assert row == ["decode/0", "decode", "no", "no", rows[1][5], "decode-0.log"]
    ended = "decode/0 has ended; `disaggroute live up quick.yaml` starts it again\n"
    assert ended in live("status", "quick.yaml", code=1).stderr
    refused = live("serve", "quick.yaml", "--wait", "0", "--port", "0", "--admin-port", "0", code=2).stderr
    assert refused.startswith(ended) and refused.endswith(f"; {ended}") and "no decode engine answers" in refused
    refused = live("gate", "quick.yaml", code=2).stderr
    assert refused.startswith("disaggroute: quick is not up (decode/0: ") and refused.endswith(f"; {ended}")
    assert live("up", "quick.yaml").stdout == said.stdout  # where it was

    log = tmp_path / "router.log"
    with log.open("w") as output, subprocess.Popen(
        [*LIVE, "serve", "quick.yaml", "--port", "0", "--admin-port", "0", "--records", "records.jsonl"],
        stdout=output,
        stderr=output,
        cwd=tmp_path,
    ) as router:
        try:
            while "Ctrl-C" not in log.read_text():
                assert router.poll() is None, log.read_text()
                time.sleep(0.01)
            (url, *_) = re.findall(r"at (http://\S+)", log.read_text())
            body = b'{"prompt": "hello", "max_tokens": 3, "ignore_eos": true}'
            with urllib.request.urlopen(urllib.request.Request(f"{url}/completions", body), timeout=60) as answer:
                assert b'"completion_tokens":3' in answer.read().replace(b" ", b"")
        finally:
            router.terminate()
    assert live("status").returncode == 0  # they outlive the router

    assert live("down", "quick.yaml").stdout == "quick is down; 2 engines ended\n"
    assert live("down", "quick.yaml").stdout.startswith("quick was not up (by ")
    assert "nothing is up" in live("status").stdout
    assert "quick is not up" in live("status", "quick.yaml", code=1).stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["up", "nowhere"], "unknown live cluster 'nowhere'"),
        (["up", "none.yaml"], "none.yaml: the file cannot be read"),
        (["down", "nowhere"], "unknown live cluster 'nowhere'"),
        (["status", "nowhere"], "unknown live cluster 'nowhere'"),
        (["up", "urls.yaml"], "urls.yaml has no `launch` section; its engines are started elsewhere"),
        (["up", "gpus.yaml"], "devices 1000 are wanted; this machine has"),
        (["up", "twice.yaml"], "twice.yaml: decode/0 has device 0 of prefill/0; share_devices: true in"),
        (["serve", "quick.yaml"], "quick.yaml is not up; run `disaggroute live up quick.yaml` first"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(
    live: Run, tmp_path: Path, words: list[str], sentence: str
) -> None:
    start = "model: m\nprofile: a40-qwen2.5-3b\n"
    (tmp_path / "urls.yaml").write_text(start + "mixed: [{url: 'http://127.0.0.1:1'}]\n")
    gpus = start + "mixed: [{devices: [1000]}]\nlaunch: {kind: vllm, device: cuda}\n"
    (tmp_path / "gpus.yaml").write_text(gpus)
    twice = "prefill: [{devices: [0]}]\ndecode: [{devices: [0]}]\nlaunch: {kind: vllm, device: cuda}\n"
    (tmp_path / "twice.yaml").write_text(start + twice)
    done = live(*words, code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"disaggroute: {sentence}")
