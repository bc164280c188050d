"""`disaggroute live serve`, as people start it: an endpoint for the official client, an end that drains, refusals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from disaggroute.live import record_log

MODEL = "Qwen/Qwen2.5-3B"

SERVE = [sys.executable, "-m", "disaggroute", "live", "serve"]


@dataclass
class Served:
    """A router that runs as a process of its own."""

    process: subprocess.Popen[str]
    url: str
    admin: str
    key: str
    records: Path
    log: Path

    @property
    def children(self) -> list[int]:
        """Its engines."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout
        return [int(pid) for pid in found.split()]


@contextmanager
def served(folder: Path, *more: str) -> Iterator[Served]:
    records, log = folder / "records.jsonl", folder / "log"
    words = ["--emulate", "1P2D", "--port", "0", "--admin-port", "0", "--records", str(records), "--time-scale", "0.2"]
    with log.open("w") as file:
        process = subprocess.Popen([*SERVE, *words, *more], stdout=file, stderr=file, text=True)
    try:
        for _ in range(12_000):
            text = log.read_text()
            if "Ctrl-C" in text:
                break
            assert process.poll() is None, text
            time.sleep(0.01)
        else:
            raise AssertionError(text)
        urls = re.findall(r"at (http://\S+)", text)
        key = re.search(r"key (\S+)", text)
        assert key is not None
        yield Served(process, urls[0], urls[1], key[1], records, log)
    finally:
        process.kill()
        process.wait()


def gone(pid: int) -> bool:
    """Whether a process has ended; nobody may be there to bury it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_gone(pids: list[int]) -> bool:
    for _ in range(3_000):
        if all(gone(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def rows(path: Path) -> list[dict[str, object]]:
    return [record for record in record_log.read(path) if "kind" not in record]


def test_the_official_client_is_served_and_the_end_drains(tmp_path: Path) -> None:
    with served(tmp_path, "--policy", "least-loaded", "--shadow", "marginal-cost") as router:
        client = openai.OpenAI(base_url=router.url, api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == [MODEL]
        asked = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8}
        whole = client.completions.create(**asked, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
        assert whole.usage.completion_tokens == 8 and len(whole.choices[0].text) == 8
        pieces = client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
        assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
        chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
        said = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5, stream=True)
        assert "".join(p.choices[0].delta.content or "" for p in said) == chat.choices[0].message.content
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError, match="context limit"):
            client.completions.create(model=MODEL, prompt="a", max_tokens=1_000_000)
        last = client.completions.create(  # type: ignore[call-overload]
            model=MODEL, prompt="b", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(last))
        engines = router.children
        assert len(engines) == 3
        router.process.send_signal(signal.SIGTERM)
        count = 1 + sum(bool(piece.choices[0].text) for piece in last)
        assert count >= 199  # it ended as it should
        assert router.process.wait(60) == 0, router.log.read_text()
        assert all_gone(engines)
        records = rows(router.records)
        assert [record["status"] for record in records].count("finished") == 5
        assert all(record["shadow"] for record in records if record["status"] == "finished")


def test_a_killed_router_takes_its_engines_with_it_and_leaves_its_records(tmp_path: Path) -> None:
    with served(tmp_path) as router:
        client = openai.OpenAI(base_url=router.url, api_key="none", max_retries=0)
        client.completions.create(model=MODEL, prompt="a", max_tokens=2)
        engines = router.children
        router.process.kill()
        assert all_gone(engines)
        assert [record["status"] for record in rows(router.records)] == ["finished"]


ENGINE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give a live cluster, or --emulate with a topology such as 2P4D"),
        (["a.yaml", "--emulate", "1P1D"], "give a live cluster, or --emulate"),
        (["--emulate", "2X"], "topology is '2X'; it must read like 2P4D"),
        (["--emulate", "1P1D", "--profile", "nope"], "unknown profile 'nope'"),
        (["--emulate", "1P1D", "--host", "0.0.0.0"], "there are no API keys; give --api-keys FILE, or --open"),
        (["--emulate", "1P1D", "--api-keys", "none.txt"], "none.txt: the keys cannot be read"),
        (["--emulate", "1P1D", "--options", "none.yaml"], "none.yaml: the file cannot be read"),
        (["none.yaml"], "none.yaml: the file cannot be read"),
        (["nowhere"], "unknown live cluster 'nowhere'"),
        (["--emulate", "1P1D", "--policy", "marginal-cots"], "unknown policy 'marginal-cots'; nearest: marginal-cost"),
        (["--emulate", "1P1D", "--predictor", "x"], "unknown learning predictor 'x'"),
        (["--emulate", "1P1D", "--seed", str(1 << 63)], "seed is 9223372036854775808; it must be less than"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    refused([*words, "--port", "0", "--admin-port", "0"], sentence, tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prefill: [{url: U0}]\n", "decode is empty; a cluster has prefill and decode engines, or mixed ones"),
        ("prefill: [{url: U0}]\ndecode: [{url: U0}]\n", "decode/0 has the address of prefill/0"),
        ("prefil: [{url: U0}]\ndecode: [{url: U1}]\n", "unknown field 'prefil'; nearest: prefill"),
        ("prefill: [{}]\ndecode: [{url: U1}]\n", "prefill.0.url is missing; it is required"),
        ("prefill: [{url: nowhere}]\ndecode: [{url: U1}]\n", "it must be like http://host:port"),
        ("mixed: [{url: U0}]\ndecode: [{url: U1}]\n", "mixed engines stand beside prefill or decode ones"),
        ("prefill: [{url: U0}]\ndecode: [{url: U1}]\nlease_s: 0\n", "lease_s is 0"),
        ("prefill: [{url: U0}]\ndecode: [{url: U1}]\n", "no prefill engine answers (prefill/0: http://127.0.0.1:1: "),
    ],
)
def test_a_bad_cluster_file_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    text = text.replace("U0", ENGINE).replace("U1", "http://127.0.0.1:2")
    file.write_text(f"model: tiny\nprofile: a40-qwen2.5-3b\n{text}")
    refused([str(file), "--wait", "0", "--port", "0", "--admin-port", "0"], sentence, tmp_path)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file = tmp_path / "c.yaml"
        file.write_text(
            f"model: tiny\nprofile: a40-qwen2.5-3b\nprefill: [{{url: '{ENGINE}'}}]\ndecode: [{{url: 'http://a:2'}}]\n"
        )
        sentence = f"port is 127.0.0.1:{port}, which cannot be listened at"
        refused([str(file), "--port", str(port), "--admin-port", "0"], sentence, tmp_path)


def refused(words: list[str], sentence: str, folder: Path) -> None:
    done = subprocess.run(
        [*SERVE, *words], capture_output=True, text=True, cwd=folder, timeout=120, env={**os.environ}
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("starting ")]
    assert done.returncode in (1, 2) and sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and len(lines) == 1
