"""What the plain simulator shows to a router, and what a run of it yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass
class Facts:
    """How often the interesting things happened in a run.

    Attributes:
        ties: instants with events of two instances, or with an arrival and an event.
        preemptions: preempted sequences.
        repeated_passes: passes repeated because the first one preempted every running sequence.
        egress_queueing: pulls that waited for the egress server.
        blocked_reservation: offered heads that did not fit.
        blocked_prefill: heads to be prefilled that did not fit.
        running_limit: passes that left a queue waiting because of `max_num_seqs`.
        chunked: prefills that took more than one chunk.
        chunked_recomputes: those of them that were recomputes.
        mixed_steps: steps with both decodes and prefill tokens.
        kills: kills of instances that were up.
        lost: requests lost to kills.
        leases: KV kept on a prefill instance for a lease.
        reroutes: lost requests that were routed again.
        rejected: requests that met a pool without an available instance.
    """

    ties: int = 0
    preemptions: int = 0
    repeated_passes: int = 0
    egress_queueing: int = 0
    blocked_reservation: int = 0
    blocked_prefill: int = 0
    running_limit: int = 0
    chunked: int = 0
    chunked_recomputes: int = 0
    mixed_steps: int = 0
    kills: int = 0
    lost: int = 0
    leases: int = 0
    reroutes: int = 0
    rejected: int = 0


@dataclass(frozen=True, eq=False)
class Admission:
    """What a router sees when it routes a request.

    Attributes:
        index: of the request in the trace.
        now: ps.
        router: index of the router that decides.
        prompt: tokens.
        predicted: ô, tokens.
        slo: SLO class.
        prefill_view: (P, 7), columns PREFILL_VIEW.
        decode_view: (D, 11), columns DECODE_VIEW.
        poll_time: ps, the poll that the views show.
    """

    index: int
    now: int
    router: int
    prompt: int
    predicted: int
    slo: int
    prefill_view: Ints
    decode_view: Ints
    poll_time: int


Route = Callable[[Admission], tuple[int, int]]


@dataclass(frozen=True, eq=False)
class ReferenceRun:
    """Outcome of a run; in an aggregated cluster P = D = M.

    Attributes:
        records: (N,) RECORD.
        decisions: (n,) request of each admission decision, in order.
        prefill_views: (n, P, 7), columns PREFILL_VIEW; empty without `observe`.
        decode_views: (n, D, 11), columns DECODE_VIEW; empty without `observe`.
        predicted: (n,) ô of each decision, tokens.
        poll_times: (n,) ps.
        facts: how often the interesting things happened.
    """

    records: npt.NDArray[np.void]
    decisions: Ints
    prefill_views: Ints
    decode_views: Ints
    predicted: Ints
    poll_times: Ints
    facts: Facts
