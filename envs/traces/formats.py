"""Formats of trace files: how to tell them apart and where their columns are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .. import catalog
from .content import Content
from .rows import header, keys

Clock = Literal["s", "ms", "date"]


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        name: as `--format` takes it.
        arrival: column of the arrival time.
        prompt: column of the prompt length, tokens.
        output: column of the output length, tokens.
        clock: unit of the arrival time, or `date` for dates and times.
        json: one JSON object per line; else CSV.
        label: column that names the request's family, if any.
        prefix: key of the prefix block ids, if any.
        prefix_tokens: tokens of one prefix block.
        marks: columns besides the three that tell this format from its likes.
        quantised: arrivals are rounded down to a coarse grid and are to be spread.
    """

    name: str
    arrival: str
    prompt: str
    output: str
    clock: Clock = "s"
    json: bool = False
    label: str | None = None
    prefix: str | None = None
    prefix_tokens: int = 0
    marks: tuple[str, ...] = ()
    quantised: bool = False

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that a file of this format must have."""
        return (self.arrival, self.prompt, self.output)


OWN = Format("disaggroute", "arrival_s", "prompt_tokens", "output_tokens")
"""Our own CSV and Parquet; has optional columns (`native`)."""

FORMATS = (
    # Azure/AzurePublicDataset, LLM inference traces of 2023 and 2024.
    Format("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", "date"),
    # HPMLL/BurstGPT.
    Format("burstgpt", "Timestamp", "Request tokens", "Response tokens", label="Log Type"),
    # Mutinifni/splitwise-sim.
    Format("splitwise-sim", "arrival_timestamp", "prompt_size", "token_size"),
    # microsoft/vidur.
    Format("vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    # alibaba-edu/qwen-bailian-usagetraces-anon; before Mooncake, whose keys it has too.
    Format(
        "bailian",
        "timestamp",
        "input_length",
        "output_length",
        json=True,
        label="type",
        prefix="hash_ids",
        prefix_tokens=16,
        marks=("chat_id",),
    ),
    # kvcache-ai/Mooncake.
    Format(
        "mooncake",
        "timestamp",
        "input_length",
        "output_length",
        "ms",
        json=True,
        prefix="hash_ids",
        prefix_tokens=512,
        quantised=True,
    ),
    OWN,
)

NAMES = tuple(f.name for f in FORMATS)
"""Names that `--format` takes."""


def named(name: str) -> Format:
    """The format of this name.

    Raises:
        ValueError: unknown name.
    """
    if name not in NAMES:
        raise ValueError(catalog.unknown("trace format", name, NAMES))
    return FORMATS[NAMES.index(name)]


def detect(content: Content) -> Format:
    """The format that the first line shows.

    Raises:
        ValueError: it shows none.
    """
    is_json = content.text.lstrip().startswith("{")
    names = keys(content) if is_json else header(content)
    for candidate in FORMATS:
        wanted = {*candidate.required, *candidate.marks}
        if candidate is OWN:
            wanted = {OWN.prompt, OWN.output}
        if candidate.json == is_json and wanted <= set(names):
            return candidate
    shown = ", ".join(map(repr, names[:8])) or "none at all"
    raise ValueError(
        f"{content.path}, line 1: no format has columns {shown}; "
        f"give one of {', '.join(NAMES)} or rename the columns to {', '.join(OWN.required)}"
    )
