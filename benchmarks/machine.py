"""The machine that numbers come from: a speed means little without it."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from .. import __version__


class Machine(BaseModel):
    """What a benchmark ran on.

    Attributes:
        cpu: model name of the processor.
        cores: cores that this process may use.
        memory_gb: main memory, GB (10⁹ bytes); None where it cannot be asked.
        system: operating system and architecture.
        load: processes that wanted a core, averaged over the last minute; None where it cannot be asked.
        pinned: whether the speeds were measured on one fixed core.
        python: version.
        numpy: version.
        numba: version.
        llvmlite: version.
        disaggroute: version.
        core: hash of the sources of the compiled core.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    cores: int
    memory_gb: float | None
    system: str
    load: float | None
    pinned: bool
    python: str
    numpy: str
    numba: str
    llvmlite: str
    disaggroute: str
    core: str

    @classmethod
    def this(cls) -> Machine:
        """The machine that this process runs on."""
        from ..envs.simulator.compile import source_hash

        return cls(
            cpu=_cpu(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_gb=_memory_gb(),
            system=f"{platform.system()} {platform.machine()}",
            load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            pinned=hasattr(os, "sched_setaffinity"),
            python=platform.python_version(),
            numpy=metadata.version("numpy"),
            numba=metadata.version("numba"),
            llvmlite=metadata.version("llvmlite"),
            disaggroute=__version__,
            core=source_hash(),
        )

    def __str__(self) -> str:
        """One line for people."""
        memory = f", {self.memory_gb:g} GB" if self.memory_gb is not None else ""
        load = f", load {self.load:g}" if self.load is not None else ""
        return (
            f"{self.cpu}, {self.cores} core{'s' * (self.cores > 1)}{memory}{load}, {self.system}, "
            f"Python {self.python}, NumPy {self.numpy}, Numba {self.numba}, disaggroute {self.disaggroute}"
        )


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, OSError, ValueError):
        return None
