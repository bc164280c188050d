"""Dynamo in an environment of its own."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ...envs.atomic_file import write_atomically
from .processes import foreign_environment

REQUIREMENTS = Path(__file__).with_name("requirements.txt")

MARK = "disaggroute-peers.json"
"""File in an environment that says that it is complete, and of which requirements it was made."""

CHECK = "from dynamo.replay import run_trace_replay"

Say = Callable[[str], None]


def peer_python(folder: Path) -> Path:
    """The Python of an environment that `install` made.

    Raises:
        ValueError: Dynamo is not installed there, or not completely, or in another version.
    """
    mark, command = folder / MARK, f"`disaggroute bench peers setup {folder}`"
    if not mark.is_file():
        raise ValueError(f"{folder}: Dynamo is not installed there; {command} installs it")
    if not _is_current(mark):
        raise ValueError(f"{folder}: Dynamo is there incompletely or in another version; {command} makes it anew")
    return _python(folder)


def install(folder: Path, say: Say) -> Path:
    """Makes the environment, unless it is there already.

    Args:
        folder: of the environment; must be new, empty, or made by this function.
        say: is told what happens.

    Returns:
        Its Python.

    Raises:
        ValueError: the folder holds something else.
        RuntimeError: the installation failed; with its last words.
    """
    folder = folder.absolute()
    mark = folder / MARK
    if mark.is_file() and _is_current(mark):
        return _python(folder)
    if folder.exists() and not mark.is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} holds something other than Dynamo; name a folder that is new or empty")
    if folder.exists():
        shutil.rmtree(folder)
    write_atomically(mark, json.dumps({"complete": False, "requirements": _digest()}).encode())
    say(f"Installing Dynamo's replay into {folder} (about 250 MB)")
    _run(sys.executable, "-m", "venv", str(folder))
    python = str(_python(folder))
    pip = (python, "-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet")
    _run(*pip, "install", "--progress-bar", "off", "--no-deps", "--requirement", str(REQUIREMENTS))
    _run(python, "-c", CHECK)
    write_atomically(mark, json.dumps({"complete": True, "requirements": _digest()}).encode())
    return _python(folder)


def _is_current(mark: Path) -> bool:
    try:
        found = json.loads(mark.read_text())
    except ValueError:
        return False
    return bool(found == {"complete": True, "requirements": _digest()})


def _digest() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _run(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=foreign_environment()
    )
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        raise RuntimeError(f"Dynamo could not be installed ({words[-1]})")
