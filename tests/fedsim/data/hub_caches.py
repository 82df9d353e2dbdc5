"""A data set of the hub in a cache, as the package `datasets` writes it, without the hub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

NAME = "uoft-cs/cifar10"


def images(count: int, colour: bool = True) -> list[np.ndarray]:
    return [np.full((8, 8, 3) if colour else (8, 8), number, np.uint8) for number in range(count)]


def write_images(cache: Path, config: str = "plain_text") -> Path:
    """Write 6 and 2 images of two classes into a cache with the library's builder; return their folder."""
    import datasets

    class Builder(datasets.GeneratorBasedBuilder):
        BUILDER_CONFIGS = (datasets.BuilderConfig(name=config),)

        def _info(self):
            label = datasets.ClassLabel(names=["cat", "dog"])
            return datasets.DatasetInfo(features=datasets.Features({"img": datasets.Image(), "label": label}))

        def _split_generators(self, _manager):
            parts = {"train": 6, "test": 2}
            return [
                datasets.SplitGenerator(name=part, gen_kwargs={"count": count})
                for part, count in parts.items()
            ]

        def _generate_examples(self, count):
            for number, image in enumerate(images(count)):
                yield number, {"img": image, "label": number % 2}

    builder = Builder(cache_dir=str(cache), dataset_name="cifar10", repo_id=NAME, hash="0b2714987f")
    builder.download_and_prepare()
    return Path(builder.cache_dir)


class HubBuilder:
    """Stands for a builder of the package for `NAME`, whose files are on the hub."""

    def __init__(self, path: str, config: str | None, *, cache_dir: str) -> None:
        assert (path, config) == (f"hf://datasets/{NAME}", None)
        files = {"train": [f"hf://datasets/{NAME}@main/train.parquet"]}
        self.config, self.cache = SimpleNamespace(data_files=files), Path(cache_dir)

    def download_and_prepare(self) -> None:
        write_images(self.cache)
