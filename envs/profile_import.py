"""Imports profiles from fits of step times that other projects measured.

The shipped H100, H200, A100 and L40S files are what `disaggroute profile import` makes of fits to
aiconfigurator's silicon data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import catalog
from .atomic_file import write_atomically
from .profiles import Profile
from .regular_file import check_regular

FITS = "aiconfigurator-fits"
"""Format name: JSON with least-squares fits to aiconfigurator queries, times in ms."""

SOURCES = (FITS,)
"""Formats that can be imported."""


@dataclass(frozen=True)
class ModelFacts:
    """Public facts of a model.

    Attributes:
        label: name in profile names.
        layers: transformer layers.
        kv_heads: key/value heads per layer.
        head_dim: per head.
        parameters: count; 2 bytes each in bf16.
        context: max_position_embeddings, tokens.
    """

    label: str
    layers: int
    kv_heads: int
    head_dim: int
    parameters: int
    context: int

    @property
    def kv_bytes_per_token(self) -> int:
        """4·layers·kv_heads·head_dim: a key and a value of 2 bytes each."""
        return 4 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class GpuFacts:
    """Public facts of a GPU: label, words, datasheet memory (10⁹ bytes), egress that we assume (GB/s)."""

    label: str
    words: str
    memory_gb: float
    egress_gb_per_s: float


# From each model's config.json and model card.
MODELS = {
    "Qwen/Qwen2.5-3B": ModelFacts("qwen2.5-3b", 36, 2, 128, 3_085_938_688, 32_768),
    "Qwen/Qwen3-8B": ModelFacts("qwen3-8b", 36, 8, 128, 8_190_735_360, 40_960),
    "Qwen/Qwen3-32B": ModelFacts("qwen3-32b", 64, 8, 128, 32_762_123_264, 40_960),
    "meta-llama/Meta-Llama-3.1-8B": ModelFacts("llama-3.1-8b", 32, 8, 128, 8_030_261_248, 131_072),
    "meta-llama/Meta-Llama-3.1-70B": ModelFacts("llama-3.1-70b", 80, 8, 128, 70_553_706_496, 131_072),
}

# Memory from NVIDIA's datasheets.
GPUS = {
    "a100_sxm": GpuFacts("a100", "NVIDIA A100 SXM 80 GB", 80, 50),
    "h100_sxm": GpuFacts("h100", "NVIDIA H100 SXM 80 GB", 80, 50),
    "h200_sxm": GpuFacts("h200", "NVIDIA H200 SXM 141 GB", 141, 50),
    "l40s": GpuFacts("l40s", "NVIDIA L40S 48 GB", 48, 20),
}


def read_fits(path: str | Path) -> list[Profile]:
    """Profiles from a file of aiconfigurator fits.

    The file maps `aiconfigurator_fits` to entries `MODEL|tpN|GPU|ENGINE|DTYPE`, each with `t_pre_ms` =
    [c0, c1 per token, c2 per token²], `t_step_ms` = [a, b per sequence, C per KV token], and
    `t_pre_mean_err`, `t_pre_max_err`, `t_step_mean_err`, `t_step_max_err` (relative).

    Raises:
        ValueError: the file cannot be read, or an entry is malformed or about an unknown model or GPU.
    """
    try:
        check_regular(path)
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is not valid JSON ({error})") from error
    fits = data.get("aiconfigurator_fits") if isinstance(data, dict) else None
    if not isinstance(fits, dict) or not fits:
        raise ValueError(f"{path}: has no entries under 'aiconfigurator_fits'; it must map names to fits")
    return [_profile(f"{path}: {key}", key, fit) for key, fit in fits.items()]


def write(profile: Profile, folder: str | Path) -> Path:
    """Writes `FOLDER/NAME.yaml` and returns its path.

    Raises:
        OSError: it cannot be written.
    """
    import yaml

    path = Path(folder) / f"{profile.name}.yaml"
    document = profile.model_dump(exclude_none=True)
    for source in document["sources"].values():
        if not source["assumed"]:
            del source["assumed"]
    write_atomically(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=105).encode())
    return path


def _profile(where: str, key: str, fit: Any) -> Profile:
    parts = key.split("|")
    if len(parts) != 5 or not parts[1].removeprefix("tp").isdigit():
        raise ValueError(f"{where}: the name of an entry must read MODEL|tpN|GPU|ENGINE|DTYPE")
    model_name = parts[0].split("(")[0]
    if model_name not in MODELS:
        raise ValueError(f"{where}: {catalog.unknown('model', model_name, MODELS)}")
    if parts[2] not in GPUS:
        raise ValueError(f"{where}: {catalog.unknown('GPU', parts[2], GPUS)}")
    model, gpu, tp = MODELS[model_name], GPUS[parts[2]], int(parts[1].removeprefix("tp"))
    prefill, step = _three(where, fit, "t_pre_ms"), _three(where, fit, "t_step_ms")
    measured = "least squares (1/y weights) on aiconfigurator-core 0.12.0 silicon data"

    def fitted(kind: str, words: str) -> dict[str, Any]:
        return {
            "text": f"{measured}, {words}, {parts[3]}, {parts[4]}, tp {tp}",
            "error_mean": _digits(float(fit[f"{kind}_mean_err"]), 3),
            "error_max": _digits(float(fit[f"{kind}_max_err"]), 3),
        }

    try:
        prefill_source, step_source = fitted("t_pre", "prefill"), fitted("t_step", "decode step")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: lacks the fit error {error}; it must be a number") from error
    config = f"{model_name} config.json"
    sources = {
        "step": step_source,
        **{f"step.{k}": prefill_source for k in ("prefill_base_ms", "per_prefill_token_us")},
        "step.per_prefill_token_sq_ns": prefill_source,
        "memory.kv_bytes_per_token": {
            "text": f"4·layers·kv_heads·head_dim = 4·{model.layers}·{model.kv_heads}"
            f"·{model.head_dim} (bf16), {config}"
        },
        "memory.block_size": {"text": "vLLM's default", "assumed": True},
        "memory.gpu_gb": {"text": "NVIDIA datasheet"},
        "memory.weights_gb": {
            "text": f"{model.parameters:,} parameters x 2 bytes (bf16), {model_name} model card"
        },
        "memory.share": {
            "text": "vLLM's default gpu_memory_utilization; activations not deducted",
            "assumed": True,
        },
        "limits": {"text": "no source; our defaults", "assumed": True},
        "limits.max_model_len": {"text": f"max_position_embeddings, {config}"},
        "transfer": {"text": "no source; our defaults", "assumed": True},
    }
    document = {
        "name": f"{gpu.label}-{model.label}",
        "gpu": gpu.words,
        "model": model_name,
        "tensor_parallel": tp,
        "step": {
            "decode_base_ms": _digits(step[0]),
            "per_sequence_us": _digits(step[1] * 1e3),
            "per_context_token_ns": _digits(step[2] * 1e6),
            "prefill_base_ms": _digits(prefill[0]),
            "per_prefill_token_us": _digits(prefill[1] * 1e3),
            "per_prefill_token_sq_ns": _digits(prefill[2] * 1e6),
        },
        "memory": {
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "block_size": 16,
            "gpu_gb": gpu.memory_gb,
            "weights_gb": round(model.parameters * 2 / 1e9, 3),
            "share": 0.9,
        },
        "limits": {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": model.context},
        "transfer": {"egress_gb_per_s": gpu.egress_gb_per_s, "latency_ms": 1.0, "lease_s": 30.0},
        "sources": sources,
        "notes": "Fitted to a performance database, not to a serving run. "
        "Made by `disaggroute profile import`.",
    }
    return catalog.validate(Profile, document, where)


def _three(where: str, fit: Any, key: str) -> tuple[float, float, float]:
    try:
        first, second, third = (float(value) for value in fit[key])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: {key} must be a list of three numbers, in ms") from error
    return first, second, third


def _digits(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")
