"""An engine's processes are known by more than their ids."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from disaggroute.live.up.processes import MARK, Process, end, every, look, marks, parse

from .pretended import until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    words = ["sleep", "1000"]
    with subprocess.Popen(words, start_new_session=True, env={**os.environ, MARK: "mine/prefill-0"}) as process:
        yield process
        process.kill()


def seen(process: subprocess.Popen[bytes]) -> Process:
    found = look(process.pid)
    assert found is not None
    return found


def test_a_process_is_known_by_its_id_its_start_and_its_session(sleeper: subprocess.Popen[bytes]) -> None:
    found = seen(sleeper)
    assert (found.pid, found.session) == (sleeper.pid, sleeper.pid)
    assert abs(found.since - time.time()) < 600
    assert found.runs() and found.pid in {each.pid for each in every()}


def test_a_name_may_hold_brackets_and_spaces() -> None:
    rest = " ".join(["S", "1", "7", "8", *["0"] * 13, "3", "0", "4711", *["0"] * 30])
    assert parse(f"42 (a) b (c)) {rest}") == Process(42, 4711, 8, "S", threads=3)


@pytest.mark.parametrize("line", ["", "42", "42 (a)", "x (a) S 1 2", "42 (a) S 1 x 3"])
def test_what_is_no_line_of_the_kernel_is_nobody(line: str) -> None:
    assert parse(line) is None


def test_a_process_whose_name_is_no_text_hides_no_other(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff)"
    shutil.copy("/bin/sleep", odd)
    with subprocess.Popen([odd, "1000"]) as process:
        try:
            until(lambda: b"\xff" in Path(f"/proc/{process.pid}/stat").read_bytes(), "its name")
            assert process.pid in {each.pid for each in every()}
        finally:
            process.kill()


def test_a_process_that_has_ended_does_not_run_even_if_nobody_has_taken_note(sleeper: subprocess.Popen[bytes]) -> None:
    found = seen(sleeper)
    os.kill(sleeper.pid, signal.SIGKILL)
    until(lambda: not found.runs(), "the end")
    assert look(sleeper.pid) is not None  # a zombie
    assert sleeper.pid not in {each.pid for each in every()}
    found.send(signal.SIGTERM)  # which is no error


def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[1000]).start(); "
    code += "ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            until(lambda: seen(process).state == "Z", "the end of the first thread")
            found = seen(process)
            assert found.threads == 2 and found.runs() and found.pid in {each.pid for each in every()}
            found.send(signal.SIGKILL)
            until(lambda: not found.runs(), "the end of the other one")
            assert process.wait(60) == -signal.SIGKILL
        finally:
            process.kill()


def test_another_process_with_the_same_id_is_never_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    earlier = replace(seen(sleeper), started=seen(sleeper).started - 1)
    assert not earlier.runs()
    earlier.send(signal.SIGKILL)
    time.sleep(0.05)
    assert sleeper.poll() is None
    seen(sleeper).send(signal.SIGKILL)
    assert sleeper.wait(60) == -signal.SIGKILL


def test_a_signal_to_an_id_that_nobody_has_is_no_error() -> None:
    with subprocess.Popen(["true"]) as short:
        found = look(short.pid)
        short.wait()
    assert found is not None
    found.send(signal.SIGTERM)


def test_the_mark_is_read_from_the_environment(sleeper: subprocess.Popen[bytes]) -> None:
    until(lambda: marks(seen(sleeper)) is not None, "the mark")
    assert marks(seen(sleeper)) == "mine/prefill-0"
    assert marks(Process(os.getpid(), 0, 0, "R")) is None


def test_those_that_do_not_end_when_asked_are_killed() -> None:
    code = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None and stubborn.stdout.readline()
        found = seen(stubborn)
        end(lambda: [found] if found.runs() else [], lambda: [found] if found.runs() else [], limit_s=0.1)
        assert stubborn.wait(60) == -signal.SIGKILL
