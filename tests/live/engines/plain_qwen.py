"""The tiny model's mathematics in plain numpy: what an engine must answer, worked out without one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disaggroute.live.engines import tiny_model as tiny

WEIGHTS = tiny.weights()


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """The most likely token after the prompt, the most likely one after that, and so on."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits(tokens))))
    return tokens[len(prompt) :]


def logits(tokens: Sequence[int]) -> tiny.Array:
    """How likely each token of the vocabulary comes next, before the softmax."""
    hidden = WEIGHTS["model.embed_tokens.weight"][np.array(tokens)]
    for layer in range(tiny.LAYERS):
        part = {name: WEIGHTS[f"model.layers.{layer}.{name}.weight"] for name in PARTS}
        hidden = hidden + attention(norm(hidden) * part["input_layernorm"], part)
        inner = norm(hidden) * part["post_attention_layernorm"]
        gate = inner @ part["mlp.gate_proj"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * (inner @ part["mlp.up_proj"].T)) @ part["mlp.down_proj"].T
    return (norm(hidden[-1]) * WEIGHTS["model.norm.weight"]) @ WEIGHTS["lm_head.weight"].T


PARTS = (
    "input_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    "post_attention_layernorm",
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


def norm(rows: tiny.Array) -> tiny.Array:
    return rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + tiny.NORM_EPSILON)


def attention(rows: tiny.Array, part: dict[str, tiny.Array]) -> tiny.Array:
    """Causal attention with rotary positions; a KV head serves two heads. The biases are 0."""
    count = len(rows)
    projected = (rows @ part[f"self_attn.{name}_proj"].T for name in "qkv")
    q, k, v = (each.reshape(count, -1, tiny.HEAD_SIZE).transpose(1, 0, 2) for each in projected)
    shared = tiny.HEADS // tiny.KV_HEADS
    q, k, v = rotate(q), rotate(k).repeat(shared, axis=0), v.repeat(shared, axis=0)
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(tiny.HEAD_SIZE))
    scores += np.triu(np.full((count, count), -np.inf, np.float32), 1)
    weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = weight / weight.sum(axis=-1, keepdims=True) @ v
    return mixed.transpose(1, 0, 2).reshape(count, -1) @ part["self_attn.o_proj"].T


def rotate(heads: tiny.Array) -> tiny.Array:
    half = tiny.HEAD_SIZE // 2
    turns = tiny.ROPE_THETA ** (-np.arange(half) / half)
    angles = np.outer(np.arange(heads.shape[1]), turns)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = heads[..., :half], heads[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
