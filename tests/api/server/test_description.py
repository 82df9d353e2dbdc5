"""The OpenAPI description, held against the service: requests made from it, right ones and wrong ones.

Every answer has to be one that the description names, of the type and shape that it gives; none is a 5xx but
those that it allows. The store holds jobs in every state, and half of the requests name one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python.asgi import shutdown_lifespans
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.server.app import create_app
from fedsim.errors import ServiceError
from jobs.run.artifacts import ARTIFACTS, save_model
from jobs.settings import Limits, Settings
from jobs.spec import parse_spec
from jobs.store.job_store import JobStore
from jobs.store.states import JobState
from tests.api.service import IdleQueue, a_round
from tests.databases import service_database

# Not whether wrong values are refused: on the wire `label=false` is the text "false", and right.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = ("follow_events", "read_log")
"""Of a job that has not ended they would go on."""

WORDS = {"algorithm": ("fedavg", {"name": "fedprox", "mu": 0.1}), "model": ("mlp",), "data": ({},)}
"""What stands in every second spec, so that some of them are right."""


class UnmeasuredPlans:
    """The planner's place: a plan takes half a minute, and has tests of its own."""

    async def run(self, *_: object) -> None:
        raise ServiceError("nobody plans here", status=422, code="DOES_NOT_FIT")

    def close(self) -> None:
        pass


class World:
    """A service that runs in this process, with jobs in every state.

    Args:
        app: the service.
        store: its jobs.
        config: of the service.
    """

    def __init__(self, app: FastAPI, store: JobStore, config: Settings) -> None:
        self.app, self.store, self.config = app, store, config
        self.jobs = [self._job(number, final) for number in range(3) for final in JobState]
        self.ended = [self._job(number, JobState.SUCCEEDED) for number in range(5)]
        self.description = schemathesis.openapi.from_asgi(
            "/api/v1/openapi.json", app, headers={"Host": "localhost"}
        )
        app.state.service.planner = UnmeasuredPlans()

    def _job(self, number: int, state: JobState) -> str:
        spec = parse_spec({"algorithm": "fedavg", "name": f"job {number}", "rounds": 5})
        job_id = self.store.create(spec, priority=number, labels={"n": str(number)})[0].id
        for source, target in WAYS[state]:
            if target in (JobState.SUCCEEDED, JobState.FAILED):
                for each in range(1, 1 + number):
                    self.store.add_round(job_id, a_round(each))
            self.store.change_state(job_id, source, target)
        self.config.log_path(job_id).write_text("a line\n" * number)
        save_model(self.config, job_id, {})
        return job_id

    def operations(self) -> Iterator[Any]:
        """Everything that the description describes."""
        for result in self.description.get_all_operations():
            yield result.ok()

    def suit(self, case: Case, data: st.DataObject) -> None:
        """Have a request name what there is, every second time."""
        case.headers = {**(case.headers or {}), "Host": "localhost"}
        path = case.path_parameters or {}
        endless = case.operation.definition.raw["operationId"] in ENDLESS
        # A request that was made wrong on purpose stays as it is.
        if case.meta is None or case.meta.generation.mode is GenerationMode.NEGATIVE:
            return
        if "job_id" in path and data.draw(st.booleans()):
            path["job_id"] = data.draw(st.sampled_from(self.ended if endless else self.jobs))
        if "name" in path and data.draw(st.booleans()):
            path["name"] = data.draw(st.sampled_from(list(ARTIFACTS)))
        spec = case.body.get("spec", case.body) if isinstance(case.body, dict) else None
        if isinstance(spec, dict) and "algorithm" in spec and data.draw(st.booleans()):
            spec |= {name: data.draw(st.sampled_from(words)) for name, words in WORDS.items()}

    def ask(self, operation: Any, mode: GenerationMode, cases: int) -> Counter[int]:
        """Send so many requests to one route, and check each answer; counts the statuses."""
        seen: Counter[int] = Counter()

        @seed(21)
        @settings(
            max_examples=cases,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def check(case: Case, data: st.DataObject) -> None:
            self.suit(case, data)
            answer = case.call()
            seen[answer.status_code] += 1
            # The description allows a 503 where Ray or the planner is not there; here both are.
            case.validate_response(answer, checks=CHECKS)

        check()
        return seen


QUEUED, STARTING, RUNNING = JobState.QUEUED, JobState.STARTING, JobState.RUNNING
BEGUN = ((QUEUED, STARTING), (STARTING, RUNNING))
WAYS: dict[JobState, tuple[tuple[JobState, JobState], ...]] = {
    QUEUED: (),
    STARTING: BEGUN[:1],
    RUNNING: BEGUN,
    JobState.CANCELLING: (*BEGUN, (RUNNING, JobState.CANCELLING)),
    JobState.CANCELLED: ((QUEUED, JobState.CANCELLED),),
    JobState.SUCCEEDED: (*BEGUN, (RUNNING, JobState.SUCCEEDED)),
    JobState.FAILED: (*BEGUN, (RUNNING, JobState.FAILED)),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    config = Settings(home=tmp_path_factory.mktemp("home"), limits=Limits(requests_per_minute=0))
    config = replace(config, database_url=service_database(config.make_home()))
    with JobStore.open(config.database_url) as store:
        app = create_app(config, store, IdleQueue())
        yield World(app, store, config)
        shutdown_lifespans()


def ask_everything(world: World, cases: int) -> tuple[int, Counter[int]]:
    """Send so many requests of each kind to every route that takes any."""
    total, seen = 0, Counter[int]()
    for operation in world.operations():
        if not (operation.path_parameters or operation.query or operation.headers or operation.body):
            seen += world.ask(operation, GenerationMode.POSITIVE, 1)
            continue
        for mode in GenerationMode:
            found = world.ask(operation, mode, cases)
            seen += found
            total += sum(found.values())
    return total, seen


def test_the_service_does_what_its_description_says(world: World) -> None:
    total, seen = ask_everything(world, 3)
    assert total > 75
    assert {200, 201, 404, 422} <= set(seen)


@pytest.mark.weekly
def test_five_thousand_requests_are_answered_as_described(world: World) -> None:
    total, seen = ask_everything(world, 200)
    assert total >= 5000
    assert {200, 201, 204, 400, 404, 409, 422} <= set(seen)
