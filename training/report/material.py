"""What the report is made of: the results, their comparison, and the records of the first seed."""

from __future__ import annotations

from dataclasses import dataclass

from ..comparison import Comparison, compare
from ..policy_style import Style, policy_styles
from ..results import Results
from ..stored_records import StoredRecords, read_records


@dataclass(frozen=True, eq=False)
class Material:
    """Everything that figures and tables are made from.

    Attributes:
        results: the runs.
        comparison: the policies side by side.
        records: of the first seed, by policy; those without stored records are left out.
        styles: how each policy looks.
    """

    results: Results
    comparison: Comparison
    records: dict[str, StoredRecords]
    styles: dict[str, Style]

    @property
    def labels(self) -> tuple[str, ...]:
        """Policies, in the order asked for."""
        return self.results.labels

    @property
    def recorded(self) -> dict[str, Style]:
        """Styles of the policies that have records."""
        return {label: self.styles[label] for label in self.records}


def gather(results: Results) -> Material:
    """Reads the records of the first seed, and compares the policies.

    Raises:
        ValueError: stored records are unreadable.
    """
    records = {}
    for label, runs in results.runs.items():
        path = results.folder.records_path(results.policies[label], runs[0].seed)
        if path.exists():
            records[label] = read_records(path)
    return Material(results, compare(results), records, policy_styles(results.labels))
