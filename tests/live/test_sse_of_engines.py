"""Event streams of vLLM 0.32 as they came, cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live.sse import EventStream

from .samples import sample

CUTS = st.lists(st.integers(0, 3_000), max_size=6)

STREAMS = ("decode_leg_stream", "chat_decode_leg_stream", "decode_leg_stream_continuous_usage")


def fed(stream: EventStream, data: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return b"".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges) if b > a)


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=CUTS)
def test_a_real_stream_of_six_tokens_is_counted_and_goes_on_whole(name: str, cuts: list[int]) -> None:
    """A chat's first event names the role and has no token; a token without a character is an event too."""
    stream = EventStream(show_usage=True)
    body = sample(name).body
    assert fed(stream, body, cuts) == body
    assert (stream.pieces, stream.done, stream.error, stream.cut_short) == (6, True, None, b"")
    assert stream.usage is not None
    assert (stream.usage["prompt_tokens"], stream.usage["completion_tokens"]) == (99, 6)


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=CUTS)
def test_the_final_counts_are_kept_from_a_client_that_did_not_ask(name: str, cuts: list[int]) -> None:
    stream = EventStream(show_usage=False)
    body = sample(name).body
    out = fed(stream, body, cuts)
    events = [event for event in body.split(b"\n\n") if event]
    assert out == b"".join(event + b"\n\n" for event in events if b'"choices":[]' not in event)
    assert stream.usage is not None and stream.pieces == 6


@given(cuts=CUTS)
def test_a_decode_leg_that_cannot_fetch_its_kv_answers_200_with_an_error_inside(cuts: list[int]) -> None:
    answer = sample("error_decode_leg_dead_side_channel_stream")
    stream = EventStream(show_usage=False)
    assert answer.status == 200 and fed(stream, answer.body, cuts) == answer.body
    assert (stream.error, stream.pieces, stream.done) == ("Internal server error", 0, True)
