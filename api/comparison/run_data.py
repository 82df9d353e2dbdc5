"""The data of each run: only scores on the same test examples are comparable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from posixpath import normpath
from typing import Any, NamedTuple

from api.comparison.compared_run import ComparedRun
from jobs.spec.sections.data_fields import TEST_SHARE

PREPARATION = ("augment", "normalise")
"""Parameters of a data set that change the inputs of a model, and not the examples."""

PERSONAL = "personal_"


class RunData(NamedTuple):
    """What has to be equal in two runs to compare a metric of them.

    Attributes:
        name: of the data set; "" if it is unknown.
        parameters: of the data set, without `PREPARATION`, as (name, text) in order.
        tests: the test examples of the metric if they are not the test set of the data set, such as `merged`.
    """

    name: str
    parameters: tuple[tuple[str, str], ...] = ()
    tests: str = ""


def name_data(runs: Sequence[ComparedRun], metric: str) -> list[str]:
    """Return a name of each run's data; two names are equal if the data are. "" if the data are unknown.

    A name is that of the data set. If several data have this name, it also has the parameters that differ:
    `synthetic classes=10`, `digits (tests: matched)`.
    """
    found = [_find_data(run, metric) for run in runs]
    alike: dict[str, set[RunData]] = {}
    for data in found:
        alike.setdefault(data.name, set()).add(data)
    return [_name(data, alike[data.name]) for data in found]


def _name(data: RunData, alike: set[RunData]) -> str:
    shared = set.intersection(*(set(each.parameters) for each in alike))
    own = [f"{name}={value}" for name, value in data.parameters if (name, value) not in shared]
    tests = f" (tests: {data.tests})" if data.tests and len({each.tests for each in alike}) > 1 else ""
    return " ".join([data.name, *own]) + tests


def _find_data(run: ComparedRun, metric: str) -> RunData:
    data = run.spec.get("data")
    if not run.dataset or not isinstance(data, Mapping):
        return RunData("")
    dataset = data["dataset"]
    parameters = dataset if isinstance(dataset, Mapping) else {}
    texts = sorted(
        (name, normpath(value) if name == "path" else _write(value))
        for name, value in parameters.items()
        if name not in ("name", *PREPARATION)
    )
    return RunData(run.dataset, tuple(texts), _find_tests(data.get("tests"), metric))


def _write(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2.0 is the same number
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _find_tests(tests: Any, metric: str) -> str:
    """Return the test examples of the metric: `merged` ones for all metrics, others for personal models."""
    kind, share, also = _read_tests(tests)
    # merged replaces the test set, and so the test examples of the global model.
    whole = "" if kind != "merged" else kind if share == TEST_SHARE else f"{kind} share={share}"
    if not metric.startswith(PERSONAL):
        return whole
    further = next((each for each in also if metric.startswith(f"{PERSONAL}{each}_")), None)
    return " of ".join(filter(None, [further, whole])) if further or whole else kind


def _read_tests(tests: Any) -> tuple[str, float, Sequence[str]]:
    """Read `data.tests` in any of its forms: its kind, the share of `merged`, and the further kinds."""
    first, *also = tests if isinstance(tests, list | tuple) and tests else [tests]
    section: Mapping[str, Any] = first if isinstance(first, Mapping) else {"kind": first or "global"}
    return section.get("kind", "global"), section.get("share", TEST_SHARE), section.get("also") or also
