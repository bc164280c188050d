"""The GPUs of a machine, as its driver or its device files tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.live.up import devices
from disaggroute.live.up.devices import check_devices, gpus


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /dev and for the one with the driver's tool."""
    monkeypatch.setattr(devices, "DEV", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def tool(folder: Path, text: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "nvidia-smi").chmod(0o755)


def test_the_drivers_tool_is_believed(machine: Path) -> None:
    tool(machine, "echo 1\necho 0\necho 10")
    assert gpus() == [0, 1, 10]
    check_devices([0, 10])


@pytest.mark.parametrize("text", ["echo NVIDIA-SMI has failed; exit 9", ""])
def test_without_it_the_device_files_are_counted(machine: Path, text: str) -> None:
    for name in ("nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (machine / name).touch()
    if text:
        tool(machine, text)
    assert gpus() == [0, 2]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ([0], "devices 0 are wanted; this machine has none"),
        ([3, 1, 3], "devices 1, 3 are wanted; this machine has none"),
    ],
)
def test_a_machine_without_gpus_says_so(machine: Path, wanted: list[int], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        check_devices(wanted)


def test_gpus_that_are_not_there_are_named_beside_those_that_are(machine: Path) -> None:
    tool(machine, "echo 0\necho 1")
    with pytest.raises(ValueError, match=r"^devices 2, 9 are wanted; this machine has 0, 1$"):
        check_devices([0, 2, 9])


def test_who_wants_none_is_not_refused(machine: Path) -> None:
    check_devices([])
