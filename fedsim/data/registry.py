"""The data sets by name, and their loading."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.base.parameters import find_parameter_faults, list_defaults, make_spec_error
from fedsim.data import known
from fedsim.data.dataset import Dataset
from fedsim.data.known import PublishedFacts
from fedsim.data.places import FETCH_HINT, DataRoots, leaves_root
from fedsim.data.plugin_errors import attribute_plugin_errors
from fedsim.data.sources.celeba import GDOWN_HINT, celeba
from fedsim.data.sources.chexpert import chexpert
from fedsim.data.sources.cifar import cifar10, cifar100
from fedsim.data.sources.diabetes import diabetes
from fedsim.data.sources.digits import digits
from fedsim.data.sources.folders import cinic10, image_folder
from fedsim.data.sources.hugging_face import hub
from fedsim.data.sources.hugging_face.loader import hugging_face
from fedsim.data.sources.mnist import emnist, fashion_mnist, mnist
from fedsim.data.sources.npz import npz
from fedsim.data.sources.reuters import reuters
from fedsim.data.sources.reuters_characters import reuters_characters
from fedsim.data.sources.shapes import check_shapes, shapes
from fedsim.data.sources.speech import audio_folder, speech_commands, spoken_digits
from fedsim.data.sources.svhn import svhn
from fedsim.data.sources.synthetic import check_features, check_pixels, synthetic, synthetic_images
from fedsim.data.sources.table import table
from fedsim.data.sources.tinyimagenet import tiny_imagenet
from fedsim.errors import DataError, FieldError, SpecError
from fedsim.plugins import Registry

_PLACE = re.compile(r"(?<!\S)(ROOT)?/(?!PATH\b)([\w./-]*\w)")
"""A path in the text of `locations`: below each data root, or absolute."""


class DatasetEntry(NamedTuple):
    """A registered data set.

    Attributes:
        load: the loader; its keyword-only arguments are the parameters.
        summary: one line.
        locations: the places of its files; ROOT stands for each data root and PATH for the parameter `path`.
            Changes in these places are noticed.
        how_to_get: instruction for getting the files.
        check_parameters: raises an error for parameters that make a generated set too large; None for a set
            from files.
        published: returns the facts of a downloadable set from its parameters, without its files; None for
            other sets.
        list_caches: returns folders with files of the set, from the data roots and the parameters, besides
            `locations`.
        awaits_download: whether the set with these parameters is not on disk, a run would download it, and
            only the files have its facts; None if that is never so.
    """

    load: Callable[..., Dataset]
    summary: str
    locations: str
    how_to_get: str
    check_parameters: Callable[..., None] | None = None
    published: Callable[..., PublishedFacts] | None = None
    list_caches: Callable[..., list[Path]] | None = None
    awaits_download: Callable[..., bool] | None = None


_OWN: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        digits, "1,797 handwritten digits of 8x8, 10 classes", "inside scikit-learn", "nothing to do"
    ),
    "diabetes": DatasetEntry(
        diabetes,
        "442 patients with ten measurements, a regression of the disease's progression",
        "inside scikit-learn",
        "nothing to do",
    ),
    "shapes": DatasetEntry(
        shapes,
        "disks, squares and triangles in noise, a class for every pixel",
        "nowhere: it is drawn",
        "nothing to do",
        check_parameters=check_shapes,
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
        FETCH_HINT,
        published=known.mnist,
    ),
    "fashion_mnist": DatasetEntry(
        fashion_mnist,
        "70,000 pictures of clothes of 28x28, 10 classes",
        "ROOT/FashionMNIST/raw, ROOT/fashion-mnist, ROOT/fashion_mnist, /usr/share/datasets/fashion-mnist",
        f"Debian's package dataset-fashion-mnist, or {FETCH_HINT}",
        published=known.mnist,
    ),
    "emnist": DatasetEntry(
        emnist,
        "handwritten letters (26 classes) or letters and digits (62) of 28x28",
        "ROOT/EMNIST/raw, ROOT/emnist, ROOT/gzip",
        f"{FETCH_HINT}, or unpack EMNIST's gzip.zip",
        published=known.emnist,
    ),
    "cifar10": DatasetEntry(
        cifar10,
        "60,000 photographs of 32x32, 10 classes",
        "ROOT/cifar-10-batches-py; image folders in ROOT/cifar10, ROOT/cifar-10 or ROOT/cifar10-jpeg",
        f"{FETCH_HINT}, or unpack the Python version",
        published=known.cifar10,
    ),
    "cifar100": DatasetEntry(
        cifar100,
        "60,000 photographs of 32x32, 100 classes in 20 groups",
        "ROOT/cifar-100-python",
        f"{FETCH_HINT}, or unpack the Python version",
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
        FETCH_HINT,
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
        f"{FETCH_HINT}{GDOWN_HINT}, or put img_align_celeba and its lists there",
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
    "reuters_characters": DatasetEntry(
        reuters_characters,
        "newswire stories by characters, to predict the next one; topics as natural clients",
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
    "table": DatasetEntry(
        table, "your own rows in a .csv or .parquet file", "ROOT/PATH", "put the file there"
    ),
    "npz": DatasetEntry(npz, "your own arrays in a .npz file", "ROOT/PATH", "put the file there"),
    "hugging_face": DatasetEntry(
        hugging_face,
        "a data set of the Hugging Face hub, or one that you saved",
        "ROOT/PATH; sets of the hub in the folder huggingface of each root, and in HF_DATASETS_CACHE",
        f"write it there with save_to_disk; a set of the hub: {FETCH_HINT}",
        list_caches=hub.list_caches,
        awaits_download=hub.awaits_download,
    ),
}


def _is_dataset_entry(thing: Any) -> bool:
    return isinstance(thing, DatasetEntry)


DATASETS = Registry("datasets", "data set", _OWN, _is_dataset_entry, "a fedsim.data.DatasetEntry")


def find_dataset_faults(name: str, given: dict[str, Any]) -> list[FieldError]:
    """Return all errors in a data set's name and parameters, without reading a file."""
    if name not in DATASETS:
        return [DATASETS.fault("name", name)]
    return find_parameter_faults(DATASETS[name].load, given)


def list_locations(name: str, roots: Sequence[Path], given: Mapping[str, Any]) -> list[Path]:
    """The files and folders from which a data set may be read, whether they exist or not.

    Args:
        name: of the data set; an unknown one has no locations.
        roots: the data roots.
        given: its parameters; a `path`, or a table's `test`, outside the data roots is left out.
    """
    if name not in DATASETS:
        return []
    places = _PLACE.findall(DATASETS[name].locations)
    own = (given.get(argument) for argument in ("path", "test"))
    places += [("ROOT", path) for path in own if isinstance(path, str) and not leaves_root(path)]
    found = list[Path]()
    if (list_caches := DATASETS[name].list_caches) and not find_dataset_faults(name, dict(given)):
        found += list_caches(roots, **given)
    for start, place in places:
        found += [root.expanduser() / place for root in roots] if start else [Path("/", place)]
    return found


def reads_files(name: str) -> bool:
    """Whether a data set is read from files in the data roots; an unknown one is not."""
    return name in DATASETS and "ROOT" in DATASETS[name].locations


class Outline(NamedTuple):
    """The facts of a data set.

    Attributes:
        dataset: the whole data set; a generated one has only one example in each part.
        examples: number of training examples.
        tests: number of test examples.
        is_drawn: whether the set is generated: then only the run has its examples.
    """

    dataset: Dataset
    examples: int
    tests: int
    is_drawn: bool


def outline_dataset(name: str, *, roots: Sequence[Path], download: bool = False, **given: Any) -> Outline:
    """Return the facts of a data set.

    It loads like `load_dataset`, but of a generated set it draws only one example.

    Raises:
        SpecError, DataNotFound, DataError: as `load_dataset`.
    """
    entry = DATASETS.get(name)
    if entry is None or entry.check_parameters is None or find_dataset_faults(name, given):
        dataset = load_dataset(name, roots=roots, download=download, **given)
        return Outline(dataset, len(dataset.train), len(dataset.test), is_drawn=False)
    values = list_defaults(entry[0]) | given
    entry.check_parameters(**values)
    dataset = load_dataset(name, roots=roots, **given | {"examples": 1, "test_examples": 1})
    return Outline(dataset, values["examples"], values["test_examples"], is_drawn=True)


def awaits_download(name: str, roots: Sequence[Path], given: Mapping[str, Any]) -> bool:
    """Whether only a run, which downloads the data set, will know its facts.

    Args:
        name: of the data set.
        roots: the data roots.
        given: its parameters.
    """
    if find_dataset_faults(name, dict(given)) or (asks := DATASETS[name].awaits_download) is None:
        return False
    return asks(DataRoots(tuple(roots)), **given)


def find_published(name: str, **given: Any) -> PublishedFacts | None:
    """Return the facts of a downloadable data set without its files; None if they are unknown.

    Raises:
        SpecError: unknown name or bad parameters.
    """
    if faults := find_dataset_faults(name, given):
        raise SpecError(faults)
    entry = DATASETS[name]
    if entry.published is None:
        return None
    return entry.published(**list_defaults(entry[0]) | given)


def load_dataset(
    name: str, *, roots: Sequence[Path], limit: int | None = None, download: bool = False, **given: Any
) -> Dataset:
    """Load a whole data set.

    Args:
        name: a name in `DATASETS`.
        roots: the folders to search, in this order.
        limit: keep only this number of training examples, the first ones.
        download: whether the loader may download the files into the first root, if their publisher allows it.
        given: the data set's parameters.

    Raises:
        SpecError: unknown name or bad parameters; paths are argument names.
        DataNotFound: if its files are missing; the message says how to get them.
        DataError: if a file is truncated, mislabelled or of another kind, or the loader of a plug-in fails.

    Example:
        >>> digits = load_dataset("digits", roots=(), limit=100)
        >>> len(digits.train), digits.train.x.shape, digits.num_classes
        (100, (100, 1, 8, 8), 10)
    """
    if faults := find_dataset_faults(name, given):
        raise SpecError(faults)
    if limit is not None and limit < 1:
        raise make_spec_error("limit", limit, "has to be a whole number of at least 1")
    with attribute_plugin_errors(DATASETS, name):
        dataset = DATASETS[name].load(DataRoots(tuple(roots), download), **given)
    if not isinstance(dataset, Dataset):
        raise DataError(f"the data set {name!r} returned {dataset!r:.60}", "return a fedsim.data.Dataset")
    if name not in DATASETS.own:  # fedsim's loaders check their numbers themselves, and name the file
        dataset.check_inputs()
    return replace(dataset, fingerprint=dataset.compute_fingerprint()).limit_train(limit)
