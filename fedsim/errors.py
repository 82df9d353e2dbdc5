"""One tree for everything that can go wrong.

::

    FedsimError
    ├── SettingsError          an environment variable or option that is not what it should be
    ├── SpecError              a spec is wrong: every fault at once, each with path, value and hint
    │   └── RequestError       what comes with a spec, or asks for jobs, is wrong: labels, keys, filters
    ├── DoesNotFit             the resources asked for can never be placed; the message is the arithmetic
    │   └── NoRoomNow          there is room for them, but none came free in time
    ├── DataError              data that is missing, truncated or mislabelled; names the file
    │   └── DataNotFound       nothing where the data set looks; says how to get it
    ├── ClientFailed           one client raised while training or being evaluated
    ├── CohortFailed           every client of a round raised
    ├── MethodFailed           a method's code on the server raised
    ├── OutOfMemory            a client, an actor or the server ran out of memory
    ├── PoolFailed             the actors of a pool are gone and could not be replaced
    │   ├── NodeLost           a node is gone, and with it an actor and what clients kept there
    │   └── CoordinatorLost    the coordinator of a run is gone, and with it all its actors
    ├── CheckpointError        a checkpoint that cannot be written, or one that cannot be used; names the file
    ├── NotReproduced          a round that ran again came out differently
    ├── RayUnavailable         no Ray cluster answers, or the local one could not be started
    │   └── JobRefused         Ray answers, and does not take this job
    ├── StoreError             the job store refuses
    │   ├── JobNotFound
    │   ├── ArtifactNotFound   a job has no such file, or not yet
    │   ├── Conflict           a transition, a delete or an idempotency key that the present state forbids
    │   └── BadPageToken
    └── ServiceError           the SDK's view of a refusal: status, code, hint, errors
        └── Unreachable        nobody answers at that address

Each error carries a stable `code`; the REST layer maps codes to statuses and the CLI maps them to exit codes.
Errors cross process boundaries (Ray pickles them), so those with arguments of their own define `__reduce__`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class FedsimError(Exception):
    """Anything that fedsim raises on purpose.

    Attributes:
        code: stable machine-readable name, in capitals.
        hint: what to do about it; may be empty.
        errors: the fields of a spec that are to blame, where it is about a spec.
    """

    code = "INTERNAL"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.errors: list[FieldError] = []

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.hint)


class SettingsError(FedsimError):
    """An environment variable or a command-line option that is not what it should be."""

    code = "BAD_SETTINGS"


class FieldError(NamedTuple):
    """One fault of a spec: where (`clients.fraction`), what was there, why it is wrong and the way out."""

    path: str
    value: Any
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: {self.message} (got {self.value!r})"
        return f"{where}; {self.hint}" if self.hint else where


class SpecError(FedsimError):
    """A spec with one or more faults, all of them reported together."""

    code = "BAD_SPEC"
    subject = "spec"

    def __init__(self, errors: Iterable[FieldError]) -> None:
        faults = [FieldError(*e) for e in errors]
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"the {self.subject} has {len(faults)} error{'s' * (len(faults) != 1)}:\n{lines}")
        self.errors = faults

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors,)


class RequestError(SpecError):
    """What comes with a spec, or asks for jobs, has faults: a label, an idempotency key, a filter."""

    code = "BAD_REQUEST"
    subject = "request"


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


class NoRoomNow(DoesNotFit):
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


class PoolFailed(FedsimError):
    """The actors of a pool are gone and could not be replaced."""

    code = "NODE_LOST"


class NodeLost(PoolFailed):
    """A node went, with the actor in it and the memories that clients kept there.

    Args:
        node: which, by address or id.
        slot: the actor's number.
        cause: how it was noticed.
    """

    def __init__(self, node: str, slot: int, cause: str) -> None:
        self.node, self.slot, self.cause = node, slot, cause
        super().__init__(f"node {node} was lost, and with it client actor {slot}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.node, self.slot, self.cause)


class CoordinatorLost(PoolFailed):
    """The coordinator of a run died, or the node that it was on: the run can go on from its checkpoint."""


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


class StoreError(FedsimError):
    """The job store refuses a request."""

    code = "CONFLICT"


class JobNotFound(StoreError):
    """No job has this id."""

    code = "JOB_NOT_FOUND"


class ArtifactNotFound(StoreError):
    """A job has no file of this name, or does not have it yet."""

    code = "ARTIFACT_NOT_FOUND"


class Conflict(StoreError):
    """The job's present state, or an earlier request, forbids this one."""


class BadPageToken(StoreError):
    """A page token that this store did not issue."""

    code = "BAD_PAGE_TOKEN"


class ServiceError(FedsimError):
    """A refusal by the service, as the SDK sees it.

    Attributes:
        status: the HTTP status, 0 where there was no answer.
        errors: the faults of a spec, where the refusal is about one.
    """

    code = "SERVICE_ERROR"

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = 0,
        code: str = "SERVICE_ERROR",
        errors: Iterable[FieldError] = (),
    ) -> None:
        super().__init__(message, hint)
        self.status, self.code, self.errors = status, code, [FieldError(*e) for e in errors]

    def __reduce__(self) -> tuple[Any, ...]:
        return _service_error, (type(self), self.message, self.hint, self.status, self.code, self.errors)


class Unreachable(ServiceError):
    """Nobody answers at that address."""


def _service_error(
    kind: type[ServiceError], message: str, hint: str, status: int, code: str, errors: list[FieldError]
) -> ServiceError:
    return kind(message, hint, status=status, code=code, errors=errors)
