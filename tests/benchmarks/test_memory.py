"""Memory is measured in a process of its own."""

from __future__ import annotations

import pytest

from disaggroute.benchmarks.interpreter import output_of
from disaggroute.benchmarks.memory import measure, peak_bytes


def test_a_simulation_takes_more_than_imports_and_an_evaluation_more_than_that() -> None:
    results = {r.name: r for r in measure(13.97, requests=1_000)}
    assert list(results) == ["memory/1k", "memory/1k/evaluate", "memory/imports"]
    assert {r.unit for r in results.values()} == {"MB"}
    simulated, evaluated, imported = (r.value for r in results.values())
    assert 10 < imported < simulated < evaluated


def test_the_peak_counts_what_was_given_back() -> None:
    program = (
        "from disaggroute.benchmarks.memory import peak_bytes; a = peak_bytes(); b = bytearray(50_000_000); "
        "b[::1_000] = bytes(50_000); del b; print(peak_bytes() - a)"
    )
    assert int(output_of(program)) >= 45_000_000


def test_the_peak_of_a_process_does_not_count_its_parent() -> None:
    ballast = bytearray(300_000_000)
    ballast[::1_000] = bytes(300_000)
    assert peak_bytes() > 300_000_000
    assert int(output_of("from disaggroute.benchmarks.memory import peak_bytes; print(peak_bytes())")) < 3e8


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="requests is 0; it must be at least 1"):
        measure(13.97, requests=0)
