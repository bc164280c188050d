"""What a calibration writes, and what it says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...envs import profile_import
from ...envs.atomic_file import write_atomically
from ...envs.cluster import PS_PER_S
from ...envs.picture import drawing, png_bytes
from ...envs.profiles import Profile
from .fits import DEVIATES, Fits, PoolFit
from .profile_document import Calibrated, Constant

if TYPE_CHECKING:
    from rich.table import Table

FITS, PICTURE, CLUSTER = "fits.json", "fit.png", "cluster.yaml"
"""Files of a calibration's folder."""

MUCH = 0.2
"""Share of measurements that may be set aside without a word."""


@dataclass(frozen=True)
class Result:
    """A finished calibration.

    Attributes:
        calibrated: what was measured.
        fits: what was found.
        profile: of the pools.
        own: profiles of engines that deviate, by engine.
    """

    calibrated: Calibrated
    fits: Fits
    profile: Profile
    own: dict[str, Profile]

    @staticmethod
    def of(calibrated: Calibrated, fits: Fits) -> Result:
        """The result of fits.

        Raises:
            ValueError: a constant is out of the range of profiles; names it.
        """
        return Result(calibrated, fits, calibrated.profile(fits), calibrated.own_profiles(fits))

    def write(self, folder: Path) -> Path:
        """Writes all files, the profile last: where it is, the calibration is finished.

        Returns:
            The path of the profile.

        Raises:
            OSError: one cannot be written.
        """
        import yaml

        from .figure import fit_figure

        paths = {"": f"{self.profile.name}.yaml"}  # Beside the cluster's file, wherever the folder goes.
        paths |= {engine: profile_import.write(profile, folder).name for engine, profile in self.own.items()}
        document = self.calibrated.cluster_document(self.fits, paths)
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        write_atomically(folder / CLUSTER, text.encode())
        write_atomically(folder / FITS, (json.dumps(self._numbers(), indent=1, ensure_ascii=False) + "\n").encode())
        with drawing():
            figure = fit_figure(self.fits, f"Calibration of {self.calibrated.cluster.name}")
        write_atomically(folder / PICTURE, png_bytes(figure, "calibration"))
        return profile_import.write(self.profile, folder)

    def _numbers(self) -> dict[str, Any]:
        fits, overhead = self.fits, self.fits.overhead.values
        pools = {"prefill": fits.prefill, "decode": fits.decode}
        if fits.transfer is not None:
            pools["transfer"] = fits.transfer
        return {
            "constants": {
                constant.name: {"value": constant.value, "standard_error": _number(constant.error)}
                for constant in self.calibrated.constants(fits)
            },
            "fits": {
                name: {
                    "measurements": len(pool.rows),
                    "set_aside": pool.fit.aside,
                    "error_mean": pool.fit.error_mean,
                    "error_max": pool.fit.error_max,
                    "time_over_fit_by_engine": pool.ratios,
                }
                for name, pool in pools.items()
            },
            "prefill_times": "the engines' own count" if fits.own_count else "the client's",
            "decode_times": "the engines' own count" if fits.own_steps else "the client's",
            "transfer_times": "the engines' own count" if fits.own_transfers else "the client's",
            "client_overhead": {"s": float(overhead[0]), "s_per_prompt_token": float(overhead[1])},
            "decode_leg_overhead_s": fits.leg_overhead,
        }

    def tables(self) -> list[Table]:
        """The result for the terminal."""
        from rich.table import Table

        before = self.calibrated.believed
        known = before.constants()
        constants = Table(title=f"{self.profile.name} (before: {before.name})")
        constants.add_column("constant", no_wrap=True)
        for heading in ("measured", "error (1 s.e.)", "before", "difference"):
            constants.add_column(heading, justify="right")
        for constant in self.calibrated.constants(self.fits):
            old = known.get(constant.name)
            constants.add_row(constant.name, f"{constant.value:.5g}", _error(constant), *_against(constant.value, old))
        targets = Table(title="SLO targets by the rule")
        for heading in ("", "tight", "loose"):
            targets.add_column(heading, justify="right")
        for name, pair in (("TTFT", self.profile.slo_targets.ttft), ("TPOT", self.profile.slo_targets.tpot)):
            targets.add_row(name, *(f"{1e3 * each / PS_PER_S:.1f} ms" for each in pair))
        return [constants, self._engines(), targets]

    def _engines(self) -> Table:
        from rich.table import Table

        fits = self.fits
        table = Table(title="fits and engines")
        for heading in ("measured", "points", "set aside", "error mean / max", "engines, time over the pool's"):
            table.add_column(heading)
        for name, pool in (("prefill", fits.prefill), ("decode", fits.decode), ("transfer", fits.transfer)):
            if pool is not None:
                errors = f"{pool.fit.error_mean:.2%} / {pool.fit.error_max:.2%}"
                spread = ", ".join(f"{engine} {ratio:.3f}" for engine, ratio in pool.ratios.items())
                table.add_row(name, str(len(pool.rows)), str(pool.fit.aside), errors, spread)
        return table

    def remarks(self) -> list[str]:
        """What a person must know, a sentence each."""
        fits, overhead = self.fits, self.fits.overhead.values
        found = []
        for what, pool in (("prefills", fits.prefill), ("decode steps", fits.decode)):
            off = _off(pool, self.calibrated, what == "prefills")
            found.append(
                f"{self.calibrated.believed.name} predicts these {what} {np.median(off):.2%} off (median; at most "
                f"{off.max():.2%})"
            )
        for what, some in (("prefills", fits.prefill), ("decode steps", fits.decode), ("transfers", fits.transfer)):
            for engine in some.own if some else ():
                ratio = some.ratios[engine] if some else 1.0
                found.append(
                    f"warning: {what} of {engine} take {ratio:.2f} times what its pool's take (more than "
                    f"{DEVIATES:.0%} off); {CLUSTER} gives it constants of its own"
                )
        seen = "beyond the engines' own count" if fits.own_count else "for an empty question"
        found.append(
            f"a client waits {overhead[0] * 1e3:.2f} ms {seen}, and {overhead[1] * 1e6:.3f} µs per prompt token; "
            "that is not in the profile"
        )
        for what, some in (("prefills", fits.prefill), ("decode steps", fits.decode), ("transfers", fits.transfer)):
            measured = sum(row.engine not in some.own for row in some.rows) if some else 0
            aside = measured - int(some.fit.kept.sum()) if some else 0
            if aside > MUCH * measured:
                found.append(
                    f"warning: {aside} of {measured} measurements of {what} were set aside; something disturbed them, "
                    f"or these engines do not follow the model ({PICTURE} shows where)"
                )
        if fits.own_transfers:
            found.append(
                f"in a decode leg a client waits {fits.leg_overhead * 1e3:.2f} ms beyond the transfer and the first "
                "step (median); that is not in the profile either"
            )
        return found


def _off(pool: PoolFit, calibrated: Calibrated, prefill: bool) -> Any:
    """(n,) relative errors of the profile before, at the fitted times of the measured points."""
    spec = calibrated.believed.engine()
    if prefill:
        old = np.array([spec.prompt_time(row.prompt) for row in pool.rows]) / PS_PER_S
    else:
        old = np.array([spec.step_time(row.sequences, round(row.context)) for row in pool.rows]) / PS_PER_S
    scale = np.maximum(pool.seconds, 1e-12)
    return np.abs(old / (pool.seconds - pool.fit.residuals * scale) - 1)


def _error(constant: Constant) -> str:
    return "" if not np.isfinite(constant.error) else f"{constant.error:.2g}"


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _against(value: float, old: Any) -> tuple[str, str]:
    if not isinstance(old, int | float):
        return "", ""
    return f"{old:.5g}", f"{value / old - 1:+.1%}" if old else ""
