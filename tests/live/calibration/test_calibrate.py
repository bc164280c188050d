"""A calibration of emulated engines: refused under load, gated, measured, interrupted and gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs import profiles
from disaggroute.live import probe as probe_module
from disaggroute.live.calibration.calibrate import ShutGate, measure_cluster, open_folder
from disaggroute.live.calibration.fits import fits_of
from disaggroute.live.calibration.measurement import Measurement, MeasurementFile
from disaggroute.live.calibration.plan import Effort
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.probe import Busy
from disaggroute.live.reply import Failed

from ..emulator import engines as emulated
from ..speaking_engine import speaking, speaks
from ..waiting import run

LITTLE = Effort(300, 600, lengths=4, transfers=2, sequences=4, every=2, steps=16, seconds=0.1)


@asynccontextmanager
async def cluster_of(*roles: str, scale: float = 0.2) -> AsyncIterator[tuple[LiveCluster, list[emulated.Client]]]:
    async with emulated.serving(*(emulated.options(role, time_scale=scale) for role in roles)) as (engines, clients):
        pools: dict[str, list[dict[str, str]]] = {}
        for role, engine in zip(roles, engines, strict=True):
            pools.setdefault(role, []).append({"url": engine.url})
        fields = {"model": "tiny", "profile": "a40-qwen2.5-3b", "time_scale": scale, **pools}
        yield LiveCluster.load(fields), clients


async def measured(
    cluster: LiveCluster, file: MeasurementFile, *, gates: bool = False, on_progress: Callable[[int, int], None] = max
) -> Any:
    return await measure_cluster(
        cluster, file, LITTLE, gates=gates, tell=lambda _: None, on_progress=on_progress
    )


@pytest.mark.parametrize("roles", [("prefill", "decode", "decode"), ("mixed",)])
def test_emulated_engines_give_the_constants_that_they_tell_exactly(roles: tuple[str, ...], tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_of(*roles) as (cluster, _):
            told: list[tuple[int, int]] = []
            file = open_folder(tmp_path / "out", cluster, LITTLE, force=False)
            done = await measured(cluster, file, gates=True, on_progress=lambda *each: told.append(each))
            spec = profiles.load("a40-qwen2.5-3b").engine()
            kinds = {row.kind for row in file.rows}
            assert kinds == {"round-trip", "prefill", "decode", *(["transfer"] if "prefill" in roles else [])}
            assert told == sorted(told) and told[-1][0] == told[-1][1]
            fits = fits_of(file.rows, done.sizes, 0)
            assert fits.own_count
            for prompt in (16, 200, 2000):
                seconds = float(fits.prefill.fit.at([1, prompt, prompt**2]))
                assert seconds == pytest.approx(spec.prompt_time(prompt) / 1e12, rel=1e-6)
            assert fits.own_steps
            for sequences, context in ((1, 80), (4, 600)):
                step = float(fits.decode.fit.at([1, sequences, context]))
                assert step == pytest.approx(spec.step_time(sequences, context) / 1e12, rel=1e-6)
            if fits.transfer is not None:
                assert fits.own_transfers and fits.kv_bytes == 36_864
                moved = float(fits.transfer.fit.at([1, 10]))
                assert moved == pytest.approx((spec.latency + 10 * spec.egress_per_block) / 1e12, rel=1e-6)
            assert json.loads((tmp_path / "out" / "gates.json").read_text())["passed"] is True

    run(story())


def test_an_interrupted_calibration_goes_on_from_what_it_has(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_of("prefill", "decode") as (cluster, _):
            file = open_folder(tmp_path, cluster, LITTLE, force=False)

            def interrupt(done: int, total: int) -> None:
                if len(file.rows) == 7:
                    raise InterruptedError

            with pytest.raises(InterruptedError):
                await measured(cluster, file, on_progress=interrupt)
            begun = file.path.read_text()
            again = open_folder(tmp_path, cluster, LITTLE, force=False)
            done = await measured(cluster, again)
            assert done.reused == 7 and len(again.rows) > 7 and file.path.read_text().startswith(begun)
            assert len(again.done) == len(again.rows), "nothing is measured twice"
            whole = len(again.rows)
            assert (await measured(cluster, MeasurementFile(file.path))).reused == whole

    run(story())


def test_a_shut_gate_stops_everything_before_it_is_measured(tmp_path: Path) -> None:
    async def story() -> None:
        async with speaking({"mixed": 1}) as (cluster, engines):
            engines[0].always = speaks(lambda body: [7] * body["max_tokens"])
            engines[0].metrics = engines[0].metrics.replace(b'num_gpu_blocks="101"', b'num_gpu_blocks="1001"')
            file = open_folder(tmp_path, cluster, LITTLE, force=False)
            with pytest.raises(ShutGate, match="so nothing is measured: mixed/0: the model repeats itself"):
                await measured(cluster, file, gates=True)
            assert file.rows == [] and json.loads((tmp_path / "gates.json").read_text())["passed"] is False

    run(story())


def test_somebody_else_on_an_engine_is_noticed_before_and_during(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "SETTLE_S", 0.2)

    async def story() -> None:
        async with cluster_of("prefill", "decode") as (cluster, (_, decode)):
            file = open_folder(tmp_path, cluster, LITTLE, force=False)
            other = asyncio.create_task(decode.complete([20] * 30, 20_000))
            await emulated.until(lambda: _running(decode))
            with pytest.raises(Busy, match=r"decode/0 is under load \(1 requests running, 0 waiting\)"):
                await measured(cluster, file)
            other.cancel()
            assert file.rows == []

            began: list[asyncio.Task[Any]] = []

            def disturb(done: int, total: int) -> None:
                if not began:
                    began.append(asyncio.create_task(decode.complete([20] * 30, 20_000)))

            with pytest.raises(Busy, match="nothing can be measured beside other requests"):
                await measured(cluster, file, on_progress=disturb)
            began[0].cancel()
            kept = len(file.rows)
            assert kept >= 1

    run(story())


async def _running(client: emulated.Client) -> bool:
    return await client.metric("num_requests_running") == 1


def test_a_short_request_of_somebody_else_within_a_measurement_is_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_of("mixed") as (cluster, (mixed,)):
            file = open_folder(tmp_path, cluster, LITTLE, force=False)
            over = asyncio.Event()

            async def others() -> None:
                while not over.is_set():
                    await mixed.complete([20] * 5, 1)
                    await asyncio.sleep(0.002)

            disturbance = asyncio.create_task(others())
            with pytest.raises(Busy, match=r"mixed/0 (has served \d+ requests where|is under load)"):
                await measured(cluster, file)
            over.set()
            await disturbance

    run(story())


def test_an_engine_that_fails_within_says_that_what_was_measured_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_of("mixed") as (cluster, (mixed,)):
            file = open_folder(tmp_path, cluster, LITTLE, force=False)

            def fail(done: int, total: int) -> None:
                asyncio.get_running_loop().create_task(mixed.fault("error_500"))

            with pytest.raises(Failed, match=r"mixed/0 answers 500: .* what was measured is kept"):
                await measured(cluster, file, on_progress=fail)
            assert file.rows and MeasurementFile(file.path).rows == file.rows

    run(story())


def test_a_folder_of_something_else_is_refused_and_force_begins_anew(tmp_path: Path) -> None:
    entries = {"mixed": [{"url": "http://h:1"}], "profile": "a40-qwen2.5-3b"}
    cluster, other = (LiveCluster.load({"model": model, **entries}) for model in ("a", "b"))
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=f"out is {stranger}, which holds other files"):
        open_folder(stranger, cluster, LITTLE, force=False)
    folder = tmp_path / "out"
    open_folder(folder, cluster, LITTLE, force=False).path.write_text("kind,engine\n")
    with pytest.raises(ValueError, match="holds no measurements of this version"):
        open_folder(folder, cluster, LITTLE, force=False)
    with pytest.raises(ValueError, match="holds a calibration of something else"):
        open_folder(folder, other, LITTLE, force=False)
    assert open_folder(folder, other, LITTLE, force=True).rows == []


def test_a_folder_with_a_damaged_note_or_with_measurements_of_other_engines_is_refused(tmp_path: Path) -> None:
    fields = {"model": "tiny", "profile": "a40-qwen2.5-3b", "mixed": [{"url": "http://127.0.0.1:1"}]}
    cluster = LiveCluster.load({"name": "small", **fields})
    file = open_folder(tmp_path, cluster, LITTLE, force=False)
    file.add(Measurement("prefill", "mixed/7", "", 0, 100, 1, 0.0, 1, 0.0151))
    with pytest.raises(ValueError, match=r"has measurements of mixed/7, which small does not have; say --force"):
        open_folder(tmp_path, cluster, LITTLE, force=False)
    (tmp_path / "calibration.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="which holds a calibration of something else; name another, or --force"):
        open_folder(tmp_path, cluster, LITTLE, force=False)
    assert open_folder(tmp_path, cluster, LITTLE, force=True).rows == []
