"""Runs Dynamo's offline replay, in Dynamo's own environment: this file is run by its path and imports nothing of ours.

Its argument is a JSON file that says what to do (`processes.Task`); it writes another with what that took.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Replays a short trace, which loads everything, and then the trace."""
    replay = importlib.import_module("dynamo.replay").run_trace_replay
    replay(task["short"], **task["options"])
    started, began = time.process_time(), time.perf_counter()
    report = replay(task["trace"], capture_per_request=task["requests"] is not None, **task["options"])
    ended, end = time.process_time(), time.perf_counter()
    summary = dict(report.summary)
    if task["requests"] is not None:
        Path(task["requests"]).write_text(json.dumps(report.per_request))
    # Its own clock tells what of the call was simulation; what it tells is real time, of which the process got a share.
    share = (ended - started) / (end - began)
    return {
        "start_s": started,
        "replay_s": ended - started,
        "simulation_s": summary["wall_time_ms"] / 1e3 * share,
        "completed": summary["completed_requests"],
        "versions": {name: metadata.version(name) for name in ("ai-dynamo", "ai-dynamo-runtime")},
    }


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    Path(given["result"]).write_text(json.dumps(main(given)))
