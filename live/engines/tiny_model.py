"""A tiny random model for real engines: seconds to load, and its answer depends on every token of the prompt.

The configuration is that of Qwen2, so that any engine knows it. The weights are random but always the same. With
tied embeddings and the usual small weights such a model repeats the last token of the prompt whatever came before;
then a wrong hand-over of KV between engines would go unseen. So the head is untied, the weights are large, and the
values and outputs of the attention larger still.

Tokens are bytes: token `BYTE_OFFSET + b` is the byte b, the three below are the special ones, and those above are
pairs of letters which the model may say but no text is turned into.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

VOCABULARY = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BYTE_OFFSET = len(SPECIAL)
HIDDEN = 128
INTERMEDIATE = 256
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_SIZE = HIDDEN // HEADS
CONTEXT = 4096
ROPE_THETA = 10_000.0
NORM_EPSILON = 1e-6
WEIGHT_SCALE = 0.2
ATTENTION_SCALE = 4.0
SEED = 20_240

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_tiny_model(folder: Path) -> Path:
    """Writes the model, its tokenizer and its chat template into a folder, the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config.json", _configuration()),
        ("generation_config.json", {"eos_token_id": 2, "pad_token_id": 0}),
        ("tokenizer.json", _tokenizer()),
        ("tokenizer_config.json", _tokenizer_configuration()),
    ):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    (folder / "model.safetensors").write_bytes(safetensors(weights()))
    return folder


def weights(seed: int = SEED) -> dict[str, Array]:
    """The weights by the names that Qwen2 gives them, as float32."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return (random.standard_normal(shape, dtype=np.float32) * np.float32(WEIGHT_SCALE * scale)).astype(np.float32)

    kv = KV_HEADS * HEAD_SIZE
    tensors = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        tensors |= {
            f"model.layers.{layer}.{name}": tensor
            for name, tensor in {
                "input_layernorm.weight": np.ones(HIDDEN, np.float32),
                "self_attn.q_proj.weight": normal(HIDDEN, HIDDEN),
                "self_attn.q_proj.bias": np.zeros(HIDDEN, np.float32),
                "self_attn.k_proj.weight": normal(kv, HIDDEN),
                "self_attn.k_proj.bias": np.zeros(kv, np.float32),
                "self_attn.v_proj.weight": normal(kv, HIDDEN, scale=ATTENTION_SCALE),
                "self_attn.v_proj.bias": np.zeros(kv, np.float32),
                "self_attn.o_proj.weight": normal(HIDDEN, HIDDEN, scale=ATTENTION_SCALE),
                "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
                "mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN),
                "mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN),
                "mlp.down_proj.weight": normal(HIDDEN, INTERMEDIATE),
            }.items()
        }
    return tensors | {"model.norm.weight": np.ones(HIDDEN, np.float32), "lm_head.weight": normal(VOCABULARY, HIDDEN)}


def safetensors(tensors: Mapping[str, Array]) -> bytes:
    """Float32 arrays in the safetensors format: the length of a JSON header, the header, the raw numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = b"".join(tensor.astype("<f4").tobytes() for tensor in tensors.values())
    return len(text).to_bytes(8, "little") + text + numbers


def tokens_of(text: str) -> list[int]:
    """The tokens of a text without special tokens in it."""
    return [BYTE_OFFSET + byte for byte in text.encode()]


def _configuration() -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "initializer_range": WEIGHT_SCALE,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


def _byte_letters() -> list[str]:
    """The printable letter that byte-level tokenizers use for each byte (the table of GPT-2)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = (code for code in range(256) if code not in printable)
    letters = {code: chr(256 + place) for place, code in enumerate(others)}
    return [letters.get(code, chr(code)) for code in range(256)]


def _tokenizer() -> dict[str, Any]:
    pairs = ("".join(pair) for pair in product(ascii_lowercase, repeat=2))
    words = [*SPECIAL, *_byte_letters(), *pairs][:VOCABULARY]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": place, "content": word, **added} for place, word in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: place for place, word in enumerate(words)},
            "merges": [],
        },
    }


def _tokenizer_configuration() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
