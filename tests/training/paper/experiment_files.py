"""A small experiment, and files of it with changes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

BETTER = {"of": "marginal-cost", "against": "round-robin", "at_least": 1}
SMALL: dict[str, Any] = {
    "name": "small",
    "title": "A small experiment",
    "seeds": 5,
    "quick": {"seeds": 2, "duration_s": 10},
    "scenario": {"workload": "mixed-bursty-a40", "topology": "2P4D", "rate": 14, "duration_s": 20, "warmup_s": 5},
    "conditions": [
        {"name": "usual"},
        {"name": "wide", "topology": "3P6D", "rate": 21},
        {"name": "wrong", "predictor": "noisy(1.5)", "rate_of": "usual"},
    ],
    "figures": [
        {
            "name": "bars",
            "title": "Bars",
            "conditions": ["usual", "wide"],
            "series": ["round-robin", "marginal-cost"],
            "quantities": ["goodput", "decode-token-cv"],
            "traces": 3,
        },
        {
            "name": "lines",
            "title": "Lines",
            "kind": "lines",
            "conditions": ["usual", "wide"],
            "at": [6, 9],
            "along": "GPUs",
            "series": ["round-robin", {"policy": "marginal-cost", "name": "wrong", "conditions": ["wrong", "wide"]}],
        },
    ],
    "findings": [
        {"name": "better", "claim": "Better", "figure": "bars", "condition": "usual", "comparisons": [BETTER]},
        {
            "name": "robust",
            "claim": "Robust",
            "figure": "lines",
            "condition": "usual",
            "comparisons": [
                {"of": {"policy": "marginal-cost", "condition": "wrong"}, "against": "marginal-cost", "within": 5},
                {
                    "of": "marginal-cost",
                    "against": "round-robin",
                    "beyond": {
                        "of": {"policy": "marginal-cost", "condition": "wide"},
                        "against": {"policy": "round-robin", "condition": "wide"},
                    },
                    "not_below": 10,
                },
            ],
        },
        {
            "name": "tail",
            "claim": "Tail",
            "figure": "bars",
            "condition": "wide",
            "seeds": 3,
            "comparisons": [
                {"of": "round-robin", "against": "marginal-cost", "quantity": "ttft-p99", "ratio": True, "at_least": 5}
            ],
        },
    ],
    "published": [
        {"condition": "usual", "policy": "marginal-cost", "value": 0.864},
        {"condition": "usual", "policy": "round-robin", "value": 0.836},
        {"condition": "wide", "policy": "marginal-cost", "quantity": "decode-token-cv", "value": [1, 3]},
    ],
    "published_residual": 0.068,
}


def changed(**changes: Any) -> dict[str, Any]:
    """The small experiment with some of its fields replaced."""
    return copy.deepcopy(SMALL) | changes


def written(folder: Path, **changes: Any) -> str:
    """Path of a file of the small experiment with changes."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(changed(**changes)))
    return str(path)
