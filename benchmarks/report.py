"""A report: the results of one run of the benchmarks, and the machine; read again to compare with."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from .machine import Machine
from .measurement import Result


class Report(BaseModel):
    """What `disaggroute bench --json` prints.

    Attributes:
        machine: where the results come from.
        results: in the order in which they were measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Machine
    results: tuple[Result, ...]

    @classmethod
    def read(cls, path: Path) -> Report:
        """A report that was written before.

        Raises:
            ValueError: the file holds something else.
            OSError: it cannot be read.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "content"
            raise ValueError(
                f"{path}: is no report of `disaggroute bench --json` ({where}: {first['msg'].lower()})"
            ) from error

    def compared_with(self, baseline: Report) -> Report:
        """This report with the baseline's values, and how many times better each result is.

        A gain above 1 is better: a higher speed or a lower cost. Results that the baseline lacks have none.

        Raises:
            ValueError: a result has another unit there.
        """
        known = {result.name: result for result in baseline.results}
        return self.model_copy(
            update={"results": tuple(_compared(r, known.get(r.name)) for r in self.results)}
        )

    def json_text(self) -> str:
        """The report as one JSON object."""
        return self.model_dump_json(indent=2, exclude_none=True)


def _compared(result: Result, old: Result | None) -> Result:
    if old is None:
        return result
    if old.unit != result.unit:
        raise ValueError(
            f"baseline: {result.name} is in {old.unit}; it must be in {result.unit} to be compared"
        )
    better, worse = (result.value, old.value) if result.more_is_better else (old.value, result.value)
    gain = better / worse if worse > 0 else None
    return result.model_copy(update={"baseline": old.value, "gain": gain})
