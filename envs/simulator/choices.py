"""Choices: asking a policy in Python, and what is said when it fails or chooses what may not be chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..admission import Admission, Router
from ..cluster import PS_PER_S
from ..error_text import error_text
from ..trace import SLO_CLASSES
from .simulator import Simulator

MOST_SHOWN = 12
"""Pools of up to so many instances are shown one by one."""


class PolicyError(RuntimeError):
    """A policy raised an exception or chose what may not be chosen; the run has ended."""


def route_pending(simulator: Simulator, policy: Router, admission: Admission) -> None:
    """Sends the pending request where the policy says.

    Args:
        simulator: the run.
        policy: who decides; its `choose` is asked if it has one, since that also tells a probability.
        admission: the decision that is due.

    Raises:
        PolicyError: the policy raised an exception, which is the cause of this one, or it chose no pair of integers
            (and perhaps a probability), an instance that does not exist or may not be assigned, or two different
            mixed instances. Names the policy, the request and the state of the pools.
    """
    try:
        choice: Any = getattr(policy, "choose", policy.route)(admission)
    except Exception as error:
        raise PolicyError(_sentence(policy, admission, f"it raised {error_text(error)}")) from error
    try:
        simulator.send(*checked_choice(choice))
    except ValueError as error:
        raise PolicyError(_sentence(policy, admission, f"it chose {choice!r}: {error}")) from error


def reset_policy(policy: Router, seed: int) -> None:
    """Lets a policy forget the last run.

    Raises:
        ValueError: the policy refuses the seed.
        PolicyError: it raised another exception, which is the cause of this one.
    """
    try:
        policy.reset(seed)
    except ValueError:
        raise
    except Exception as error:
        raise PolicyError(f"policy {_name(policy)}, reset with seed {seed}: it raised {error_text(error)}") from error


def checked_choice(choice: Any) -> tuple[Any, ...]:
    """A policy's answer: a prefill and a decode index, and perhaps a probability; the indices are not looked at.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(choice, tuple) or not 2 <= len(choice) <= 3:
        raise ValueError("it must be a tuple of a prefill and a decode index")
    for chance in choice[2:]:
        number = isinstance(chance, int | float | np.integer | np.floating) and not isinstance(chance, bool)
        if not (number and 0 < chance <= 1):
            raise ValueError(f"the probability is {chance!r}; it must be above 0, up to 1")
    return choice


def _sentence(policy: Router, admission: Admission, problem: str) -> str:
    request = (
        f"request {admission.index} ({admission.prompt} prompt tokens, {admission.predicted} predicted, "
        f"{SLO_CLASSES[admission.slo]}, {admission.now / PS_PER_S:.3f} s)"
    )
    pools = f"{'mixed' if admission.aggregated else 'decode'} instances have in flight: {_counts(admission.decode)}"
    if not admission.aggregated:
        pools = f"prefill instances have queued: {_counts(admission.prefill)}; {pools}"
    return f"policy {_name(policy)}, {request}: {problem}; {pools}"


def _name(policy: Router) -> str:
    return str(policy) if isinstance(getattr(policy, "name", None), str) else type(policy).__name__


def _counts(view: npt.NDArray[np.int64]) -> str:
    counts, available = view[:, 0], view[:, -1] != 0
    if len(view) <= MOST_SHOWN:
        return ", ".join(str(n) if may else f"{n} (closed)" for n, may in zip(counts, available, strict=True))
    closed = f", {(~available).sum()} closed" if not available.all() else ""
    return f"{counts.min()} to {counts.max()} on {len(view)} instances{closed}"
