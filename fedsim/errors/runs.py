"""What goes wrong in a run, and before it: data, resources, clients, actors, checkpoints."""

from __future__ import annotations

from typing import Any

from fedsim.errors.specs import FedsimError, FieldError


class DoesNotFit(FedsimError):
    """The resources asked for can never be placed on this cluster.

    Args:
        message: the arithmetic.
        hint: the way out.
        path: the field of the spec that asks for too much.
        value: what it says.
    """

    code = "DOES_NOT_FIT"

    def __init__(
        self, message: str, hint: str = "", path: str = "resources.workers", value: Any = None
    ) -> None:
        super().__init__(message, hint)
        self.errors = [FieldError(path, value, message, hint)]

    def __reduce__(self) -> tuple[Any, ...]:
        [(path, value, _, _)] = self.errors
        return type(self), (self.message, self.hint, path, value)


class NoCapacityNow(DoesNotFit):
    """There is room for the resources asked for, but others held it for too long."""


class DataError(FedsimError):
    """Data that is truncated, mislabelled or otherwise not what it says it is; names the file."""

    code = "BAD_DATA"


class DataNotFound(DataError):
    """A data set whose files are in none of the places where it looks."""


class ClientFailed(FedsimError):
    """A client raised.

    Args:
        client: the client's number.
        stage: "train" or "evaluate".
        cause: the error, as text (the original may not survive pickling).
        trace: where it was raised, as text, for the log.
    """

    code = "CLIENT_FAILED"

    def __init__(self, client: int, stage: str, cause: str, trace: str = "") -> None:
        self.client, self.stage, self.cause, self.trace = client, stage, cause, trace
        super().__init__(f"client {client} failed in {stage}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.stage, self.cause, self.trace)


class CohortFailed(FedsimError):
    """Every client of a round raised, so that there is nothing to aggregate."""

    code = "CLIENT_FAILED"


class MethodFailed(FedsimError):
    """A method's own code raised on the server.

    Args:
        algorithm: the method's class.
        stage: the hook: "init", "cohort", "broadcast", "aggregate", ...
        cause: the error, as text (the original may not survive pickling).
        trace: where it was raised, as text, for the log.
    """

    code = "METHOD_FAILED"

    def __init__(self, algorithm: str, stage: str, cause: str, trace: str = "") -> None:
        self.algorithm, self.stage, self.cause, self.trace = algorithm, stage, cause, trace
        super().__init__(f"{algorithm} failed in {stage}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.algorithm, self.stage, self.cause, self.trace)


class OutOfMemory(FedsimError):
    """A client, an actor or the server ran out of memory; the message says which, the hint what helps."""

    code = "OUT_OF_MEMORY"


class StackTooLarge(OutOfMemory):
    """So many clients at once need more memory than there is; a pool tries half as many."""


class PoolFailed(FedsimError):
    """The actors of a pool are gone and could not be replaced, though their nodes live."""

    code = "POOL_FAILED"


class NodeLost(PoolFailed):
    """A node went, with the actor in it and the memories that clients kept there.

    Args:
        node: which, by address or id.
        slot: the actor's number.
        cause: how it was noticed.
    """

    code = "NODE_LOST"

    def __init__(self, node: str, slot: int, cause: str) -> None:
        self.node, self.slot, self.cause = node, slot, cause
        super().__init__(f"node {node} was lost, and with it client actor {slot}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.node, self.slot, self.cause)


class CoordinatorLost(PoolFailed):
    """The coordinator of a run died, or the node that it was on: the run can go on from its checkpoint."""

    code = "NODE_LOST"


class CheckpointError(FedsimError):
    """A checkpoint that cannot be written, or one that is damaged or of another run; names the file."""

    code = "STORAGE_FAILED"


class NotReproduced(FedsimError):
    """A round that ran again, as after a restart, came out differently than the record of it says."""

    code = "NOT_REPRODUCED"


class RayUnavailable(FedsimError):
    """No Ray cluster answers, or the local one could not be started."""

    code = "RAY_UNAVAILABLE"


class JobRefused(RayUnavailable):
    """Ray answers, and does not take this job."""
