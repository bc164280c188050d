"""What somebody sent, for a message: its beginning, however long or deep it is."""

from __future__ import annotations

import reprlib
from typing import Any

LONGEST = 80
"""Characters."""

_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxlist, _repr.maxdict = 3, 5, 3
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def excerpt(value: Any) -> str:
    """Python's form of a value in at most 80 characters, on one line."""
    text = _repr.repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
