"""The words of the command that runs an emulated engine."""

from __future__ import annotations

import sys

from .options import EngineOptions


def command_line(options: EngineOptions) -> list[str]:
    """`disaggroute live engine` with these options; its faults are not among them."""
    words = [sys.executable, "-m", __package__.partition(".")[0], "live", "engine"]
    said = options.model_dump(exclude={"overrides", "hazards", "faults"}) | options.overrides.model_dump()
    for field, value in said.items():
        words += [] if value is None else [f"--{field.replace('_', '-')}", str(value)]
    return [*words, "--hazards" if options.hazards else "--no-hazards"]
