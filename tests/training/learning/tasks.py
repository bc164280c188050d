"""Small training tasks: solved in seconds, and what is the right answer is plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disaggroute.envs.catalog import merge
from disaggroute.training.learning import methods
from disaggroute.training.learning.config import TrainingConfig

PROFILE = "a40-qwen2.5-3b"

NARROW = {
    "name": "one narrow instance",
    "workload": "chat",
    "rate": 40,
    "duration_s": 20,
    "warmup_s": 5,
    "cluster": {
        "name": "1p2d-one-narrow",
        "prefill": {"count": 1, "profile": PROFILE},
        "decode": [
            {"count": 1, "profile": PROFILE},
            {"count": 1, "profile": PROFILE, "overrides": {"max_num_seqs": 1}},
        ],
    },
}
"""Decode instance 1 takes one request at a time, and 0 can bear them all: everything should go to 0."""

ES: dict[str, Any] = {
    "schema_version": 1,
    "name": "tiny",
    "method": "es",
    "policy": "linear",
    "scenarios": [NARROW],
    "budget": 6,
    "checkpoint_every": 2,
    "parameters": {"population": 8, "traces": 2, "means": 2, "samples": 2, "check_traces": 4, "finalists": 2},
    "validation": {"seeds": 4, "duration_s": 30, "baselines": ["least-loaded"]},
}
"""A configuration that takes a second."""


def configured(**changes: Any) -> TrainingConfig:
    """`ES` with changes, nested ones merged."""
    return methods.of(merge(ES, changes))


def content(folder: Path) -> dict[str, bytes]:
    """Bytes of what must be the same whenever the same is trained; runs in `validation` name the candidates' paths."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"tensorboard", "validation"} & set(path.relative_to(folder).parts)
    }
