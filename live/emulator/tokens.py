"""Texts and tokens of the emulated model: a byte is a token, and an answer follows from everything before it.

The tokenizer is that of the tiny model that real engines are tested with: three special tokens, then the 256 bytes,
then pairs of letters up to a vocabulary of 512.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice, product
from string import ascii_letters, ascii_lowercase, digits

VOCABULARY = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MESSAGE_START, END = 1, 2
BYTE_OFFSET = len(SPECIAL)

SPOKEN = ascii_letters + digits + " ."
"""The 64 characters that answers are made of: one token each, and none needs an escape in JSON."""

LONGEST_UNASKED = 256
"""Tokens of the longest answer that ends by itself."""

_WORDS = [
    *(b"" for _ in SPECIAL),
    *(bytes([byte]) for byte in range(256)),
    *("".join(pair).encode() for pair in islice(product(ascii_lowercase, repeat=2), VOCABULARY - BYTE_OFFSET - 256)),
]
_MASK = (1 << 64) - 1
_SPOKEN_TOKENS = [BYTE_OFFSET + ord(character) for character in SPOKEN]


def encode(text: str) -> list[int]:
    """The tokens of a text: its bytes in UTF-8."""
    return [BYTE_OFFSET + byte for byte in text.encode("utf-8", "surrogatepass")]


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens; special ones have none."""
    return b"".join(_WORDS[token] for token in tokens).decode("utf-8", "replace")


def encode_chat(messages: Sequence[tuple[str, str]], *, begin_answer: bool = True) -> list[int]:
    """The tokens of a conversation, in the ChatML template.

    Args:
        messages: role and text of each.
        begin_answer: the start of the assistant's answer follows.
    """
    tokens: list[int] = []
    for role, text in messages:
        tokens += [MESSAGE_START, *encode(f"{role}\n{text}"), END, *encode("\n")]
    if begin_answer:
        tokens += [MESSAGE_START, *encode("assistant\n")]
    return tokens


def digest(tokens: Sequence[int]) -> int:
    """64 bits that depend on every token and its place: what the KV of a prompt stands for here."""
    return int.from_bytes(hashlib.blake2b(array("i", tokens).tobytes(), digest_size=8).digest(), "little")


def mix(digests: Iterable[tuple[int, int]]) -> int:
    """64 bits that depend on every (digest, block of it): KV that was put together from several prompts."""
    words = array("Q", (number for pair in digests for number in pair))
    return int.from_bytes(hashlib.blake2b(words.tobytes(), digest_size=8).digest(), "little")


def length(prompt: int, least: int, most: int) -> int:
    """Tokens of an answer that ends by itself, drawn evenly from its bounds by the prompt's digest.

    Args:
        prompt: digest of the prompt.
        least: tokens that were asked for at least.
        most: tokens that are allowed.
    """
    low = max(1, least)
    high = max(low, min(most, LONGEST_UNASKED))
    return low + _scrambled(prompt ^ 0x5851F42D4C957F2D) % (high - low + 1)


class Answer:
    """The tokens of an answer, one after the other.

    Each depends on the digest and on all before it.

    Args:
        prompt: digest of what the engine has as the prompt's KV.
    """

    def __init__(self, prompt: int) -> None:
        self._state = _scrambled(prompt)

    def next_token(self) -> int:
        """The next token."""
        token = _SPOKEN_TOKENS[self._state & 63]
        self._state = _scrambled(self._state ^ token)
        return token

    def feed(self, token: int) -> None:
        """Goes on after a token that came out before."""
        self._state = _scrambled(self._state ^ token)


def _scrambled(state: int) -> int:
    """The next state of a splitmix64 generator (Steele et al. 2014): each bit depends on all of the old one."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def spoken(token: int) -> bytes:
    """The text of a token of an answer."""
    return _WORDS[token]
