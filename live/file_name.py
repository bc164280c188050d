"""Names as parts of file names."""

from __future__ import annotations

import re


def file_name(name: str) -> str:
    """The name with hyphens for everything that a file name should not hold."""
    return re.sub(r"[^\w.-]+", "-", name)
