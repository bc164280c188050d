"""What is said where the first use of this version will compile for a while."""

from __future__ import annotations

import sys
from typing import Any

from .simulator.compile import cache_folder


def announce(what: str, entry: Any) -> None:
    """Says on the standard error that something is compiled, if it is neither in memory nor in the cache.

    Args:
        what: it is.
        entry: a compiled function of it, of those that `compile.entry` makes.
    """
    name = f"{entry.__module__.rpartition('.')[2]}.{entry.__name__}"
    if not getattr(entry, "signatures", ()) and not any(cache_folder().rglob(f"{name}-*.nbi")):
        text = f"disaggroute: compiling {what}, once for this version (less than a minute)"
        print(text, file=sys.stderr, flush=True)
