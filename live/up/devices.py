"""The GPUs of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

DEV = Path("/dev")


def gpus() -> list[int]:
    """Numbers of the NVIDIA GPUs of this machine, as its driver counts them."""
    if tool := shutil.which("nvidia-smi"):
        command = [tool, "--query-gpu=index", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is not None and done.returncode == 0:
            return sorted(int(line) for line in done.stdout.split() if line.isdigit())
    return sorted(int(found[1]) for path in DEV.glob("nvidia*") if (found := re.fullmatch(r"nvidia(\d+)", path.name)))


def check_devices(wanted: Iterable[int]) -> None:
    """Refuses GPUs that are not there.

    Raises:
        ValueError: names them, and those that there are.
    """
    wanted = sorted(set(wanted))
    there = gpus() if wanted else []
    missing = [device for device in wanted if device not in there]
    if missing:
        has = f"has {', '.join(map(str, there))}" if there else "has none"
        raise ValueError(f"devices {', '.join(map(str, missing))} are wanted; this machine {has}")
