"""The log of evaluations on held-out seeds: whoever reads a claim sees how often its seeds were looked at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .runs import append_line

if TYPE_CHECKING:
    from ..envs.setting import Setting

DEFAULT_LOG = Path("configs") / "experiments" / "held-out.log"
"""Where the log lies, from the root of a checkout; it is committed."""


def log_claim(path: Path, key: str, labels: Sequence[str], seeds: range, setting: Setting) -> None:
    """Appends one line (JSON) for an evaluation that is about to use held-out seeds.

    Args:
        path: the log.
        key: of the experiment.
        labels: policies.
        seeds: held-out seeds.
        setting: what is run.

    Raises:
        OSError: the log cannot be written.
    """
    line = {
        "experiment": key,
        "scenario": setting.name,
        "rate": setting.scenario.rate,
        "duration_s": setting.duration_s,
        "seeds": [seeds[0], seeds[-1]],
        "policies": list(labels),
    }
    append_line(path, json.dumps(line, sort_keys=True))
