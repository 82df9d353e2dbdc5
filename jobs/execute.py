"""Running an experiment on Ray, from wherever one is: the command line, or the runner inside a Ray job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.coordinator import Coordinator, Phase, Progress
from actors.deaths import DEATHS, cause_of, gave_up
from actors.resources import cluster_nodes, place
from fedsim.experiment import Experiment
from fedsim.faults import CALM, Chaos, Faults
from jobs.records import RoundRecord
from jobs.resolve import resolve
from jobs.settings import Settings
from jobs.spec import JobSpec


def _nothing(_: Any) -> None:
    """The default listener."""


@dataclass
class RunResult:
    """The outcome of a run.

    Attributes:
        records: one per round.
        model: the global model at the end, as NumPy arrays by parameter name.
    """

    records: list[RoundRecord] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def final(self) -> dict[str, Any]:
        """The metrics of the last round."""
        return dict(self.records[-1].metrics) if self.records else {}

    @property
    def best(self) -> dict[str, Any]:
        """The round with the best global accuracy on the test set: a figure that flatters, so it is named."""
        return best_round(self.records)

    @property
    def totals(self) -> dict[str, Any]:
        """Rounds, seconds and bytes of the whole run."""
        return {
            "rounds": len(self.records),
            "seconds": round(sum(record.seconds.total for record in self.records), 3),
            "bytes": {
                "down": sum(record.bytes.down for record in self.records),
                "up": sum(record.bytes.up for record in self.records),
            },
        }


def best_round(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """The round with the best global accuracy, {} if none was scored."""
    scored = [record for record in records if record.metrics.get("global_accuracy") is not None]
    if not scored:
        return {}
    best = max(scored, key=lambda record: float(record.metrics["global_accuracy"]))  # type: ignore[arg-type]
    return {"round": best.round, "global_accuracy": best.metrics["global_accuracy"]}


class Drive:
    """A coordinator at work: iterate over what it says, and close it whatever happened.

    Args:
        experiment: what to run.
        spec: whose resources and fault policy apply.
        chaos: faults to be made on purpose; no part of the experiment, and no result depends on a dead actor.

    Raises:
        DoesNotFit: if the cluster, empty, could not hold the workers.
    """

    def __init__(self, experiment: Experiment, spec: JobSpec, chaos: Chaos = CALM) -> None:
        asked = spec.resources
        nodes = cluster_nodes(ray.nodes())
        placement = place(
            asked.workers, asked.cpus_per_worker, asked.gpus_per_worker, nodes, most=experiment.cohort_size
        )
        # Beside this process, on the head, where the data sets are; client actors get theirs from Ray.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options = Coordinator.options(scheduling_strategy=here)
        self.coordinator: Any = options.remote(experiment, placement, _policy(spec, chaos))

    def __iter__(self) -> Iterator[Progress]:
        """Phases while it is set up, then one result per round.

        Raises:
            FedsimError: as the coordinator raised it.
            PoolFailed: if the coordinator died.
            OutOfMemory: if memory was why.
        """
        stream = self.coordinator.run.options(num_returns="streaming").remote()
        try:
            for reference in stream:
                yield ray.get(reference)
        except DEATHS as error:
            raise gave_up("the coordinator died", 1, error) from error
        except RayTaskError as error:
            raise cause_of(error) from None

    def model(self) -> dict[str, Any]:
        """The global model after the last finished round."""
        found: dict[str, Any] = ray.get(self.coordinator.model.remote())
        return found

    def close(self) -> None:
        """End the coordinator, and with it the client actors."""
        with suppress(Exception):
            ray.kill(self.coordinator)


def _policy(spec: JobSpec, chaos: Chaos) -> Faults:
    return Faults(client_error=spec.faults.client_error, max_retries=spec.faults.max_retries, chaos=chaos)


@contextmanager
def connected(settings: Settings) -> Iterator[None]:
    """A connection to the cluster that the settings name, or to a Ray of this process's own.

    A Ray that this process started ends with the block.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    mine = not ray.is_initialized()
    if mine:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if settings.ray_address is None:
            options |= {"include_dashboard": False, "num_cpus": settings.ray_num_cpus or os.cpu_count()}
            if settings.ray_num_gpus is not None:
                options["num_gpus"] = settings.ray_num_gpus
        ray.init(address=settings.ray_address or "local", **options)
    try:
        yield
    finally:
        if mine:
            ray.shutdown()


def execute(
    spec: JobSpec,
    settings: Settings,
    *,
    chaos: Chaos = CALM,
    on_round: Callable[[RoundRecord], None] = _nothing,
    on_phase: Callable[[str], None] = _nothing,
) -> RunResult:
    """Run a spec here and now, and wait for its end.

    Args:
        spec: what to run.
        settings: where data and Ray are.
        chaos: faults to be made on purpose.
        on_round: called with each round's record as it ends.
        on_phase: called with what is being waited for, while the run is set up.

    Returns:
        Every round's record, and the final model.

    Raises:
        SpecError, DataNotFound, DataError, DoesNotFit: before anything runs.
        FedsimError: if the run itself fails; the rounds before were handed to `on_round`.
    """
    on_phase("checking the spec")
    experiment = resolve(spec, settings)
    on_phase(
        "starting Ray" if settings.ray_address is None else f"connecting to Ray at {settings.ray_address}"
    )
    result = RunResult()
    with connected(settings):
        drive = Drive(experiment, spec, chaos)
        try:
            for step in drive:
                if isinstance(step, Phase):
                    on_phase(step.text)
                else:
                    result.records.append(RoundRecord.model_validate(step.record()))
                    on_round(result.records[-1])
            result.model = drive.model()
        finally:
            drive.close()
    return result
