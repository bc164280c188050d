"""The tiny model: its answer depends on the whole prompt, and its files are what engines read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from disaggroute.live.engines import tiny_model as tiny

from .plain_qwen import WEIGHTS, continuation

SAMPLES = Path(__file__).parents[1] / "data" / "vllm-0.32"
ENDING = tiny.tokens_of(" and they went home through the rain, one behind the other, saying nothing.")


def test_eight_prefixes_with_the_same_ending_give_eight_continuations() -> None:
    answers = {tuple(continuation([*tiny.tokens_of(f"{number}" * 3), *ENDING], 6)) for number in range(8)}
    assert len(answers) == 8


@pytest.mark.parametrize("length", [64, 320])
def test_a_change_of_any_one_block_changes_the_answer(length: int) -> None:
    random = np.random.default_rng(length)
    prompt = random.integers(tiny.BYTE_OFFSET, tiny.BYTE_OFFSET + 256, length)
    answer = continuation(list(prompt), 8)
    for start in range(0, length, 32):
        other = prompt.copy()
        other[start : start + 32] = random.integers(tiny.BYTE_OFFSET, tiny.BYTE_OFFSET + 256, 32)
        assert continuation(list(other), 8) != answer, f"block at {start}"


def test_the_model_says_what_vllm_said_with_it() -> None:
    body = (SAMPLES / "completion_plain_token_ids.http").read_bytes().partition(b"\r\n\r\n")[2]
    (choice,) = json.loads(body)["choices"]
    assert continuation(choice["prompt_token_ids"], len(choice["token_ids"])) == choice["token_ids"]


def test_the_same_bytes_are_written_every_time(tmp_path: Path) -> None:
    one, two = tiny.make_tiny_model(tmp_path / "one"), tiny.make_tiny_model(tmp_path / "two")
    files = {file.name: file.read_bytes() for file in one.iterdir()}
    assert files == {file.name: file.read_bytes() for file in two.iterdir()} and len(files) == 5


def test_the_weights_can_be_read_back_from_the_file(tmp_path: Path) -> None:
    content = (tiny.make_tiny_model(tmp_path) / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, numbers = json.loads(content[8 : 8 + size]), content[8 + size :]
    assert (8 + size) % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    assert header.keys() == WEIGHTS.keys()
    ends = 0
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        assert start == ends and entry["dtype"] == "F32"
        found = np.frombuffer(numbers[start:end], "<f4").reshape(entry["shape"])
        assert np.array_equal(found, WEIGHTS[name])
        ends = end
    assert ends == len(numbers)


def test_every_byte_has_a_token_and_every_token_a_word(tmp_path: Path) -> None:
    words = json.loads((tiny.make_tiny_model(tmp_path) / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(words.values()) == list(range(tiny.VOCABULARY))
    assert [words["A"], words["z"], words["Ġ"], words["Ċ"]] == [tiny.BYTE_OFFSET + byte for byte in b"Az \n"]


@pytest.mark.parametrize("text", ["Hé!"])
def test_texts_become_the_tokens_that_vllm_made_of_them(text: str) -> None:
    body = (SAMPLES / "tokenize_text.http").read_bytes().partition(b"\r\n\r\n")[2]
    assert tiny.tokens_of(text) == json.loads(body)["tokens"]
