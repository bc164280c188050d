"""How a policy looks in every picture: the same colour everywhere, told apart further by marker and line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ..envs.picture import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from ..envs.picture import PALETTE as PALETTE
from ..policies.policy_text import policy_name

COLOURS = {
    "round-robin": VERMILLION,
    "random": SKY,
    "least-loaded": GREEN,
    "length-threshold": PURPLE,
    "size-interval": ORANGE,
    "marginal-cost": BLUE,
    "linear": BLACK,
    # The second of a colour, and of black the third, is kin to the first where possible.
    "least-ttft": VERMILLION,
    "min-tpot": SKY,
    "power-of-two": GREEN,
    "best-fit": PURPLE,
    "card": ORANGE,
    "simulator-naive": BLUE,
    "network": BLACK,
    "lookahead": BLACK,
}
"""Policies with a colour of their own, in the order in which they take the looks of that colour."""

_MARKERS = ("D", "<", "o", ">", "s", "p", "^", "h", "v", "*", "P", "d", "X", "8")
_LINES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1, 1.5), (5, 1.5, 1, 1.5), (8, 2, 2, 2), (3, 1, 1, 1, 1, 1))
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "oooo", "----", "||||")


@dataclass(frozen=True)
class Style:
    """How one policy is drawn.

    Attributes:
        colour: "#RRGGBB".
        marker: matplotlib's name of a marker.
        dashes: lengths of dashes and gaps in points; empty for a solid line.
        hatch: matplotlib's pattern of an area; empty for a plain one.
    """

    colour: str
    marker: str
    dashes: tuple[float, ...]
    hatch: str

    @property
    def line(self) -> tuple[float, tuple[float, ...]] | None:
        """The line style in matplotlib's form; None is a solid line."""
        return (0.0, self.dashes) if self.dashes else None


def policy_colour(label: str) -> str:
    """Colour of a policy, the same in every picture, whatever its parameters or file."""
    name = policy_name(label)
    return COLOURS.get(name) or PALETTE[hashlib.sha256(name.encode()).digest()[0] % len(PALETTE)]


def policy_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Styles of the policies of one picture, no two alike.

    A known policy without parameters looks the same in every picture, and nothing else looks like it. Variants
    of it, and policies of other packages, keep their colour and take the next markers, lines and hatches.

    Args:
        labels: policies, as they were asked for.
    """
    styles: dict[str, Style] = {}
    used = {colour: list(COLOURS.values()).count(colour) for colour in PALETTE}
    for label in labels:
        colour = policy_colour(label)
        if label in COLOURS:
            styles[label] = _style(colour, _own_place(label))
        elif label not in styles:
            styles[label] = _style(colour, used[colour])
            used[colour] += 1
    return styles


def _own_place(name: str) -> int:
    """Place of a known policy among those of its colour."""
    return [other for other, colour in COLOURS.items() if colour == COLOURS[name]].index(name)


def _style(colour: str, place: int) -> Style:
    # Each colour starts at another marker, so that policies differ in marker as well as in colour.
    first = 2 * PALETTE.index(colour)
    return Style(
        colour=colour,
        marker=_MARKERS[(first + 5 * place) % len(_MARKERS)],
        dashes=_LINES[place % len(_LINES)],
        hatch=_HATCHES[place % len(_HATCHES)],
    )
