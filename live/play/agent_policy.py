"""The policy of a router that an agent plays: it says what the agent has said."""

from __future__ import annotations

from contextvars import ContextVar

from ...envs.admission import Admission
from ...policies import registry
from ...policies.policy import Policy

CHOSEN: ContextVar[list[tuple[int, int]] | None] = ContextVar("chosen", default=None)
"""In the task that leads a request: the pair that the agent chose for it, until it is taken."""


class AgentPolicy(Policy):
    """The agent's choice for the first attempt of a request, `least-loaded`'s for further ones and for other requests.

    It is not in the registry: without an agent it decides nothing.
    """

    name = "agent"

    def __init__(self) -> None:
        super().__init__()
        self._usual = registry.make("least-loaded")

    def reset(self, seed: int) -> None:
        """Forgets everything."""
        self._usual.reset(seed)

    def route(self, admission: Admission) -> tuple[int, int]:
        """The pair that the agent chose, once."""
        chosen = CHOSEN.get()
        return chosen.pop() if chosen else self._usual.route(admission)
