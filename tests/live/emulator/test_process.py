"""An emulated engine as a process: it says when it is ready, and ends when it should."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app

from .engines import Client, run, until

COMMAND = [sys.executable, "-m", "disaggroute", "live", "engine"]
ENGINE = [*COMMAND, "--profile", "a40-qwen2.5-3b", "--role", "mixed", "--port", "0", "--time-scale", "0.05"]
LIMIT_S = 100


@contextmanager
def started(*more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An engine, and its URL."""
    process = subprocess.Popen([*ENGINE, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found is not None, line
        yield process, found.group()
    finally:
        process.kill()
        process.communicate()


def test_a_process_serves_until_it_is_told_to_end() -> None:
    with started("--model", "tiny", "--with-parent") as (process, url):

        async def work() -> None:
            async with aiohttp.ClientSession() as session:
                assert (await Client(session, url).complete("a", 5)).status == 200

        run(work())
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_a_fault_can_end_the_process() -> None:
    with started() as (process, url):

        async def work() -> None:
            async with aiohttp.ClientSession() as session:
                with pytest.raises(aiohttp.ClientError):
                    await Client(session, url).fault("crash")

        run(work())
        assert process.wait(LIMIT_S) == 1
        assert process.stderr is not None and "the emulated engine died: it was told to" in process.stderr.read()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent")
def test_a_process_ends_with_its_parent() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)"
    code += "; print(p.pid, p.stdout.readline(), flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, *ENGINE, "--with-parent"]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline().split()[0])
    parent.kill()
    parent.communicate()

    async def gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{child}/stat") as file:  # nobody may be there to bury it
            return file.read().rpartition(")")[2].split()[0] == "Z"

    run(until(gone))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--role", "both"], "engine: role is 'both'"),
        (["--profile", "nope"], "unknown profile 'nope'"),
        (["--time-scale", "0"], "time_scale is 0"),
        (["--fault", "stall"], "fault 'stall': stall needs seconds"),
        (["--kv-tokens", "8"], "room for 0 blocks"),
        (["--side-channel-port", "70000"], "side_channel_port is 70000"),
    ],
)
def test_a_bad_option_gets_a_sentence(given: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, [*ENGINE[3:], *given])
    assert done.exit_code == 2
    assert sentence in done.output and "Traceback" not in done.output
