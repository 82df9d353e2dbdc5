"""`compare`: runs side by side, of a service or in folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.reports.run_files import read_compared_runs
from fedsim.errors import SettingsError

if TYPE_CHECKING:
    from api.reports.notebook import ComparisonView
    from api.sdk.job_handle import JobHandle


def compare(
    *runs: str | Path | JobHandle,
    label: str | Sequence[str] | None = None,
    url: str | None = None,
    **options: Any,
) -> ComparisonView:
    """Compare runs: means over seeds, differences paired by seed with intervals, and costs to a target.

    Args:
        runs: jobs, ids of jobs, names of sweeps, folders written by `fedsim run --out`, and folders of
            `fedsim sweep --on pool`. Only jobs, and sweeps of a service, need a service.
        label: also all jobs with this label, or with all of these labels.
        url: of the service; by default as for `FedSimClient`.
        options: `metric`, `target`, `last`, `against` and `together`, as for `FedSimClient.compare`.

    Returns:
        The comparison; a notebook displays it as a table, and `plot()` draws it.

    Raises:
        JobNotFound, RequestError, SettingsError: as for `FedSimClient.compare`.
    """
    from api.comparison.compare import compare_runs
    from api.reports.notebook import ComparisonView
    from api.sdk.client import FedSimClient

    sources = [run if isinstance(run, str | Path) else run.id for run in runs]
    if not sources and label is None:
        raise SettingsError("there is nothing to compare", "give jobs, sweeps, folders or a label")
    paths = [Path(source).expanduser() for source in sources]
    if label is None and all(path.exists() for path in paths):
        found = [
            run
            for source, path in zip(sources, paths, strict=True)
            for run in read_compared_runs(str(source), path)
        ]
        return ComparisonView.from_comparison(compare_runs(found, **options))
    with FedSimClient(url) as client:
        return client.compare(sources, label=label, **options)
