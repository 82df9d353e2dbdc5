"""The server process: its address, its note in the home, and its ends. Its queue does nothing: no Ray."""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from api.sdk.started_service import StartedService
from api.server import local_service
from api.server.local_service import BackgroundService, find_free_port, identify_service
from api.server.web_server import make_local_url, open_listener
from fedsim import FedSimClient
from fedsim.errors import SettingsError
from jobs.file_locks import lock_file
from jobs.local_ray import embedded_ray as local_ray
from jobs.local_ray import keeper as ray_keeper
from jobs.local_ray import keeper_files
from jobs.local_ray.keeper_files import Addresses
from jobs.settings import Settings
from tests.api.browser import until
from tests.api.service import RunningService, a_round

SERVER = """
import sys
from api.server.app import create_app
from api.server.web_server import open_listener, serve_app
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from tests.api.service import IdleQueue

settings = Settings(home=sys.argv[1], drain_seconds=int(sys.argv[3]))
settings.make_home()
listener = open_listener("127.0.0.1", 0)
with JobStore.open(settings.database_url) as store:
    app = create_app(settings, store, IdleQueue())
    idle = float(sys.argv[2]) or None
    announce = lambda url: print(url, flush=True)
    sys.exit(serve_app(app, settings, "127.0.0.1", listener, idle_exit=idle, announce=announce))
"""


class Process:
    """A server of its own process."""

    def __init__(
        self, home: Path, idle_exit: float = 0, drain: int = 0, files: int = 0, log: Path | None = None
    ) -> None:
        self.settings = Settings(home=home)
        command = [sys.executable, "-c", SERVER, str(home), str(idle_exit), str(drain)]

        def limit_files() -> None:
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        with ExitStack() as stack:
            errors = stack.enter_context(log.open("w")) if log else None
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=limit_files
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.end()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_in_order_even_with_a_watcher(server: Process, number: int, code: int) -> None:
    [note] = StartedService.list_living(server.settings)
    assert (note.url, note.pid) == (server.url, server.process.pid)
    assert note.answers()
    from jobs.spec import parse_spec
    from jobs.store.job_store import JobStore

    with JobStore.open(server.settings.database_url) as store:
        job, _ = store.create(parse_spec({"algorithm": "fedavg"}))
    heard: list[str] = []

    def watch() -> None:
        with httpx.stream("GET", f"{server.url}/api/v1/jobs/{job.id}/events", timeout=20) as response:
            for line in response.iter_lines():
                heard.append(line)

    watcher = threading.Thread(target=watch)
    watcher.start()
    until(lambda: "event: state" in heard)
    os.kill(server.process.pid, number)
    assert server.process.wait(30) == code
    watcher.join()
    assert heard[-2].startswith(": the service is stopping")
    assert list(server.settings.home.glob("serve*.json")) == []


@pytest.mark.slow
def test_before_it_ends_it_says_so_and_goes_on_serving(tmp_path: Path) -> None:
    server = Process(tmp_path, drain=3)
    try:
        with httpx.Client(base_url=server.url) as http:
            assert http.get("/readyz").status_code == 200
            os.kill(server.process.pid, signal.SIGTERM)
            until(lambda: http.get("/readyz").status_code == 503)
            assert http.get("/readyz").json()["detail"] == "the service is stopping"
            assert http.get("/healthz").status_code == 200
            assert http.get("/api/v1/jobs").status_code == 200
        assert server.process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/healthz")
    finally:
        server.end()


@pytest.mark.slow
def test_it_ends_when_nobody_uses_it(tmp_path: Path) -> None:
    server = Process(tmp_path, idle_exit=2.0)
    try:
        with httpx.Client(base_url=server.url) as http:
            for _ in range(10):
                time.sleep(0.3)
                assert http.get("/api/v1/jobs").is_success
        assert server.process.poll() is None
        assert server.process.wait(60) == 0
    finally:
        server.end()


@pytest.mark.slow
def test_it_does_not_end_while_a_job_waits(tmp_path: Path) -> None:
    server = Process(tmp_path, idle_exit=1.5)
    try:
        with FedSimClient(server.url) as client:
            job = client.submit({"algorithm": "fedavg"})
            time.sleep(2.5)
            assert server.process.poll() is None
            job.cancel()
        assert server.process.wait(60) == 0
    finally:
        server.end()


def test_stop_ends_the_service_that_was_started_here_and_then_its_ray(
    server: Process, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second service of this home was killed: its record is the newest, and nobody holds its lock."""
    from api.cli import main as cli

    killed = StartedService(server.process.pid, f"http://127.0.0.1:{find_free_port()}", "killed")
    left = server.settings.home / "serve.killed.json"
    left.write_text(json.dumps(killed._asdict()))
    alive: list[bool] = []
    monkeypatch.setattr(
        local_ray, "stop_ray", lambda _: alive.append(identify_service(server.url) == "fedsim")
    )
    monkeypatch.setenv("FEDSIM_HOME", str(server.settings.home))
    monkeypatch.setattr(sys, "argv", ["fedsim", "stop", "--force"])
    assert cli._run() == 0
    assert f"{server.url} has stopped" in capsys.readouterr().err
    assert server.process.wait(60) == 0
    assert alive == [False]
    assert not left.exists()
    assert cli._run() == 0
    assert "no service" in capsys.readouterr().err


@pytest.mark.slow
def test_each_service_of_a_home_is_stopped_before_its_ray(
    server: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    from api.cli import main as cli

    second, third = Process(server.settings.home), Process(server.settings.home)
    second.end()
    alive: list[bool] = []
    here = (server, third)
    monkeypatch.setattr(
        local_ray, "stop_ray", lambda _: alive.extend(identify_service(one.url) == "fedsim" for one in here)
    )
    monkeypatch.setenv("FEDSIM_HOME", str(server.settings.home))
    monkeypatch.setattr(sys, "argv", ["fedsim", "stop", "--force"])
    try:
        assert [note.url for note in StartedService.list_living(server.settings)] == [third.url, server.url]
        assert cli._run() == 0
        assert [one.process.wait(60) for one in here] == [0, 0]
    finally:
        third.end()
    assert alive == [False, False]


def test_stop_leaves_the_ray_of_a_service_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from api.cli import main as cli

    ended: list[Settings] = []
    monkeypatch.setattr(local_ray, "stop_ray", ended.append)
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["fedsim", "stop", "--force"])
    hangs = StartedService(12345, f"http://127.0.0.1:{find_free_port()}", "hangs")
    with hangs.recorded(Settings(tmp_path)):
        assert cli._run() == 4
        assert "process 12345) runs but does not answer" in capsys.readouterr().err
    assert ended == []


def test_a_service_that_waits_for_its_callers_is_asked_twice(service: RunningService) -> None:
    """It waits no longer then, as after a second Ctrl-C."""
    note = StartedService(os.getpid(), service.url, service.app.state.instance)
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: asked.append(number))
        patched.setattr(StartedService, "answers", lambda self: len(asked) < 2)
        assert note.stop(seconds=0.3)
        asked.clear()
        patched.setattr(StartedService, "answers", lambda self: True)
        assert not note.stop(seconds=0.3)
    assert asked == [signal.SIGTERM, signal.SIGTERM]


def test_stop_spares_jobs_whose_service_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They go on while nobody answers; it takes --force to end them."""
    from api.cli import main as cli

    ended: list[Settings] = []
    monkeypatch.setattr(local_ray, "stop_ray", ended.append)
    monkeypatch.setattr(ray_keeper, "has_running_jobs", lambda addresses, secret: True)
    keeper_files.write_addresses(tmp_path, Addresses(1, "/tmp/ray", "http://127.0.0.1:1", "127.0.0.1:2"))
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["fedsim", "stop"])
    with lock_file(tmp_path / keeper_files.LOCK) as got:
        assert got
        assert cli._run() == 4
        assert "its Ray cluster still runs jobs" in capsys.readouterr().err
        assert ended == []
        monkeypatch.setattr(sys, "argv", ["fedsim", "stop", "--force"])
        assert cli._run() == 0
    assert len(ended) == 1


def test_a_service_in_the_background_imports_nothing_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fractions.py").write_text("raise SystemExit('of the working folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "plugins:")
    started: list[dict[str, str]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_service.subprocess, "Popen", lambda *_, env, **__: started.append(env))
        BackgroundService(Settings(home=tmp_path / "home"), 1, idle_exit=1)
    [environment] = started
    subprocess.run([sys.executable, "-P", "-c", "import fractions"], env=environment, check=True)
    assert str(tmp_path / "plugins") in environment["PYTHONPATH"].split(os.pathsep)


def test_stop_says_what_to_do_about_a_service_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from api.cli import main as cli

    monkeypatch.setattr(StartedService, "list_living", lambda _: [StartedService(17, "http://here", "x")])
    monkeypatch.setattr(StartedService, "answers", lambda self: True)
    monkeypatch.setattr(StartedService, "stop", lambda self: False)
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["fedsim", "stop", "--force"])
    assert cli._run() != 0
    said = capsys.readouterr().err
    assert "(process 17) does not stop" in said
    assert "end process 17, then repeat" in said


def test_stop_spares_active_jobs(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from api.cli import main as cli

    job = service.running()
    monkeypatch.setenv("FEDSIM_HOME", str(service.settings.home))
    monkeypatch.setattr(sys, "argv", ["fedsim", "stop"])
    with StartedService(os.getpid(), service.url, service.app.state.instance).recorded(service.settings):
        assert cli._run() == 4
    assert job.id in capsys.readouterr().err


def test_a_note_of_somebody_long_gone_is_not_believed(service: RunningService, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert StartedService.list_living(settings) == []
    (tmp_path / "serve.json").write_text("{broken")
    assert StartedService.list_living(settings) == []
    gone = StartedService(1, service.url, "another instance")
    (tmp_path / "serve.json").write_text(json.dumps(gone._asdict()))
    assert not gone.answers()
    assert StartedService.list_living(settings) == []
    assert not (tmp_path / "serve.json").exists()


def test_a_note_lasts_as_long_as_its_service(service: RunningService, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    hangs = StartedService(1, f"http://127.0.0.1:{find_free_port()}", "hangs", platform.node())
    with hangs.recorded(settings):
        assert StartedService.list_living(settings) == [hangs]
        # The home is shared with a machine where this process runs.
        shared = json.dumps(hangs._asdict() | {"machine": "elsewhere"})
        (tmp_path / "serve.hangs.json").write_text(shared)
        assert StartedService.list_living(settings) == []
        assert (tmp_path / "serve.hangs.json").exists()
    assert list(tmp_path.glob("serve*")) == []
    # On a disk without locks across machines nobody here knows whether that service lives.
    (tmp_path / "serve.shared.json").write_text(shared)
    assert StartedService.list_living(settings) == []
    (tmp_path / "serve.shared.json").unlink()
    # A disk without locks: the service is asked whether it answers.
    answers = StartedService(1, service.url, service.app.state.instance)
    (tmp_path / "serve.answers.json").write_text(json.dumps(answers._asdict()))
    assert StartedService.list_living(settings) == [answers]


def test_a_taken_port_says_who_has_it(service: RunningService) -> None:
    with pytest.raises(SettingsError, match=r"fedsim service already answers at http://127\.0\.0\.1"):
        open_listener("127.0.0.1", service.port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match="in use"):
            open_listener("127.0.0.1", port)
    with pytest.raises(SettingsError, match="cannot listen on --host"):
        open_listener("no.such.host.invalid", 0)


def test_who_answers(service: RunningService) -> None:
    assert identify_service(service.url) == "fedsim"
    assert identify_service(f"http://127.0.0.1:{find_free_port()}") == "nobody"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert identify_service(f"http://127.0.0.1:{other.getsockname()[1]}") == "somebody"


def test_addresses_are_those_of_this_machine() -> None:
    assert make_local_url("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert make_local_url("::", 80) == "http://[::1]:80"
    assert make_local_url("::1", 80) == "http://[::1]:80"
    assert make_local_url("localhost", 80) == "http://localhost:80"


def test_serve_refuses_to_be_open_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from api.cli import main as cli

    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["fedsim", "serve", "--host", "0.0.0.0"])
    assert cli._run() == 2
    assert "FEDSIM_TOKEN" in capsys.readouterr().err


@pytest.mark.slow
def test_rounds_of_a_job_survive_the_server(tmp_path: Path) -> None:
    first = Process(tmp_path)
    with FedSimClient(first.url) as client:
        job = client.submit({"algorithm": "fedavg", "rounds": 2})
    first.end()
    from jobs.store.job_store import JobStore
    from jobs.store.states import JobState

    with JobStore.open(first.settings.database_url) as store:
        store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
        store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
        store.add_round(job.id, a_round(1))
    second = Process(tmp_path)
    try:
        with FedSimClient(second.url) as client:
            assert list(client.job(job.id).rounds()) == [a_round(1)]
    finally:
        second.end()
