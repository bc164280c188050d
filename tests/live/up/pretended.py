"""Clusters of vLLM engines whose Python is a script of a few lines: ready at once, and they do what a test asks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from disaggroute.live.launch_file import LaunchFile, read
from disaggroute.live.up.processes import Process, every, marks
from disaggroute.live.up.state import StateFolder

PROFILE = "a40-qwen2.5-3b"

SCRIPT = """#!{python}
import http.server, os, signal, subprocess, sys, time
does = os.environ.get("DOES", "")
if "stubborn" in does:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" in does:
    subprocess.Popen(["sleep", "1000"])
if "broken" in does:
    print("INFO starting"); print("ValueError: the block size is odd"); sys.exit(1)
if "mute" in does:
    print("loading", flush=True); time.sleep(1000)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if "ill" in does else 200); self.end_headers()
        self.wfile.write(b'{{"version": "0.32.0"}}')
    def log_message(self, *_):
        pass
print("listening", flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def python(folder: Path) -> Path:
    """The script that stands in for an engine."""
    script = folder / "engine-python"
    if not script.exists():
        script.write_text(SCRIPT.format(python=sys.executable))
        script.chmod(0o755)
    return script


def written(folder: Path, **changes: Any) -> Path:
    """A cluster's file, with some fields changed; `launch` is added to what the section says."""
    launch = {"kind": "vllm", "device": "cpu", "model": "tiny", "python": str(python(folder))}
    fields: dict[str, Any] = {"name": "pretended", "model": "tiny", "profile": PROFILE, "prefill": 1, "decode": 1}
    fields |= {"launch": launch | changes.pop("launch", {})} | changes
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(fields))
    return file


def pretended(folder: Path, **changes: Any) -> LaunchFile:
    """The same, read."""
    file = read(written(folder, **changes))
    assert isinstance(file, LaunchFile)
    return file


def quiet(name: str, what: str) -> None:
    """Nobody is told."""


def of_launch(launch: str) -> list[Process]:
    """All processes that carry the mark of a launch."""
    return [each for each in every() if (marks(each) or "").startswith(f"{launch}/")]


def launch_of(name: str) -> str:
    """The launch of a cluster that is up."""
    state = StateFolder(name).read()
    assert state is not None
    return state.launch


def until(condition: Callable[[], Any], what: str) -> None:
    for _ in range(6_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come to pass")
