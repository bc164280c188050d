"""Runs random cases until one tells the core from the reference.

`mutants.py` starts it in a copy of the package. It prints the seed of every case before it runs it, so that a
reader knows which one ended the process, and last a line of JSON: the number of cases, and the difference or null.
"""

from __future__ import annotations

import json
import signal
import sys

from numba.core.errors import NumbaError

from disaggroute.envs.simulator import simulate

from .cases import random_case
from .comparison import compare

CASE_S = 60
"""Seconds after which a case is taken to be endless; usual is a hundredth of one."""


def hunt(limit: int) -> tuple[int, str | None]:
    """Cases run and the first difference, or None if `limit` cases have passed."""
    compile_core()
    for seed in range(limit):
        print(seed, flush=True)
        signal.alarm(CASE_S)  # the default action ends the process, also inside compiled code
        try:
            compare(random_case(seed))
        except NumbaError:
            raise
        except Exception as error:
            return seed + 1, str(error) if isinstance(error, AssertionError) else repr(error)
    return limit, None


def compile_core() -> None:
    """Runs a cluster on which nothing arrives."""
    case = random_case(0)
    empty = [column[:0] for column in case.assignment]
    simulate(case.trace.select(slice(0, 0)), case.cluster, assignment=(empty[0], empty[1]), observe=True)


if __name__ == "__main__":
    cases, difference = hunt(int(sys.argv[1]))
    print(json.dumps({"cases": cases, "difference": difference}))
