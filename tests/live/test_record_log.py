"""Records of the router: nothing is lost, doubled or put out of order, whatever the disk and the killer do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live import record_log
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.play.agent_policy import AgentPolicy
from disaggroute.live.record_log import RecordLog, read
from disaggroute.live.service import Service, ServiceOptions

HEADER = {"model": "tiny"}
FULL = OSError(errno.ENOSPC, "No space left on device")


def numbers(path: Path) -> list[int]:
    """The records of a file, without headers."""
    return [record["i"] for record in read(path) if "kind" not in record]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is tried again at each line."""
    monkeypatch.setattr(record_log, "RETRY_S", 0.0)


class Disk:
    """`os.write`, in which each call does what the script says: write so many bytes at most, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script: list[int | OSError] = []
        self.always: int | OSError | None = None
        self.calls = 0
        self._write: Callable[[int, bytes], int] = os.write
        monkeypatch.setattr(record_log.os, "write", self)

    def __call__(self, file: int, data: bytes) -> int:
        self.calls += 1
        step = self.script.pop(0) if self.script else self.always
        if isinstance(step, OSError):
            raise step
        return self._write(file, data if step is None else data[:step]) if step != 0 else 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


# --- a file ---------------------------------------------------------------------------------------------------------


def test_each_record_is_in_the_file_as_soon_as_it_is_written(path: Path) -> None:
    log = RecordLog(path, HEADER)
    for i in range(3):
        log.write({"i": i, "text": 'a "b"\nü'})
        assert numbers(path) == list(range(i + 1))
    assert (log.written, log.waiting, log.lost, log.problem) == (4, 0, 0, "")
    lines = path.read_bytes().splitlines()
    assert orjson.loads(lines[0]) == {"schema_version": 1, "kind": "disaggroute-live-records", "model": "tiny"}
    assert log.close() and log.close()
    log.write({"i": 9})
    assert numbers(path) == [0, 1, 2]


def test_a_second_run_appends_after_a_header_of_its_own(path: Path) -> None:
    for run in range(2):
        log = RecordLog(path, {"run": run})
        log.write({"i": run})
        log.close()
    assert [record.get("run", record.get("i")) for record in read(path)] == [0, 0, 1, 1]
    assert path.read_bytes().count(b"\n") == 4


def test_folders_are_made_and_an_empty_file_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "records.jsonl"
    RecordLog(path, HEADER).close()
    empty = tmp_path / "empty"
    empty.touch()
    RecordLog(empty, HEADER).close()
    assert path.read_bytes() == empty.read_bytes() != b""


def test_without_a_file_nothing_is_kept() -> None:
    log = RecordLog(None, HEADER)
    log.write({"i": 1})
    assert (log.written, log.waiting, log.lost) == (0, 0, 0) and log.flush() and log.close()


@pytest.mark.parametrize(
    "content",
    [
        *(b"name: tiny\n", b"{}\n", b"[1]\n", b"\n", b"\x00\xff" * 50, b'{"schema_version":1}\n', b"x"),
        *(b'{"schema_version":2,"kind":"disaggroute-live-records"}\n', b'{"schema_version":1,"kind":"other"}'),
    ],
)
def test_a_file_that_holds_something_else_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"records\.jsonl, which holds something else; name another file$"):
        RecordLog(path, HEADER)
    with pytest.raises(ValueError, match=r"records\.jsonl holds no records of a router$"):
        list(read(path))
    assert path.read_bytes() == content


def test_a_folder_or_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        RecordLog(tmp_path, HEADER)
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        RecordLog(tmp_path / "file" / "records.jsonl", HEADER)
    with pytest.raises(FileNotFoundError):
        list(read(tmp_path / "none"))


# --- a router that was killed ---------------------------------------------------------------------------------------


def test_a_run_after_a_crash_at_any_byte_keeps_every_whole_record(path: Path) -> None:
    log = RecordLog(path, HEADER)
    for i in range(3):
        log.write({"i": i})
    log.close()
    whole = path.read_bytes()
    ends = [k + 1 for k, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        # A record is whole when only the end of its line is missing.
        kept = list(range(sum(end - 1 <= cut for end in ends[1:])))
        assert numbers(path) == kept if cut else True
        log = RecordLog(path, HEADER)
        log.write({"i": 7})
        assert log.written == 2 and log.close()
        assert numbers(path) == [*kept, 7]
        assert next(iter(read(path)))["model"] == "tiny"


def test_half_lines_and_lines_that_are_no_records_are_left_out(path: Path) -> None:
    RecordLog(path, HEADER).close()
    with path.open("ab") as file:
        file.write(b'{"i": 1}\n{"i": 2, "text": "\xff"}\n5\nnull\n\n{"i": 3}\n{"i": 4')
    assert numbers(path) == [1, 3]


# --- a disk that is full --------------------------------------------------------------------------------------------


def test_lines_wait_while_the_disk_is_full_and_go_out_in_order_later(path: Path, disk: Disk) -> None:
    log = RecordLog(path, HEADER)
    disk.always = FULL
    for i in range(5):
        log.write({"i": i})
    assert (log.written, log.waiting, log.lost) == (1, 5, 0)
    assert log.problem == "No space left on device" and not log.flush() and numbers(path) == []
    disk.always = None
    log.write({"i": 5})
    assert (log.written, log.waiting, log.lost, log.problem) == (7, 0, 0, "")
    assert numbers(path) == list(range(6)) and log.close()


def test_a_disk_that_is_full_from_the_start_keeps_the_header_for_the_first_line(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_log, "MOST_WAITING", 3)
    disk.always = FULL
    log = RecordLog(path, HEADER)
    for i in range(10):
        log.write({"i": i})
    assert log.written == 0 and log.lost >= 1
    lost, waiting = log.lost, log.waiting
    disk.always = None
    assert log.flush() and log.lost == lost and log.waiting == 0 and log.written == waiting == 11 - lost
    left = numbers(path)
    assert left == sorted(set(left)) and len(left) == 10 - lost and left[-1] == 9


def test_a_line_that_is_cut_by_a_full_disk_goes_on_where_it_was_cut(path: Path, disk: Disk) -> None:
    log = RecordLog(path, HEADER)
    disk.script, disk.always = [4], FULL
    log.write({"i": 1})
    log.write({"i": 2})
    assert path.read_bytes().endswith(b'\n{"i"') and log.waiting == 2 and numbers(path) == []
    disk.always = None
    assert log.flush() and numbers(path) == [1, 2]


def test_a_router_killed_in_the_middle_of_a_line_on_a_full_disk_leaves_a_file_that_goes_on(
    path: Path, disk: Disk
) -> None:
    log = RecordLog(path, HEADER)
    disk.script, disk.always = [4], FULL
    log.write({"i": 1})
    resumed = RecordLog(path, HEADER)  # the first one was killed; still no room
    resumed.write({"i": 2})
    assert resumed.written == 0 and resumed.waiting == 2
    disk.always = None
    assert resumed.flush() and numbers(path) == [2] and resumed.written == 2


def test_a_write_of_nothing_is_a_full_disk_and_no_endless_loop(path: Path, disk: Disk) -> None:
    log = RecordLog(path, HEADER)
    disk.always = 0
    log.write({"i": 1})
    assert log.waiting == 1 and log.problem
    disk.always = None
    assert log.flush() and numbers(path) == [1]


def test_lines_that_waited_go_out_many_at_a_time(path: Path, disk: Disk) -> None:
    log = RecordLog(path, HEADER)
    disk.always = FULL
    for i in range(10_000):
        log.write({"i": i})
    disk.always, disk.calls = None, 0
    assert log.flush() and disk.calls <= 4 and numbers(path) == list(range(10_000))


def test_a_full_disk_is_left_alone_for_a_while(path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RecordLog(path, HEADER)
    monkeypatch.setattr(record_log, "RETRY_S", 3_600.0)
    disk.always, disk.calls = FULL, 0
    for i in range(100):
        log.write({"i": i})
    assert disk.calls == 1 and log.waiting == 100
    disk.always = None
    log.write({"i": 100})
    assert disk.calls == 1
    assert log.flush() and numbers(path) == list(range(101))
    log.write({"i": 101})
    assert numbers(path)[-1] == 101


@given(
    st.lists(st.one_of(st.integers(0, 40), st.just(FULL)), max_size=40),
    st.lists(st.integers(0, 30), max_size=30),
)
def test_any_disk_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, script: list[int | OSError], sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("disk") / "records"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(record_log, "RETRY_S", 0.0)
        disk = Disk(monkeypatch)
        disk.script = list(script)
        log = RecordLog(path, HEADER)
        for i, size in enumerate(sizes):
            log.write({"i": i, "text": "x" * size})
            assert log.written + log.waiting == i + 2
        disk.script = []
        assert log.flush() and log.close() and log.lost == 0
    assert numbers(path) == list(range(len(sizes)))
    assert path.read_bytes().count(b"\n") == len(sizes) + 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_the_systems_own_full_disk_is_one() -> None:
    log = RecordLog(Path("/dev/full"), HEADER)
    log.write({"i": 1})
    assert (log.written, log.waiting, log.lost) == (0, 2, 0) and log.problem == os.strerror(errno.ENOSPC)
    assert not log.close()


def test_what_fails_while_it_is_closed_is_told(path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RecordLog(path, HEADER)

    def fails(file: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(record_log.os, "fsync", fails)
    assert not log.close()


def test_a_record_that_is_no_json_does_not_spoil_the_file(path: Path) -> None:
    log = RecordLog(path, HEADER)
    bad: Any = {"i": object()}
    with pytest.raises(TypeError):
        log.write(bad)
    log.write({"i": 1})
    assert numbers(path) == [1] and log.written == 2


def test_the_head_names_the_policy_that_decides() -> None:
    fields = {"model": "m", "profile": "a40-qwen2.5-3b", "mixed": [{"url": "http://127.0.0.1:1"}]}
    service = Service(LiveCluster.load(fields), ServiceOptions(), policy=AgentPolicy())
    assert service._about()["policy"] == "agent"
