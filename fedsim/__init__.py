"""fedsim: federated-learning simulations, as a library and as a service.

**Use the service.** `FedSimClient` submits a spec and watches it live, `AsyncFedSimClient` does the same on
asyncio; `JobSpec` is the spec as a typed value::

    from fedsim import FedSimClient

    job = FedSimClient().submit("demo", set={"rounds": 5})
    for record in job.watch():
        print(record.round, record.metrics.get("global_accuracy"))

**Use the science.** The rest of this package knows no service: plain PyTorch and NumPy.

- `fedsim.engine.simulation.simulate` is the round loop; `fedsim.core` holds the types that go round in it.
- `fedsim.algorithms` has one file per paper, `fedsim.models` one per family, `fedsim.data` the data sets and
  partitions.
- `fedsim.engine.pools` says where clients train: one after the other here; `actors` adds Ray.
- `fedsim.errors` is the one tree of everything that can go wrong.

`import fedsim` itself loads none of them, so that the command line and the SDK start at once.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from fedsim.base.version import CLIENT_DISTRIBUTION, DISTRIBUTION, find_version

if TYPE_CHECKING:
    from api.sdk.async_client import AsyncFedSimClient
    from api.sdk.client import FedSimClient
    from api.sdk.run_comparison import compare
    from fedsim.base import rng, tree
    from fedsim.core import Algorithm
    from fedsim.engine.simulation import simulate
    from fedsim.models.net import Net
    from jobs.spec import JobSpec
    from jobs.tune.search import tune

__all__ = [
    "Algorithm",
    "AsyncFedSimClient",
    "FedSimClient",
    "JobSpec",
    "Net",
    "__version__",
    "compare",
    "rng",
    "simulate",
    "tree",
    "tune",
]

_PLACES = {
    "Algorithm": "fedsim.core",
    "AsyncFedSimClient": "api.sdk.async_client",
    "FedSimClient": "api.sdk.client",
    "JobSpec": "jobs.spec",
    "Net": "fedsim.models.net",
    "compare": "api.sdk.run_comparison",
    "rng": "fedsim.base.rng",
    "simulate": "fedsim.engine.simulation",
    "tree": "fedsim.base.tree",
    "tune": "jobs.tune.search",
}
"""The module of each public name; `rng` and `tree` are modules themselves."""


def __getattr__(name: str) -> Any:
    try:
        return _public(name)
    except ImportError as error:
        if (other := _find_shadowing_package()) is None:
            raise
        package, place = other
        raise ImportError(
            f"{place} stands in front of fedsim's own package {package!r}: Python looks in the folder of the "
            "script, or in the working folder, before it looks where fedsim is installed. Begin in another "
            "folder, or have Python leave that one out: python -P, or PYTHONSAFEPATH=1",
            name=package,
            path=place,
        ) from error


def _public(name: str) -> Any:
    # The public names cost time to import, and some live above this package: they are loaded when asked for.
    if name == "__version__":
        return find_version()
    if name not in _PLACES:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    module = import_module(_PLACES[name])
    if _PLACES[name].endswith(f".{name}"):
        return module
    if not hasattr(module, name):
        raise ImportError(f"cannot import name {name!r} from {module.__name__!r} ({module.__file__})")
    return getattr(module, name)


def _find_shadowing_package() -> tuple[str, str] | None:
    """Which of the packages beside this one is another's here, and where it lies; None where all are ours."""
    from importlib.util import find_spec
    from pathlib import Path

    here = Path(__file__).resolve().parents[1]
    for package in ("api", "jobs", "actors"):
        found = find_spec(package)
        # Without an origin it is a folder that is no package, and hides nothing.
        if found is not None and found.origin is not None:
            place = Path(found.origin).resolve()
            if place != here / package / "__init__.py":
                return package, str(place)
    return None


def _refuse_namesake() -> None:
    """Raise an error if the other package is installed too: each overwrites files of the other."""
    try:
        other = metadata.distribution("fedsim")
    except metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"another package called fedsim ({other.version}) is installed beside {DISTRIBUTION}, and both have "
        f"the folder fedsim; run: pip uninstall fedsim {DISTRIBUTION} {CLIENT_DISTRIBUTION}, then install "
        f"{DISTRIBUTION} or {CLIENT_DISTRIBUTION} again"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_refuse_namesake()
