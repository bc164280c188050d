"""Request routing in disaggregated LLM serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register, registry

if TYPE_CHECKING:
    from .policies.run import simulate as simulate

__version__ = "0.1.0"

ENVIRONMENT = "DisaggRoute-v0"

if ENVIRONMENT not in registry:
    register(
        id=ENVIRONMENT,
        entry_point=f"{__name__}.envs.environment_backends:make",
        vector_entry_point=f"{__name__}.envs.vector_environment:DisaggRouteVectorEnv",
        # The environment checks actions and order itself; Gymnasium's checks would cost more than a step.
        disable_env_checker=True,
        order_enforce=False,
    )


def __getattr__(name: str) -> Any:
    """`simulate`, imported when it is first used: it brings the simulator with it."""
    if name == "simulate":
        from .policies.run import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
