"""The egress of a prefill engine serves one pull after the other."""

from __future__ import annotations

from disaggroute.live.emulator.egress import Egress

from ...differential.scenarios import engine


def test_the_egress_sends_one_pull_after_the_other() -> None:
    spec = engine(egress_per_block=3, latency=5)
    egress = Egress(spec)
    assert egress.book(4, now=100) == (0, 12, 5)
    assert egress.book(2, now=106) == (6, 6, 5)
    assert egress.book(1, now=200, factor=10) == (0, 30, 50)
    assert egress.book(1, now=210).total == 20 + 3 + 5
