"""Gates and calibration of real engines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from disaggroute.live.calibration.calibrate import measure_cluster, open_folder
from disaggroute.live.calibration.fits import fits_of
from disaggroute.live.calibration.plan import Effort
from disaggroute.live.calibration.profile_document import Calibrated
from disaggroute.live.calibration.result import Result
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.gate.gates import run_gates

from .conftest import LEASE_S, Cluster

pytestmark = pytest.mark.engines

LITTLE = Effort(1_000, 1_000, lengths=5, transfers=3, sequences=4, every=2, steps=16, seconds=1.0)


def live(engines: Cluster) -> LiveCluster:
    pools: dict[str, list[dict[str, str]]] = {"prefill": [], "decode": []}
    for engine in engines.engines:
        pools[engine.role].append({"url": engine.url})
    return LiveCluster.load({"model": "tiny", "profile": "a40-qwen2.5-3b", "lease_s": LEASE_S, **pools})


def test_real_engines_pass_the_gates(cluster: Cluster) -> None:
    report = asyncio.run(run_gates(live(cluster), tell=print))
    assert report.passed, report.problems
    assert len(report.warm_ups) == 2


def test_a_pair_is_calibrated_by_what_its_engines_count(pair: Cluster, tmp_path: Path) -> None:
    described = live(pair)
    file = open_folder(tmp_path, described, LITTLE, force=False)
    measured = asyncio.run(
        measure_cluster(described, file, LITTLE, gates=False, tell=print, on_progress=lambda *_: None)
    )
    fits = fits_of(file.rows, measured.sizes, 20)
    # What engines count themselves is never more than a client sees.
    assert fits.own_count and (fits.overhead.values >= 0).all()
    assert fits.own_transfers and fits.kv_bytes is not None and fits.kv_bytes > 0
    for pool in (fits.prefill, fits.decode, fits.transfer):
        assert pool is not None and np.isfinite(pool.fit.values).all() and (pool.fit.values >= 0).all()
    result = Result.of(Calibrated("cpu", "a CPU", described, measured.engines, len(file.rows)), fits)
    assert result.write(tmp_path).is_file()
    assert result.profile.memory.block_size == 32
