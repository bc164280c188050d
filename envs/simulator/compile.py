"""How the core is compiled and where the machine code is kept.

Numba does not notice when a callee in another module changes, so the cache folder is named after a hash of
every source that the core is made of, numba's version and Python's: an edit starts a fresh folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

_PACKAGE = Path(__file__).parents[2]
_COMPILED_SOURCES = (
    "envs/features.py",
    "envs/simulator/*.py",
    "envs/workloads/exponential.py",
    "envs/workloads/intensity.py",
    "envs/workloads/inversion.py",
    "envs/workloads/sampling.py",
    "envs/workloads/uniform.py",
    "policies/compiled/*.py",
    "policies/network_shape.py",
)

F = TypeVar("F", bound=Callable[..., Any])

_plain: dict[str, Any] = {"error_model": "numpy", "boundscheck": False}
_flags: dict[str, Any] = {**_plain, "nogil": True}
_inner: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def source_hash() -> str:
    """Hash of the sources and versions that the machine code depends on (16 hex digits)."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for pattern in _COMPILED_SOURCES:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Folder of the compiled code: `$DISAGGROUTE_CACHE`, else the user's cache folder, else a temporary one.

    Raises:
        OSError: no folder can be written, or others could write to the temporary one.
    """
    name = f"numba-{source_hash()}"
    try:
        chosen = os.environ.get("DISAGGROUTE_CACHE")
        base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folder = base / "disaggroute" / name
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):  # the latter for a user without a home
        folder = _own_folder(Path(tempfile.gettempdir()) / f"disaggroute-{os.getuid()}") / name
        folder.mkdir(exist_ok=True)
    return folder


def _own_folder(path: Path) -> Path:
    """A folder among those of all users; what lies in it is run, so nobody else may write to it."""
    path.mkdir(mode=0o700, exist_ok=True)
    state = path.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"{path} is open to other users; name a folder of your own in DISAGGROUTE_CACHE")
    return path


def entry(function: F) -> F:
    """Compiles a function that Python calls; its machine code is cached on disk."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_folder)
    try:
        return numba.njit(cache=True, **_flags)(function)
    finally:
        numba.config.CACHE_DIR = before


def inline(function: F) -> F:
    """Compiles a function that is merged into its callers."""
    return numba.njit(forceinline=True, **_inner, **_flags)(function)


def merged(function: F) -> F:
    """Compiles a function that is merged into its callers before they are optimised: for one that holds nearly all."""
    return numba.njit(inline="always", **_inner, **_flags)(function)


def rare(function: F) -> F:
    """Compiles a function that stays a call, for paths that are seldom taken."""
    return numba.njit(**_inner, **_flags)(function)


@cache
def address_of(function: Callable[..., Any], arguments: int) -> int:
    """Compiles a function of so many int64 that returns an int64, and gives the address of its machine code.

    What is called by its address (`memory.call`) is compiled once, not again within each function that calls it.
    """
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_folder)
    try:
        compiled = numba.cfunc(numba.int64(*[numba.int64] * arguments), cache=True, **_plain)(function)
    finally:
        numba.config.CACHE_DIR = before
    _kept.append(compiled)
    return int(compiled.address)


_kept: list[Any] = []

_folder = cache_folder()
