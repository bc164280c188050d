"""What README and docs/ say can be done."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disaggroute.envs import catalog
from disaggroute.policies import registry

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def lines(command: str) -> list[tuple[str, str]]:
    """Page and line of each line in a shell block that starts with this command."""
    found = [(page, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [(str(page.relative_to(ROOT)), line) for page, line in found if line.split()[:1] == [command]]


SCRIPTS = [(str(page.relative_to(ROOT)), block) for page in PAGES for block in blocks(page, "python")]


@pytest.fixture
def nothing_stays_registered() -> Iterator[None]:
    """Takes back the policies and files that an example registers: other tests list all that there are."""
    before, files = set(registry.names()), dict(catalog._registered)
    yield
    for name in set(registry.names()) - before:
        del registry._classes[name]
    catalog._registered.clear()
    catalog._registered.update(files)


@pytest.mark.parametrize(("page", "line"), lines("make"))
def test_every_make_target_that_is_shown_exists(page: str, line: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(line.split("#")[0].split()[1:]) <= set(targets)


@pytest.mark.parametrize(("page", "line"), lines("disaggroute"))
def test_every_command_that_is_shown_has_the_options_that_it_is_shown_with(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    # Asking for help stops before anything runs.
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    command = [sys.executable, "-m", "disaggroute", *words, "--help"]
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in options)


@pytest.mark.parametrize(("page", "script"), SCRIPTS, ids=[page for page, _ in SCRIPTS])
def test_every_python_example_runs(page: str, script: str, nothing_stays_registered: None) -> None:
    exec(compile(script, page, "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_pictures_of_the_workloads_can_be_drawn_again(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        command = [sys.executable, str(ROOT / "docs" / "img" / "workloads.py"), str(tmp_path / folder)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "MPLBACKEND": "Agg"})
    for name in ("workload-lengths.png", "workload-arrivals.png"):
        drawn = (tmp_path / "one" / name).read_bytes()
        assert drawn == (tmp_path / "two" / name).read_bytes()
        assert len(drawn) > 10_000 and (ROOT / "docs" / "img" / name).is_file()
