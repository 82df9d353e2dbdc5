"""Running an experiment on Ray, from wherever one is: the command line, or the runner inside a Ray job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.coordinator import CheckpointPolicy
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.core.personal_scores import PersonalScores
from fedsim.engine.faults import NO_CHAOS, Chaos
from fedsim.engine.model_selection import ChosenModel
from fedsim.errors import CheckpointError, FedsimError
from jobs.run.checkpointing import make_checkpoint_policy
from jobs.run.final_model import FinalModel
from jobs.run.model_metadata import model_notes
from jobs.run.ray_connection import connect_to_ray
from jobs.run.run_attempts import RunAttempt, RunWithRestarts
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.resolve import resolve_spec
from jobs.store.records import RoundRecord, StateDigests, total_cost


def _ignore(_: Any) -> None:
    """The default listener."""


@dataclass
class RunResult:
    """The outcome of a run.

    Attributes:
        records: one per round.
        model: the global model at the end, as NumPy arrays by parameter name.
        personal: how the clients' own models did when they were last scored; None where they were not.
        chosen_model: the model that validation chose, with its round and name; None without validation.
        notes: what one needs to use the models, as `model_notes` has it.
    """

    records: list[RoundRecord] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    personal: PersonalScores | None = None
    chosen_model: ChosenModel | None = None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def final(self) -> dict[str, Any]:
        """The metrics of the last round."""
        return dict(self.records[-1].metrics) if self.records else {}

    @property
    def best(self) -> dict[str, Any]:
        """The round with the best global accuracy on the test set: a figure that flatters, so it is named."""
        return best_round(self.records)

    @property
    def chosen(self) -> dict[str, Any]:
        """`best_by_validation` and `best_on_test`: round, model and accuracies; see `FinalModel`."""
        final = FinalModel()
        for record in self.records:
            final.add(record)
        return final.document()

    @property
    def totals(self) -> dict[str, Any]:
        """Rounds, seconds, bytes and cost of the whole run."""
        return {
            "rounds": len(self.records),
            "seconds": round(sum(record.seconds.total for record in self.records), 3),
            "bytes": {
                "down": sum(record.bytes.down for record in self.records),
                "up": sum(record.bytes.up for record in self.records),
                "personal": sum(record.bytes.personal for record in self.records),
            },
            "cost": total_cost(self.records).model_dump(),
        }


def best_round(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """The round with the best global accuracy, {} if none was scored."""
    scored = [record for record in records if record.metrics.get("global_accuracy") is not None]
    if not scored:
        return {}
    best = max(scored, key=lambda record: float(record.metrics["global_accuracy"]))  # type: ignore[arg-type]
    return {"round": best.round, "global_accuracy": best.metrics["global_accuracy"]}


class ListLedger:
    """The ledger of a run that ends with this process: its records, in a list.

    Args:
        records: the list.
        on_round: called with each record.
    """

    def __init__(self, records: list[RoundRecord], on_round: Callable[[RoundRecord], None]) -> None:
        self.records, self._on_round = records, on_round

    def count_rounds(self) -> int:
        """How many rounds there are."""
        return len(self.records)

    def read_digests(self, round: int) -> StateDigests | None:
        """The digests of a round; None for one that is not there."""
        return self.records[round - 1].digests() if round <= len(self.records) else None

    def read_stack_sizes(self, since: int) -> dict[int, int]:
        """How many clients trained at once in each round after that one."""
        return {record.round: record.engine.width for record in self.records[since:]}

    def mark_running(self) -> None:
        """Nobody needs to be told."""

    def add(self, record: RoundRecord) -> None:
        """Take the next record."""
        self.records.append(record)
        self._on_round(record)


def execute(
    spec: JobSpec,
    settings: Settings,
    *,
    checkpoints: str | None = None,
    resume: bool = False,
    chaos: Chaos = NO_CHAOS,
    on_round: Callable[[RoundRecord], None] = _ignore,
    on_phase: Callable[[str], None] = _ignore,
) -> RunResult:
    """Run a spec here and now, and wait for its end.

    Args:
        spec: what to run.
        settings: where data and Ray are.
        checkpoints: the folder, or fsspec URL, for the run's checkpoints; None for none.
        resume: whether to go on from the last of them, if there is one.
        chaos: faults to be made on purpose.
        on_round: called with each round's record as it ends, those out of a checkpoint included.
        on_phase: called with what is being waited for, while the run is set up.

    Returns:
        Every round's record, and the final model.

    Raises:
        SpecError, DataNotFound, DataError, DoesNotFit: before anything runs.
        CheckpointError: if checkpoints cannot be written, or those there are cannot be gone on from.
        FedsimError: if the run itself fails; the rounds before were handed to `on_round`.
    """
    on_phase("checking the spec")
    experiment = resolve_spec(spec, settings)
    keeping = _prepare_checkpoints(spec, checkpoints, resume=resume)
    on_phase(
        "starting Ray" if settings.ray_address is None else f"connecting to Ray at {settings.ray_address}"
    )
    result = RunResult()

    def keep_personal_scores(scores: PersonalScores) -> None:
        result.personal = scores

    def keep_chosen_model(drive: RunAttempt) -> None:
        result.chosen_model = drive.get_chosen_model()
        result.notes = model_notes(spec, drive.get_dataset_metadata(), len(result.records))

    with connect_to_ray(settings):
        run = RunWithRestarts(
            experiment,
            spec,
            keeping,
            ListLedger(result.records, on_round),
            on_phase,
            _ignore,
            _make_restart_rule(spec.faults.max_restarts, on_phase),
            on_end=keep_chosen_model,
            on_personal=keep_personal_scores,
            chaos=chaos,
        )
        result.model = run.run_to_end()
    return result


def _make_restart_rule(most: int, on_phase: Callable[[str], None]) -> Callable[[FedsimError], bool]:
    """What is asked after each loss: whether to begin again, which is said, or there were too many."""
    losses = list[FedsimError]()

    def may_restart(error: FedsimError) -> bool:
        losses.append(error)
        if len(losses) > most:
            return False
        on_phase(f"beginning again after a loss: {error}")
        return True

    return may_restart


def _prepare_checkpoints(spec: JobSpec, checkpoints: str | None, *, resume: bool) -> CheckpointPolicy | None:
    """How the run is checkpointed; None for not at all."""
    keeping = make_checkpoint_policy(spec, checkpoints, resume=resume)
    if keeping is not None and not resume:
        _refuse_to_overwrite(keeping)
    return keeping


def _refuse_to_overwrite(keeping: CheckpointPolicy) -> None:
    """Refuse to begin anew where a run was cut off: its checkpoints would be lost."""
    progress = Checkpoints(keeping.url).read_progress()
    if progress is not None and progress[0] < progress[1]:
        raise CheckpointError(
            f"{keeping.url} has the checkpoint of a run that ended early, after round {progress[0]} of "
            f"{progress[1]}",
            "add --resume to go on with it, or name another folder",
        )
