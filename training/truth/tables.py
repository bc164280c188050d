"""The tables of a comparison with the simulator, as text: the terminal and the page show the same."""

from __future__ import annotations

from ..report.tables import Table
from ..table import number
from .errors import Errors
from .noise import Noise
from .quantities import QUANTITIES, Quantity
from .truth import ALL, ErrorLine, Truth


def error_table(truth: Truth) -> Table:
    """Errors request by request, of each policy over all its seeds."""
    rows = tuple(
        (line.label, (*_what(line), f"{line.errors.requests:,}", *_error_cells(line.errors, line.quantity)))
        for line in truth.errors
        if line.seed is None
    )
    return Table(
        name="errors",
        title="Errors request by request",
        note="Error: simulated − measured; relative to what was measured, without its sign but for the bias, which is "
        "the median with its sign.",
        columns=("time", "overhead", "requests", "bias %", *(f"P{q} %" for q in _Q), *(f"P{q}" for q in _Q)),
        rows=rows,
    )


def seed_table(truth: Truth) -> Table:
    """The same of each run, with the overhead where it is known."""
    rows = tuple(
        (
            line.label,
            (
                *(str(line.seed), line.quantity.title, f"{line.errors.requests:,}"),
                *_error_cells(line.errors, line.quantity),
                number(line.errors.ks, 3),
            ),
        )
        for line in truth.shown(seeds=True)
    )
    return Table(
        name="seeds",
        title="Errors run by run",
        note="The overhead is added where it is known.",
        columns=(
            *("seed", "time", "requests", "bias %"),
            *(f"P{q} %" for q in _Q),
            *(f"P{q}" for q in _Q),
            "KS",
        ),
        rows=rows,
    )


def distribution_table(truth: Truth) -> Table:
    """Both distributions: their quantiles and how far they lie apart."""
    rows = []
    for line in truth.shown():
        found, unit = line.errors, line.quantity
        cells = [
            f"{_in(a, unit)} / {_in(b, unit)}" for a, b in zip(found.measured, found.simulated, strict=True)
        ]
        rows.append(
            (line.label, (*_what(line)[:1], *cells, number(found.ks, 3), f"{_in(found.wasserstein, unit)} {unit.unit}"))
        )
    return Table(
        name="distributions",
        title="Distributions",
        note="Measured / simulated quantiles in seconds (TPOT: milliseconds), the overhead added where it is known. "
        "KS: largest difference of the distribution functions. Wasserstein: mean difference of the sorted times.",
        columns=("time", *(f"P{q}" for q in _Q), "KS", "Wasserstein"),
        rows=tuple(rows),
    )


def goodput_table(truth: Truth) -> Table:
    """Both goodputs of every run, over the same requests, and what is not compared."""
    rows = tuple(
        (
            each.label,
            (
                str(each.seed),
                f"{each.requests:,} of {each.window:,}",
                f"{each.measured:.4f}",
                f"{each.without:.4f}",
                f"{each.with_:.4f}" if truth.overhead.known else "–",
                f"{100 * ((each.with_ if truth.overhead.known else each.without) - each.measured):+.2f}",
                f"{each.all_measured:.4f}",
                *(f"{count:,}" for count in (each.failed, each.retried, each.shortened, each.left_out)),
            ),
        )
        for each in truth.goodputs
    )
    return Table(
        name="goodput",
        title="Goodput, measured and simulated",
        note="Of the requests that are compared: finished in the first attempt, in the window. Difference in points "
        "(hundredths). Then the measured goodput of the whole window, and of the whole run, warm-up included, the "
        "requests that were retried (replayed from their last attempt, not compared), shortened (they broke off and "
        "are replayed with the tokens that came) and left out (rejected, or failed before their prefill had ended).",
        columns=(
            *("seed", "compared", "measured", "without overhead", "with overhead", "difference", "whole window"),
            *("failed", "retried", "shortened", "left out"),
        ),
        rows=rows,
    )


def ranking_table(truth: Truth) -> Table:
    """Every pair of policies: the difference of their goodputs, measured and simulated."""
    rows = tuple(
        (
            pair.first,
            (
                pair.second,
                f"{100 * pair.measured:+.2f}",
                "–" if pair.low is None or pair.high is None else f"{100 * pair.low:+.2f} … {100 * pair.high:+.2f}",
                f"{100 * pair.simulated:+.2f}",
                pair.verdict,
            ),
        )
        for pair in truth.ranking.pairs
    )
    return Table(
        name="ranking",
        title="Do the policies rank the same?",
        note=f"Differences of goodput in points. {tau_words(truth)}",
        columns=("against", "measured", "interval", "simulated", "order"),
        rows=rows,
    )


def tau_words(truth: Truth) -> str:
    """Kendall's tau in a sentence."""
    ranking = truth.ranking
    if len(ranking.measured) < 2:
        return "One policy has no rank."
    if ranking.tau != ranking.tau:
        return "The policies have the same goodput, so no rank."
    interval = "" if ranking.low is None or ranking.high is None else f" ({ranking.low:+.2f} to {ranking.high:+.2f})"
    return f"Kendall's tau of the two rankings: {ranking.tau:+.2f}{interval}; intervals: {ranking.interval}."


def noise_table(truth: Truth, noise: Noise) -> Table:
    """The error of the model beside the difference of repeats."""
    rows = []
    for quantity in QUANTITIES:
        for words, found in (("simulator", noise.model), ("repeat", noise.repeats)):
            if quantity.name in found:
                each = found[quantity.name]
                first = (quantity.title, words, f"{each.requests:,}")
                rows.append((ALL, (*first, *_error_cells(each, quantity), number(each.ks, 3))))
    alike = sum(run.alike * run.requests for run in noise.runs) / sum(run.requests for run in noise.runs)
    return Table(
        name="noise",
        title="The model's error beside that of a repeat",
        note=f"Both against the measured run, over the requests that finished in both; repeats sent "
        f"{100 * alike:.1f} % of them to the same instances. Goodput of one run deviates by "
        f"{100 * noise.deviation:.2f} points between repeats (standard deviation).",
        columns=(
            *("time", "against", "requests", "bias %"),
            *(f"P{q} %" for q in _Q),
            *(f"P{q}" for q in _Q),
            "KS",
        ),
        rows=tuple(rows),
    )


def repeat_table(noise: Noise) -> Table:
    """Goodput of each run, its repeat and its replay."""
    rows = tuple(
        (
            run.label,
            (
                str(run.seed),
                f"{run.requests:,}",
                f"{100 * run.alike:.1f}",
                *(f"{share:.4f}" for share in run.goodputs),
                f"{100 * (run.goodputs[1] - run.goodputs[0]):+.2f}",
                f"{100 * (run.goodputs[2] - run.goodputs[0]):+.2f}",
            ),
        )
        for run in noise.runs
    )
    return Table(
        name="repeats",
        title="Goodput of runs and repeats",
        note="Over the requests that finished in both. Differences to the run in points.",
        columns=(
            *("seed", "requests", "routed alike %", "run", "repeat", "simulated"),
            *("repeat − run", "simulated − run"),
        ),
        rows=rows,
    )


def residual_table(truth: Truth) -> Table:
    """How much of the residuals each driver explains, and where the medians lie."""
    rows = []
    for each in truth.residuals:
        medians = [bin_[4] for bin_ in each.bins]
        low, high = min(medians), max(medians)
        rows.append(
            (
                ALL,
                (
                    f"{each.quantity.title} against {each.driver}",
                    f"{1e3 * low:+.2f}",
                    f"{1e3 * high:+.2f}",
                    f"{100 * each.explained:.1f}",
                ),
            )
        )
    return Table(
        name="residuals",
        title="Where the error comes from",
        note="Residual: measured − simulated, the overhead taken off where it is known. Requests are binned by each "
        "driver: the least and the largest median of a bin. Explained: the share of the mean absolute residual that "
        "the bins' medians take away (a few per cent are chance).",
        columns=("residual", "least, ms", "largest, ms", "explained %"),
        rows=tuple(rows),
    )


_Q = (50, 90, 99)


def _what(line: ErrorLine) -> tuple[str, str]:
    return line.quantity.title, ("added" if line.overhead else "not added") if line.quantity.overhead else "none"


def _error_cells(found: Errors, quantity: Quantity) -> tuple[str, ...]:
    return (
        f"{100 * found.bias:+.2f}",
        *(number(100 * share, 2) for share in found.relative),
        *(f"{_in(value, quantity)} {quantity.unit}" for value in found.absolute),
    )


def _in(seconds: float, quantity: Quantity) -> str:
    return number(quantity.scale * seconds, 2 if quantity.scale > 1 else 4)
