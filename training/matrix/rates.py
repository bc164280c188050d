"""Saturation rates that had to be searched for, kept in a folder and not searched for again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...envs.scenario import Scenario
from ..executors.executor import Executor
from ..runs import fingerprint, write_atomically
from ..saturation import TARGET, saturate

RATES = "rates.json"
"""File in the folder of a matrix or an experiment."""


class Rates:
    """A file of rates by the fingerprint of what was searched for."""

    def __init__(self, path: Path) -> None:
        """Reads the file, if there is one.

        Raises:
            ValueError: it is unreadable.
        """
        self.path = path
        self._known = _read(path)

    def searched(
        self,
        name: str,
        scenario: Scenario,
        what: Mapping[str, Any],
        *,
        target: float = TARGET,
        seeds: range | None = None,
        workers: int | Executor | None = None,
        say: Callable[[str], None],
    ) -> float:
        """The rate at which round robin reaches the target, requests per second: a known one, or searched for now.

        Args:
            name: of the condition, for messages.
            scenario: what is to be driven.
            what: JSON-able; all that decides the result.
            target: share of the ceiling.
            seeds: traces to average over; None: the usual ones.
            workers: processes, None for one per core; or an executor, which is used and kept.
            say: told what takes its time.

        Raises:
            ValueError: no rate reaches the target.
            OSError: the file cannot be written.
        """
        key = fingerprint(what)
        if key not in self._known:
            say(f"{name}: searching for the saturation rate")
            found = saturate(scenario, target=target, seeds=seeds, workers=workers, say=say)
            say(f"{name}: {found.policy} reaches {found.found.share:.4f} of the ceiling at {found.rate:g}/s")
            if found.doubt:
                say(f"warning: {found.doubt}")
            self._known = {**_read(self.path), **self._known, key: found.rate}  # Another process may add to the file.
            write_atomically(self.path, (json.dumps(self._known, indent=1, sort_keys=True) + "\n").encode())
        return self._known[key]


def rounded_rate(rate: float) -> float:
    """A rate in six digits: what a command line can say."""
    return float(f"{rate:.6g}")


def _read(path: Path) -> dict[str, float]:
    try:
        rates = {str(key): float(rate) for key, rate in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, RecursionError):
        rates = {"": math.nan}
    if not all(0 < rate < math.inf for rate in rates.values()):
        raise ValueError(f"{path} is unreadable; delete it and start again")
    return rates
