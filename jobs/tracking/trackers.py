"""The trackers of a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple

from fedsim.base.extras import describe_install
from fedsim.errors import SettingsError
from jobs.store.records import RoundRecord
from jobs.tracking.background import BackgroundTracker
from jobs.tracking.tracked_run import EndState, TrackedRun

NO_FILES: Mapping[str, bytes] = MappingProxyType({})


class TrackerKind(NamedTuple):
    """A tracker that can be chosen.

    Attributes:
        package: that it needs; also the name of the extra.
        place: module and class.
    """

    package: str
    place: tuple[str, str]


TRACKERS: Mapping[str, TrackerKind] = MappingProxyType(
    {
        "tensorboard": TrackerKind("tensorboard", ("jobs.tracking.tensorboard", "TensorBoardTracker")),
        "mlflow": TrackerKind("mlflow", ("jobs.tracking.mlflow", "MlflowTracker")),
        "wandb": TrackerKind("wandb", ("jobs.tracking.wandb", "WandbTracker")),
    }
)


def check_trackers(names: Sequence[str], *, has_folder: bool = True) -> None:
    """Check that trackers can begin, before the run does.

    Args:
        names: of the trackers.
        has_folder: whether the run has a folder.

    Raises:
        SettingsError: a tracker is unknown or not installed, or lacks a folder or an API key.
    """
    for name in names:
        if name not in TRACKERS:
            raise SettingsError(f"{name!r} is no tracker", f"the trackers are {', '.join(TRACKERS)}")
        spec = find_spec(TRACKERS[name].package)
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise SettingsError(f"the tracker {name} is not installed", describe_install(name))
    if "tensorboard" in names and not has_folder:
        raise SettingsError(
            "TensorBoard needs a folder for its files", "name the folder of the run: --out DIR"
        )
    if "wandb" in names and not import_module("jobs.tracking.wandb").has_credentials():
        raise SettingsError("W&B has no API key", "`wandb login`, or WANDB_MODE=offline")


class Trackers:
    """The open trackers of a run; without names it does nothing.

    Args:
        names: of the trackers, checked by `check_trackers`.
        run: to track.
        warn: receives a sentence when a tracker fails; the run goes on.
        show_errors: see `BackgroundTracker`.
    """

    def __init__(
        self,
        names: Sequence[str],
        run: TrackedRun,
        warn: Callable[[str], None],
        *,
        show_errors: bool = True,
    ) -> None:
        self._open = [
            BackgroundTracker(name, _make_opener(name, run), warn, show_errors=show_errors) for name in names
        ]

    def log_round(self, record: RoundRecord) -> None:
        """Hand the record of a round to each tracker; return at once."""
        for each in self._open:
            each.log_round(record)

    def end(self, state: EndState, files: Mapping[str, bytes] = NO_FILES) -> None:
        """End the run in each tracker, with the files of its result; a second call does nothing."""
        ended, self._open = self._open, []
        for each in ended:
            each.end(state, files)


def _make_opener(name: str, run: TrackedRun) -> Callable[[], Any]:
    module, attribute = TRACKERS[name].place
    return lambda: getattr(import_module(module), attribute)(run)
