"""Linear fits whose coefficients are not negative and which a few wild measurements do not move.

Residuals are relative, so that short and long times count alike. The start is the least sum of absolute residuals;
then Tukey's bisquare weights (Beaton and Tukey 1974; tuning constant 4.685, 95 % efficiency for normal noise) set
aside what lies far off. Both are weighted least squares, solved again until nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ROUNDS = 60
"""Times that weights are computed anew, at most."""

BISQUARE = 4.685
NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

SMALLEST = 1e-9
"""Relative residual that counts as none."""


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A fit of y to the sum of columns times coefficients.

    Attributes:
        values: (k,) coefficients, at least 0.
        errors: (k,) their standard errors, by bootstrap over the rows; NaN where there was none.
        residuals: (n,) (y − fitted) / scale.
        kept: (n,) whether a row counts; the others were set aside.
    """

    values: Floats
    errors: Floats
    residuals: Floats
    kept: npt.NDArray[np.bool_]

    def at(self, columns: npt.ArrayLike) -> Floats:
        """The fitted values for rows of columns."""
        fitted: Floats = np.asarray(columns, np.float64) @ self.values
        return fitted

    @property
    def error_mean(self) -> float:
        """Mean absolute relative residual of the rows that count."""
        return float(np.abs(self.residuals[self.kept]).mean())

    @property
    def error_max(self) -> float:
        """Largest absolute relative residual of the rows that count."""
        return float(np.abs(self.residuals[self.kept]).max())

    @property
    def aside(self) -> int:
        """Rows that were set aside."""
        return int((~self.kept).sum())


def fit(
    columns: npt.ArrayLike, y: npt.ArrayLike, scale: npt.ArrayLike | None = None, *, resamples: int = 0, seed: int = 0
) -> LinearFit:
    """Fits y ≈ columns · values.

    Args:
        columns: (n, k), k at most 4.
        y: (n,).
        scale: (n,) what residuals are relative to, > 0; by default y.
        resamples: of the bootstrap; 0: no standard errors.
        seed: of the bootstrap.

    Raises:
        ValueError: fewer rows than columns, or a scale that is not above 0.
    """
    columns, y = np.asarray(columns, np.float64), np.asarray(y, np.float64)
    scale = y if scale is None else np.asarray(scale, np.float64)
    rows, count = columns.shape
    if rows < count:
        raise ValueError(f"there are {rows} measurements for {count} constants; at least {count} are needed")
    if not (np.isfinite(y).all() and (scale > 0).all()):
        raise ValueError("there is a measurement that is no time above 0")
    relative, target = columns / scale[:, None], y / scale
    values, kept = _robust(relative, target)
    errors = np.full(count, np.nan)
    if resamples:
        random = np.random.default_rng(seed)
        drawn = []
        for _ in range(resamples):
            rows_drawn = random.integers(0, rows, rows)
            drawn.append(_bisquare_fit(relative[rows_drawn], target[rows_drawn], values)[0])
        errors = np.std(drawn, axis=0, ddof=1)
    return LinearFit(values, errors, target - relative @ values, kept)


def _robust(columns: Floats, target: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The fit, and which rows count in it."""
    weights = np.ones(len(target))
    values = _non_negative(columns, target, weights)
    for _ in range(ROUNDS):
        weights = 1 / np.maximum(np.abs(target - columns @ values), SMALLEST)
        values, before = _non_negative(columns, target, weights), values
        if np.allclose(values, before, rtol=1e-8, atol=0):
            break
    return _bisquare_fit(columns, target, values)


def _bisquare_fit(columns: Floats, target: Floats, values: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The fit with bisquare weights that comes of a first one, and which rows count in it."""
    for _ in range(ROUNDS):
        residuals = np.abs(target - columns @ values)
        weights = _bisquare(residuals, columns.shape[1])
        values, before = _non_negative(columns, target, weights), values
        if np.allclose(values, before, rtol=1e-11, atol=0):
            break
    return values, weights > 0


def _bisquare(residuals: Floats, constants: int) -> Floats:
    """Weights from 1 at no residual down to 0 far off.

    The spread is the median of the residuals without the smallest k − 1: that many a fit makes small by itself.
    """
    spread = NORMAL * float(np.median(np.sort(residuals)[constants - 1 :]))
    far = residuals / (BISQUARE * max(spread, SMALLEST))
    weights: Floats = np.where(far < 1, (1 - np.minimum(far, 1) ** 2) ** 2, 0.0)
    return weights


def _non_negative(columns: Floats, target: Floats, weights: Floats) -> Floats:
    """Weighted least squares with coefficients of at least 0.

    The optimum is the best of the plain solutions in which some columns are left out: of a few columns all are tried.
    """
    root = np.sqrt(weights / weights.max())
    left, right = columns * root[:, None], target * root
    norm = np.linalg.norm(left, axis=0)
    norm[norm == 0] = 1.0
    left = left / norm
    count = columns.shape[1]
    best, least = np.zeros(count), float(right @ right)
    for size in range(count, 0, -1):
        for chosen in combinations(range(count), size):
            part = left[:, chosen]
            try:
                solution = np.linalg.solve(part.T @ part, part.T @ right)  # k is small and columns are normalised
            except np.linalg.LinAlgError:
                continue
            if not (solution >= 0).all():
                continue
            error = float(np.sum((right - part @ solution) ** 2))
            if error < least:
                least, best = error, np.zeros(count)
                best[list(chosen)] = solution
        if size == count and best.any():
            break  # Nothing is negative with all of them: no part does better.
    values: Floats = best / norm
    return values
