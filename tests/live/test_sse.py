"""Event streams: any cut of the bytes gives the same events, counts and errors."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live.sse import EventStream, error_text


def event(content: Any) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def piece(text: str, **more: Any) -> bytes:
    return event({"id": "cmpl-1", "choices": [{"index": 0, "text": text, **more}], "usage": None})


TRICKY = 'data: [DONE]\n\n"choices":[{"role":"error"'
PIECES = [piece("a"), piece(TRICKY), piece("", finish_reason="length")]
USAGE = event({"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}})
STREAM = b"".join(PIECES) + USAGE + event("[DONE]")


def fed(stream: EventStream, data: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return b"".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges) if b > a)


@given(st.lists(st.integers(0, 10_000), max_size=8), st.booleans())
def test_any_cut_gives_the_same_events(cuts: list[int], show_usage: bool) -> None:
    stream = EventStream(show_usage)
    expected = STREAM if show_usage else STREAM.replace(USAGE, b"")
    assert fed(stream, STREAM, cuts) == expected
    assert stream.pieces == 3 and stream.done and stream.error is None and stream.cut_short == b""
    assert stream.usage == {"prompt_tokens": 4, "completion_tokens": 3}


def test_only_whole_events_go_on() -> None:
    stream = EventStream(True)
    assert stream.feed(PIECES[0] + PIECES[1][:9]) == PIECES[0]
    assert stream.cut_short == PIECES[1][:9] and stream.pieces == 1
    assert stream.feed(PIECES[1][9:]) == PIECES[1]


def test_an_error_in_the_stream_is_noted_and_goes_to_the_client() -> None:
    stream = EventStream(False)
    error = event({"error": {"message": "KV load\nfailed", "type": "InternalServerError", "code": 500}})
    assert stream.feed(PIECES[0] + error + event("[DONE]")) == PIECES[0] + error + event("[DONE]")
    assert stream.error == "KV load failed" and stream.done and stream.pieces == 1


def test_a_piece_with_usage_is_never_kept_from_the_client() -> None:
    stream = EventStream(False)
    last = event({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}})
    assert stream.feed(last) == last and stream.pieces == 1


def test_the_first_event_of_a_chat_names_the_role_and_holds_no_token() -> None:
    stream = EventStream(False)
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    word = event({"choices": [{"index": 0, "delta": {"content": 'a "role": b'}}]})
    assert stream.feed(role + word) == role + word and stream.pieces == 1
    stream.feed(word)
    assert stream.pieces == 2


def test_json_with_spaces_and_lines_that_are_no_json_are_taken() -> None:
    stream = EventStream(False)
    spaced = event(json.dumps({"choices": [{"text": "a"}]}))
    other = b": ping\n\n" + event("hello") + event([1])
    assert stream.feed(spaced + other) == spaced + other and stream.pieces == 1 and stream.error is None


@pytest.mark.parametrize(
    ("error", "text"), [
        ({"message": "a"}, "a"),
        ("b", "b"),
        ({}, "no reason given"),
        ("", "no reason given"),
        ("x" * 600, "x" * 500),
    ],
)
def test_an_error_is_told_in_one_line(error: Any, text: str) -> None:
    assert error_text(error) == text
