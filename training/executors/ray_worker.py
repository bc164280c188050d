"""What a worker of a Ray cluster does: it shows that it has the same program, then runs tasks."""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypedDict

from ... import __version__
from ..compilation import compile_like, compiled_here
from ..source_hash import source_hash
from .executor import done

DONE, FAILED, REFUSED = "done", "failed", "refused"
"""How a task ended: with a result, with an error of its own, or before it began."""

NAMED = ("clusters", "environments", "policies", "profiles", "workloads")
SOURCES = ("training", *(f"configs/{kind}" for kind in NAMED))
"""What must be the same on every node, beside what decides results."""


class Origin(TypedDict):
    """What a worker must know of the process whose tasks it runs; plain, so that other versions can read it."""

    installation: dict[str, str]
    folder: str
    compiled: tuple[str, ...]


def origin() -> Origin:
    """This process."""
    return {"installation": installation(), "folder": os.getcwd(), "compiled": compiled_here()}


def installation() -> dict[str, str]:
    """Version and hash of this program, and versions of what computes for it."""
    import numba
    import numpy

    return {
        "disaggroute": __version__,
        "code": source_hash(SOURCES),
        "Python": platform.python_version(),
        "NumPy": numpy.__version__,
        "Numba": numba.__version__,
    }


def answer(payload: bytes, from_: Origin) -> tuple[str, Any]:
    """Runs a task, in a worker.

    Args:
        payload: pickled function and task.
        from_: what sent it.

    Returns:
        `DONE` and the pickled result; `FAILED`, the pickled error and its traceback; or `REFUSED` and what is unlike.
    """
    unlike = differences(installation(), from_["installation"])
    if unlike:
        return REFUSED, unlike
    try:
        _settle(from_["folder"], from_["compiled"])
        return DONE, pickle.dumps(done(payload), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        import traceback

        return FAILED, (pickle.dumps(error), traceback.format_exc())


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What a node has otherwise than the process that sends tasks, in words; empty where nothing."""
    unlike = [name for name in there if here.get(name) != there[name]]
    return ", ".join(f"{name} {here.get(name, 'of no version')} and not {there[name]}" for name in unlike)


@lru_cache(maxsize=1)
def _settle(folder: str, compiled: Sequence[str]) -> None:
    """Makes ready for tasks, once in each worker."""
    with suppress(OSError):  # Relative names then stand for nothing here, and say so.
        os.chdir(folder)
    compile_like(compiled)
