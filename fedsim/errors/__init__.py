"""All errors that fedsim raises on purpose, in one class tree.

::

    FedsimError
    ├── SettingsError          an environment variable or an option has a wrong value
    ├── SpecError              a spec has faults: all at once, each with path, value and hint
    │   └── RequestError       a request has faults, such as in its labels, idempotency key or filters
    ├── DoesNotFit             the cluster can never place the requested resources; the message says why
    │   └── NoCapacityNow      the cluster has enough resources, but they did not become free in time
    ├── DataError              data is missing, truncated or mislabelled; the message names the file
    │   ├── DataNotFound       no files at the places where the data set looks; the hint says how to get them
    │   └── DataCodeFailed     the code of a plug-in's data set or partition raised
    ├── ClientFailed           one client raised during training or evaluation
    ├── CohortFailed           every client of a round raised
    ├── MethodFailed           the server code of an algorithm raised
    ├── OutOfMemory            a client, a worker or the server ran out of memory
    │   └── StackTooLarge      a stack needs more memory than there is
    ├── PoolFailed             the workers of a pool died and could not be replaced
    │   ├── NodeLost           a node died, with its worker and the client states in it
    │   ├── ObjectLost         an object in Ray's memory, such as a client state, is gone
    │   └── CoordinatorLost    the coordinator of a run died, with all its workers
    ├── CheckpointError        a checkpoint cannot be written or used; the message names the file
    ├── NotReproduced          a repeated round gave another result than before
    ├── RayUnavailable         no Ray cluster answers, or the local one could not be started
    │   └── JobRefused         Ray answers but does not accept the job
    ├── StoreError             the job store refuses a request
    │   ├── JobNotFound        no job has this id
    │   ├── ArtifactNotFound   the job has no such file, or not yet
    │   ├── Conflict           the job's state or an earlier request forbids this request
    │   ├── BadPageToken       the store did not issue this page token
    │   └── StoreUnusable      the store's disk is full, or its file is damaged
    └── ServiceError           the service refused a request of the SDK: status, code, hint, errors
        └── Unreachable        nobody answers at the address

Each error has a stable `code`. The REST layer maps codes to HTTP statuses; the CLI maps them to exit codes.
Ray pickles errors to send them between processes: a class with its own arguments defines `__reduce__`.
"""

from __future__ import annotations

from fedsim.errors.runs import (
    CheckpointError,
    ClientFailed,
    CohortFailed,
    CoordinatorLost,
    DataCodeFailed,
    DataError,
    DataNotFound,
    DoesNotFit,
    JobRefused,
    MethodFailed,
    NoCapacityNow,
    NodeLost,
    NotReproduced,
    ObjectLost,
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
    StoreUnusable,
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
    "DataCodeFailed",
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
    "ObjectLost",
    "OutOfMemory",
    "PoolFailed",
    "RayUnavailable",
    "RequestError",
    "ServiceError",
    "SettingsError",
    "SpecError",
    "StackTooLarge",
    "StoreError",
    "StoreUnusable",
    "Unreachable",
]
