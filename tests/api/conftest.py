"""What the tests of the edge share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.cli import main as cli
from api.sdk.transport import connection
from fedsim import FedSimClient
from tests.api.blocking import Answer, Answering, client_maker, response
from tests.api.browser import Browser
from tests.api.service import Fedsim, Outcome, RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A server without a token; its jobs are those of all tests of a file."""
    with running_service(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of the page: to start it takes longer than most of them."""
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """That browser; no test may leave a complaint on its console that it has not looked at."""
    yield chromium
    assert chromium.leave() == []


@pytest.fixture
def http(service: RunningService) -> Iterator[httpx.Client]:
    """Plain HTTP to that server."""
    with httpx.Client(base_url=service.url, timeout=120) as client:
        yield client


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDSIM_URL", "FEDSIM_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fedsim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Fedsim:
    """Run the command in this process, in an empty home."""
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fedsim", *map(str, arguments)])
        capsys.readouterr()
        code = cli._run()
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def online(fedsim: Fedsim, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> Fedsim:
    """The command with FEDSIM_URL set to the tests' server."""
    monkeypatch.setenv("FEDSIM_URL", service.url)
    return fedsim


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAUSES", (0.0, 0.0, 0.0))


@pytest.fixture(params=["sync", "async"])
def answering(request: pytest.FixtureRequest) -> Iterator[Answering]:
    """Make a client whose network gives these answers, one after the other, and the list of what it asked."""
    with client_maker(request.param) as make:

        def made(*answers: Answer) -> tuple[FedSimClient, list[httpx.Request]]:
            asked: list[httpx.Request] = []
            left = list(answers)

            def answer(request: httpx.Request) -> httpx.Response:
                asked.append(request)
                return response(left.pop(0))

            return make("http://service.example", transport=httpx.MockTransport(answer)), asked

        yield made
