"""Policies that are named by the place of their class: `package.module:Class`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disaggroute.policies import registry

MODULE = '''
from disaggroute import policies


class Parameters(policies.Parameters):
    first: int = 0


class Mine(policies.Policy):
    """The first ones."""

    name = "mine"
    accepts = Parameters

    def route(self, admission):
        return self.parameters.first, self.parameters.first


@policies.register
class Other(Mine):
    """Another one."""

    name = "other"


class Taken(Mine):
    name = "card"


THING = 3
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder, forgotten afterwards."""
    name = "module_of_the_current_folder"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(registry.VARIABLE, "")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    known = dict(registry._classes)
    yield name
    registry._classes.clear()
    registry._classes.update(known)
    sys.modules.pop(name, None)
    monkeypatch.undo()
    registry._entry_points.cache_clear()


def test_a_class_is_imported_from_the_current_folder_and_known_by_its_name(module: str) -> None:
    assert registry.import_policy(f"{module}:Mine(first=1)") == "mine(first=1)"
    assert registry.parse("mine(first=1)").params == {"first": 1}
    assert registry.import_policy(f"{module}:Mine") == "mine"


def test_the_hash_covers_the_source_of_the_module(module: str, tmp_path: Path) -> None:
    registry.import_policy(f"{module}:Mine")
    first = registry.parse("mine").hash
    del registry._classes["mine"], registry._classes["other"]
    sys.modules.pop(module)
    path = tmp_path / f"{module}.py"
    path.write_text(path.read_text() + "\n# changed\n")
    registry.import_policy(f"{module}:Mine")
    assert registry.parse("mine").hash != first


def test_other_processes_know_it_too_with_the_same_hash(module: str, tmp_path: Path) -> None:
    for name in ("Mine", "Other"):  # One of them is registered by its decorator as well.
        registry.import_policy(f"{module}:{name}")
    script = (
        f"import sys; sys.path[:0] = {[str(tmp_path), *sys.path]}\n"
        "from disaggroute.policies import registry\n"
        "print(registry.parse('mine').hash, registry.parse('other').hash)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [registry.parse("mine").hash, registry.parse("other").hash]


def test_other_texts_are_left_as_they_are() -> None:
    for text in ("card", "marginal-cost(w_q=0.1)", 'linear(prefill={"queued":1})', "card@short", "card@C:/x.yaml"):
        assert registry.import_policy(text) == text


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("no_such_module:Mine", "policy no_such_module:Mine cannot be loaded (ModuleNotFoundError"),
        ("{module}:Nobody", "policy {module}:Nobody cannot be loaded (AttributeError"),
        ("{module}:THING", "policy {module}:THING is no class derived from disaggroute.policies.Policy"),
        ("{module}:Taken", "Taken: the name 'card' is taken; choose another one"),
    ],
)
def test_what_is_no_policy_is_refused_in_one_sentence(module: str, place: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        registry.import_policy(place.format(module=module))
    assert words.format(module=module) in str(caught.value)
