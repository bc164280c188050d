"""The emulated model: its tokenizer, and answers that follow from everything before them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live.emulator import tokens
from disaggroute.live.emulator.egress import Egress
from disaggroute.live.emulator.generation import Generation
from disaggroute.live.emulator.kv_memory import KvMemory

from ...differential.scenarios import engine

PROMPTS = st.lists(st.integers(0, tokens.VOCABULARY - 1), min_size=1, max_size=60)


@given(st.text())
def test_a_text_is_its_bytes_and_back(text: str) -> None:
    found = tokens.encode(text)
    assert all(0 <= token < tokens.VOCABULARY for token in found)
    if text.isprintable():
        assert tokens.decode(found) == text


@given(PROMPTS, st.integers(0, 59), st.integers(0, tokens.VOCABULARY - 1))
def test_every_token_of_a_prompt_changes_the_answer(prompt: list[int], place: int, token: int) -> None:
    changed = [*prompt]
    changed[place % len(prompt)] = token
    answers = []
    for one in (prompt, changed):
        answer = tokens.Answer(tokens.digest(one))
        answers.append([answer.next_token() for _ in range(24)])
    assert (answers[0] == answers[1]) == (prompt == changed)


def test_an_answer_is_made_of_characters_that_need_no_escape() -> None:
    answer = tokens.Answer(1)
    said = tokens.decode(answer.next_token() for _ in range(5000))
    assert set(said) == set(tokens.SPOKEN)


def test_an_answer_goes_on_after_the_tokens_that_it_is_fed() -> None:
    whole = tokens.Answer(7)
    said = [whole.next_token() for _ in range(10)]
    again = tokens.Answer(7)
    for token in said[:6]:
        again.feed(token)
    assert [again.next_token() for _ in range(4)] == said[6:]


@given(PROMPTS, st.integers(0, 300), st.integers(1, 1000))
def test_an_answer_that_ends_by_itself_is_as_long_as_allowed(prompt: list[int], least: int, most: int) -> None:
    length = tokens.length(tokens.digest(prompt), least, max(least, most))
    assert max(1, least) <= length <= max(least, most)
    assert length == tokens.length(tokens.digest(prompt), least, max(least, most))


def test_wrong_kv_gives_wrong_tokens_until_it_is_computed_anew() -> None:
    right = Generation("a", 5, 123, 12, None)
    wrong = Generation("b", 5, 123, 12, None)
    wrong.has_pulled(124)
    assert wrong.bring_to(6) != right.bring_to(6)
    wrong.tokens[:] = right.tokens
    wrong.recomputed()
    assert wrong.bring_to(12) == right.bring_to(12)


def test_blocks_are_given_out_the_longest_free_first_and_keep_their_content_until_then() -> None:
    memory = KvMemory(4)
    first = memory.take(2, 11, now=0)
    assert first == [1, 2] and memory.read(first) == 11
    memory.give_back(first, when=10)
    assert memory.take(2, 22, now=5) == [3, 4]
    assert memory.read(first) == 11
    with pytest.raises(ValueError, match="1 KV blocks are taken at 9 ps; 0 are free"):
        memory.take(1, 33, now=9)
    assert memory.take(1, 33, now=10) == [1]
    assert memory.read([1, 2]) not in (11, 33) and memory.read([2, 1]) != memory.read([1, 2])
    assert memory.read([1]) == 33


def test_the_egress_sends_one_pull_after_the_other() -> None:
    spec = engine(egress_per_block=3, latency=5)
    egress = Egress(spec)
    assert egress.book(4, now=100) == (0, 12, 5)
    assert egress.book(2, now=106) == (6, 6, 5)
    assert egress.book(1, now=200, factor=10) == (0, 30, 50)
    assert egress.book(1, now=210).total == 20 + 3 + 5
