"""docs/presets.md names the papers' presets, and small scale changes nothing but what may be smaller."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import load_spec, presets

ROOT = Path(__file__).parents[2]
FAMILIES = ("ace", "curriculum", "fedcl", "kdia", "layers")
OF_THE_PAPERS = [name for name in presets() if name.partition("-")[0] in FAMILIES]
SCALE = {"name", "rounds", "evaluation.every", "data.limit", "data.dataset.size", "data.partition.min_size"}
SMALLER = {
    "ace": {"data.dataset.vocabulary", "data.dataset.length", "data.public.fraction", "model"}
    | {"local.batch_size", "local.lr", "algorithm.r0", "algorithm.eta2"}
    | {"algorithm.unsent", "algorithm.public_batch_size"},
    "curriculum": {"data.dataset.name", "model"},
    "fedcl": {"data.partition.share"},
    "kdia": {"data.dataset.augment", "local.batch_size"}
    | {"algorithm.generator_epochs", "algorithm.generator_batches"},
    "layers": {"algorithm.times"},
}
"""Beside `SCALE`, what a family's small presets may have otherwise."""


def fields(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every path of a spec with its value; a model is one value."""
    for name, value in data.items():
        if isinstance(value, Mapping) and name != "model":
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


def test_the_page_names_every_preset_of_the_papers_and_no_other() -> None:
    page = (ROOT / "docs" / "presets.md").read_text("utf-8")
    named = set(re.findall(rf"`((?:{'|'.join(FAMILIES)})-[a-z\d-]+)`", page))
    assert set(OF_THE_PAPERS) <= named
    tables = {file.stem for file in (ROOT / "jobs" / "grid" / "tables").glob("*.yaml")}
    assert named <= set(OF_THE_PAPERS) | tables


def test_what_is_there_at_the_papers_scale_is_there_at_small_scale() -> None:
    """The small one of FedCL's Tables IV to VI has other data."""
    scaled = {name for name in OF_THE_PAPERS if not name.endswith("-small")} - {"fedcl-tables4-6-emnist"}
    assert {f"{name}-small" for name in scaled} <= set(OF_THE_PAPERS)


@pytest.mark.parametrize(
    "name", [name for name in OF_THE_PAPERS if name.removesuffix("-small") in set(OF_THE_PAPERS) - {name}]
)
def test_small_presets_keep_the_papers_hyper_parameters(name: str) -> None:
    whole, small = (
        set(fields(load_spec(preset).model_dump(mode="json", exclude_none=True)))
        for preset in (name.removesuffix("-small"), name)
    )
    differ = {path for path, _ in whole ^ small}
    assert differ <= SCALE | SMALLER[name.partition("-")[0]]


@pytest.mark.parametrize("ending", ["", "-small"])
def test_table_6_of_kdia_is_its_cifar10_on_one_worker_one_by_one(ending: str) -> None:
    there, here = (load_spec(f"kdia-{name}{ending}") for name in ("cifar10", "table6"))
    assert (here.resources.workers, here.resources.stack) == (1, "off")
    assert there.model_copy(update={"name": here.name, "resources": here.resources}) == here
