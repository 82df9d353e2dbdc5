"""`Rounds`: the records of a job's rounds, as a sequence that knows how to become a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from api.sdk.round_table import columns, csv_lines, row
from jobs.store.records import RoundRecord

if TYPE_CHECKING:
    from pandas import DataFrame


class Rounds(Sequence[RoundRecord]):
    """The records of a job's rounds, in their order."""

    def __init__(self, records: Sequence[RoundRecord]) -> None:
        self._records = list(records)

    @overload
    def __getitem__(self, index: int) -> RoundRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Rounds: ...
    def __getitem__(self, index: int | slice) -> RoundRecord | Rounds:
        if isinstance(index, slice):
            return Rounds(self._records[index])
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"Rounds({len(self)} records)"

    def to_csv(self, path: str | Path) -> Path:
        """Write a CSV file, one line for each round, and return its path."""
        path = Path(path)
        path.write_text("".join(csv_lines(columns(self), self)), encoding="utf-8")
        return path

    def to_pandas(self) -> DataFrame:
        """Make a data frame with the columns of the CSV, indexed by round.

        Raises:
            ImportError: pandas is not installed; fedsim itself does not need it.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: install it, or take to_csv()") from error
        names = columns(self)
        return DataFrame([row(record) for record in self], columns=names).set_index("round")
