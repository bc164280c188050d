"""Trace files: `traces.read(path)` gives a `TraceFile`, its `prepare(...)` a `Trace` and a report."""

from __future__ import annotations

from .file import Oddities, TraceFile
from .formats import NAMES as FORMATS
from .native import write
from .preparation import Preparation
from .reader import read

__all__ = ["FORMATS", "Oddities", "Preparation", "TraceFile", "read", "write"]
