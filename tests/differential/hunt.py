"""Runs random cases until one tells the core from the reference.

`mutants.py` starts it in a copy of the package. It prints the seed of every case before it runs it, so that a
reader knows which one ended the process, and last a line of JSON: the number of cases, and the difference or null.
"""

from __future__ import annotations

import json
import signal
import sys

from numba.core.errors import NumbaError

from .cases import random_case
from .comparison import compare

COMPILE_S, CASE_S = 600, 30
"""Seconds after which a case is taken to be endless, the first one compiles the core."""


def hunt(limit: int) -> tuple[int, str | None]:
    """Cases run and the first difference, or None if `limit` cases have passed."""
    for seed in range(limit):
        print(seed, flush=True)
        # The default action ends the process, also inside compiled code.
        signal.alarm(CASE_S if seed else COMPILE_S)
        try:
            compare(random_case(seed))
        except NumbaError:
            raise
        except Exception as error:
            return seed + 1, str(error) if isinstance(error, AssertionError) else repr(error)
    return limit, None


if __name__ == "__main__":
    cases, difference = hunt(int(sys.argv[1]))
    print(json.dumps({"cases": cases, "difference": difference}))
