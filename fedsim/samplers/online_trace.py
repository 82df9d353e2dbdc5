"""The sampler `trace`: clients that are online in the intervals of a CSV file."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.base.parameters import make_spec_error
from fedsim.core import Context
from fedsim.data.places import OWN_FILE_HINT, DataPath, DataRoots
from fedsim.samplers.availability import MeanSeconds, OnlineClients

HEADER = ["client", "start", "end"]


@dataclass(frozen=True, kw_only=True)
class OnlineTrace(OnlineClients):
    """A uniform sample of the clients that are online, at the simulated time, in a CSV file.

    It needs `devices`. The header of the file is `client,start,end`. Each line is an interval of simulated
    seconds, in which a client is online: from `start` on, and no longer at `end`. A client may have several
    lines; without one it is never online.

    Attributes:
        path: the file, relative to a data root.
        repeat_seconds: the trace begins anew after this time; null: after its last `end`.
    """

    needs_clock: ClassVar[bool] = True
    path: DataPath
    repeat_seconds: MeanSeconds | None = None

    def prepare(self, places: DataRoots, num_clients: int) -> ReadTrace:
        """Read the file."""
        clients, starts, ends = read_trace_file(places, self.path, num_clients)
        period = self.repeat_seconds or float(ends.max())
        return ReadTrace(clients=clients, starts=starts, ends=ends, period=period)

    def find_online(self, ctx: Context) -> NDArray[np.bool_]:
        """Raise an error: the file is not read yet."""
        raise RuntimeError("call prepare() first")


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadTrace(OnlineClients):
    """The intervals of a trace file that has been read.

    Attributes:
        clients: the client of each interval, int64 `[intervals]`.
        starts, ends: in simulated seconds, float64 `[intervals]`.
        period: the trace begins anew after these seconds.
    """

    needs_clock: ClassVar[bool] = True
    clients: NDArray[np.int64]
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    period: float

    def find_online(self, ctx: Context) -> NDArray[np.bool_]:
        """Look up which clients are online at the start of the round, bool `[N]`."""
        moment, online = ctx.clock % self.period, np.zeros(ctx.num_clients, bool)
        online[self.clients[(self.starts <= moment) & (moment < self.ends)]] = True
        return online


def read_trace_file(
    places: DataRoots, path: str, num_clients: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Read the intervals of a file: clients, starts and ends, each `[intervals]`.

    Args:
        places: the data roots.
        path: relative to a data root.
        num_clients: N; clients have the numbers 0 to N - 1.

    Raises:
        SpecError: with path `path`, if the file does not have this form.
        DataNotFound: the file is in no data root.
    """
    place = places.resolve_path("trace", path, OWN_FILE_HINT)
    cells = array("d")
    try:
        with place.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            if header != HEADER:
                message = f"has the header {','.join(header)[:80]!r}"
                raise make_spec_error("path", path, message, f"give it the header {','.join(HEADER)}")
            for row in filter(None, rows):
                cells.extend(_read_interval(path, rows.line_num, row, num_clients))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise make_spec_error("path", path, f"cannot be read: {error}", "give a CSV file") from None
    if not cells:
        raise make_spec_error("path", path, "has no interval", "give it a line, such as 0,0,3600")
    found = np.frombuffer(cells).reshape(-1, len(HEADER))
    return found[:, 0].astype(np.int64), found[:, 1].copy(), found[:, 2].copy()


def _read_interval(path: str, line: int, row: Sequence[str], num_clients: int) -> tuple[float, float, float]:
    """Return the client, the start and the end of a line."""
    numbers = [_read_number(cell) for cell in row]
    if len(numbers) != len(HEADER) or not all(isfinite(number) for number in numbers):
        message = f"has {','.join(row)[:80]!r} in line {line}"
        raise make_spec_error("path", path, message, "give a client and two numbers of seconds")
    client, start, end = numbers
    if client not in range(num_clients):
        message = f"has the client {row[0].strip()[:40]} in line {line}, and the run {num_clients:,} clients"
        hint = f"number the clients from 0 to {num_clients - 1:,}, or set clients.total"
        raise make_spec_error("path", path, message, hint)
    if not 0 <= start < end:
        message = f"has an interval from {start:g} to {end:g} in line {line}"
        raise make_spec_error("path", path, message, "let it start at 0 or later, and end after its start")
    return client, start, end


def _read_number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return nan
