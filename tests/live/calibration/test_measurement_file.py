"""Measurements survive a crash, and what is no measurement is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.live.calibration.measurement import Measurement, MeasurementFile

ROWS = [
    Measurement("prefill", "prefill/0", "", 0, 100, 1, 0.0, 1, 0.0151, 0.0148),
    Measurement("decode", "big, red", "", 1, 64, 8, 752.5, 48, 0.0133),
    Measurement("transfer", "prefill/0", "decode/1", 0, 100, 1, 0.0, 1, 0.02, 0.0012, 36864.0),
]


def filled(path: Path) -> MeasurementFile:
    file = MeasurementFile(path)
    for row in ROWS:
        file.add(row)
    return file


def test_what_was_added_is_read_again(tmp_path: Path) -> None:
    file = filled(tmp_path / "new" / "m.csv")
    again = MeasurementFile(file.path)
    assert again.rows == file.rows == ROWS
    assert again.done == {("prefill", "prefill/0", "", 0, 100, 1), ("decode", "big, red", "", 1, 64, 8), ROWS[2].key}


def test_every_byte_at_which_a_process_can_be_killed_leaves_the_whole_rows(tmp_path: Path) -> None:
    content = filled(tmp_path / "m.csv").path.read_bytes()
    header = content.index(b"\n") + 1
    for end in range(header, len(content) + 1):
        path = tmp_path / "cut.csv"
        path.write_bytes(content[:end])
        file = MeasurementFile(path)
        whole = content[:end].count(b"\n") - 1
        assert file.rows == ROWS[:whole]
        file.add(ROWS[0])
        assert MeasurementFile(path).rows == [*ROWS[:whole], ROWS[0]]


@pytest.mark.parametrize(
    "line",
    [
        "prefill,a,,0,x,1,0,1,1,-1,-1",
        "prefill,a",
        "",
        "a" * 200_000,
        "swim,a,,0,1,1,0,1,1,-1,-1",
        "prefill,a,,0,1,1,0,1,nan,-1,-1",
        "prefill,a,,0,1,1,0,1,-5,-1,-1",
        "prefill,a,,0,-7,1,0,1,1,-1,-1",
        "prefill,a,,0,1,1,0,1,1,nan,-1",
        "transfer,a,b,0,1,1,0,1,1,1,inf",
        "decode,a,,0,64,8,700,48,inf,-1,-1",
        "decode,a,,0,64,0,700,48,1,-1,-1",
        "decode,a,,0,64,8,700,0,1,-1,-1",
        "decode,a,,0,64,8,1e300,48,1,-1,-1",
        "prefill,a,,0,99999999999999999999,1,0,1,1,-1,-1",
    ],
)
def test_a_line_that_is_no_measurement_is_named(tmp_path: Path, line: str) -> None:
    path = MeasurementFile(tmp_path / "m.csv").path
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"m.csv, line 2: is no measurement"):
        MeasurementFile(path)


@pytest.mark.parametrize("content", [b"time,temperature\n1,2\n", b"", b"\xff\xfe\n"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="holds no measurements of this version"):
        MeasurementFile(path)
    assert path.read_bytes() == content
