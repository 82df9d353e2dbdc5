"""Which runs are short: one process ends them before Ray has started its workers."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.settings import Settings
from jobs.spec import load_spec, parse_spec
from jobs.spec.run_size import is_short, is_short_unread

SMALL: dict[str, Any] = {"algorithm": "fedavg", "rounds": 3, "model": "logistic"}


@pytest.mark.parametrize(
    ("change", "short"),
    [
        ({}, True),
        ({"resources": {"workers": 1, "cpus_per_worker": 0.5}}, True),
        ({"resources": {"workers": 2}}, False),
        ({"resources": {"cpus_per_worker": 2}}, False),
        ({"resources": {"gpus_per_worker": 0.5}}, False),
        ({"resources": {"server_gpus": 0.5}}, False),
        ({"rounds": 100_000}, False),
        ({"rounds": 100_000, "stop": {"round": 3}}, True),
        ({"local": {"steps": 100_000}}, False),
        ({"algorithm": "fedper", "clients": {"total": 1000}, "evaluation": {"personal": "last"}}, True),
        (
            {
                "algorithm": "fedper",
                "clients": {"total": 1400, "fraction": 0.001},
                "rounds": 50,
                "evaluation": {"personal": "always"},
            },
            False,
        ),
    ],
)
def test_a_run_is_short_by_its_steps_and_its_resources(
    change: dict[str, Any], short: bool, settings: Settings
) -> None:
    spec = parse_spec({**SMALL, **change})
    assert is_short(spec, settings) is short
    assert is_short_unread(spec, settings) is short


def test_the_demo_is_short(settings: Settings) -> None:
    assert is_short(load_spec("demo"), settings)


@pytest.mark.parametrize(
    ("change", "short"),
    [
        (
            {"data": {"dataset": "fashion_mnist", "limit": 500}, "clients": {"total": 100, "fraction": 0.02}},
            True,
        ),
        ({"data": {"dataset": "fashion_mnist"}, "local": {"epochs": 10}}, False),
        ({"data": {"dataset": {"name": "npz", "path": "mine.npz"}}}, False),
        ({"data": {"partition": {"kind": "file", "path": "mine.csv"}}}, False),
        ({"model": {"name": "mlp", "init": "weights.safetensors"}}, False),
        ({"model": {"name": "torchvision", "arch": "resnet18"}}, False),
    ],
)
def test_the_service_opens_no_data_to_tell(change: dict[str, Any], short: bool, tmp_path: Any) -> None:
    spec = parse_spec({**SMALL, **change})
    assert is_short_unread(spec, Settings(tmp_path)) is short
