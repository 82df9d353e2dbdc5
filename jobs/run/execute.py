"""Run a spec from this process, as `fedsim run` does; the result stays in memory.

Ray is imported only for a run that needs it: its import and its start take seconds.
"""

from __future__ import annotations

from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.core.personal_scores import PersonalScores
from fedsim.engine.faults import NO_CHAOS, Chaos
from fedsim.errors import CheckpointError, FedsimError
from jobs.run.checkpoint_policy import make_checkpoint_policy
from jobs.run.listener import RunListener
from jobs.run.model_metadata import make_model_notes
from jobs.run.restarts import RunWithRestarts
from jobs.run.run_result import RunResult
from jobs.run.run_steps import Attempt
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.initial_weights import pin_initial_weights
from jobs.spec.resolve import resolve_spec
from jobs.spec.run_size import is_short
from jobs.store.records import RoundRecord, StateDigests


class ListLedger:
    """A ledger in a list, for a run without a store.

    Args:
        records: the list.
    """

    def __init__(self, records: list[RoundRecord]) -> None:
        self.records = records

    def count_rounds(self) -> int:
        """Return how many records there are."""
        return len(self.records)

    def read_digests(self, round: int) -> StateDigests | None:
        """Return the digests of a round; None for a round without a record."""
        return self.records[round - 1].digests() if round <= len(self.records) else None

    def read_rounds(self, since: int) -> list[RoundRecord]:
        """Return the records of all rounds after the round `since`."""
        return self.records[since:]

    def add(self, record: RoundRecord) -> None:
        """Append the next record."""
        self.records.append(record)


class _ResultListener(RunListener):
    """Complete a run's result at its end, and forward the progress to the caller's listener.

    It answers the questions itself: such a run does not wait for room, and `faults.max_restarts` decides
    about restarts.

    Args:
        spec: of the run; its `faults.max_restarts` limits the attempts.
        result: gets the personal scores, the chosen model and the notes.
        listener: of the caller.
    """

    def __init__(self, spec: JobSpec, result: RunResult, listener: RunListener) -> None:
        self._spec, self._result, self._listener = spec, result, listener
        self._losses = 0

    def on_status(self, text: str) -> None:
        self._listener.on_status(text)

    def on_attempt(self, attempt: Attempt) -> None:
        self._listener.on_attempt(attempt)

    def on_running(self) -> None:
        self._listener.on_running()

    def on_round(self, record: RoundRecord) -> None:
        self._listener.on_round(record)

    def on_personal_scores(self, scores: PersonalScores) -> None:
        self._result.personal = scores
        self._listener.on_personal_scores(scores)

    def on_end(self, attempt: Attempt) -> None:
        self._listener.on_end(attempt)
        self._result.chosen_model = attempt.get_chosen_model()
        metadata, round = attempt.get_dataset_metadata(), self._result.round
        self._result.notes = make_model_notes(self._spec, metadata, round)

    def may_restart(self, error: FedsimError) -> bool:
        self._losses += 1
        if self._losses > self._spec.faults.max_restarts:
            return False
        self._listener.on_status(f"starting again after a loss: {error}")
        return True


def execute(
    spec: JobSpec,
    settings: Settings,
    *,
    checkpoints: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stop_file: str | None = None,
    chaos: Chaos = NO_CHAOS,
    listener: RunListener | None = None,
    without_ray: bool = False,
) -> RunResult:
    """Run a spec, and wait for its end: in this process if the run is short, else on Ray.

    The digests are the same. A cluster that the settings name, and faults for a test, ask for Ray.

    Args:
        spec: the run.
        settings: where data and Ray are.
        checkpoints: the folder, or fsspec URL, for the run's checkpoints; None for no checkpoints.
        resume: whether to go on from the last checkpoint, if there is one.
        overwrite: whether to remove the checkpoints of a run that ended early.
        stop_file: a local file; once it exists, the run ends after the current round, with a checkpoint. It
            needs `checkpoints`.
        chaos: faults to inject for a test.
        listener: hears each status, attempt and round, rounds of a loaded checkpoint included.
        without_ray: run in this process however long it is.

    Returns:
        The record of every round, and the final model.

    Raises:
        SpecError, DataNotFound, DataError, DoesNotFit: before anything runs.
        CheckpointError: if checkpoints cannot be written, or the run cannot go on from the existing ones.
        FedsimError: if the run itself fails; the listener has the rounds before.
    """
    listener = listener or RunListener()
    listener.on_status("checking the spec")
    experiment = resolve_spec(spec, settings, fetch=True)
    spec = pin_initial_weights(spec, experiment.initial)
    result = RunResult(spec)
    run_listener = _ResultListener(spec, result, listener)
    policy = make_checkpoint_policy(spec, checkpoints, resume=resume, stop_file=stop_file)
    if policy is not None and not (resume or overwrite):
        _refuse_to_overwrite(policy.url)
    run = RunWithRestarts(experiment, spec, policy, ListLedger(result.records), run_listener, chaos=chaos)
    is_alone = settings.ray_address is None and chaos == NO_CHAOS and is_short(spec, settings)
    if without_ray or is_alone:
        result.model = run.run_in_this_process()
        return result
    from jobs.run.ray_connection import connect_to_ray

    address = settings.ray_address
    run_listener.on_status("starting Ray" if address is None else f"connecting to Ray at {address}")
    with connect_to_ray(settings):
        result.model = run.run_to_end()
        run_listener.on_status("stopping Ray")
    return result


def _refuse_to_overwrite(url: str) -> None:
    """Raise an error if a new run would remove the checkpoints of a run that ended early."""
    progress = Checkpoints(url).read_progress()
    if progress is not None and progress[0] < progress[1]:
        raise CheckpointError(
            f"{url} has the checkpoint of a run that ended early, after round {progress[0]} of {progress[1]}",
            "add --resume to go on with it, or name another folder",
        )
