"""ACE-pFL end to end on images, texts and speech: its small presets, with fewer clients and rounds.

Ten clients of two classes each, the presets' nets, eight rounds (twelve of texts), seed 2002; the mean
accuracy of the clients' own models on test examples in their own class proportions. Measured: 0.60, 0.47 and
0.83, where a guess among all classes is right with 0.1, 0.05 and 0.1.
"""

from __future__ import annotations

import pytest

from fedsim.errors import DataNotFound
from jobs.resolve import resolve
from jobs.settings import Settings
from jobs.spec import load_spec
from tests.reference.runs import last_metrics

pytestmark = [pytest.mark.slow, pytest.mark.reference]

SMALLER = ("clients.total=10", "data.partition={kind: pathological, classes: 2}", "rounds=8")


@pytest.mark.parametrize(
    ("preset", "items", "least"),
    [
        ("ace-cifar10-small", ("data.limit=2500", "data.public.fraction=0.03"), 0.5),
        ("ace-reuters-small", ("rounds=12",), 0.35),
        ("ace-digits-small", (), 0.65),
    ],
)
def test_clients_learn(preset: str, items: tuple[str, ...], least: float) -> None:
    try:
        experiment = resolve(load_spec(preset, [*SMALLER, *items]), Settings.from_env())
        found = last_metrics(experiment)["personal_accuracy_mean"]
    except DataNotFound as missing:
        pytest.skip(str(missing))
    print(f"    {preset}: {found:.3f}")
    assert found > least
