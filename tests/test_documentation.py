"""What README and docs/ say can be done."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs import catalog, environment_config, features, rewards
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.policies import registry

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def hooks() -> Any:
    """`docs/hooks.py`, which MkDocs imports by its path."""
    spec = importlib.util.spec_from_file_location("documentation_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = hooks()


def text_of(page: Path) -> str:
    """What a reader of the site gets."""
    filled: str = HOOKS.on_page_markdown(page.read_text())
    return filled


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


def lines(command: str) -> list[tuple[str, str]]:
    """Page and line of each line in a shell block that starts with this command."""
    found = [(page, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [(str(page.relative_to(ROOT)), line) for page, line in found if line.split()[:1] == [command]]


SCRIPTS = [(str(page.relative_to(ROOT)), block) for page in PAGES for block in blocks(page, "python")]


@pytest.fixture
def nothing_stays_registered() -> Iterator[None]:
    """Takes back the policies, rewards and files that an example registers: other tests list all that there are."""
    before = [(module, set(module.names())) for module in (registry, rewards)]
    files = dict(catalog._registered)
    yield
    for module, names in before:
        for name in set(module.names()) - names:
            del module._classes[name]
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
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(page))
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


def test_the_page_of_the_environment_is_the_docstring_of_its_class() -> None:
    text = text_of(ROOT / "docs" / "environment.md")
    docstring = inspect.cleandoc(DisaggRouteEnv.__doc__ or "")
    for heading in ("Description", "Action space", "Observation space", "Starting state", "Reward", "Episode end"):
        assert f"\n## {heading}\n" in docstring
    for heading in ("Information", "Arguments", "References", "Version history"):
        assert f"\n## {heading}\n" in docstring
    without_links = re.sub(r"\[([\w/-]+\.md)\]\(\1\)", r"docs/\1", text)
    assert docstring.partition("\n")[2].strip() in without_links
    assert "fill:" not in text


def test_the_docstring_states_the_shapes_and_arguments_that_there_are() -> None:
    docstring = " ".join((DisaggRouteEnv.__doc__ or "").split())
    shapes = [len(columns) for columns in (features.REQUEST, features.PREFILL, features.DECODE, features.MIXED)]
    assert "`request ({},)`, `prefill (P, {})`, `decode (D, {})`".format(*shapes[:3]) in docstring
    assert f"`mixed (M, {shapes[3]})`" in docstring
    arguments = set(environment_config.EnvironmentConfig.model_fields) - {"format", "tight_share"}
    assert all(f"`{name}`" in docstring for name in arguments)
    assert all(f"`{name}`" in docstring for name in rewards.names())


def test_the_tables_are_made_of_the_package() -> None:
    text = text_of(ROOT / "docs" / "environment.md")
    for part, columns in (("request", features.REQUEST), ("prefill", features.PREFILL), ("decode", features.DECODE)):
        for k, column in enumerate(columns):
            row = f"| `{part}` | {k} | `{column.name}` | {column.unit} | {column.scale:g} | {column.meaning} |"
            assert row in text.splitlines()
    assert all(f"| `{name}` |" in text for name in (*environment_config.names(), *rewards.names()))


def test_an_unknown_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown marker 'feature'; allowed: environment, vector-env"):
        HOOKS.on_page_markdown("a\n<!-- fill: feature -->\n")
