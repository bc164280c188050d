"""How engines stand, on screens of all widths."""

from __future__ import annotations

import re

import pytest

from disaggroute.live.cluster_file import Role
from disaggroute.live.up.standing import EngineStanding, Standing
from disaggroute.live.up.standing_table import show


def engine(role: Role, k: int, name: str = "", url: str = "http://127.0.0.1:40001", **more: object) -> EngineStanding:
    fields = {"here": True, "pid": 1234567, "since": 1.8e9, "log": f"{role}-{k}.log"} | more
    return EngineStanding(name or f"{role}/{k}", role, url, True, "0.32.0", **fields)  # type: ignore[arg-type]


FOUND = Standing(
    "emulated-2p4d", [engine("prefill", 0), engine("decode", 11), engine("decode", 12, pid=None, since=None)], "/state"
)
HEADINGS = ("engine", "role", "pid", "alive", "healthy", "url", "version", "since", "log")


def shown(
    found: Standing, columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    show(found)
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_nothing_is_cut_or_left_out_on_a_narrow_screen(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(FOUND, columns, monkeypatch, capsys)
    assert max(map(len, text.splitlines())) <= columns and "…" not in text
    words = text.split()
    for heading in HEADINGS:
        assert heading in words
    for each in FOUND.engines:
        assert {each.name, each.role, each.log} <= set(words)
    assert words.count("http://127.0.0.1:40001") == 3 and words.count("1234567") == 2
    assert len(re.findall(r"\d{4}-\d\d-\d\d", text)) == len(re.findall(r"\d\d:\d\d:\d\d", text)) == 2
    one_line = next(line for line in text.splitlines() if "decode/11" in line)
    assert ("decode-11.log" in one_line) is (columns == 200)


def test_a_long_name_or_address_goes_on_in_the_next_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://decode-1.decode.a-namespace-with-a-long-name.svc.cluster.local:8000"
    text = shown(Standing("c", [engine("decode", 0, "n" * 40, url, here=False, log="")]), 80, monkeypatch, capsys)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    body = lines[next(k for k, line in enumerate(lines) if "──" in line) + 1 :]
    start = lines[2].index("url")
    assert "".join(line[start:].split(" ")[0] for line in body) == url
    assert sum(line.count("n") for line in (line[:start] for line in body)) == 40


def test_in_a_pipe_an_engine_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(FOUND, None, monkeypatch, capsys).splitlines()
    (line,) = (line for line in lines if "decode/11" in line)
    day, at = line.split()[7:9]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", day) and re.fullmatch(r"\d\d:\d\d:\d\d", at)
    assert line.split()[-1] == "decode-11.log"
