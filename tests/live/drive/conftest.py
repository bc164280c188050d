"""Made-up engines have the same addresses in every test: locks on them are a test's own."""

from __future__ import annotations

import tempfile

import pytest


@pytest.fixture(autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))
