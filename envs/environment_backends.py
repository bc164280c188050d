"""What stands behind an environment: the simulator, or the engines of a live cluster.

`envs` imports nothing above it; the live environment is found by its name when one is made.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from . import catalog
from .admission import Admission
from .environment import DisaggRouteEnv

if TYPE_CHECKING:
    import gymnasium as gym

T = TypeVar("T")

SIMULATOR, LIVE = "simulator", "live"

BACKENDS = (SIMULATOR, LIVE)


@runtime_checkable
class RoutingEnv(Protocol):
    """An environment that routes requests, whatever stands behind it."""

    def at_admission(self, look: Callable[[Admission], T]) -> T:
        """Shows the admission that awaits a decision.

        Args:
            look: is called with it; it may be routed by a policy until this returns.

        Returns:
            What `look` returned.

        Raises:
            RuntimeError: no request awaits a decision.
        """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Routes the request that awaits a decision."""


class Maker:
    """Makes the environment of a backend: what Gymnasium calls as the entry point of `DisaggRoute-v0`."""

    metadata = DisaggRouteEnv.metadata
    """By which `gym.make` checks `render_mode`."""

    def __call__(self, *arguments: Any, backend: str = SIMULATOR, **named: Any) -> gym.Env[Any, Any]:
        """The environment.

        Args:
            *arguments: of its class.
            backend: simulator, or live: engines that run (`disaggroute.live.environment`).
            **named: of its class.

        Raises:
            ValueError: an unknown backend, or as the class.
            ImportError: what the live backend needs is not installed.
        """
        if backend == SIMULATOR:
            return DisaggRouteEnv(*arguments, **named)
        check(backend)
        return live_environment()(*arguments, **named)


make = Maker()


def check(backend: object) -> None:
    """Refuses what is no backend.

    Raises:
        ValueError: it is unknown.
    """
    if backend not in BACKENDS:
        raise ValueError(catalog.unknown("backend", str(backend), BACKENDS))


def live_environment() -> Callable[..., gym.Env[Any, Any]]:
    """The class of the live environment.

    Raises:
        ImportError: what it needs is not installed.
    """
    package = __package__.rpartition(".")[0]
    try:
        found: Callable[..., gym.Env[Any, Any]] = import_module(f"{package}.live.environment").LiveDisaggRouteEnv
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the library {error.name} is not installed, and backend live needs it; `pip install 'disaggroute[live]'`"
        ) from error
    return found
