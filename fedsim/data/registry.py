"""The data sets by name, and how one is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.base.parameters import Parameter, find_parameter_faults, list_parameters, make_spec_error
from fedsim.data import known
from fedsim.data.dataset import Dataset
from fedsim.data.known import PublishedFacts
from fedsim.data.partitions import PartitionEntry
from fedsim.data.places import FETCH, DataRoots, leaves_root
from fedsim.data.sources.celeba import GDOWN, celeba
from fedsim.data.sources.chexpert import chexpert
from fedsim.data.sources.cifar import cifar10, cifar100
from fedsim.data.sources.digits import digits
from fedsim.data.sources.folders import cinic10, image_folder
from fedsim.data.sources.huggingface import hugging_face
from fedsim.data.sources.mnist import emnist, fashion_mnist, mnist
from fedsim.data.sources.npz import npz
from fedsim.data.sources.reuters import reuters
from fedsim.data.sources.speech import audio_folder, speech_commands, spoken_digits
from fedsim.data.sources.svhn import svhn
from fedsim.data.sources.synthetic import check_features, check_pixels, synthetic, synthetic_images
from fedsim.data.sources.tinyimagenet import tiny_imagenet
from fedsim.errors import FieldError, SpecError
from fedsim.plugins import Registry

_PLACE = re.compile(r"(?<!\S)(ROOT)?/(?!PATH\b)([\w./-]*\w)")
"""A place in the words of `looks`: below each data root, or an absolute path."""


class DatasetEntry(NamedTuple):
    """A registered data set.

    Attributes:
        load: the function; its keyword-only arguments are the parameters.
        summary: one line.
        looks: where it looks for its files, ROOT being each data root and PATH the parameter `path`; these
            places are watched for changes.
        get: how to come by them.
        fits: of a set that is drawn, refuses parameters that make it too large.
        known: of a set that can be fetched, tells what it is like before it is here, by its parameters.
    """

    load: Callable[..., Dataset]
    summary: str
    locations: str
    how_to_get: str
    check_parameters: Callable[..., None] | None = None
    published: Callable[..., PublishedFacts] | None = None


_OWN: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        digits, "1,797 handwritten digits of 8x8, 10 classes", "inside scikit-learn", "nothing to do"
    ),
    "synthetic": DatasetEntry(
        synthetic,
        "Gaussian classes of any number, size and overlap",
        "nowhere: it is drawn",
        "nothing to do",
        check_parameters=check_features,
    ),
    "synthetic_images": DatasetEntry(
        synthetic_images,
        "patterns in noise, of any number, size and colour",
        "nowhere: it is drawn",
        "nothing to do",
        check_parameters=check_pixels,
    ),
    "mnist": DatasetEntry(
        mnist,
        "70,000 handwritten digits of 28x28, 10 classes",
        "ROOT/MNIST/raw, ROOT/mnist",
        FETCH,
        published=known.mnist,
    ),
    "fashion_mnist": DatasetEntry(
        fashion_mnist,
        "70,000 pictures of clothes of 28x28, 10 classes",
        "ROOT/FashionMNIST/raw, ROOT/fashion-mnist, ROOT/fashion_mnist, /usr/share/datasets/fashion-mnist",
        f"Debian's package dataset-fashion-mnist, or {FETCH}",
        published=known.mnist,
    ),
    "emnist": DatasetEntry(
        emnist,
        "handwritten letters (26 classes) or letters and digits (62) of 28x28",
        "ROOT/EMNIST/raw, ROOT/emnist, ROOT/gzip",
        f"{FETCH}, or unpack EMNIST's gzip.zip",
        published=known.emnist,
    ),
    "cifar10": DatasetEntry(
        cifar10,
        "60,000 photographs of 32x32, 10 classes",
        "ROOT/cifar-10-batches-py; image folders in ROOT/cifar10, ROOT/cifar-10 or ROOT/cifar10-jpeg",
        f"{FETCH}, or unpack the Python version",
        published=known.cifar10,
    ),
    "cifar100": DatasetEntry(
        cifar100,
        "60,000 photographs of 32x32, 100 classes in 20 groups",
        "ROOT/cifar-100-python",
        f"{FETCH}, or unpack the Python version",
        published=known.cifar100,
    ),
    "cinic10": DatasetEntry(
        cinic10,
        "270,000 photographs of 32x32, 10 classes",
        "ROOT/CINIC-10, ROOT/cinic-10, ROOT/cinic10",
        "unpack CINIC-10.tar.gz",
    ),
    "svhn": DatasetEntry(
        svhn,
        "99,289 house-number digits of 32x32, 10 classes",
        "ROOT/svhn, ROOT/SVHN",
        FETCH,
        published=known.svhn,
    ),
    "tiny_imagenet": DatasetEntry(
        tiny_imagenet,
        "110,000 photographs of 64x64, 200 classes",
        "ROOT/tiny-imagenet-200",
        "unpack tiny-imagenet-200.zip",
    ),
    "celeba": DatasetEntry(
        celeba,
        "faces with a yes-or-no attribute, celebrities as natural clients",
        "ROOT/celeba, ROOT/CelebA",
        f"{FETCH}{GDOWN}, or put img_align_celeba and its lists there",
        published=known.celeba,
    ),
    "chexpert": DatasetEntry(
        chexpert,
        "chest X-rays with 14 findings, patients as natural clients",
        "ROOT/CheXpert-v1.0-small, ROOT/CheXpert-v1.0, ROOT/chexpert",
        "Stanford gives it out on request",
    ),
    "reuters": DatasetEntry(
        reuters,
        "newswire stories, the 20 most frequent topics",
        "ROOT/reuters21578, ROOT/reuters-21578, ROOT/Reuters21578",
        "unpack reuters21578.tar.gz",
    ),
    "speech_commands": DatasetEntry(
        speech_commands,
        "spoken words as spectrograms, 10 or 35 classes, speakers as natural clients",
        "ROOT/speech_commands_v0.02, ROOT/SpeechCommands/speech_commands_v0.02, ROOT/speech_commands",
        "unpack speech_commands_v0.02.tar.gz",
    ),
    "spoken_digits": DatasetEntry(
        spoken_digits,
        "3,000 spoken digits as spectrograms, 10 classes, 6 speakers as natural clients",
        "ROOT/spoken-digits, ROOT/free-spoken-digit-dataset/recordings, ROOT/fsdd/recordings",
        "the Free Spoken Digit Dataset",
    ),
    "image_folder": DatasetEntry(
        image_folder, "your own images, a folder per class", "ROOT/PATH", "put the folder there"
    ),
    "audio_folder": DatasetEntry(
        audio_folder,
        "your own WAV recordings, word and speaker in the name",
        "ROOT/PATH",
        "put the folder there",
    ),
    "npz": DatasetEntry(npz, "your own arrays in a .npz file", "ROOT/PATH", "put the file there"),
    "hugging_face": DatasetEntry(
        hugging_face, "a Hugging Face data set on disk", "ROOT/PATH", "write it there with save_to_disk"
    ),
}


def _is_dataset_entry(thing: Any) -> bool:
    return isinstance(thing, DatasetEntry)


DATASETS = Registry("datasets", "data set", _OWN, _is_dataset_entry, "a fedsim.data.DatasetEntry")


def list_entry_parameters(entry: DatasetEntry | PartitionEntry) -> tuple[Parameter, ...]:
    """The parameters of a registered data set or partition: name, type annotation, default."""
    return list_parameters(entry[0])


def find_dataset_faults(name: str, given: dict[str, Any]) -> list[FieldError]:
    """What is wrong with a data set's name and parameters, all of it, before any file is read."""
    if name not in DATASETS:
        return [DATASETS.fault("name", name)]
    return find_parameter_faults(DATASETS[name].load, given)


def list_locations(name: str, roots: Sequence[Path], given: Mapping[str, Any]) -> list[Path]:
    """The files and folders that a data set may be read from, as its entry says, be they there or not.

    Args:
        name: of the data set; one that nobody knows is nowhere.
        roots: the data roots.
        given: its parameters; a `path` that leads out of the data roots is nowhere.
    """
    if name not in DATASETS:
        return []
    places = _PLACE.findall(DATASETS[name].locations)
    if isinstance(mine := given.get("path"), str) and not leaves_root(mine):
        places.append(("ROOT", mine))
    found = list[Path]()
    for start, place in places:
        found += [root.expanduser() / place for root in roots] if start else [Path("/", place)]
    return found


class Outline(NamedTuple):
    """What a data set is like.

    Attributes:
        dataset: of a set that is drawn, with one example in each part; whole otherwise.
        examples: how many there are for training.
        tests: how many there are for testing.
        drawn: whether the set is drawn, so that only the run knows its examples.
    """

    dataset: Dataset
    examples: int
    tests: int
    is_drawn: bool


def outline_dataset(name: str, *, roots: Sequence[Path], download: bool = False, **given: Any) -> Outline:
    """What a data set is like.

    As `load_dataset`, but of a set that is drawn one example tells everything: the others are left undrawn.

    Raises:
        SpecError, DataNotFound, DataError: as `load_dataset`.
    """
    entry = DATASETS.get(name)
    if entry is None or entry.check_parameters is None or find_dataset_faults(name, given):
        dataset = load_dataset(name, roots=roots, download=download, **given)
        return Outline(dataset, len(dataset.train), len(dataset.test), is_drawn=False)
    values = {p.name: p.default for p in list_entry_parameters(entry)} | given
    entry.check_parameters(**values)
    dataset = load_dataset(name, roots=roots, **given | {"examples": 1, "test_examples": 1})
    return Outline(dataset, values["examples"], values["test_examples"], is_drawn=True)


def find_published(name: str, **given: Any) -> PublishedFacts | None:
    """What a data set that can be fetched is like, without a look at its files; None where nobody knows.

    Raises:
        SpecError: unknown name or bad parameters.
    """
    if faults := find_dataset_faults(name, given):
        raise SpecError(faults)
    entry = DATASETS[name]
    if entry.published is None:
        return None
    return entry.published(**{p.name: p.default for p in list_entry_parameters(entry)} | given)


def load_dataset(
    name: str, *, roots: Sequence[Path], limit: int | None = None, download: bool = False, **given: Any
) -> Dataset:
    """Loads a data set whole.

    Args:
        name: a name in `DATASETS`.
        roots: the folders to look in, in this order.
        limit: keep only the first so many training examples.
        download: whether it may be fetched, into the first root, where upstream allows.
        given: the data set's parameters.

    Raises:
        SpecError: unknown name or bad parameters; paths are argument names.
        DataNotFound: its files are nowhere; says how to get them.
        DataError: a file is truncated, mislabelled or not what it should be.
    """
    if faults := find_dataset_faults(name, given):
        raise SpecError(faults)
    if limit is not None and limit < 1:
        raise make_spec_error("limit", limit, "has to be a whole number of at least 1")
    dataset = DATASETS[name].load(DataRoots(tuple(roots), download), **given)
    return dataset.limit_train(limit)
