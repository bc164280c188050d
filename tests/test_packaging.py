"""What is installed is what is in the tree, and nothing is missing from it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import disaggroute

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LISTED: list[str] = PROJECT["tool"]["setuptools"]["packages"]
NOT_PACKAGES = {"tests", "docs", "build", "dist", "site", "results"}


def folder_of(package: str) -> Path:
    return ROOT.joinpath(*package.split(".")[1:])


def folders_with_python() -> set[Path]:
    """Every folder of the tree that holds Python and is not a test, a document or a build product."""
    top = [ROOT / name for name in os.listdir(ROOT) if name not in NOT_PACKAGES and name[0] not in "._"]
    return {ROOT} | {file.parent for folder in top if folder.is_dir() for file in folder.rglob("*.py")}


def packaged_data() -> set[Path]:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["disaggroute"]
    return {path for pattern in patterns for path in ROOT.glob(pattern)}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    parts = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(part) == 2 for part in parts), "every constraint is an exact version"
    return {canonicalize_name(name): version for name, version in parts}


def test_every_folder_with_python_is_a_listed_package() -> None:
    assert folders_with_python() == {folder_of(package) for package in LISTED}


@pytest.mark.parametrize("package", LISTED)
def test_every_listed_package_has_an_init_file(package: str) -> None:
    assert (folder_of(package) / "__init__.py").is_file()


def test_the_list_of_packages_is_sorted_and_has_no_repetition() -> None:
    assert sorted(set(LISTED)) == LISTED


def test_every_file_under_configs_is_packaged_or_a_log() -> None:
    files = {path for path in (ROOT / "configs").rglob("*") if path.is_file()}
    assert {path.suffix for path in files - packaged_data()} <= {".log"}


def test_the_type_marker_is_packaged() -> None:
    assert ROOT / "py.typed" in packaged_data()


def test_the_version_is_the_same_in_the_package_the_citation_and_the_changelog() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert citation["version"] == newest.group(1) == disaggroute.__version__


def test_every_dependency_but_the_engines_is_pinned_to_a_version_that_it_allows() -> None:
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    named = [*PROJECT["project"]["dependencies"], *(r for e in extras if e != "engines" for r in extras[e])]
    pinned = pins()
    for requirement in map(Requirement, named):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"


def test_the_engines_are_not_pinned() -> None:
    engines = PROJECT["project"]["optional-dependencies"]["engines"]
    assert not {canonicalize_name(Requirement(text).name) for text in engines} & pins().keys()


def test_the_makefile_installs_every_extra_but_the_engines() -> None:
    line = re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    assert set(line.group(1).split(",")) == set(PROJECT["project"]["optional-dependencies"]) - {"engines"}


def test_importing_the_package_loads_gymnasium_to_register_the_environment_and_no_slower_library() -> None:
    heavy = {"numba", "pandas", "pyarrow", "matplotlib", "torch", "ray", "pydantic"}
    code = "import sys, disaggroute; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not heavy & set(loaded.split()) and "gymnasium" in loaded.split()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by way of the source distribution from a copy of the tree."""
    copy = tmp_path_factory.mktemp("tree") / "anything"
    # What a developer's tree holds besides the files of the project must not get in.
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "site", "results")
    shutil.copytree(ROOT, copy, ignore=skipped)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    subprocess.run(command, check=True, capture_output=True, cwd=copy.parent)
    (built,) = (copy / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_the_modules_and_the_data_and_nothing_else(wheel: Path) -> None:
    modules = {file for package in LISTED for file in folder_of(package).glob("*.py")}
    expected = {"disaggroute/" + file.relative_to(ROOT).as_posix() for file in modules | packaged_data()}
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_an_installed_package_works_in_a_folder_that_has_its_own_envs(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    user = tmp_path / "user"
    (user / "envs").mkdir(parents=True)
    (user / "envs" / "__init__.py").write_text("MINE = True\n")
    code = "import envs, disaggroute.envs.trace as t; assert envs.MINE; print(t.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=user, env=environment)
    assert Path(done.stdout.strip()) == tmp_path / "site" / "disaggroute" / "envs" / "trace.py"
