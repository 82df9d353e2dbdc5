"""Models by name from elsewhere: a Python file of one's own, and torchvision."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsim.base.python_source import embed_sources, read_source
from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.errors import DataNotFound, SpecError
from fedsim.models import make_net
from fedsim.models.libraries.torchvision_models import torchvision
from fedsim.models.python_file import python
from jobs.settings import Settings
from jobs.spec import load_spec, parse_spec
from jobs.spec.resolve import resolve_spec

prepare_torchvision()
from torchvision import models  # noqa: E402

FILE = """
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, input_shape, num_classes, width=8):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, width), nn.Linear(width, num_classes)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def make(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


def broken(num_classes):
    raise RuntimeError("not today")


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


def net(name: str, **params: Any) -> Any:
    return make_net("python", input_shape=(1, 8, 8), num_classes=10, path=f"mine.py:{name}", **params)


WITH_TENSORS = """
import torch
from torch import nn

SHIFT = torch.rand(64)


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(x.flatten(1) - SHIFT)
"""


def test_a_tensor_at_the_top_of_a_file_is_real_and_the_same_in_every_process() -> None:
    shifts = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.seed()
            net = make_net(
                "python", input_shape=(1, 8, 8), num_classes=10, path="mine.py:Net", source=WITH_TENSORS
            )
        assert net(net.init(0), torch.zeros(2, 1, 8, 8)).shape == (2, 10)
        shifts.append(sys.modules.pop(type(net.module).__module__).SHIFT)
    assert torch.equal(*shifts)


def test_threads_that_name_one_file_all_get_its_class() -> None:
    slow = f"import time\ntime.sleep(0.1)\n{FILE}"
    with ThreadPoolExecutor(3) as threads:
        made = threads.map(lambda _: python((1, 8, 8), 10, path="slow.py:Net", source=slow), range(3))
        assert len({type(module) for module in made}) == 1


def test_a_class_or_a_function_of_a_file_is_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert net("Net", width=4).count_parameters() == 64 * 4 + 4 + 4 * 10 + 10
    assert net("make").block_names == ("0", "1")
    assert net("Net", source=FILE, blocks=["fc1", "fc2"]).head == {"fc2.weight", "fc2.bias"}


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("Nett", {}, "no class or function 'Nett'.*defines Net, make, broken"),
        ("number", {}, "no class or function 'number'"),
        ("Net", {"hiden": 3}, "cannot be called with input_shape, num_classes, hiden"),
        ("broken", {}, "raises RuntimeError: not today"),
        ("Net", {"source": "import no_such_package"}, "cannot be run: ModuleNotFoundError"),
        ("Net", {"source": "class Net:\n    pass\n"}, "gives a Net, not an nn.Module"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises((SpecError, ValueError), match=words):
        net(name, **{"source": FILE} | params)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read") as caught:
        embed_sources({"model": [{"name": "mlp"}, {"name": "python", "path": "none.py:Net"}]}, (tmp_path,))
    assert caught.value.errors[0].path == "model.1.path"
    with pytest.raises(SpecError, match="names no class in a file"):
        read_source("mine.py", (tmp_path,))


def test_the_text_travels_with_the_spec(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The spec names the file from its own folder; the run needs the file no more."""
    (folder / "spec.yaml").write_text("algorithm: fedavg\nmodel: {name: python, path: 'mine.py:Net'}\n")
    spec = load_spec(folder / "spec.yaml")
    assert spec.models[0].params["source"] == FILE
    (folder / "mine.py").unlink()
    experiment = resolve_spec(spec, Settings(tmp_path_factory.mktemp("home")))
    assert experiment.load_population().nets[0].count_parameters() == 64 * 8 + 8 + 8 * 10 + 10


def test_code_is_refused_where_it_is_not_allowed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    source = f"open({str(marker)!r}, 'w').close()\n{FILE}"
    model = {"name": "python", "path": "mine.py:Net", "source": source}
    with pytest.raises(SpecError, match="FEDSIM_ALLOW_PYTHON=1") as caught:
        resolve_spec(
            parse_spec({"algorithm": "fedavg", "model": model}), Settings(tmp_path, allow_python=False)
        )
    assert caught.value.errors[0].path == "model.name"
    assert not marker.exists()


def test_torchvision_is_torchvisions_own_module() -> None:
    ours = make_net("torchvision", input_shape=(3, 32, 32), num_classes=5, arch="mobilenet_v3_small")
    theirs = models.get_model("mobilenet_v3_small", num_classes=5)
    params, x = ours.init(1), torch.randn(2, 3, 32, 32)
    theirs.load_state_dict({**theirs.state_dict(), **params})
    assert torch.equal(ours(params, x), theirs.eval()(x))
    assert ours.stochastic


def test_a_model_whose_constructor_reads_tensors_is_built() -> None:
    net = make_net("torchvision", input_shape=(3, 32, 32), num_classes=5, arch="regnet_y_400mf")
    assert net(net.init(0), torch.zeros(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"arch": "resnet19"}, "did you mean 'resnet18'"),
        ({"arch": "resnet18", "weights": "IMAGENET"}, "no such weights"),
        ({"arch": "resnet18", "dropout": 0.5}, "does not take these parameters"),
        ({"arch": "mobilenet_v2", "round_nearest": 0}, "does not take these parameters: .* by zero"),
    ],
)
def test_wrong_names_of_torchvision_are_named(params: dict[str, Any], words: str) -> None:
    with pytest.raises((SpecError, ValueError), match=words):
        make_net("torchvision", input_shape=(3, 32, 32), num_classes=5, **params)


def test_published_weights_of_googlenet_have_their_transform_and_no_auxiliary_heads() -> None:
    given = {"input_shape": (3, 64, 64), "num_classes": 5, "arch": "googlenet"}
    with torch.device("meta"):  # as a check builds it: the weights are not read
        published = torchvision((3, 64, 64), 5, arch="googlenet", weights="DEFAULT")
        kept = torchvision((3, 64, 64), 5, arch="googlenet", weights="DEFAULT", aux_logits=True)
        plain = torchvision(**given, init_weights=False)
    assert (published.transform_input, published.aux1) == (True, None)
    assert kept.aux1 is not None
    assert (plain.transform_input, plain.aux1 is not None) == (False, True)


def test_published_weights_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    ours = {"input_shape": (3, 32, 32), "num_classes": 5, "arch": "squeezenet1_1", "weights": "DEFAULT"}
    with pytest.raises(DataNotFound, match="downloads are not allowed"):
        make_net("torchvision", **ours)
    published = models.get_model("squeezenet1_1")
    kept = tmp_path / "hub" / "checkpoints"
    kept.mkdir(parents=True)
    chosen = models.get_model_weights("squeezenet1_1").DEFAULT
    file = kept / chosen.url.rpartition("/")[2]
    torch.save(published.state_dict(), file)
    loaded = make_net("torchvision", **ours).init(0)
    assert torch.equal(loaded["features.0.weight"], published.state_dict()["features.0.weight"])
    assert loaded["classifier.1.weight"].shape[0] == 5
