"""Two runs are never on one engine at once."""

from __future__ import annotations

import pytest

from disaggroute.live.drive.alone import InUse, alone

ONE, TWO = ("decode/0", "http://127.0.0.1:1"), ("decode/1", "http://127.0.0.1:2")


def test_an_engine_of_another_run_is_named_under_whatever_name_it_goes() -> None:
    sentence = r"another evaluation has a run on big \(http://127\.0\.0\.1:2/\); wait for it"
    with alone([ONE, TWO]), pytest.raises(InUse, match=sentence), alone([("big", "http://127.0.0.1:2/")]):
        pass


def test_what_was_refused_or_has_ended_keeps_nobody_off() -> None:
    with alone([TWO]):
        with pytest.raises(InUse), alone([ONE, TWO]):
            pass
        with alone([ONE]):
            pass
    with pytest.raises(ZeroDivisionError), alone([ONE, TWO]):
        raise ZeroDivisionError
    with alone([ONE, TWO]):
        pass
