"""The files of `docs/extending` are complete: each runs as a program, and serves as the module of another package."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from .test_documentation import ROOT, blocks

PAGES = {name: ROOT / "docs" / "extending" / f"{name}.md" for name in ("policy", "reward")}


def program(page: Path) -> str:
    return blocks(page, "python")[0]


def run(*arguments: str, path: Path | None = None) -> str:
    """Runs Python with one more folder to import from."""
    folders = [str(path)] * (path is not None) + [os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_the_file_of_a_page_runs_as_a_program(page: Path, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(program(page))
    assert len(run(str(file)).splitlines()) >= 2


@pytest.fixture
def installed(request: Any, tmp_path: Path) -> Path:
    """A folder in which a package is installed that holds a page's file and names it as the page says."""
    page = PAGES[request.param]
    (declared,) = (tomllib.loads(block) for block in blocks(page, "toml"))
    ((group, points),) = declared["project"]["entry-points"].items()
    ((name, value),) = points.items()
    package, module = value.partition(":")[0].split(".")
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / f"{module}.py").write_text(program(page))
    about = tmp_path / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    return tmp_path


@pytest.mark.parametrize("installed", ["policy"], indirect=True)
def test_every_command_knows_the_policy_of_an_installed_package(installed: Path) -> None:
    assert "fewest-tokens" in run("-m", "disaggroute", "list", "policies", path=installed).split()
    told = run("-m", "disaggroute", "explain", "fewest-tokens(surcharge=7)", path=installed)
    assert "surcharge = 0  (whole number at least 0)" in told and "fewest-tokens(surcharge=7) has the hash" in told


@pytest.mark.parametrize("installed", ["reward"], indirect=True)
def test_every_process_knows_the_reward_of_an_installed_package(installed: Path) -> None:
    assert "lateness" in run("-m", "disaggroute", "list", "rewards", path=installed).split()
    code = """
import disaggroute, gymnasium as gym
env = gym.make(disaggroute.ENVIRONMENT, reward="lateness", duration_s=2, warmup_s=1)
env.reset(seed=3)
print(type(env.unwrapped._episodes.reward).__module__)
"""
    assert run("-c", code, path=installed).strip() == "my_package.lateness"
