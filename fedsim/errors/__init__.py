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
    │   └── StackTooWide       so many clients at once need more than there is
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
    │   ├── BadPageToken
    │   └── StoreFull          the store's disk is full: nothing can be written down
    └── ServiceError           the SDK's view of a refusal: status, code, hint, errors
        └── Unreachable        nobody answers at that address

Each error carries a stable `code`; the REST layer maps codes to statuses and the CLI maps them to exit codes.
Errors cross process boundaries (Ray pickles them), so those with arguments of their own define `__reduce__`.
"""

from __future__ import annotations

from fedsim.errors.runs import (
    CheckpointError,
    ClientFailed,
    CohortFailed,
    CoordinatorLost,
    DataError,
    DataNotFound,
    DoesNotFit,
    JobRefused,
    MethodFailed,
    NoCapacityNow,
    NodeLost,
    NotReproduced,
    OutOfMemory,
    PoolFailed,
    RayUnavailable,
    StackTooLarge,
)
from fedsim.errors.service import (
    ArtifactNotFound,
    BadPageToken,
    Conflict,
    JobNotFound,
    ServiceError,
    StoreError,
    StoreFull,
    Unreachable,
)
from fedsim.errors.specs import FedsimError, FieldError, RequestError, SettingsError, SpecError

__all__ = [
    "ArtifactNotFound",
    "BadPageToken",
    "CheckpointError",
    "ClientFailed",
    "CohortFailed",
    "Conflict",
    "CoordinatorLost",
    "DataError",
    "DataNotFound",
    "DoesNotFit",
    "FedsimError",
    "FieldError",
    "JobNotFound",
    "JobRefused",
    "MethodFailed",
    "NoCapacityNow",
    "NodeLost",
    "NotReproduced",
    "OutOfMemory",
    "PoolFailed",
    "RayUnavailable",
    "RequestError",
    "ServiceError",
    "SettingsError",
    "SpecError",
    "StackTooLarge",
    "StoreError",
    "StoreFull",
    "Unreachable",
]
