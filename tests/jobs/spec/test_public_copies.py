"""`data.public.copies`: what it builds, what it refuses, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedsim.data.augment import Step
from fedsim.engine.pools import StackedPool
from fedsim.engine.simulation import simulate
from fedsim.errors import SpecError
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import resolve_spec

IMAGES = {"name": "synthetic_images", "examples": 120, "test_examples": 40, "size": 8, "classes": 4}


def spec_of(public: dict[str, Any], dataset: Any = IMAGES, **more: Any) -> JobSpec:
    algorithm = {"name": "ace_pfl", "clusters": 2, "top_k": 3}
    data = {"dataset": dataset, "public": public}
    spec = {"algorithm": algorithm, "data": data, "rounds": 2, "clients": {"total": 4, "fraction": 1.0}}
    return parse_spec({**spec, "model": "logistic", "local": {"epochs": 1}, **more})


@pytest.mark.parametrize(
    ("public", "dataset", "path", "words"),
    [
        ({"copies": 2}, IMAGES, "data.public.copies", "without a public set"),
        ({"fraction": 0.1, "copies": -1}, IMAGES, "data.public.copies", "0 to 100"),
        ({"fraction": 0.1, "copies": 1, "augment": []}, IMAGES, "data.public.augment", "as the images are"),
        ({"fraction": 0.1, "copies": 1, "augment": ["blur"]}, IMAGES, "data.public.augment.0", "crop"),
        ({"fraction": 0.1, "copies": 1}, "synthetic", "data.public.copies", "synthetic has none"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    public: dict[str, Any], dataset: Any, path: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec_of(public, dataset), Settings(home=tmp_path))
    (fault,) = caught.value.errors
    assert fault.path == path
    assert words in f"{fault.message} {fault.hint}"


@pytest.mark.parametrize("stack_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_run_with_more_public_examples(stack_size: int, tmp_path: Path) -> None:
    settings, few = Settings(home=tmp_path), {"fraction": 0.1}
    plain = resolve_spec(spec_of(few), settings)
    copied = resolve_spec(spec_of({**few, "copies": 2}), settings)
    first, second = plain.load_population(), copied.load_population()
    assert first.public is not None
    assert second.public is not None
    assert len(second.public) == 3 * len(first.public)
    assert np.array_equal(second.public.x[: len(first.public)], first.public.x)
    assert np.array_equal(second.partition.indices, first.partition.indices)
    sent = [
        [
            result.traffic.by_payload["predictions"]
            for result in simulate(e.algorithm, p, StackedPool(e.algorithm, p, stack_size))
        ]
        for e, p in ((plain, first), (copied, second))
    ]
    assert sent[1] == [3 * each for each in sent[0]]


def test_older_checkpoints_can_go_on_and_the_steps_are_those_of_data_sets() -> None:
    assert describe_experiment(spec_of({"fraction": 0.1}))["data"]["public"] == {"fraction": 0.1}
    public = describe_experiment(spec_of({"fraction": 0.1, "copies": 1}))["data"]["public"]
    assert public == {"fraction": 0.1, "copies": 1, "augment": ["rotate", "crop", "flip"]}
    items = JobSpec.model_json_schema()["$defs"]["Public"]["properties"]["augment"]["items"]
    assert tuple(items["enum"]) == get_args(Step)
