"""Tables on a terminal: whatever the names, every row keeps its label and every number shows in full."""

import io
import re

import pytest
from rich.console import Console, Group

from disaggroute.training.report.tables import Table
from disaggroute.training.report.terminal import rich_table

LONG = ("network@shipped, prefill", "network@shipped, decode", "marginal-cost@mixed-bursty, prefill")


def shown(table: Table, width: int, left_out: tuple[str, ...] = ()) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(rich_table(table, width, left_out))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def table_of(columns: tuple[str, ...], labels: tuple[str, ...], cell: str = "12.5") -> Table:
    rows = tuple((label, tuple(cell for _ in columns)) for label in labels)
    return Table(name="x", title="X", note="", columns=columns, rows=rows, first="rule")


def test_long_headings_are_wrapped_and_take_nothing_from_the_labels() -> None:
    text = shown(table_of(LONG, ("least-loaded", "random")), 80)
    assert re.search(r"^least-loaded( +12\.5){3}$", text, re.M) and "rule" in text and "…" not in text
    assert "marginal-cost" in text and "@mixed-bursty," in text and "prefill" in text


def test_columns_without_room_follow_below_beside_the_labels_again() -> None:
    columns = tuple(f"policy-number-{k}" for k in range(8))
    text = shown(table_of(columns, ("slow-instance", "1p2d"), "document -10.0"), 80)
    assert all(len(line) <= 80 for line in text.splitlines()) and "…" not in text
    assert text.count("document -10.0") == 16 and all(name in text for name in columns)
    parts = [len(re.findall(rf"^{label}  +document", text, re.M)) for label in ("slow-instance", "1p2d")]
    assert parts[0] == parts[1] > 1


def test_long_labels_are_wrapped_beside_columns_that_fit() -> None:
    claim = "With three decode instances there is no advantage over least loaded"
    text = shown(table_of(("here (95 % interval)", "verdict"), (claim,), "+0.03 points (−1.11)"), 80)
    assert text.count("+0.03 points") == 2 and "…\n" not in text
    assert " ".join(re.sub(r" {2,}.*| $", "", line) for line in text.splitlines()[2:]) == claim


@pytest.mark.parametrize("width", [80, 200])
def test_columns_named_as_dispensable_go_only_where_there_is_no_room(width: int) -> None:
    table = table_of(tuple(f"column number {k}" for k in range(7)), ("a",))
    assert ("column number 3" in shown(table, width, ("column number 3", "column number 4"))) == (width == 200)


def test_a_table_without_columns_or_rows_is_shown_too() -> None:
    assert isinstance(rich_table(table_of((), ("a",)), 80), Group)
    assert isinstance(rich_table(table_of(("b",), ()), 80), Group)
