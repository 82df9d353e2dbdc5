"""Errors of a run and of its preparation: data, resources, clients, workers, checkpoints."""

from __future__ import annotations

from typing import Any

from fedsim.errors.specs import FedsimError, FieldError


class DoesNotFit(FedsimError):
    """The cluster can never place the requested resources.

    Args:
        message: the requested and the available resources, in figures.
        hint: how to solve the problem.
        path: the field of the spec that requests too much.
        value: the value of the field.
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
    """The cluster has enough resources, but they did not become free in time."""


class DataError(FedsimError):
    """Data is missing, truncated, mislabelled or otherwise wrong; the message names the file."""

    code = "BAD_DATA"


class DataNotFound(DataError):
    """The files of a data set are in none of the places where it looks."""


class DataCodeFailed(DataError):
    """The code of a plug-in's data set or partition raised an error.

    Args:
        what: the plug-in, such as "the partition 'mine'".
        cause: the error as text (the original may not survive pickling).
        trace: the traceback as text, for the log.
    """

    def __init__(self, what: str, cause: str, trace: str = "") -> None:
        self.what, self.cause, self.trace = what, cause, trace
        super().__init__(f"{what} failed: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.cause, self.trace)


class ClientFailed(FedsimError):
    """The code of one client raised an error.

    Args:
        client: the client's number.
        stage: "train", "survey" or "personalize".
        cause: the error as text (the original may not survive pickling).
        trace: the traceback as text, for the log.
    """

    code = "CLIENT_FAILED"

    def __init__(self, client: int, stage: str, cause: str, trace: str = "") -> None:
        self.client, self.stage, self.cause, self.trace = client, stage, cause, trace
        super().__init__(f"client {client} failed in {stage}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.stage, self.cause, self.trace)


class CohortFailed(FedsimError):
    """Every client of a round raised an error: there are no updates to aggregate."""

    code = "CLIENT_FAILED"


class MethodFailed(FedsimError):
    """The code of an algorithm raised an error on the server.

    Args:
        algorithm: the name of the algorithm's class.
        stage: the hook: "init_server_state", "select_cohort", "broadcast", "aggregate", ...
        cause: the error as text (the original may not survive pickling).
        trace: the traceback as text, for the log.
    """

    code = "METHOD_FAILED"

    def __init__(self, algorithm: str, stage: str, cause: str, trace: str = "") -> None:
        self.algorithm, self.stage, self.cause, self.trace = algorithm, stage, cause, trace
        super().__init__(f"{algorithm} failed in {stage}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.algorithm, self.stage, self.cause, self.trace)


class OutOfMemory(FedsimError):
    """A client, a worker or the server ran out of memory; the message names it, the hint says what helps."""

    code = "OUT_OF_MEMORY"


class StackTooLarge(OutOfMemory):
    """A stack needs more memory than there is; the pool tries again with half the stack size."""


class PoolFailed(FedsimError):
    """The workers of a pool died and could not be replaced.

    A subclass says what was lost, and the run can continue from its checkpoint. If the class is `PoolFailed`
    itself, the nodes live.
    """

    code = "POOL_FAILED"


class NodeLost(PoolFailed):
    """The node of a worker died, with the worker and the client states in it.

    Args:
        node: the address and the id of the node.
        slot: the worker's number.
        cause: how fedsim noticed the loss.
    """

    code = "NODE_LOST"

    def __init__(self, node: str, slot: int, cause: str) -> None:
        self.node, self.slot, self.cause = node, slot, cause
        super().__init__(f"node {node} was lost, and with it worker {slot}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.node, self.slot, self.cause)


class ObjectLost(PoolFailed):
    """An object in Ray's memory, such as a client state, is gone; Ray does not say with which node."""

    code = "NODE_LOST"


class CoordinatorLost(PoolFailed):
    """The coordinator of a run died, alone or with its node; Ray does not say which."""

    code = "NODE_LOST"


class CheckpointError(FedsimError):
    """A checkpoint cannot be written, is damaged, or belongs to another run; the message names the file."""

    code = "STORAGE_FAILED"


class NotReproduced(FedsimError):
    """A repeated round, such as after a restart, gave another result than its record."""

    code = "NOT_REPRODUCED"


class RayUnavailable(FedsimError):
    """No Ray cluster answers, or the local one could not be started."""

    code = "RAY_UNAVAILABLE"


class JobRefused(RayUnavailable):
    """Ray answers but does not accept the job."""
