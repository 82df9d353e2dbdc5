"""`fedsim plan`, `POST /plan` and `FedSimClient.plan`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import httpx
import pytest

from api.sdk.client import FedSimClient
from api.server.plan_process import Planning
from fedsim.errors import ServiceError, SpecError
from jobs.plan.plan import Plan
from jobs.settings import Settings
from jobs.spec import load_spec
from tests.api.browser import until
from tests.api.service import Fedsim, RunningService

TOO_MANY = {"algorithm": "fedavg", "resources": {"workers": 5000}}


def test_a_plan_on_the_command_line(fedsim: Fedsim, ray_cluster: None) -> None:
    done = fedsim("plan", "demo", "--set", "resources.workers=1", "--seconds", 1)
    assert done.code == 0, done.err
    for words in (
        "8 workers fit",
        "workers",
        "memory of a worker",
        "time of a round",
        "run time",
        "384.8 kB",
        "192.4 kB down",
    ):
        assert words in done.out
    assert "measuring clients" in done.err


def test_what_does_not_fit_is_exit_3_with_the_arithmetic(fedsim: Fedsim) -> None:
    arguments = ("plan", "demo", "--set", "resources.workers=5000")
    done = fedsim(*arguments)
    assert done.code == 3
    assert done.out == ""
    assert "5000 workers x 1 CPU asked" in done.err
    done = fedsim(*arguments, "--format", "json")
    assert done.code == 3
    assert done.data["fits"] is False
    assert done.data["message"].startswith("5000 workers x 1 CPU asked")


def test_a_wrong_spec_is_exit_2(fedsim: Fedsim) -> None:
    done = fedsim("plan", "demo", "--set", "rounds=0")
    assert done.code == 2
    assert "rounds" in done.err


def test_a_service_answers_what_does_not_fit_and_others_meanwhile(service: RunningService) -> None:
    answers: list[Plan] = []
    with FedSimClient(service.url) as client:
        thread = threading.Thread(target=lambda: answers.append(client.plan(TOO_MANY)))
        thread.start()
        while thread.is_alive():
            assert httpx.get(f"{service.url}/healthz", timeout=5).status_code == 200
            time.sleep(0.2)
    [answer] = answers
    assert not answer.fits
    assert answer.message.startswith("5000 workers x 1 CPU asked")


def test_a_wrong_spec_is_refused_with_every_fault(service: RunningService, http: httpx.Client) -> None:
    with FedSimClient(service.url) as client, pytest.raises(SpecError) as caught:
        client.plan({"algorithm": "fedawg", "rounds": 0})
    assert {fault.path for fault in caught.value.errors} == {"algorithm.name", "rounds"}
    answer = http.post("/api/v1/plan", content="algorithm: fedawg", headers={"Content-Type": "text/yaml"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    answer = http.post("/api/v1/plan", content="[1]", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415


def test_a_plan_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    planning = Planning(Settings(home=tmp_path), seconds=0.3)
    with pytest.raises(ServiceError, match=r"longer than 0\.3 s") as caught:
        asyncio.run(planning.plan(load_spec("demo")))
    assert (caught.value.status, planning.waiting) == (503, 0)


def test_nobody_waits_behind_too_many(tmp_path: Path) -> None:
    planning = Planning(Settings(home=tmp_path))
    planning.waiting = 8
    with pytest.raises(ServiceError, match="8 plans"):
        asyncio.run(planning.plan(load_spec("demo")))


def test_a_plan_that_nobody_waits_for_any_more_is_given_up(service: RunningService) -> None:
    planning = service.app.state.service.planning
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{service.url}/api/v1/plan", json={"algorithm": "fedavg"}, timeout=1.0)
    until(lambda: planning.waiting == 0, seconds=30)


def test_plans_end_with_the_service(tmp_path: Path) -> None:
    async def closed() -> float:
        planning = Planning(Settings(home=tmp_path))
        plans = [asyncio.create_task(planning.plan(load_spec("demo"))) for _ in range(2)]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        planning.close()
        errors = await asyncio.gather(*plans, planning.plan(load_spec("demo")), return_exceptions=True)
        assert [str(error) for error in errors] == [str(errors[0])] * 3
        assert "the service is stopping" in str(errors[0])
        assert planning.waiting == 0
        return time.monotonic() - began

    assert asyncio.run(closed()) < 4


@pytest.mark.slow
def test_a_whole_plan_of_a_service(service: RunningService) -> None:
    with FedSimClient(service.url) as client:
        found = client.plan("demo", set={"rounds": 2})
    assert found.fits
    assert found.bytes is not None
    assert found.bytes.round.down == 192_400
    assert json.loads(found.model_dump_json())["seconds"]["round"]["total"] > 0
