"""CARD: controlled asymmetry reduces delay."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .compiled import episode
from .compiled.card import STAGE
from .compiled_policy import CompiledPolicy
from .policy import HIGHEST, Parameters
from .registry import register
from .search_space import Dimension


class CardParameters(Parameters):
    """Parameters of `card`."""

    prefill_cut: float = Field(1024.0, gt=0, le=HIGHEST, description="Middle of the medium prompts, tokens.")
    prefill_band: float = Field(1.5, ge=1, le=HIGHEST, description="Medium are cut ÷ band to below cut · band.")
    prefill_threshold: float = Field(
        1000.0, ge=0, le=HIGHEST, description="Tokens waiting on a short server below which it takes medium ones."
    )
    prefill_long: float = Field(0.5, ge=0, le=1, description="Share of long servers in the pool; at least one is long.")
    decode_cut: float = Field(1024.0, gt=0, le=HIGHEST, description="Middle of the medium outputs, tokens.")
    decode_band: float = Field(4.0, ge=1, le=HIGHEST, description="Medium are cut ÷ band to below cut · band.")
    decode_threshold: float = Field(
        4000.0, ge=0, le=HIGHEST, description="Tokens to come on a short server below which it takes medium ones."
    )
    decode_long: float = Field(0.5, ge=0, le=1, description="Share of long servers in the pool; at least one is long.")


@register
class Card(CompiledPolicy):
    """Small requests to the short servers, large ones to the long ones, medium ones to a short one that is not busy.

    In each pool the last servers are long: max(1, round(long·n)) of n, at most n − 1. Formula, with the size x (p
    for prefill, ô for decode) and the short server s and the long server l of least work; ties go to the lowest
    index:

        pick = s   if x < cut / band
               l   if x ≥ cut·band
               s   else if work(s) < threshold·τ(s), otherwise l

        work(p) = τ_pre(p)·Σ prompt tokens that await or are in prefill on p
        work(d) = τ_dec(d)·Σ max(0, ô − tokens out) over the ledger's requests on d

    If all servers of one kind are down or draining, the other kind takes everything; a pool of one has one choice.
    Mixed instances are ruled by the parameters of decode, their work being the sum of both.

    Source: Xie, Grosof and Scully, "Heavy-traffic optimal size- and state-aware dispatching", Proceedings of the ACM
    on Measurement and Analysis of Computing Systems 8(1), 2024, arXiv 2312.16377, "CARD: controlled asymmetry reduces
    delay". There, one of the servers is long (`long` 0) and the sizes are exact. Several long servers, and the
    least work within each kind, are ours.
    """

    name = "card"
    accepts = CardParameters
    number = episode.CARD
    needs_constants = True
    parameters: CardParameters

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """Of each stage with several servers: cut, band, threshold, and with more than two the share of long ones."""
        return (*_dimensions("prefill", prefills), *_dimensions("decode", decodes))

    def vector_for(self, prefills: int, decodes: int) -> npt.NDArray[np.float64]:
        """Both stages in the order of `compiled.card.STAGE`."""
        numbers: list[float] = []
        for stage, servers in (("prefill", prefills), ("decode", decodes)):
            cut, band = self._of(stage, "cut"), self._of(stage, "band")
            values = {"small": cut / band, "large": cut * band, "threshold": self._of(stage, "threshold")}
            values["long"] = min(max(1, round(self._of(stage, "long") * servers)), servers - 1)
            numbers += [float(values[name]) for name in STAGE]
        return np.array(numbers)

    def _of(self, stage: str, name: str) -> Any:
        return getattr(self.parameters, f"{stage}_{name}")


def _dimensions(stage: str, servers: int) -> list[Dimension]:
    if servers < 2:
        return []
    names = ("cut", "band", "threshold", "long")
    start = {name: getattr(CardParameters(), f"{stage}_{name}") for name in names}
    found = [
        Dimension(f"{stage}_cut", 4.0, 16384.0, start["cut"], "log"),
        Dimension(f"{stage}_band", 1.0, 64.0, start["band"], "log"),
        Dimension(f"{stage}_threshold", 10.0, 1e5, start["threshold"], "log"),
    ]
    return [*found, Dimension(f"{stage}_long", 0.0, 1.0, start["long"])] if servers > 2 else found
