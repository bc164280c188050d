"""An evaluation that is killed or interrupted leaves readable results and resumes to the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SEEDS = 25


def command(out: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "disaggroute", "evaluate", "mixed-bursty-a40", "--rate", "20"),
        *("--duration", "300", "--seeds", str(SEEDS), "--policies", "round-robin,least-loaded"),
        *("--records", "all", "--workers", "2", "--out", str(out)),
    ]


def start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )


def heed_interrupts() -> None:
    # A shell lets what it runs in the background ignore interrupts, and children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finished_runs(out: Path) -> list[Path]:
    return list((out / "runs").glob("*/*.json"))


def wait_for_runs(process: subprocess.Popen[str], out: Path, count: int) -> None:
    while len(finished_runs(out)) < count:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Bytes of an evaluation that was left alone."""
    out = tmp_path_factory.mktemp("whole") / "r"
    subprocess.run(command(out), check=True, capture_output=True)
    return content(out)


def test_a_killed_evaluation_resumes_to_the_same_bytes(tmp_path: Path, whole: dict[str, bytes]) -> None:
    out = tmp_path / "r"
    process = start(out)
    wait_for_runs(process, out, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    left = finished_runs(out)
    assert 3 <= len(left) < 2 * SEEDS, "the evaluation had ended before it was killed"
    for path in left:
        assert json.loads(path.read_text())["summary"]["requests"] > 0

    subprocess.run(command(out), check=True, capture_output=True)
    assert content(out) == whole


def test_an_interrupted_evaluation_says_how_to_go_on_and_does(tmp_path: Path, whole: dict[str, bytes]) -> None:
    out = tmp_path / "r"
    process = start(out)
    wait_for_runs(process, out, 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 1 and "Traceback" not in err
    assert "interrupted; the same command goes on from the finished runs" in err
    assert 3 <= len(finished_runs(out)) < 2 * SEEDS

    subprocess.run(command(out), check=True, capture_output=True)
    assert content(out) == whole


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to look for processes")
def test_the_workers_of_a_killed_evaluation_end_too(tmp_path: Path) -> None:
    out = tmp_path / "r"
    process = start(out)
    wait_for_runs(process, out, 1)
    workers = children(process.pid)
    assert workers
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for pid in workers:
        while alive(pid):
            time.sleep(0.01)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; its new parent has only not looked yet.
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")
