"""Measurements of engines whose constants are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from disaggroute.envs import profiles
from disaggroute.envs.cluster import PS_PER_S, EngineSpec
from disaggroute.live.calibration.measurement import NOT_TOLD, Measurement

SPEC = profiles.load("a40-qwen2.5-3b").engine()
OVERHEAD, PER_TOKEN = 1.5e-3, 2e-8
"""What a client sees beyond the engines, s and s per prompt token."""


def planted(
    *,
    spec: EngineSpec = SPEC,
    slow: Mapping[str, float] | None = None,
    told: bool = True,
    noise: float = 0.0,
    late: Iterable[int] = (),
    pairs: bool = True,
) -> list[Measurement]:
    """Rows of two prefill and two decode engines (or two mixed ones).

    Args:
        spec: the truth.
        slow: by engine, a factor of its times.
        told: whether engines tell their own times of prefills, decode steps and transfers.
        noise: relative standard deviation.
        late: numbers of rows that take three times as long.
        pairs: whether there are pairs.
    """
    random = np.random.default_rng(0)
    slow = slow or {}
    rows: list[Measurement] = []
    pools = (["prefill/0", "prefill/1"], ["decode/0", "decode/1"])
    readers, writers = pools if pairs else (["mixed/0", "mixed/1"], ["mixed/0", "mixed/1"])

    def took(picoseconds: float, engine: str) -> float:
        wild = 3.0 if len(rows) in set(late) else 1.0
        return float(picoseconds / PS_PER_S * slow.get(engine, 1.0) * random.lognormal(0, noise) * wild)

    for engine in dict.fromkeys([*readers, *writers]):
        rows.append(Measurement("round-trip", engine, "", 0, 0, 0, 0.0, 1, OVERHEAD))
    for number in range(3):
        for engine in readers:
            for prompt in (16, 60, 250, 1000, 4000, 9000, 16000):
                own = took(spec.prompt_time(prompt), engine)
                seen = own + OVERHEAD + PER_TOKEN * prompt
                rows.append(
                    Measurement("prefill", engine, "", number, prompt, 1, 0.0, 1, seen, own if told else NOT_TOLD)
                )
        for engine in writers:
            for prompt, sequences in ((64, 1), (64, 4), (64, 16), (64, 64), (1024, 2), (1024, 8), (8192, 2)):
                context = sequences * (prompt + 30)
                seconds = took(spec.step_time(sequences, context), engine)
                # Servers that send tokens in bursts: what a client sees is far too short.
                seen, own = (seconds / 9, seconds) if told else (seconds, NOT_TOLD)
                rows.append(
                    Measurement("decode", engine, "", number, prompt, sequences, float(context), 48, seen, own)
                )
        for engine in readers if pairs else ():
            for peer in writers:
                for prompt in (64, 300, 1400, 6000):
                    moved = took(spec.blocks(prompt) * spec.egress_per_block + spec.latency, engine)
                    step = spec.step_time(1, prompt) / PS_PER_S * slow.get(peer, 1.0)
                    seen = moved + step + OVERHEAD + PER_TOKEN * prompt
                    own = (moved, 36_864.0) if told else (NOT_TOLD, NOT_TOLD)
                    rows.append(Measurement("transfer", engine, peer, number, prompt, 1, 0.0, 1, seen, *own))
    return rows
