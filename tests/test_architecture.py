"""Imports go down only: `__main__` → `live`, `training` → `policies` → `envs` (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "envs": {"envs"},
    "policies": {"policies", "envs"},
    "live": {"live", "policies", "envs"},
    "training": {"training", "policies", "envs"},
    "benchmarks": {"benchmarks", "training", "live", "policies", "envs"},
}
"""What each folder may import; the root (`__init__`, `__main__`) may import everything."""

HEAVY = {"cma", "matplotlib", "pandas", "pyarrow", "ray", "sb3_contrib", "stable_baselines3", "torch"}
"""Libraries that `envs` and `policies` import where they are used, so that a first step comes soon."""


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports_of(tree: ast.AST, file: Path) -> Iterator[str]:
    """Absolute dotted names of what a module imports, wherever in its text."""
    package = ("disaggroute", *file.relative_to(ROOT).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join([*base, *([node.module] if node.module else [])])
            # `from .. import envs` imports `disaggroute.envs`.
            yield from (f"{start}.{alias.name}" for alias in node.names)


def imported(file: Path) -> set[str]:
    return set(imports_of(ast.parse(file.read_text()), file))


def top_level_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported, without those for type checkers only."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node


def names(files: list[Path]) -> list[str]:
    return [file.relative_to(ROOT).as_posix() for file in files]


ABOUT_TORCH = ROOT / "policies" / "network_torch.py"
"""The one lower module that is made of torch; who wants it imports it where it is used."""

LAYERED = [file for folder in MAY_IMPORT for file in modules(folder)]
CORE = modules("envs/simulator")
LOWER = [file for folder in ("envs", "policies") for file in modules(folder) if file != ABOUT_TORCH]


@pytest.mark.parametrize("file", LAYERED, ids=names(LAYERED))
def test_a_module_imports_only_what_lies_below_it(file: Path) -> None:
    folder = file.relative_to(ROOT).parts[0]
    ours = {name.split(".")[1] for name in imported(file) if name.startswith("disaggroute.")}
    assert ours & MAY_IMPORT.keys() <= MAY_IMPORT[folder]


@pytest.mark.parametrize("file", LAYERED, ids=names(LAYERED))
def test_a_module_names_the_package_by_relative_imports(file: Path) -> None:
    absolute: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            absolute += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            absolute += [node.module or ""]
    assert "disaggroute" not in {name.split(".")[0] for name in absolute}


@pytest.mark.parametrize("file", CORE, ids=names(CORE))
def test_the_simulator_knows_nothing_of_gymnasium(file: Path) -> None:
    assert not any(name.split(".")[0] == "gymnasium" for name in imported(file))


@pytest.mark.parametrize("file", LOWER, ids=names(LOWER))
def test_a_heavy_library_is_imported_where_it_is_used(file: Path) -> None:
    statements = ast.Module(list(top_level_statements(ast.parse(file.read_text()))), [])
    assert not {name.split(".")[0] for name in imports_of(statements, file)} & HEAVY


def test_nothing_that_decides_imports_the_module_that_is_made_of_torch() -> None:
    name = "disaggroute.policies.network_torch"
    assert ABOUT_TORCH.is_file()
    for file in [*LOWER, *modules("live")]:
        assert name not in imported(file) and not any(each.startswith(f"{name}.") for each in imported(file))


def test_the_reference_shares_no_code_with_the_core_that_it_checks() -> None:
    envs = "disaggroute.envs"
    own = (f"{envs}.cluster.", f"{envs}.trace.", f"{envs}.records.", f"{envs}.simulator.reference")
    for file in (ROOT / "envs" / "simulator").glob("reference*.py"):
        ours = {name for name in imported(file) if name.startswith("disaggroute.")}
        assert not {name for name in ours if not name.startswith(own)}, file.name


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_the_import_order_names_every_folder(folder: str) -> None:
    assert (ROOT / folder / "__init__.py").is_file()
