"""`Rounds`: the records of a job's rounds, as a sequence that writes tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from api.sdk import calls
from api.sdk.round_table import flatten_record, format_csv, list_columns
from api.sdk.transport.connection import Connection
from jobs.store.records import RoundRecord

if TYPE_CHECKING:
    from pandas import DataFrame

    from api.reports.notebook import Picture


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

    def _repr_html_(self) -> str:
        from api.reports.notebook import render_rounds

        return render_rounds(self)

    def plot(self, name: str | None = None) -> Picture:
        """Draw a picture of the rounds.

        Args:
            name: such as "accuracy", "loss", "accuracy-by-traffic" or "seconds"; by default the main metric
                by round.

        Returns:
            A picture that a notebook displays; `picture.save("curve.pdf")` writes a file.

        Raises:
            SettingsError: there is no such picture; the error has the names.
        """
        from api.reports.notebook import plot_rounds

        return plot_rounds(self, name)

    def to_csv(self, path: str | Path) -> Path:
        """Write a CSV file with one line for each round.

        Args:
            path: of the file.

        Returns:
            The path.
        """
        path = Path(path)
        path.write_text("".join(format_csv(list_columns(self), self)), encoding="utf-8")
        return path

    def to_pandas(self) -> DataFrame:
        """Make a data frame with the columns of the CSV file, indexed by round.

        Returns:
            The `pandas.DataFrame`.

        Raises:
            ImportError: pandas is not installed; fedsim does not need it otherwise.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: install it, or take to_csv()") from error
        columns = list_columns(self)
        return DataFrame([flatten_record(record) for record in self], columns=columns).set_index("round")


async def read_rounds(connection: Connection, job_id: str, after: int = 0) -> Rounds:
    """Read the records of all rounds above `after`, page by page."""
    records: list[RoundRecord] = []
    position: int | None = after
    while position is not None:
        page, position = await connection.send(calls.rounds(job_id, position))
        records += page
    return Rounds(records)
