"""The emulated model: its tokenizer, and answers that follow from everything before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live.emulator import tokens

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
