"""The experiment and the population of a spec, made in this process."""

from __future__ import annotations

from collections.abc import Callable

from fedsim.base.progress import run_to_end
from fedsim.clients.population import Population
from fedsim.engine.experiment import Experiment
from fedsim.errors import SpecError
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.checks.data_checks import use_spec_paths
from jobs.spec.resolve import resolve_spec


def prepare_experiment(
    spec: JobSpec, settings: Settings, on_status: Callable[[str], None]
) -> tuple[Experiment, Population]:
    """Check a spec, load its data, partition it and build its models.

    Args:
        spec: of the right shape.
        settings: the data roots.
        on_status: receives the current step.

    Raises:
        SpecError, DataNotFound, DataError: as `resolve_spec`, and for faults that only the data shows.
    """
    on_status("checking the spec")
    experiment = resolve_spec(spec, settings, fetch=True)
    try:
        return experiment, run_to_end(experiment.prepare_population(), on_status)
    except SpecError as error:
        raise use_spec_paths(error) from None
