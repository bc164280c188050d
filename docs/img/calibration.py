"""Makes what docs/calibration.md shows: `python docs/img/calibration.py FOLDER`, from the root of a checkout.

Starts two prefill and four decode engines, emulated in real time, and calibrates them as anybody would: gates, five
minutes of measurements, profile and picture in FOLDER.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from disaggroute.live.emulated_cluster import emulated


def main(folder: Path) -> None:
    """Calibrates an emulated cluster into a folder."""
    with emulated("2P4D", "a40-qwen2.5-3b") as (_, cluster):
        file = folder.with_suffix(".cluster.yaml")
        file.write_text(yaml.safe_dump(cluster.model_dump(mode="json", exclude_defaults=True)))
        words = ["live", "calibrate", str(file), "--out", str(folder), "--name", "emulated-a40", "--gpu", "emulated"]
        subprocess.run([sys.executable, "-m", "disaggroute", *words], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
