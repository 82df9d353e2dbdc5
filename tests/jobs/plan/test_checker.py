"""The checks of a service: which of them need a process, and what the process answers if memory runs out."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedsim.errors import DataError, SpecError
from jobs.plan import checker
from jobs.queue import job_size
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.run_size import needs_data


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"data": {"dataset": "diabetes"}}, False),
        ({"data": {"dataset": {"name": "synthetic", "dims": 784, "examples": 10**7}}}, False),
        ({"data": {"dataset": {"name": "synthetic", "dims": 4096, "classes": 4096}}}, True),
        ({"data": {"dataset": "fashion_mnist"}}, True),
        ({"data": {"dataset": {"name": "npz", "path": "mine.npz"}}}, True),
        ({"data": {"dataset": {"name": "npz", "path": "/etc"}}}, False),
        ({"data": {"partition": {"kind": "file", "path": "mine.csv"}}}, True),
        ({"model": {"name": "mlp", "init": "weights.safetensors"}}, True),
        ({"model": ["mlp", {"name": "torchvision", "arch": "resnet18"}]}, True),
        ({"model": {"name": "distilbert", "pretrained": "folder"}}, True),
        ({"model": {"name": "mlp", "hidden": 512, "layers": 4}}, False),
        ({"model": {"name": "mlp", "hidden": 10**7}}, True),
        ({"model": {"name": "mlp", "layers": 1000}}, True),
        ({"model": {"name": "mlp", "layers": 31}}, True),
        ({"model": ["mlp", "resnet9", "vgg16", "logistic"]}, False),
        ({"model": ["mlp"] * 5}, True),
        ({"model": ["mlp", "resnet50"]}, True),
        ({"model": "googlenet"}, True),
        ({"privacy": {"epsilon": 8}}, True),
        ({"model": ["mlp", {"name": "unet", "width": 10**6}]}, True),
        (
            {
                "model": {"name": "mlp", "hidden": 4000},
                "data": {"dataset": {"name": "synthetic", "dims": 60_000}},
            },
            True,
        ),
    ],
)
def test_a_check_that_reads_files_or_builds_much_needs_a_process(
    fields: dict[str, Any], expected: bool
) -> None:
    assert needs_data(parse_spec({"algorithm": "fedavg", **fields})) is expected


def test_a_service_builds_the_models_of_one_spec_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that build `resnet50` would draw from one generator, and each would be refused for it."""
    building, most = list[int](), list[int]()

    def build(*_: Any) -> Any:
        building.append(1)
        most.append(len(building))
        time.sleep(0.02)
        building.pop()
        raise SpecError([])

    monkeypatch.setattr(checker, "check_spec", build)
    monkeypatch.setattr(job_size, "is_short_unread", build)
    spec, settings = parse_spec({"algorithm": "fedavg"}), Settings(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        checks = [threads.submit(checker.check_submission, spec, settings) for _ in range(4)]
        sizes = [threads.submit(job_size._is_short, f'{{"algorithm": "{n}"}}', settings) for n in range(4)]
    assert all(isinstance(each.exception(), SpecError) for each in checks)
    assert not any(each.result() for each in sizes)
    assert most == [1] * 8


def test_data_larger_than_the_memory_is_an_error_with_its_field_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_memory(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(checker, "check_submission", fill_memory)
    question = {"work": "check", "spec": {"algorithm": "fedavg"}, "nodes": None}
    settings = Settings.from_env({"FEDSIM_HOME": str(tmp_path), "FEDSIM_CHECK_MEMORY": "3"})
    with pytest.raises(DataError, match="more than the 3 GB of memory that a check may use") as caught:
        checker.answer_question(question, settings)
    [fault] = caught.value.errors
    assert (fault.path, fault.value) == ("data.dataset.name", "digits")
    assert "FEDSIM_CHECK_MEMORY" in fault.hint


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_process_cannot_take_more_memory_than_its_limit() -> None:
    program = """
from jobs.json_process import limit_memory
limit_memory(300_000_000)
small = bytearray(10_000_000)
try:
    large = bytearray(1_000_000_000)
except MemoryError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
