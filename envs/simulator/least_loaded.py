"""Join the shortest queue: routes what no policy decides, such as the warm start of an environment's episode.

Costs are kept as int64: counts as they are, +inf for an instance that may not be assigned; its bits are above every
count.
"""

from __future__ import annotations

from . import lanes as V
from . import layout as L
from . import ledger
from .compile import inline
from .memory import ldc


@inline
def cheapest_prefill(rows: int, groups: int) -> int:
    """The prefill instance of least cost; ties to the lowest."""
    return V.first_least(rows + L.PRE_COST * 8, groups, L.PRE_GROUP)


@inline
def cheapest_decode(rows: int, groups: int) -> int:
    """The decode instance of least cost; ties to the lowest."""
    return V.first_least(rows + L.DEC_COST * 8, groups, L.DEC_GROUP)


@inline
def count_prefills(S: int, router: int) -> None:
    """Costs of the prefill pool: requests of that stage in the ledger."""
    rows = ledger.prefill_rows(S, router)
    for _ in range(ldc(S, L.H_PRE_GROUPS)):
        V.store(rows, L.PRE_COST, V.load(rows, L.PRE_QUEUED) | V.load(rows, L.PRE_OPEN))
        rows += L.PRE_GROUP * 8


@inline
def count_decodes(S: int, router: int) -> None:
    """Costs of the decode (or mixed) pool, likewise."""
    rows = ledger.decode_rows(S, router)
    for _ in range(ldc(S, L.H_DEC_GROUPS)):
        V.store(rows, L.DEC_COST, V.load(rows, L.DEC_IN_FLIGHT) | V.load(rows, L.DEC_OPEN))
        rows += L.DEC_GROUP * 8


@inline
def emptiest_prefill(S: int, router: int) -> int:
    """The prefill instance with the fewest requests of that stage."""
    count_prefills(S, router)
    return cheapest_prefill(ledger.prefill_rows(S, router), ldc(S, L.H_PRE_GROUPS))


@inline
def emptiest_decode(S: int, router: int) -> int:
    """The decode (or mixed) instance with the fewest requests."""
    count_decodes(S, router)
    return cheapest_decode(ledger.decode_rows(S, router), ldc(S, L.H_DEC_GROUPS))


@inline
def least_loaded(S: int, router: int) -> tuple[int, int, float]:
    """Fewest requests of that stage: prefill, decode (aggregated: one mixed instance twice), probability 1."""
    d = emptiest_decode(S, router)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, 1.0
    return emptiest_prefill(S, router), d, 1.0
