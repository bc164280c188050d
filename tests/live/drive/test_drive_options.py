"""Options of a run on a live cluster."""

from __future__ import annotations

from typing import Any

import pytest

from disaggroute.envs import catalog
from disaggroute.live.drive.driving import DriveOptions


def test_the_routers_options_are_those_of_serve() -> None:
    given = {"watch": {"poll_interval_s": 0.5}, "faults": 2}
    assert catalog.validate(DriveOptions, {"router": given}, "o.yaml").router == given


@pytest.mark.parametrize(
    ("router", "sentence"),
    [
        ({"policy": "card"}, "o.yaml: router: policy is given; the run says it, leave it out"),
        ({"wach": {}}, "router: unknown field 'wach'; nearest: watch"),
        ({"watch": {"poll_interval_s": 0}}, "poll_interval_s is 0; it must be greater than or equal to 0.001"),
    ],
)
def test_options_that_no_router_takes_are_refused(router: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        catalog.validate(DriveOptions, {"router": router}, "o.yaml")
    assert sentence in str(caught.value)
