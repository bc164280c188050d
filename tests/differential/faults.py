"""Faults that are easy to make in the fast core, each as a replacement in its source text.

`mutants.py` plants them one at a time and shows that random cases catch every one. The first part are the
traps that the core was written to avoid; the others follow the life of a request.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A replacement that makes the core wrong.

    Attributes:
        name: what is wrong then, in words.
        module: file in `envs/simulator`.
        old: text that occurs there exactly once.
        new: text that takes its place.
    """

    name: str
    module: str
    old: str
    new: str

    @property
    def key(self) -> str:
        """The name as one word."""
        return self.name.replace(",", "").replace(" ", "-")

    def planted(self, source: str) -> str:
        """The source with the fault in it.

        Raises:
            ValueError: the text to replace does not occur exactly once, so that the fault no longer applies.
        """
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"fault '{self.name}' no longer applies: {self.module} holds {self.old!r} {count} times; "
                "it must occur exactly once"
            )
        return source.replace(self.old, self.new)


_BY_TRANSFER_END = """\
before, here = -1, ld(e, L.E_HOLD)
    while here >= 0 and ld(slot_at(S, here), L.SW_TRANSFER) <= end:
        before, here = here, ld32(slot_at(S, here), L.S_NEXT)
    st32(s, L.S_NEXT, here)
    if before < 0:
        st(e, L.E_HOLD, k)
    else:
        st32(slot_at(S, before), L.S_NEXT, k)
    if here < 0:
        st(e, L.E_HOLD_TAIL, k)
    st(e, L.E_HELD, ld(e, L.E_HELD) + 1)
"""

TRAPS = (
    Fault(
        "integer fix-up missing",
        "arithmetic.py",
        "return k - int(taken > x) + int(taken + first + growth * k <= x)",
        "return k",
    ),
    Fault(
        "integer fix-up missing in the ledger",
        "arithmetic.py",
        "return k - V.ones(taken > x) + V.ones(taken + first + growth * k <= x)",
        "return k",
    ),
    # A leap planned for the transfer reserved first runs over one that was reserved later and ends earlier.
    Fault(
        "no re-plan on an earlier transfer",
        "transfer.py",
        "st(e, L.E_HOLD_TIME, min(ld(e, L.E_HOLD_TIME), end))",
        "st(e, L.E_HOLD_TIME, end if ld(e, L.E_HELD) == 1 else ld(e, L.E_HOLD_TIME))",
    ),
    Fault(
        "leap runs over a transfer end",
        "decode.py",
        "steps = min(steps, boundary_at(first, growth, arrives))",
        "pass",
    ),
    Fault(
        "transfers unsorted",
        "transfer.py",
        "elif ld(slot_at(S, tail), L.SW_TRANSFER) <= end:",
        "elif ld(slot_at(S, tail), L.SW_TRANSFER) <= L.FOREVER:",
    ),
    Fault(
        "overflow a step late",
        "batch.py",
        "return min(steps, cycles * size + j)",
        "return min(steps, cycles * size + j + 1)",
    ),
    Fault(
        "overflow skipped a cycle too long",
        "batch.py",
        "if (whole_blocks(S, steps) + 1) * batch <= free:",
        "if whole_blocks(S, steps) * batch <= free:",
    ),
    Fault(
        "generated tokens lost at preemption",
        "decode.py",
        "st32(s, L.S_GENERATED, generated)",
        "st32(s, L.S_GENERATED, 0)",
    ),
    # The step that recomputes is a leap of one step: its inverse must count the prefill tokens.
    Fault(
        "recompute ignored in the inverse",
        "decode.py",
        "L.LEAP_FIRST, first)",
        "L.LEAP_FIRST, first - ldc(spec, L.P_TOKEN) * tokens)",
    ),
    Fault(
        "offer at a boundary waits a step",
        "decode.py",
        "return 1 if x <= first else steps_within(first, growth, x - 1) + 1",
        "return 1 if x < first else steps_within(first, growth, x) + 1",
    ),
    Fault(
        "transfer that ends at a pass waits",
        "decode.py",
        "if end <= t and room > 0:",
        "if (end < t or (end == t and ld(e, L.E_BATCH) == 0)) and room > 0:",
    ),
    Fault(
        "the empty pass not repeated",
        "decode.py",
        "if not (preempted and batch + ld(e, L.E_CHUNKED) > 0):",
        "if not preempted:",
    ),
    Fault(
        "reservation beyond the running limit",
        "decode.py",
        "while budget > 0 and ld(e, L.E_QUEUED) > 0 and ld(e, L.E_BATCH) + ld(e, L.E_CHUNKED) < limit:",
        "while budget > 0 and ld(e, L.E_QUEUED) > 0 and ("
        "ld(e, L.E_BATCH) + ld(e, L.E_CHUNKED) < limit"
        " or ld32(slot_at(S, ld(e, L.E_QUEUE)), L.S_PLACE) & L.LOCAL == 0):",
    ),
    Fault(
        "arrived requests ordered by completion",
        "transfer.py",
        "push_back(S, e, L.E_HOLD, k)\n",
        _BY_TRANSFER_END,
    ),
    Fault(
        "in-transit requests missing from the observed queue",
        "polls.py",
        "ld(e, L.E_QUEUED) + ld(e, L.E_HELD)",
        "ld(e, L.E_QUEUED)",
    ),
)
"""The traps of the design."""

FIRST_LEG = (
    Fault(
        "arrival after the passes of its instant",
        "loop.py",
        "if t < outside and",
        "if t <= outside and",
    ),
    Fault(
        "equal times go to the higher instance",
        "slots.py",
        "loses = rival_time - (node & 1) < t",
        "loses = rival_time - 1 + (node & 1) < t",
    ),
    Fault(
        "running limit ignored by prefill",
        "prefill.py",
        "and ld(e, L.E_CHUNKED) < limit:",
        "and ld(e, L.E_CHUNKED) < limit + 1:",
    ),
    Fault(
        "prompt admitted when its first chunk fits",
        "prefill.py",
        "if blocks_of(S, prompt) > free:",
        "if blocks_of(S, min(prompt, budget)) > free:",
    ),
    Fault(
        "later chunk squared on its own",
        "prefill.py",
        "squares = (2 * done + chunk) * chunk",
        "squares = chunk * chunk",
    ),
    Fault(
        "prefill sleeps while blocks become free",
        "transfer.py",
        "set_wake(S, p, min(wake_of(S, p), end))",
        "pass",
    ),
    Fault(
        "egress serves pulls side by side",
        "transfer.py",
        "start = max(t, ld(source, L.E_EGRESS))",
        "start = t",
    ),
    Fault(
        "latency occupies the egress",
        "transfer.py",
        "st(source, L.E_EGRESS, served)",
        "st(source, L.E_EGRESS, end)",
    ),
    Fault(
        "no block reserved for the prefill's token",
        "decode.py",
        "free -= blocks_of(S, known)",
        "free -= blocks_of(S, ld32(s, L.S_PROMPT))",
    ),
    Fault(
        "no stall after the prefill's token",
        "batch.py",
        "return t - ld(s, L.SW_LAST) if",
        "return 0 if",
    ),
)
"""From arrival to the decode batch."""

SECOND_LEG = (
    Fault(
        "offer does not end a leap",
        "decode.py",
        "        shorten(S, d, t)\n",
        "        pass\n",
    ),
    Fault(
        "pass that preempted admits",
        "decode.py",
        "if not (preempted and batch + ld(e, L.E_CHUNKED) > 0):",
        "if not (preempted and batch + ld(e, L.E_CHUNKED) > L.KEY_MASK):",
    ),
    Fault(
        "oldest preempted",
        "decode.py",
        "if joined > latest:",
        "if found < 0 or joined < latest:",
    ),
    Fault(
        "preempted at the tail of the queue",
        "decode.py",
        "push_front(S, e, L.E_QUEUE, k)",
        "push_back(S, e, L.E_QUEUE, k)",
    ),
    Fault(
        "decodes take no budget",
        "decode.py",
        "budget = ldc(spec, L.P_BUDGET) - batch\n",
        "budget = ldc(spec, L.P_BUDGET)\n",
    ),
    Fault(
        "growth a phase late",
        "batch.py",
        "return in_block(S, finish + 2 -",
        "return in_block(S, finish + 3 -",
    ),
    Fault(
        "first step of a leap stalls those who joined",
        "batch.py",
        "pick(made == 1, ld(e, L.E_OLD), batch), batch)",
        "batch, batch)",
    ),
    Fault(
        "longest stall a step too long",
        "batch.py",
        "longest = first + growth * (made - 1)",
        "longest = first + growth * made",
    ),
    Fault(
        "stall of a recompute forgets earlier ones",
        "decode.py",
        "stall = max(ld(row, L.R_MAX_STALL), t - ld(s, L.SW_LAST))",
        "stall = t - ld(s, L.SW_LAST)",
    ),
    Fault(
        "context of a mixed step counted after it",
        "decode.py",
        "(ld(e, L.E_BASE) + batch * step)",
        "(ld(e, L.E_BASE) + batch * (step + min(tokens, 1)))",
    ),
)
"""In the decode batch."""

VIEWS = (
    Fault(
        "poll of blocks after its instant",
        "polls.py",
        "L.SW_TRANSFER) < tick:",
        "L.SW_TRANSFER) <= tick:",
    ),
    Fault(
        "poll of a leap after its instant",
        "polls.py",
        "x = t - 1 - ld(",
        "x = t - ld(",
    ),
    Fault(
        "poll after a change at its instant",
        "polls.py",
        "if t >= tick and ld(e, L.E_POLLED) < tick:",
        "if t > tick and ld(e, L.E_POLLED) < tick:",
    ),
    Fault(
        "released blocks polled as used",
        "polls.py",
        "used -= blocks_of(S, ld32(slot_at(S, k), L.S_PROMPT))",
        "used -= 0",
    ),
    Fault(
        "first tokens of a leap not settled at its end",
        "batch.py",
        "            settle_fresh(S, router, d)",
        "            pass",
    ),
    Fault(
        "pending requests settled before their first token",
        "ledger.py",
        "(0 - V.ones(made > 0))",
        "(0 - V.ones(made > -1))",
    ),
    Fault(
        "predicted length crossed a token late",
        "ledger.py",
        "crossing = finish - ld32(s, L.S_OUTPUT) + ld32(s, L.S_PREDICTED)",
        "crossing = finish - ld32(s, L.S_OUTPUT) + ld32(s, L.S_PREDICTED) + 1",
    ),
    Fault(
        "crossings not dropped",
        "ledger.py",
        "if V.any_bits(crossed) < 0:",
        "if V.any_bits(crossed) < -L.FOREVER:",
    ),
    Fault(
        "finished requests leave the first router's ledger",
        "ledger.py",
        "    router, d = router_of(place), decode_of(place)\n    prompt, predicted",
        "    router, d = 0, decode_of(place)\n    prompt, predicted",
    ),
    Fault(
        "prefills end in the first router's ledger",
        "ledger.py",
        "pre = prefill_row(S, router_of(place), prefill_of(place))",
        "pre = prefill_row(S, 0, prefill_of(place))",
    ),
    Fault(
        "learner shared by the routers",
        "learner.py",
        "return region(S, L.H_O_LEARNER) + router * (L.LEARNER_WORDS * 8)",
        "return region(S, L.H_O_LEARNER)",
    ),
    Fault(
        "ledger of another router brought up to date",
        "admission.py",
        "ledger.sync(S, router, t)",
        "ledger.sync(S, 0, t)",
    ),
    Fault(
        "routers are dealt requests in turn, not as drawn",
        "simulator.py",
        "deal(self.cluster, len(trace), seed) if",
        "np.arange(len(trace)) % self.cluster.routers if",
    ),
    Fault(
        "learned mean cut off",
        "learner.py",
        "udiv(2 * total + count, 2 * count)",
        "udiv(total, count)",
    ),
)
"""What the router sees."""

FAILURES = (
    Fault(
        "lease ignored by a kill",
        "failures.py",
        "end = max(t, ld(s, L.SW_FINISH) + ldc(ldc(source, L.E_SPEC), L.P_LEASE))",
        "end = t",
    ),
    Fault(
        "lease ignored after a prefill for a dead instance",
        "prefill.py",
        "end = t + ldc(ldc(e, L.E_SPEC), L.P_LEASE)",
        "end = t",
    ),
    Fault(
        "egress bookings lost with the decode instance",
        "failures.py",
        "        unlink_release(S, source, k)\n",
        "        unlink_release(S, source, k)\n        st(source, L.E_EGRESS, t)\n",
    ),
    Fault(
        "egress of a killed prefill instance stays busy",
        "failures.py",
        "    st(e, L.E_EGRESS, 0)\n",
        "",
    ),
    Fault(
        "kill at a boundary loses the step",
        "failures.py",
        "        x = t - ld(",
        "        x = t - (t > ld(leap_of(S, d), L.LEAP_START)) - ld(",
    ),
    Fault(
        "undone reservation unblocks nobody",
        "failures.py",
        "+ blocks)\n    lose_prefilled(S, k, s, t, 0)\n    look_again(S, d, e, t)",
        "+ blocks)\n    lose_prefilled(S, k, s, t, 0)",
    ),
    Fault(
        "undone reservation keeps its blocks",
        "failures.py",
        "st(e, L.E_FREE, ld(e, L.E_FREE) + blocks)",
        "pass",
    ),
    Fault(
        "withdrawn head unblocks nobody",
        "failures.py",
        "lose_prefilled(S, k, s, t, 0)\n            look_again(S, d, e, t)",
        "lose_prefilled(S, k, s, t, 0)",
    ),
    Fault(
        "routed again although a token is out",
        "transfer.py",
        "if ldc(S, L.H_REROUTE) != 0 and generated == 0:",
        "if ldc(S, L.H_REROUTE) != 0:",
    ),
    Fault(
        "lost requests routed again in the wrong order",
        "transfer.py",
        "ld32(slot_at(S, here), L.S_REQUEST) < request:",
        "ld32(slot_at(S, here), L.S_REQUEST) > request:",
    ),
    Fault(
        "drained instance counts as killed",
        "failures.py",
        "set_state(S, i, e, L.STATE_DRAINING)",
        "set_state(S, i, e, L.STATE_DOWN)",
    ),
)
"""Kills, drains and returns."""

FAULTS = TRAPS + FIRST_LEG + SECOND_LEG + VIEWS + FAILURES
