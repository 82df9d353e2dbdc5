"""What is recorded: a few rounds of every method, of both curricula and of one preset of each paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.algorithms import ALGORITHMS
from tests.fedsim.methods import FREEZING, QUICK

SMALL = {
    "seed": 11,
    "rounds": 3,
    "clients": {"total": 8, "fraction": 0.5},
    "data": {
        "dataset": "digits",
        "limit": 300,
        "partition": {"kind": "dirichlet", "beta": 0.5, "min_size": 4},
        "tests": "matched",
    },
    "model": {"name": "mlp", "hidden": 8},
    "local": {"epochs": 1, "batch_size": 8, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.001},
}
"""Eight clients of very different data, four of them in every round."""

PUBLIC = {"ace_pfl", "fedad", "feddf", "fedkd", "kt_pfl"}
"""The methods that exchange predictions on a public set."""

DATA_CURRICULUM = {"data": {"score": "global_loss", "pacing": "linear", "a": 0.8, "b": 0.4}}
CLIENT_CURRICULUM = {"clients": {"pacing": "linear", "a": 0.8, "b": 0.4}}

PRESETS: Mapping[str, tuple[str, ...]] = {
    "fedcl-fmnist-small": ("algorithm.generator_steps=5", "local.steps=3"),
    "curriculum-clients-small": ("local.epochs=1", "data.partition.expert_epochs=1"),
    "ace-fmnist-small": ("clients.total=6",),
    "kdia-fmnist-small": ("local.epochs=1", "algorithm.generator_epochs=1", "algorithm.generator_batches=3"),
    "layers-fmnist-small": ("algorithm.tuning_epochs=1",),
}
"""One preset of each paper, on few images of Fashion-MNIST."""

FEW = ("rounds=2", "clients.total=10", "clients.fraction=0.4", "data.limit=400", "data.partition.min_size=2")
FEW_OF_A_DIFFICULTY = (*FEW[:4], "data.partition.base.min_size=2")


def method_specs() -> dict[str, dict[str, Any]]:
    """The small specs by name: every method, what freezes, opens and splits on the way, and the curricula."""
    specs = {name: _spec({"name": name, **QUICK.get(name, {})}) for name in sorted(ALGORITHMS)}
    specs["fedcl-freezing"] = _spec({"name": "fedcl", **FREEZING})
    specs["layer_schedule-times"] = _spec(
        {"name": "layer_schedule", "times": [0, 1], "tuning_epochs": 1},
        model={"name": "mlp", "hidden": 8, "layers": 2},
    )
    # A cluster splits only in a round to which all its clients come.
    specs["cfl-splitting"] = _spec({"name": "cfl", **QUICK["cfl"]}, clients={"total": 8, "fraction": 1.0})
    # Without BatchNorm, FedBN is FedAvg.
    specs["fedbn-batch-norm"] = _spec({"name": "fedbn"}, model={"name": "fedgen_cnn"})
    for base in ("fedavg", "scaffold", "kdia"):
        method = {"name": base, **QUICK.get(base, {})}
        specs[f"data-curriculum-{base}"] = _spec(method, curriculum=DATA_CURRICULUM)
        specs[f"client-curriculum-{base}"] = _spec(method, curriculum=CLIENT_CURRICULUM)
    specs["both-curricula-fedavg"] = _spec(
        {"name": "fedavg"}, curriculum={**DATA_CURRICULUM, **CLIENT_CURRICULUM}
    )
    specs["two-architectures-fedavg"] = _spec(
        {"name": "fedavg"}, model=[{"name": "mlp", "hidden": 8}, {"name": "mlp", "hidden": 6}]
    )
    return specs


def preset_overrides(name: str) -> tuple[str, ...]:
    """What makes a preset run in seconds."""
    return (*(FEW_OF_A_DIFFICULTY if name == "curriculum-clients-small" else FEW), *PRESETS[name])


def _spec(algorithm: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {**SMALL, "algorithm": dict(algorithm), **changes}
    if algorithm["name"] in PUBLIC:
        spec["data"] = {**SMALL["data"], "public": {"fraction": 0.1}}  # type: ignore[dict-item]
    return spec
