"""`data.download`: from a server on this machine, through the spec, into the first data root."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.base.progress import run_to_end
from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.data import DATASETS, DataRoots, load_dataset
from fedsim.data.text import tokenise_texts
from fedsim.errors import DataError, DataNotFound, SpecError
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.dataset_facts import look_up_facts
from jobs.spec.resolve import resolve_spec
from tests.fedsim.data.hub_caches import NAME, HubBuilder
from tests.fedsim.data.samples import write_idx

FILES = tuple(
    f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small MNIST on a server here, in place of the mirrors that torchvision knows."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    for file in FILES:
        write_idx(folder / file, np.zeros((20, 28, 28)) if "images" in file else np.arange(20) % 10)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    prepare_torchvision()
    from torchvision.datasets import MNIST

    sums = [(name, hashlib.md5((folder / name).read_bytes()).hexdigest()) for name in FILES]
    monkeypatch.setattr(MNIST, "resources", sums)
    monkeypatch.setattr(MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def spec_of(**data: object) -> dict[str, object]:
    given = {"dataset": "mnist", "partition": "iid", **data}
    return {"algorithm": "fedavg", "clients": {"total": 4}, "data": given}


def test_a_data_set_is_fetched_when_the_spec_says_so(upstream: Path, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    with pytest.raises(DataNotFound, match=r"--set data\.download=true"):
        resolve_spec(parse_spec(spec_of()), settings)
    assert not (tmp_path / "home" / "data" / "MNIST").exists()
    experiment = resolve_spec(parse_spec(spec_of(download=True)), settings)
    assert experiment.download
    # A check fetches nothing; the run does, and says so.
    assert not (tmp_path / "home" / "data").exists()
    preparing = experiment.prepare_population()
    assert [next(preparing), next(preparing)] == [
        "loading mnist",
        f"downloading mnist into {tmp_path / 'home' / 'data'}",
    ]
    assert len(run_to_end(preparing).dataset.train) == 20
    assert (tmp_path / "home" / "data" / "MNIST" / "raw").is_dir()
    assert not resolve_spec(parse_spec(spec_of()), settings).download


def test_a_fetch_that_fails_leaves_no_half_of_a_data_set(upstream: Path, tmp_path: Path) -> None:
    settings, last = Settings(home=tmp_path / "home"), upstream / FILES[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    with pytest.raises(DataNotFound, match=r"mnist: cannot be downloaded.*by hand"):
        resolve_spec(parse_spec(spec_of(download=True)), settings).load_population()
    assert list((tmp_path / "home" / "data").iterdir()) == []
    last.write_bytes(whole)
    assert (
        len(resolve_spec(parse_spec(spec_of(download=True)), settings).load_population().dataset.train) == 20
    )


def test_an_error_of_whatever_fetches_says_how_to_go_on(
    upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as gdown's, which is neither an OSError nor a RuntimeError; a killed fetch's folder goes, too."""
    from torchvision.datasets import MNIST

    def fails(*_: object) -> None:
        raise Exception("Too many users\nhave viewed the file")

    left = tmp_path / "home" / "data" / ".fetching-killed"
    left.mkdir(parents=True)
    os.utime(left, (1, 1))
    monkeypatch.setattr(MNIST, "download", fails)
    with pytest.raises(DataNotFound, match=r"downloaded \(Too many users have viewed the file\).*by hand"):
        load_dataset("mnist", roots=[left.parent], download=True)
    assert list(left.parent.iterdir()) == []
    assert "pip install gdown" in DATASETS["celeba"].how_to_get


def test_a_half_filled_folder_is_named_as_what_to_remove(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST" / "raw"
    write_idx(folder / FILES[0], np.zeros((20, 28, 28)))
    with pytest.raises(DataError, match=rf"remove {folder} and download the data set again"):
        load_dataset("mnist", roots=[tmp_path], download=True)


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.published])
def test_what_can_be_fetched_is_checked_without_its_files(name: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", data_roots=(tmp_path / "nothing",))
    resolve_spec(parse_spec({"algorithm": "fedavg", "data": {"dataset": name, "download": True}}), settings)
    too_many = {"total": 1_000_000, "fraction": 0.001}
    wrong = {"algorithm": "fedavg", "data": {"dataset": name, "download": True}, "clients": too_many}
    with pytest.raises(SpecError, match="more clients than training examples"):
        resolve_spec(parse_spec(wrong), settings)
    assert not (tmp_path / "nothing").exists()


def test_a_check_downloads_no_set_of_the_hub_and_the_run_checks_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: pytest.fail("asks the hub"))
    settings = Settings(home=tmp_path / "home")
    dataset = {"name": "hugging_face", "path": NAME}
    spec = parse_spec(spec_of(dataset=dataset, partition="natural", download=True))
    assert look_up_facts(spec, settings) is None
    assert resolve_spec(spec, settings).download
    monkeypatch.setattr(datasets, "load_dataset_builder", HubBuilder)
    with pytest.raises(SpecError, match=r"data\.partition\.kind: .*no natural clients"):
        resolve_spec(spec, settings, fetch=True)
    with pytest.raises(SpecError, match=r"data\.partition\.kind"):  # now a check finds the files
        resolve_spec(spec, settings)


def test_a_check_downloads_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    asked = list[str]()
    monkeypatch.setattr(tokenizers.Tokenizer, "from_pretrained", asked.append)

    def tokenise(name: str, *, roots: tuple[Path, ...], download: bool, **_: Any) -> None:
        places = DataRoots(roots, download)
        tokenise_texts(places, ["a"], ["b"], tokenizer="some/words", vocabulary=100, length=4)

    monkeypatch.setattr("jobs.spec.dataset_facts.outline_dataset", tokenise)
    dataset, settings = {"name": "reuters", "tokenizer": "some/words"}, Settings(home=tmp_path)
    assert look_up_facts(parse_spec(spec_of(dataset=dataset, download=True)), settings) is None
    assert asked == []
    with pytest.raises(DataNotFound, match="found none of some/words"):
        look_up_facts(parse_spec(spec_of(dataset=dataset)), settings)


def test_a_check_downloads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `data.download` the run fetches them; without it, they are missing already at the check."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    timm = pytest.importorskip("timm")
    create = timm.create_model

    def create_offline(*args: Any, pretrained: bool = False, **options: Any) -> Any:
        assert not pretrained
        return create(*args, **options)

    monkeypatch.setattr(timm, "create_model", create_offline)
    model = {"name": "timm", "arch": "resnet18", "pretrained": True}
    settings = Settings(home=tmp_path)
    resolve_spec(parse_spec({"algorithm": "fedavg", "model": model, "data": {"download": True}}), settings)
    with pytest.raises(SpecError, match="not in this machine's cache"):
        resolve_spec(parse_spec({"algorithm": "fedavg", "model": model}), settings)
