"""How much memory a long run takes."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from ..training.compilation import compile_all
from .drive import PROFILE, WORKLOAD, Drive, Say
from .interpreter import output_of
from .measurement import Result, at_least, count_name

TOPOLOGY = "2P4D"
POLICY = "marginal-cost"

PROGRAM = f"import sys; from {__name__} import tell; tell(*sys.argv[1:])"


def measure(
    rate: float,
    *,
    requests: int = 1_000_000,
    repeats: int = 1,
    seed: int = 0,
    say: Say = lambda _: None,
) -> list[Result]:
    """Peak memory of a fresh process that makes a trace and simulates it at 2P4D with marginal cost.

    The trace, one record per request and one logged decision per request are held together, as in an
    evaluation that keeps its records. Such an evaluation then also makes a table of them and writes it.

    Args:
        rate: requests per second.
        requests: about how many.
        repeats: processes.
        seed: of the trace.
        say: told what is being done.

    Returns:
        `memory/1M`; `memory/1M/evaluate`, the whole evaluation; `memory/imports`, what the process holds
        before it has a trace; MB (10⁶ bytes).

    Raises:
        ValueError: a count below 1.
        RuntimeError: a process failed.
    """
    at_least("requests", requests)
    at_least("repeats", repeats)
    compile_all(say)  # Compiling takes more memory than running.
    name = f"memory/{count_name(requests)}"
    peaks: dict[str, list[float]] = {name: [], f"{name}/evaluate": [], "memory/imports": []}
    for _ in range(repeats):
        for key, what in zip(peaks, ("simulate", "evaluate", "import"), strict=True):
            say(key)
            told = output_of(PROGRAM, what, str(rate), str(requests), str(seed))
            peaks[key].append(int(told.split()[-1]) / 1e6)
    return [Result.of(key, "MB", values, rate=rate) for key, values in peaks.items()]


def tell(what: str, rate: str, requests: str, seed: str) -> None:
    """Does the work and prints the peak memory of this process, in bytes (in the fresh process)."""
    from ..envs.simulator import run_policy
    from ..policies import registry

    policy = registry.make(POLICY)
    if what == "simulate":
        simulator = Drive.make(TOPOLOGY, float(rate), int(requests), int(seed)).simulator()
        run_policy(simulator, policy, int(seed))
    elif what == "evaluate":
        evaluate_once(float(rate), int(requests), int(seed))
    print(peak_bytes())


def evaluate_once(rate: float, requests: int, seed: int) -> None:
    """One run of an evaluation that keeps its records."""
    from ..envs.scenario import Scenario
    from ..training.evaluation import evaluate

    scenario = Scenario.make(
        workload=WORKLOAD,
        topology=TOPOLOGY,
        profile=PROFILE,
        rate=rate,
        duration_s=requests / rate,
        warmup_s=0.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        evaluate(scenario, [POLICY], range(seed, seed + 1), out=Path(folder) / "run", workers=1)


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
