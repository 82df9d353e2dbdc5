"""RunAttempt: one attempt of a run on Ray, with a coordinator of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import get_placement_group, remove_placement_group

from actors.actor_errors import (
    ACTOR_DEATH_ERRORS,
    LOST_OBJECT_ERRORS,
    first_line,
    has_lost_raylet,
    make_death_error,
    ran_out_of_memory,
    unwrap_task_error,
)
from actors.coordinator import Coordinator
from actors.resources import parse_ray_nodes
from actors.server_placement import ServerPlacement
from fedsim.checkpoints.experiment_run import NO_SECONDS, CheckpointPolicy
from fedsim.engine.evaluation.model_selection import ChosenModel
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import NO_CHAOS, Chaos, Faults
from fedsim.errors import CoordinatorLost, FedsimError
from jobs.run.placement import choose_placement
from jobs.run.run_steps import Step, read_progress
from jobs.spec import JobSpec
from jobs.spec.checks.data_checks import use_spec_paths

MAX_RESULTS_AHEAD = 16
"""Results that a coordinator may compute ahead of their reader; they wait in memory."""


class RunAttempt:
    """One attempt of a run on Ray, with its own coordinator: iterate over its steps, and always close it.

    Args:
        experiment: the run.
        spec: its resources and its fault policy apply.
        checkpoint_policy: where and when to write checkpoints; None for no checkpoints.
        known_seconds: the seconds of each round that may run again, by round; `stop.max_seconds` counts them.
        chaos: faults to inject for a test; they change no result.
        shrink: take fewer workers than the spec asks for if the cluster has lost nodes.

    Raises:
        DoesNotFit: if the empty cluster cannot hold the workers.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: JobSpec,
        checkpoint_policy: CheckpointPolicy | None = None,
        *,
        known_seconds: Mapping[int, float] = NO_SECONDS,
        chaos: Chaos = NO_CHAOS,
        shrink: bool = False,
    ) -> None:
        placement = choose_placement(experiment, spec, parse_ray_nodes(ray.nodes()), shrink=shrink)
        self._server_placement = ServerPlacement(placement.server_gpus)
        server = Coordinator.options(**self._server_placement.make_actor_options())
        self._placement_group_name = f"fedsim-{secrets.token_hex(8)}"
        policy = Faults(
            client_error=spec.faults.client_error, max_retries=spec.faults.max_retries, chaos=chaos
        )
        self.coordinator: Any = server.remote(
            experiment, placement, policy, checkpoint_policy, self._placement_group_name, known_seconds
        )

    def __iter__(self) -> Iterator[Step]:
        """Yield a status for each step of the set-up and of long rounds, and one record per round.

        Raises:
            FedsimError: as the coordinator raised it.
            SpecError: if the data does not fit the spec, with the paths of the spec.
            NoCapacityNow: if other work holds the resources.
            NodeLost, ObjectLost: if the coordinator lost a worker's node, or an object.
            CoordinatorLost: if the coordinator died.
            OutOfMemory: if the coordinator died because memory ran out.
        """
        self._server_placement.wait_for_gpu()
        options = {"num_returns": "streaming", "_generator_backpressure_num_objects": MAX_RESULTS_AHEAD}
        stream = self.coordinator.run.options(**options).remote()
        try:
            for reference in stream:
                yield from read_progress(ray.get(reference))
        except (*ACTOR_DEATH_ERRORS, *LOST_OBJECT_ERRORS) as error:
            raise _make_loss_error(error) from error
        except RayTaskError as error:
            raise translate_coordinator_error(unwrap_task_error(error, "the coordinator")) from None
        except OSError as error:
            raise translate_coordinator_error(error) from None

    def get_global_model(self) -> dict[str, Any]:
        """Return the global model after the last finished round."""
        result: dict[str, Any] = self._call_coordinator(self.coordinator.get_global_model)
        return result

    def get_chosen_model(self) -> ChosenModel | None:
        """Return the model that validation chose, as NumPy arrays; None without a validation split."""
        result: ChosenModel | None = self._call_coordinator(self.coordinator.get_chosen_model)
        return result

    def get_partition(self) -> dict[str, Any]:
        """Return `indices` and `offsets` of the partition; {} if clients sample their examples on demand."""
        result: dict[str, Any] = self._call_coordinator(self.coordinator.get_partition)
        return result

    def get_dataset_metadata(self) -> dict[str, Any]:
        """Return the metadata that a user of the model needs; see `Dataset.to_metadata`."""
        result: dict[str, Any] = self._call_coordinator(self.coordinator.get_dataset_metadata)
        return result

    def _call_coordinator(self, method: Any) -> Any:
        try:
            return ray.get(method.remote())
        except (*ACTOR_DEATH_ERRORS, *LOST_OBJECT_ERRORS) as error:
            raise _make_loss_error(error) from error
        except OSError as error:
            raise translate_coordinator_error(error) from None

    def close(self) -> None:
        """End the coordinator and its workers."""
        with suppress(Exception):
            ray.kill(self.coordinator)
        with suppress(Exception):
            self._server_placement.close()
        # A killed coordinator cannot give the resources of its actors back.
        with suppress(Exception):
            remove_placement_group(get_placement_group(self._placement_group_name))


def translate_coordinator_error(error: Exception) -> Exception:
    """Return the error of a run for an error in its coordinator, or in a call to it."""
    is_loss = isinstance(error, (*ACTOR_DEATH_ERRORS, *LOST_OBJECT_ERRORS)) or has_lost_raylet(error)
    return _make_loss_error(error) if is_loss else use_spec_paths(error)


def _make_loss_error(error: Exception) -> FedsimError:
    """Make the error for a dead coordinator, or for an object that the coordinator lost.

    After `OutOfMemory` the run ends, because another coordinator would need as much. After `CoordinatorLost`
    the job may start another coordinator.
    """
    if ran_out_of_memory(error):
        return make_death_error("the coordinator died", 1, error)
    cause = error.cause if isinstance(error, RayTaskError) else error
    return CoordinatorLost(f"the coordinator, or an object that it needs, was lost: {first_line(cause)}")
