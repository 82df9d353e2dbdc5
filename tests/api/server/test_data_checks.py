"""Checks and class maps that read data: a process with a limit of memory makes them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from jobs.settings import Limits
from tests.api.service import JOBS, RunningService, problem, running_service

CHECK = "/api/v1/check"
LARGE = {"name": "synthetic", "examples": 400_000, "dims": 1000}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service whose checks may use 1 GB."""
    home = tmp_path_factory.mktemp("small") / "home"
    with running_service(home, limits=Limits(check_gigabytes=1)) as running:
        write_bomb(home / "data" / "bomb.npz")
        yield running


def write_bomb(file: Path) -> None:
    """Write a small file whose headers announce arrays of 6 GB."""
    header = io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (6000, 1000, 1000)}
    np.lib.format.write_array_header_1_0(header, shape)
    file.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as members:
        for name in ("x.npy", "y.npy"):
            members.writestr(name, header.getvalue() + bytes(1000))


def ask(service: RunningService, method: str, path: str, body: Any = None) -> httpx.Response:
    return httpx.request(method, service.url + path, json=body, timeout=120)


def test_a_file_that_unpacks_large_is_refused_by_its_headers(small: RunningService) -> None:
    spec = {"algorithm": "fedavg", "data": {"dataset": {"name": "npz", "path": "bomb.npz"}}}
    [fault] = ask(small, "POST", CHECK, spec).json()["errors"]
    assert (fault["path"], fault["value"]) == ("data.dataset.name", "npz")
    assert "takes 12 GB of memory, and at most 1 GB" in fault["message"]
    assert "FEDSIM_CHECK_MEMORY" in fault["hint"]
    refused = problem(ask(small, "POST", JOBS, {"spec": spec}), 422, "BAD_DATA")
    assert [each["path"] for each in refused["errors"]] == ["data.dataset.name"]


def test_a_class_map_of_large_data_is_refused_and_others_are_made(small: RunningService) -> None:
    for data, code in ((LARGE, 422), ({"name": "digits"}, 200)):
        job = small.queued(data={"dataset": data})
        answer = ask(small, "GET", f"{JOBS}/{job.id}/class-map")
        assert answer.status_code == code, answer.text
        if code == 422:
            assert "FEDSIM_CHECK_MEMORY" in answer.json()["hint"]


def test_data_of_fedsim_itself_is_checked_without_a_process(small: RunningService) -> None:
    used = small.app.state.service.data_checker
    used.most_pending = 0
    try:
        for data in ({"name": "digits"}, LARGE):
            spec = {"algorithm": "fedavg", "data": {"dataset": data}}
            assert ask(small, "POST", CHECK, spec).json()["valid"]
        spec = {"algorithm": "fedavg", "data": {"dataset": {"name": "npz", "path": "bomb.npz"}}}
        problem(ask(small, "POST", CHECK, spec), 503, "NOT_READY")
    finally:
        used.most_pending = 100
