"""Pictures of a cluster at one moment: a text for terminals, and an image for videos and windows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .cluster_view import ClusterView, InstanceView, State
from .lettering import Colour, Pixels, text_width, write_text

MOST_ROWS = 64
"""Instances of a pool that are shown."""

WIDTH = 960
"""Pixels."""

# Okabe and Ito's colours, which people with any colour vision tell apart.
BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = (
    (0x00, 0x72, 0xB2),
    (0xD5, 0x5E, 0x00),
    (0x00, 0x9E, 0x73),
    (0xE6, 0x9F, 0x00),
    (0x56, 0xB4, 0xE9),
    (0xCC, 0x79, 0xA7),
)
INK, SOFT, FAINT = (0x1F, 0x23, 0x28), (0x6A, 0x73, 0x7D), (0xE6, 0xE9, 0xEC)
TINT, PAPER = (0xFA, 0xEC, 0xF4), 0xFF

RUNNING = {"prefill": BLUE, "decode": VERMILION, "mixed": BLUE}
"""Colour of what runs, by role."""

FULL = {"running": 50, "queue": 30, "transit": 16}
"""Requests that fill a bar; a longer one ends in an arrow."""

Box = tuple[int, int]
"""Left edge and width of a bar, pixels."""

_LABEL, _LEDGER, _HEAD, _MARGIN = 20, 940, 76, 16
_BOXES: dict[str, Box] = {"KV": (184, 160), "running": (404, 150), "queue": (606, 90), "transit": (748, 90)}


def ansi(view: ClusterView) -> str:
    """A table of at most 100 columns, plain ASCII; the last decision is marked with >."""
    lines = [_status(view), _request(view)]
    for pool in view.pools.values():
        lines += ["", f"  {'':13}{'KV blocks in use':25}{'running':19}{'queue':8}{'transit':9}{'ledger':8}state"]
        for one in pool[:MOST_ROWS]:
            share = one.kv_used / one.kv_capacity
            kv = f"{_bar(share, 16)} {100 * share:3.0f} %"
            running = f"{_bar(one.running / FULL['running'], 10)} {one.running}"
            still = one.held + one.arrived
            transit = f"{one.in_transit}" + (f"+{still}" if still else "")
            cells = f"{kv:25}{running:19}{one.queued:<8d}{transit:9}{one.committed:<8d}{one.state}"
            lines.append(f"{'>' if view.chosen(one) else ' '} {one.name:13}{cells}")
        if len(pool) > MOST_ROWS:
            lines.append(f"  and {len(pool) - MOST_ROWS} more")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def rgb_array(view: ClusterView) -> Pixels:
    """An image, (H, W, 3); H depends on the number of instances only, both are multiples of 16.

    Bars: blocks of KV in use; requests that run, wait, and are in transit (the darker part: held on a prefill
    instance before the transfer starts, or arrived on a decode instance and about to join); a bar that is longer than
    its box ends in an arrow. `ledger` counts what the routers have assigned. A purple row was chosen last.
    """
    pools = view.pools
    layout = tuple((role, len(pool)) for role, pool in pools.items())
    image, tops = _blank(layout)
    image, row = image.copy(), _row_height(layout)
    write_text(image, _LABEL, 14, _status(view), 20, INK)
    write_text(image, _LABEL, 42, _request(view), 17, SOFT)
    for top, pool in zip(tops, pools.values(), strict=True):
        for place, one in enumerate(pool[:MOST_ROWS]):
            y = top + place * row
            if view.chosen(one):
                image[y : y + row] = TINT
                image[y : y + row, :6] = PURPLE
            elif one.state != "up":
                image[y : y + row] = PAPER
            if view.chosen(one) or one.state != "up":
                _draw_row(image, y, row, one.name, one.state)
            _draw_instance(image, y, row, one)
    return image


def _row_height(layout: tuple[tuple[str, int], ...]) -> int:
    rows = sum(min(count, MOST_ROWS) for _, count in layout)
    return 36 if rows <= 10 else 26 if rows <= 24 else 18


@lru_cache(maxsize=8)
def _blank(layout: tuple[tuple[str, int], ...]) -> tuple[Pixels, tuple[int, ...]]:
    """What all frames of a cluster have in common, and where the rows of each pool begin."""
    row, tops, y = _row_height(layout), [], _HEAD
    for _, count in layout:
        tops.append(y + 28)
        y += 28 + row * min(count, MOST_ROWS) + (20 if count > MOST_ROWS else 0) + 8
    image = np.full((-(-(y + _MARGIN) // 16) * 16, WIDTH, 3), PAPER, np.uint8)
    for (role, count), top in zip(layout, tops, strict=True):
        write_text(image, _LABEL, top - 22, role, 15, SOFT)
        for name, (x, width) in _BOXES.items():
            write_text(image, x, top - 22, name, 15, SOFT)
            write_text(image, x + width, top - 22, str(FULL.get(name, "100 %")), 15, SOFT, align="right")
        write_text(image, _LEDGER, top - 22, "ledger", 15, SOFT, align="right")
        for place in range(min(count, MOST_ROWS)):
            _draw_row(image, top + place * row, row, f"{role}/{place}", "up")
        if count > MOST_ROWS:
            write_text(image, _LABEL, top + MOST_ROWS * row + 4, f"and {count - MOST_ROWS} more", 15, SOFT)
    return image, tuple(tops)


def _draw_row(image: Pixels, y: int, row: int, name: str, state: State) -> None:
    """What is always there of an instance: its name and the boxes of its bars."""
    _, _, line, size = _measures(y, row)
    write_text(image, _LABEL, line, name, size, INK if state == "up" else SOFT)
    if state != "up":
        write_text(image, _LABEL + text_width(name + " ", size), line, state, size, VERMILION)
    if state != "down":
        for box in _BOXES.values():
            _fill(image, y, row, box, [(1.0, FAINT)])


def _draw_instance(image: Pixels, y: int, row: int, one: InstanceView) -> None:
    """The bars and numbers of an instance."""
    _, _, line, size = _measures(y, row)
    write_text(image, _LEDGER, line, str(one.committed), size, INK, align="right")
    if one.state == "down":
        return
    share, still = one.kv_used / one.kv_capacity, one.held + one.arrived
    parts: dict[str, list[tuple[int, Colour]]] = {
        "running": [(one.running, RUNNING[one.role])],
        "queue": [(one.queued, ORANGE)],
        "transit": [(one.in_transit, SKY), (still, BLUE)],
    }
    _fill(image, y, row, _BOXES["KV"], [(share, GREEN)])
    numbers = {"KV": f"{100 * share:.0f} %"}
    for name, counts in parts.items():
        _fill(image, y, row, _BOXES[name], [(count / FULL[name], colour) for count, colour in counts])
        numbers[name] = str(sum(count for count, _ in counts))
    for name, text in numbers.items():
        write_text(image, sum(_BOXES[name]) + 6, line, text, size, INK)


def _measures(y: int, row: int) -> tuple[int, int, int, int]:
    """Of a row that starts at y: top and bottom of its bars, top of its text, and the text's size."""
    size = min(18, row - 3)
    return y + row // 6, y + row - row // 6, y + (row - size) // 2, size


def _fill(image: Pixels, y: int, row: int, box: Box, parts: list[tuple[float, Colour]]) -> None:
    """A bar made of parts that follow each other, each a share of its box."""
    (top, bottom, _, _), (x, width) = _measures(y, row), box
    at = 0.0
    for share, colour in parts:
        left, right = round(width * min(at, 1.0)), round(width * min(at + share, 1.0))
        image[top:bottom, x + left : x + max(right, left + int(share > 0))] = colour
        at += share
    if at > 1:  # an arrow: longer than the box
        middle = (bottom - top - 1) / 2
        for place in range(bottom - top):
            tip = x + width - round(8 * abs(place - middle) / middle)
            image[top + place, x + width - 8 : tip] = INK
            image[top + place, tip : x + width] = FAINT


def _status(view: ClusterView) -> str:
    text = f"t {view.time:,.3f} s   {view.in_flight:,} in flight   {view.ended:,} ended"
    if view.reward is not None:
        text += f"   reward {view.reward:,.2f}"
    if view.goodput is not None:
        text += f"   goodput {view.goodput:.3f}"
    return text


def _request(view: ClusterView) -> str:
    one = view.pending
    if one is None:
        return "no request awaits a decision"
    return (
        f"request {one.request:,} ({one.slo}): prompt {one.prompt:,}, expected output {one.predicted:,}; "
        f"TTFT {1e3 * one.ttft_target:,.0f} ms, TPOT {1e3 * one.tpot_target:.1f} ms"
    )


def _bar(share: float, width: int) -> str:
    full = max(min(width, round(share * width)), int(share > 0))
    end = ">" if share > 1 else "]"
    return "[" + "#" * full + "." * (width - full) + end
