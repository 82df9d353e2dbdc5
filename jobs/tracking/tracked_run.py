"""What a tracker learns of a run: its id, its parameters, and the figures of each round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from jobs.spec.job_spec import JobSpec
from jobs.store.records import RoundRecord

EndState: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]

MAX_PARAMETER = 500
"""The most characters of a parameter: MLflow takes no longer ones, and a model's source is no parameter."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, as trackers see it.

    Attributes:
        id: stays the same if the run is resumed.
        name: of the spec.
        parameters: the spec, flat: {"local.lr": 0.1}.
        folder: for files of trackers that write files; None without a folder.
    """

    id: str
    name: str
    parameters: Mapping[str, Any]
    folder: Path | None

    @classmethod
    def from_spec(cls, id: str, spec: JobSpec, folder: Path | None) -> TrackedRun:
        """Return the run of a spec."""
        return cls(id, spec.name, dict(_flatten(spec.model_dump(mode="json"))), folder)


class Tracker(Protocol):
    """An open run of a tracker. Every method may raise anything, and may be called again after it raised."""

    def log_round(self, round: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a round; a round that is there already is not written again."""

    def end(self, state: EndState, files: Mapping[str, bytes]) -> None:
        """Write files by name, and end the run."""


def list_figures(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round by name: metrics, the algorithm's own, traffic, cost and system."""
    seconds = {name: value for name, value in record.seconds.model_dump().items() if value}
    found: dict[str, Any] = {
        **record.metrics,
        **{f"method/{name}": value for name, value in record.method.items()},
        **{f"seconds/{name}": value for name, value in seconds.items()},
        "bytes/down": record.bytes.down,
        "bytes/up": record.bytes.up,
        "clients/cohort": record.cohort,
        "clients/failed": len(record.failed),
        "system/workers": record.engine.actors,
        "system/restarts": record.engine.restarts,
        "system/stack_size": record.engine.width,
    }
    if record.cost is not None:
        found |= {"cost/updates": record.cost.updates, "cost/flops": record.cost.flops}
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a spec by path; a list is a leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, int | float | bool | None.__class__):
        yield path, value
    else:
        yield path, str(value)[:MAX_PARAMETER]
