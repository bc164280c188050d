"""The texts that name policies: read, written, and split in lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.policies.policy_text import PolicyText, policy_name, split_at_commas

WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False))
LISTS = st.one_of(st.lists(NUMBERS, max_size=3), st.dictionaries(st.text(max_size=4), NUMBERS, max_size=3))
TEXTS = st.builds(
    PolicyText,
    st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True),
    st.none() | st.text(min_size=1, max_size=12).filter(str.strip),
    st.dictionaries(WORDS, st.one_of(NUMBERS, LISTS), max_size=3),
)


@given(TEXTS)
def test_what_is_written_is_read_back(text: PolicyText) -> None:
    assert PolicyText.read(str(text)) == text


@given(st.lists(TEXTS, max_size=4))
def test_a_list_is_split_where_its_policies_end(texts: list[PolicyText]) -> None:
    assert [PolicyText.read(part) for part in split_at_commas(", ".join(map(str, texts)))] == texts


@given(TEXTS)
def test_the_name_is_told_without_reading_the_rest(text: PolicyText) -> None:
    assert policy_name(str(text)) == text.name


@pytest.mark.parametrize(
    ("text", "file", "params"),
    [
        ("marginal-cost@mixed-bursty-a40", "mixed-bursty-a40", {}),
        (" marginal-cost @ a folder/my file.yaml ", "a folder/my file.yaml", {}),
        ("marginal-cost@it's.yaml(w_q=1, tau='single')", "it's.yaml", {"w_q": 1, "tau": "single"}),
        ('marginal-cost@"a, (b).yaml"(w_q=2)', "a, (b).yaml", {"w_q": 2}),
        ("marginal-cost@me@home.yaml", "me@home.yaml", {}),
    ],
)
def test_a_file_stands_between_name_and_parameters(text: str, file: str, params: dict[str, object]) -> None:
    assert PolicyText.read(text) == PolicyText("marginal-cost", file, params)


@pytest.mark.parametrize("text", ["marginal-cost@", "marginal-cost@(w_q=1)", "marginal-cost@a(1).yaml", "@a.yaml"])
def test_a_text_that_names_no_file_properly_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="with FILE in double quotes where it holds commas, brackets or quotes"):
        PolicyText.read(text)


def test_quotes_that_are_not_those_of_json_are_refused() -> None:
    with pytest.raises(ValueError, match=r'marginal-cost: the file name "\\x" is not quoted as in JSON'):
        PolicyText.read(r'marginal-cost@"\x"')


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("round-robin, marginal-cost(w_q=0.1, w_b=2),least-loaded", 3),
        ('linear(decode={"a*b": 1, "c)": 2}, prefill={"d": [1, 2]}),round-robin', 2),
        ('marginal-cost@"a,b.yaml",round-robin', 2),
        (",, ,", 0),
    ],
)
def test_commas_inside_brackets_and_quotes_separate_nothing(text: str, parts: int) -> None:
    assert len(split_at_commas(text)) == parts
