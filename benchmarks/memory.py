"""How much memory a long run takes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from .drive import Drive, Say
from .interpreter import output_of
from .measurement import Result, at_least, count_name

TOPOLOGY = "2P4D"
POLICY = "marginal-cost"

PROGRAM = f"import sys; from {__name__} import tell_peaks; tell_peaks(*sys.argv[1:])"


def measure(
    rate: float,
    *,
    requests: int = 1_000_000,
    repeats: int = 1,
    seed: int = 0,
    say: Say = lambda _: None,
) -> list[Result]:
    """Peak memory of a fresh process that makes a trace and simulates it at 2P4D with marginal cost.

    The trace, one record per request and one logged decision per request are held together, as an evaluation
    holds them.

    Args:
        rate: requests per second.
        requests: about how many.
        repeats: processes.
        seed: of the trace.
        say: told what is being done.

    Returns:
        `memory/1M`, and `memory/imports` for what the process holds before it has a trace; MB (10⁶ bytes).

    Raises:
        ValueError: a count below 1.
        RuntimeError: a process failed.
    """
    at_least("requests", requests)
    at_least("repeats", repeats)
    name = f"memory/{count_name(requests)}"
    before, peaks, counts = [], [], []
    for _ in range(repeats):
        say(name)
        told = json.loads(output_of(PROGRAM, str(rate), str(requests), str(seed)))
        before.append(told["imports"] / 1e6)
        peaks.append(told["peak"] / 1e6)
        counts.append(told["requests"])
    return [
        Result.of(name, "MB", peaks, requests=counts[-1], rate=rate),
        Result.of("memory/imports", "MB", before),
    ]


def tell_peaks(rate: str, requests: str, seed: str) -> None:
    """Simulates, and prints the peak memory of this process in bytes as JSON (in the fresh process)."""
    from ..envs.simulator import run_policy
    from ..policies import registry

    policy = registry.make(POLICY)
    imports = peak_bytes()
    drive = Drive.make(TOPOLOGY, float(rate), int(requests), int(seed))
    simulator = drive.simulator()
    run_policy(simulator, policy, int(seed))
    print(json.dumps({"imports": imports, "peak": peak_bytes(), "requests": len(simulator.decisions)}))


def peak_bytes() -> int:
    """Highest resident memory of this process so far, bytes.

    On Linux from the kernel's high-water mark: `ru_maxrss` there also counts what the parent held when it
    started the process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.MULTILINE)
        if found:
            return int(found.group(1)) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
