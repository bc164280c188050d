"""Every way in which a trace file can be bad, with the sentence that says so."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs import traces

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
OWN = "arrival_s,prompt_tokens,output_tokens"
GOOD = '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'

CASES = {
    "empty": ("t.csv", "", r"t\.csv: is empty; it must hold at least one request"),
    "only blank lines": ("t.csv", "\n\n", "is empty; it must hold"),
    "only a byte-order mark": ("t.csv", "\ufeff", "is empty; it must hold"),
    "only a header": ("t.csv", VIDUR, "has no rows; it must hold at least one request"),
    "unknown columns": (
        "t.csv",
        "a,b\n1,2\n",
        r"t\.csv, line 1: no format has columns 'a', 'b'; give one of azure",
    ),
    "unknown keys": ("t.jsonl", '{"a": 1}\n', r"t\.jsonl, line 1: no format has columns 'a'"),
    "a column twice": (
        "t.csv",
        "arrived_at,arrived_at,num_prefill_tokens,num_decode_tokens\n1,1,1,1\n",
        "stands twice",
    ),
    "not a number": (
        "t.csv",
        VIDUR + "0,1,1\n1,many,1\n",
        "line 3: num_prefill_tokens is 'many'; it must be a whole",
    ),
    "an empty field": (
        "t.csv",
        VIDUR + "0,1,\n",
        "line 2: num_decode_tokens is empty; it must be a whole number",
    ),
    "only commas": ("t.csv", VIDUR + "0,1,1\n,,\n", "line 3: arrived_at is empty; it must be a number"),
    "a time that is no number": (
        "t.csv",
        VIDUR + "soon,1,1\n",
        "line 2: arrived_at is 'soon'; it must be a number",
    ),
    "not finite": ("t.csv", VIDUR + "nan,1,1\n", "line 2: arrived_at is 'nan'; it must be a number"),
    "infinite": (
        "t.csv",
        VIDUR + "0,inf,1\n",
        "line 2: num_prefill_tokens is 'inf'; it must be a whole number",
    ),
    "a negative length": (
        "t.csv",
        VIDUR + "0,1,1\n1,1,-5\n",
        "line 3: num_decode_tokens is '-5'; it must not be neg",
    ),
    "a negative time": ("t.csv", VIDUR + "-1,1,1\n", "line 2: arrived_at is '-1'; it must not be negative"),
    "half a token": (
        "t.csv",
        VIDUR + "0,1.5,1\n",
        r"line 2: num_prefill_tokens is '1\.5'; it must be a whole number",
    ),
    "too long": (
        "t.csv",
        VIDUR + "0,1,99999999999\n",
        "line 2: num_decode_tokens is '99999999999'; it must be at most",
    ),
    "unsorted": (
        "t.csv",
        VIDUR + "0,1,1\n5,1,1\n4,1,1\n",
        "line 4: arrived_at is earlier than in the row above",
    ),
    "over 100 days": ("t.csv", VIDUR + "0,1,1\n9e6,1,1\n", "line 3: arrived_at is '9e6'; .* within 100 days"),
    "too few fields": (
        "t.csv",
        VIDUR + "0,1,1\n1,1\n",
        "line 3: has 2 fields; it must have 3, as the header",
    ),
    "too many fields": ("t.csv", VIDUR + "0,1,1,1\n", "line 2: has 4 fields; it must have 3, as the header"),
    "an open quote": ("t.csv", VIDUR + '0,1,"1\n', "is not valid CSV"),
    "all rows failed": ("t.csv", VIDUR + "0,0,0\n", "has no row with prompt and output tokens"),
    "not a date": (
        "t.csv",
        AZURE + "2023-11-16 18:15:46,1,1\nyesterday,1,1\n",
        "line 3: TIMESTAMP is 'yesterday'",
    ),
    "no date": ("t.csv", AZURE + ",1,1\n", "line 2: TIMESTAMP is empty; it must be a date and time"),
    "unsorted dates": (
        "t.csv",
        AZURE + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n",
        "line 3: TIMESTAMP is ear",
    ),
    "dates too far apart": (
        "t.csv",
        AZURE + "2023-01-01,1,1\n2024-01-01,1,1\n",
        "line 3: .* within 100 days",
    ),
    "invalid JSON": ("t.jsonl", GOOD + GOOD[:-5] + "\n", r"t\.jsonl, line 2: is not valid JSON"),
    "JSON that is no object": ("t.jsonl", GOOD + "[1]\n", "line 2: is a JSON list; it must be an object"),
    "a missing key": (
        "t.jsonl",
        GOOD + '{"timestamp": 1}\n',
        "line 2: column 'input_length' is missing; there are",
    ),
    "JSON null": (
        "t.jsonl",
        GOOD.replace("10", "null"),
        "line 1: input_length is empty; it must be a whole number",
    ),
    "JSON true": (
        "t.jsonl",
        GOOD.replace("10", "true"),
        "line 1: input_length is True; it must be a whole number",
    ),
    "JSON text": (
        "t.jsonl",
        GOOD.replace("10", '"ten"'),
        "line 1: input_length is 'ten'; it must be a whole number",
    ),
    "a negative JSON length": (
        "t.jsonl",
        GOOD + GOOD.replace("10", "-1"),
        "line 2: input_length is -1; it must not",
    ),
    "bad prefix ids": (
        "t.jsonl",
        GOOD + GOOD.replace("[1]", '["a"]'),
        "line 2: hash_ids must be a list of whole",
    ),
    "prefix ids no list": (
        "t.jsonl",
        GOOD.replace("[1]", "7"),
        "line 1: hash_ids must be a list of whole numbers",
    ),
    "an unknown class": (
        "t.csv",
        OWN + ",slo\n0,1,1,strict\n",
        "line 2: slo is 'strict'; it must be tight or loose",
    ),
    "a bad target": (
        "t.csv",
        OWN + ",ttft_target_ps\n0,1,1,1.5\n",
        r"line 2: ttft_target_ps is '1\.5'; it must be a whole number of p",
    ),
    "a lone column": (
        "t.csv",
        "prompt_tokens,output_tokens\n1,1\n",
        "line 1: column 'arrival_s' is missing; there are",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_file_is_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    name, text, sentence = CASES[case]
    (tmp_path / name).write_bytes(text.encode())
    with pytest.raises(ValueError, match=sentence) as caught:
        traces.read(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_the_line_is_right_after_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(VIDUR + "0,1,1\n\n\n1,x,1\n")
    with pytest.raises(ValueError, match="line 5: num_prefill_tokens is 'x'"):
        traces.read(tmp_path / "t.csv")
    (tmp_path / "t.jsonl").write_text("\n" + GOOD + "\n{\n")
    with pytest.raises(ValueError, match="line 4: is not valid JSON"):
        traces.read(tmp_path / "t.jsonl")


def test_a_column_that_the_given_format_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(VIDUR + "0,1,1\n")
    with pytest.raises(ValueError, match="line 1: column 'TIMESTAMP' is missing; there are 'arrived_at'"):
        traces.read(tmp_path / "t.csv", "azure")
    with pytest.raises(ValueError, match="line 1: is not valid JSON"):
        traces.read(tmp_path / "t.csv", "mooncake")


def test_an_unknown_format_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(VIDUR + "0,1,1\n")
    with pytest.raises(ValueError, match="unknown trace format 'vidu'; nearest: vidur"):
        traces.read(tmp_path / "t.csv", "vidu")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.csv: cannot be read \(No such file or directory\)"):
        traces.read(tmp_path / "none.csv")


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\)"):
        traces.read(tmp_path)


@pytest.mark.parametrize("keep", [15, 40, -1, -8])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, keep: int) -> None:
    packed = gzip.compress((VIDUR + "0,1,1\n" * 50).encode())
    (tmp_path / "t.csv.gz").write_bytes(packed[:keep])
    with pytest.raises(ValueError, match=r"t\.csv\.gz, line \d+: the gzip file is truncated here; fetch it again"):
        traces.read(tmp_path / "t.csv.gz")


def test_a_truncated_gzip_file_names_the_first_line_that_is_not_whole(tmp_path: Path) -> None:
    whole = gzip.compress((VIDUR + "0,1,1\n" * 4).encode())
    cut = gzip.compress(b"5,1,1\n6,1")[:-8]  # a second member without its trailer
    (tmp_path / "t.csv.gz").write_bytes(whole + cut)
    with pytest.raises(ValueError, match=r"t\.csv\.gz, line 7: the gzip file is truncated here"):
        traces.read(tmp_path / "t.csv.gz")


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress((VIDUR + "0,1,1\n" * 50).encode()))
    packed[-6] ^= 0xFF
    (tmp_path / "t.csv.gz").write_bytes(packed)
    with pytest.raises(ValueError, match=r"t\.csv\.gz: is a damaged gzip file"):
        traces.read(tmp_path / "t.csv.gz")


def test_text_that_is_not_utf8_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(VIDUR.encode() + b"0,1,1\n\xff,1,1\n")
    with pytest.raises(ValueError, match="line 3: is not UTF-8 text"):
        traces.read(tmp_path / "t.csv")


def test_too_many_families_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{k},1,1,f{k}\n" for k in range(128))
    (tmp_path / "t.csv").write_text(f"{OWN},family\n{rows}")
    with pytest.raises(ValueError, match="family has 128 values; at most 127 are allowed"):
        traces.read(tmp_path / "t.csv")


LINES = st.sampled_from(
    [
        "",
        "{}",
        "0,1,1",
        "1,2,3,4",
        '"',
        "-1,1,1",
        "a,b,c",
        "0,1e400,1",
        "\ufeff1,1,1",
        "NaT,1,1",
        "2023-11-16 18:15:46,5,5",
        "9999-12-31,5,5",
        "x" * 200_000,
        GOOD.strip(),
        GOOD.strip().replace("10", "1e999"),
        GOOD.strip().replace("[1]", "[99999999999999999999]"),
        "[" * 5000,
    ]
)


@given(
    st.sampled_from(
        ["", "x" * 200_000, VIDUR.strip(), AZURE.strip(), OWN, GOOD.strip(), f"{OWN},slo,family"]
    ),
    st.lists(st.one_of(LINES, st.text(max_size=12)), max_size=4),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_no_file_brings_anything_but_a_trace_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, first: str, lines: list[str], end: str
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "t.csv"
    path.write_bytes(end.join([first, *lines]).encode("utf-8", "surrogatepass"))
    try:
        file = traces.read(path)
    except ValueError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
    else:
        assert len(file) == len(file.prompt) == len(file.arrival) > 0
