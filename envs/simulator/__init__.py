"""The simulated cluster: the compiled core, and the plain reference that it is tested against."""

from .choices import PolicyError
from .engine import Engine
from .simulate import SimulationResult, run_policy, simulate
from .simulator import FOREVER, Simulator, Snapshot

__all__ = [
    "FOREVER",
    "Engine",
    "PolicyError",
    "SimulationResult",
    "Simulator",
    "Snapshot",
    "run_policy",
    "simulate",
    "warm_up",
]


def warm_up() -> None:
    """Compiles the core, or loads it from the cache."""
    from .warm import warm_up as compile_all

    compile_all()
