"""InProcessAttempt: one attempt of a run in this process, without Ray and without workers.

The digests are those of a run on Ray. A run that is short (`jobs.spec.run_size`) ends here before Ray has
started its workers.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from threadpoolctl import threadpool_limits

from fedsim.base.error_attribution import MEMORY_HINT, is_out_of_memory
from fedsim.checkpoints.experiment_run import NO_SECONDS, CheckpointPolicy, ExperimentRun, Status
from fedsim.clients.population import Population
from fedsim.engine.evaluation.model_selection import ChosenModel
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import NO_CHAOS, Chaos, Faults
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.worker import one_thread
from fedsim.errors import CoordinatorLost, OutOfMemory, SpecError
from fedsim.stacking.stack_size import choose_stack_size
from jobs.run.run_steps import Step, read_progress
from jobs.spec import JobSpec
from jobs.spec.checks.data_checks import use_spec_paths


class InProcessRun(ExperimentRun):
    """A run whose clients train in this process.

    Args:
        experiment: the run.
        faults: the policy for a client that raises.
        checkpoint_policy: where and when to write checkpoints; None for no checkpoints.
        known_seconds: the seconds of each round that may run again, by round, for the stop rule.

    Attributes:
        device: "cpu" or "cuda", for the clients.
        server_device: "cpu" or "cuda", for the server.
    """

    device = server_device = "cpu"

    def __init__(
        self,
        experiment: Experiment,
        faults: Faults,
        checkpoint_policy: CheckpointPolicy | None = None,
        known_seconds: Mapping[int, float] = NO_SECONDS,
    ) -> None:
        super().__init__(experiment, checkpoint_policy, known_seconds)
        self.faults = faults

    def open_pool(self, population: Population) -> Generator[Status, None, SerialPool]:
        """Open a pool with the stack size that workers on such a device would have."""
        yield from ()
        algorithm = self.experiment.algorithm
        size = choose_stack_size(self.experiment.stack, population, self.device)
        if size == 1:
            return SerialPool(algorithm, population, self.device, self.faults)
        return StackedPool(algorithm, population, size, self.device, self.faults)


class InProcessAttempt:
    """One attempt of a run in this process: iterate over its steps.

    Args:
        experiment: the run.
        spec: its fault policy applies; its `resources` ask for one worker on the CPU.
        checkpoint_policy: where and when to write checkpoints; None for no checkpoints.
        known_seconds: the seconds of each round that may run again, by round; `stop.max_seconds` counts them.
        chaos: faults to inject into clients for a test; there are no workers to kill.
        shrink: nothing: there is one process.
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
        policy = Faults(
            client_error=spec.faults.client_error, max_retries=spec.faults.max_retries, chaos=chaos
        )
        self._run = InProcessRun(experiment, policy, checkpoint_policy, known_seconds)
        self._is_closed = threading.Event()

    def __iter__(self) -> Generator[Step, None, None]:
        """Yield a status for each step of the set-up and of long rounds, and one record per round.

        Raises:
            FedsimError: as the run raised it.
            SpecError: if the data does not fit the spec, with the paths of the spec.
            OutOfMemory: if memory ran out.
            CoordinatorLost: if another thread has closed the attempt.
        """
        try:
            # One thread, as in a worker and its libraries: with two, the last bits differ.
            with one_thread(), threadpool_limits(1), closing(self._run.run()) as events:
                for event in events:
                    if self._is_closed.is_set():
                        raise CoordinatorLost("the run was stopped")
                    yield from read_progress(event)
        except SpecError as error:
            raise use_spec_paths(error) from None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(f"the run ran out of memory: {error}", MEMORY_HINT) from error

    def get_global_model(self) -> dict[str, Any]:
        """Return the global model after the last finished round."""
        return self._run.get_global_model()

    def get_chosen_model(self) -> ChosenModel | None:
        """Return the model that validation chose, as NumPy arrays; None without a validation split."""
        return self._run.get_chosen_model()

    def get_partition(self) -> dict[str, Any]:
        """Return `indices` and `offsets` of the partition; {} if clients sample their examples on demand."""
        return self._run.get_partition()

    def get_dataset_metadata(self) -> dict[str, Any]:
        """Return the metadata that a user of the model needs; see `Dataset.to_metadata`."""
        return self._run.get_dataset_metadata()

    def close(self) -> None:
        """End the attempt after the present step."""
        self._is_closed.set()
