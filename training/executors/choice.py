"""Which executor: by name and options, as the command line gives them, or as a function was given one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from ...envs.catalog import unknown
from . import EXECUTORS, RAY
from .executor import Executor
from .process import ProcessExecutor


def make_executor(name: str, *, workers: int | None = None, ray_address: str | None = None) -> Executor:
    """The executor of this name; nothing is started before it is needed.

    Args:
        name: process or ray.
        workers: tasks at a time; None: one per core of this machine, or of the cluster at `ray_address`.
        ray_address: HOST:PORT of a Ray cluster; None: one on this machine, for this program alone.

    Raises:
        ValueError: an unknown name, a value out of range, an address where none is needed, or Ray is not installed.
        OSError: nothing listens at the address.
    """
    if name not in EXECUTORS:
        raise ValueError(unknown("executor", name, EXECUTORS))
    if name == RAY:
        from .ray import RayExecutor

        return RayExecutor(workers, ray_address)
    if ray_address is not None:
        raise ValueError(
            f"ray_address is {ray_address}, but the executor is {name}; give --executor ray too, or leave it out"
        )
    return ProcessExecutor(workers)


def executor_of(workers: int | Executor | None) -> AbstractContextManager[Executor]:
    """So many worker processes, ended when the context is left; or the executor given, which goes on after it.

    Raises:
        ValueError: the number is below 1.
    """
    return nullcontext(workers) if isinstance(workers, Executor) else ProcessExecutor(workers)
