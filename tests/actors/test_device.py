"""Whoever is given a GPU works on it, or says why not."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actors.client_actor import ClientProcess
from actors.coordinator import CoordinatorProcess
from actors.device import (
    CPU_FALLBACK_NAME,
    DeviceShare,
    acquire_device,
    describe_cpu_fallback,
    describe_driver,
)
from actors.resources import Placement
from fedsim.checkpoints.experiment_run import Status
from fedsim.engine.faults import DEFAULT
from fedsim.errors import DoesNotFit

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"


@pytest.fixture
def unusable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No GPU that torch could use, and a driver where that file is written."""
    monkeypatch.delenv("FEDSIM_LOGICAL_GPUS")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def fails() -> None:
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 12020).\nPlease update"
        )

    monkeypatch.setattr(torch.cuda, "init", fails)
    file = tmp_path / "version"
    monkeypatch.setattr("actors.device.DRIVER_FILES", (file, tmp_path / "nvidia0"))
    return file


def test_who_asks_for_none_is_on_the_cpu(unusable: Path) -> None:
    unusable.write_text(VERSION)
    assert acquire_device(0) == DeviceShare("cpu", None, "cpu", None)


def test_a_gpu_of_a_node_without_a_driver_is_logical(unusable: Path) -> None:
    found = acquire_device(0.5)
    found.raise_if_refused()
    assert (found.device, found.cap, found.name) == ("cpu", None, CPU_FALLBACK_NAME)


def test_a_real_gpu_that_cannot_be_used_is_refused(unusable: Path) -> None:
    unusable.write_text(VERSION)
    with pytest.raises(DoesNotFit) as caught:
        acquire_device(0.25).raise_if_refused()
    for words in ("node ", "0.25 GPU", "driver on your system is too old", torch.__version__, "535.104.05"):
        assert words in caught.value.message
    assert "Please update" not in caught.value.message
    assert "FEDSIM_LOGICAL_GPUS=1" in caught.value.hint
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.errors[0][:2] == ("resources.gpus_per_worker", 0.25)


def test_a_driver_is_seen_by_its_device_alone(unusable: Path) -> None:
    assert describe_driver() == ""
    unusable.with_name("nvidia0").touch()
    assert describe_driver() == f"a driver ({unusable.with_name('nvidia0')})"
    assert acquire_device(1).refusal is not None


def test_gpus_that_are_declared_as_logical_are_nobodys(
    unusable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unusable.write_text(VERSION)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("FEDSIM_LOGICAL_GPUS", "1")
    assert acquire_device(0.5) == DeviceShare(name=CPU_FALLBACK_NAME)


def test_a_gpu_that_can_be_used_has_a_name(unusable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 16 << 30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A10G")
    assert acquire_device(2) == DeviceShare("cuda", None, "cuda:0 NVIDIA A10G", None)


def test_clients_and_server_are_refused_when_they_are_called_not_when_they_start(unusable: Path) -> None:
    unusable.write_text(VERSION)
    client, nothing = ClientProcess(0.5), Any
    with pytest.raises(DoesNotFit, match="cannot use it"):
        client.join_run(nothing, nothing, DEFAULT, graphs=True)  # type: ignore[arg-type]
    server = CoordinatorProcess(nothing, Placement(1, 1, 0, server_gpus=0.5))  # type: ignore[arg-type]
    with pytest.raises(DoesNotFit) as caught:
        next(server.run())
    assert caught.value.errors[0][0] == "resources.server_gpus"


def test_what_the_server_says_goes_through_ray_which_sends_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaged:
        def load(self, _: Any, warn: Any) -> None:
            warn("a checkpoint is damaged")

    monkeypatch.setattr("fedsim.checkpoints.experiment_run.make_state_template", lambda *_: None)
    server: Any = CoordinatorProcess(SimpleNamespace(algorithm=None), Placement(1, 1, 0))  # type: ignore[arg-type]
    said = server._load_checkpoint(Damaged(), None)
    assert next(said) == Status("a checkpoint is damaged")
    with pytest.raises(StopIteration):
        said.send("ray's own")


def test_warnings_of_the_server_are_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the coordinator stays on the head, where nobody looks."""

    def run(_: Any) -> Any:
        logging.getLogger("fedsim.engine.simulation").warning("round %d: a model has diverged", 3)
        yield Status("round 3")

    monkeypatch.setattr("fedsim.checkpoints.experiment_run.ExperimentRun.run", run)
    server: Any = CoordinatorProcess(SimpleNamespace(algorithm=None), Placement(1, 1, 0))  # type: ignore[arg-type]
    assert list(server.run()) == [Status("warning: round 3: a model has diverged"), Status("round 3")]


def test_workers_without_work_are_said() -> None:
    """On a GPU, 64 clients of a small model train at once: a cohort of 50 is the work of one worker."""
    experiment: Any = SimpleNamespace(algorithm=None, updates_per_round=50)
    server, net = CoordinatorProcess(experiment, Placement(16, 1, 0)), SimpleNamespace(unstackable="")
    pool: Any = SimpleNamespace(population=SimpleNamespace(nets=(net,)), stack_size=50)
    assert server._describe_idle_workers(pool) == (
        "warning: 15 of 16 workers have no work, because up to 50 of 50 clients train at once: "
        "resources.workers: 1, or resources.stack: off"
    )
    pool.stack_size = 1
    assert server._describe_idle_workers(pool) == ""


def test_the_notice_names_each_node_once() -> None:
    on = [
        {"address": "10.0.0.5", "name": CPU_FALLBACK_NAME},
        {"address": "10.0.0.6", "name": "cuda:0 NVIDIA A10G"},
    ]
    assert describe_cpu_fallback(on[1:]) is None
    assert str(describe_cpu_fallback([*on, *on])).count("10.0.0.5") == 1
    assert "10.0.0.6" not in str(describe_cpu_fallback(on))
