"""Settings that every test shares."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Read when the libraries are imported, so before the first test module: no window, and no threads that
# compete with the other test processes.
os.environ.setdefault("MPLBACKEND", "Agg")
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# A shell lets what it runs in the background ignore interrupts, and children inherit that; tests send some.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Derandomised: the same examples in every run. No deadline: a test never depends on the machine's speed.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=2_000)
settings.load_profile("default")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests have told by `record_property`, whichever process they ran in."""
    told = [pair for report in terminalreporter.getreports("passed") for pair in report.user_properties]
    for title, text in told:
        terminalreporter.section(title)
        terminalreporter.write_line(str(text))
