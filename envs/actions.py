"""Actions of an agent: what can be read as a pair of instances, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt


def pair_of(action: Any, *, aggregated: bool) -> tuple[int, int]:
    """The prefill and the decode index of an action; aggregated: the same mixed one twice.

    Raises:
        TypeError: it is something else (`unreadable` makes a sentence of it).
        ValueError: it has too many or too few parts; likewise.
    """
    given = action.tolist() if isinstance(action, np.ndarray) else action
    prefill, decode = (given, given) if aggregated else given
    if prefill is True or prefill is False or decode is True or decode is False:
        raise TypeError
    return index(prefill), index(decode)


def unreadable(action: Any, *, aggregated: bool) -> ValueError:
    """The error for an action that is no index, or no pair of them."""
    kind = "an integer" if aggregated else "two integers, (prefill, decode),"
    return ValueError(f"action is {action!r}; it must be {kind} of the action space")


def complaint(where: str, pools: Iterable[tuple[str, int, npt.NDArray[np.int8]]]) -> str | None:
    """What is wrong with an action, as a sentence; None: nothing.

    Args:
        where: how the sentence begins.
        pools: of each pool its role, the index that was chosen and the mask.
    """
    for role, chosen, mask in pools:
        if not 0 <= chosen < len(mask):
            return f"{where}: {role} instance is {chosen}; allowed are 0 to {len(mask) - 1}"
        if not mask[chosen]:
            allowed = ", ".join(map(str, np.flatnonzero(mask)))
            return (
                f"{where}: {role} instance {chosen} is masked (down, draining or padding); "
                f"allowed are {allowed} (info['action_mask'])"
            )
    return None
