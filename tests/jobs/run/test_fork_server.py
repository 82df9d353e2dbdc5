"""The fork server: runners of their own, that leave nothing to each other; and a cluster that asks it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobs.local_ray.fork_server_process import FORK_SOCKET, ForkServerProcess, ask_fork_server
from jobs.local_ray.keeper_files import Addresses, write_addresses
from jobs.run.forks.code_state import ROOT, compute_code_state
from jobs.run.forks.forked_runners import ForkedRunners
from jobs.run.job_cluster import IN_PROCESS_VARIABLE, RayJob
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.run_size import is_short
from jobs.store.job_store import JobStore
from jobs.store.records import Job, get_ray_job_id
from jobs.store.states import FailureReason, JobState
from tests.e2e.server import QUICK, undisturbed
from tests.golden.cases import method_specs
from tests.jobs.desk import Scripted

pytestmark = pytest.mark.slow  # tests/e2e/test_service.py runs jobs of the fork server in the quick suite

PARTING = '''
"""A plug-in that breaks the process that imports it, in the way that its variable says."""
import os, pathlib, signal, sys, threading, time
import torch

way = os.environ.get("TEST_WAY", "")
home = pathlib.Path(os.environ["FEDSIM_HOME"])
(home / f"seen-{os.environ['FEDSIM_SUBMISSION']}").write_text(os.environ.get("TEST_SECRET", "none"))
os.environ["TEST_SECRET"] = "of this job"
os.chdir("/")
if way == "settings":
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
if way == "thread":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
if way == "memory":
    from fedsim.algorithms import ALGORITHMS, FedAvg
    from jobs.json_process import limit_memory

    class Hungry(FedAvg):
        """Keep more memory than there is, in round 2."""

        def aggregate(self, ctx, state, reduced):
            limit_memory(3 * 10**9)
            kept = [torch.ones(10**8 // 4) for _ in range(100 * ctx.round)]
            return super().aggregate(ctx, state, reduced)

    ALGORITHMS.register("hungry", Hungry)
if way == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if way == "ended":
    os._exit(7)
if way == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (home / "stubborn").touch()
    time.sleep(60)
'''


EXIT_CODES = {"settings": 1, "thread": 0, "killed": -signal.SIGKILL, "ended": 7}
"""What the plug-in does, and how its runner then ends. In other units of torch the run itself fails."""


class Forks:
    """A fork server on a home, a store, and the cluster that a dispatcher would use."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home)
        self.directory = home / "ray"
        self.directory.mkdir(parents=True)
        self.process = ForkServerProcess(self.directory, 600)
        write_addresses(home, Addresses(os.getpid(), str(self.directory), ""))
        self.store = JobStore.open(self.settings.database_url)
        self.ray = Scripted()
        self.cluster = ForkedRunners(self.ray, self.settings)

    def submit(
        self,
        way: str | None = None,
        more: dict[str, str] | None = None,
        base: Mapping[str, Any] = QUICK,
        **changes: Any,
    ) -> Job:
        """Submit a job; `way` makes its runner import a plug-in that breaks it."""
        job, _ = self.store.create(parse_spec({**base, **changes}))
        self.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
        environment = self.settings.environment() | {
            "FEDSIM_SUBMISSION": get_ray_job_id(job),
            IN_PROCESS_VARIABLE: "1",
        }
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        if way is not None:
            environment |= {"FEDSIM_PLUGINS": "parting", "TEST_WAY": way, "TEST_SECRET": way}
        environment |= more or {}
        self.cluster.submit(get_ray_job_id(job), ["run", job.id], environment)
        return job

    def wait(self, job: Job, seconds: float = 60.0) -> RayJob:
        """Wait for the end of a job's process."""
        found = self.until(
            lambda: (seen := self.cluster.find(get_ray_job_id(job))) is not None and seen.ended and seen,
            seconds,
        )
        assert isinstance(found, RayJob)
        return found

    def until(self, check: Callable[[], Any], seconds: float = 60.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := check()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return found

    def tend(self, call: Callable[[], Any]) -> Any:
        """Do what the keeper does, while another thread makes a call: the server ends with its starter."""
        with ThreadPoolExecutor(1) as other:
            called = other.submit(call)
            self.until(lambda: self.process.start_if_asked() or called.done())
        return called.result()

    def digests(self, job: Job) -> list[str]:
        return [record.digest for record in self.store.rounds(job.id)]

    def close(self) -> None:
        self.process.end()
        self.store.close()

    def pid(self) -> int:
        """The server's process."""
        assert self.process._process is not None
        return self.process._process.pid

    def seen(self, job: Job) -> str | None:
        """The secret that a job's plug-in saw; None if no plug-in was imported."""
        file = self.settings.home / f"seen-{get_ray_job_id(job)}"
        return file.read_text() if file.exists() else None


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("f")
    (folder / "parting.py").write_text(PARTING)
    with pytest.MonkeyPatch.context() as patch:
        root = Path(__file__).parents[3]
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (root, folder))))
        made = Forks(folder / "home")
        yield made
        made.close()


def test_runs_leave_nothing_to_the_next_one(forks: Forks) -> None:
    """Each job here breaks something of its process; the digests are those of an undisturbed process."""
    spec = {**QUICK, "rounds": 2, "seed": 3}
    for way in EXIT_CODES:
        broken = forks.submit(way, **spec)
        ended = forks.wait(broken)
        job = forks.submit(**spec)
        assert forks.wait(job).exit_code == 0
        assert forks.store.get(job.id).state is JobState.SUCCEEDED
        assert forks.digests(job) == undisturbed(spec, forks.settings)
        assert ended.exit_code == EXIT_CODES[way]
        assert (forks.seen(broken), forks.seen(job)) == (way, None)


def test_a_run_that_exhausts_its_memory_leaves_nothing_to_the_next_one(forks: Forks) -> None:
    spec = {**QUICK, "rounds": 3, "seed": 5}
    before = forks.submit(**spec)
    forks.wait(before)
    pid = forks.pid()
    broken = forks.submit("memory", **{**spec, "algorithm": "hungry"})
    assert forks.wait(broken).ended
    job = forks.store.get(broken.id)
    assert (job.state, job.reason, job.rounds_done) == (JobState.FAILED, FailureReason.OUT_OF_MEMORY, 1)
    # The server lives, has no runner left, and its next runner has neither the limit nor the algorithm.
    assert not forks.process.has_runners()
    after = forks.submit(**spec)
    assert forks.wait(after).exit_code == 0
    assert forks.pid() == pid
    assert forks.digests(after) == forks.digests(before) == undisturbed(spec, forks.settings)


@pytest.mark.timeout(900)
def test_every_method_has_the_digests_of_a_cold_process(forks: Forks) -> None:
    specs = [spec for spec in method_specs().values() if is_short(parse_spec(spec), forks.settings)]
    assert len(specs) > 20
    jobs = [forks.submit(base=spec) for spec in specs]
    for spec, job in zip(specs, jobs, strict=True):
        forks.wait(job, seconds=600)
        assert forks.digests(job) == undisturbed(spec, forks.settings), spec


def test_a_runner_has_the_environment_of_its_own_job_alone(forks: Forks) -> None:
    told = forks.submit("one")
    forks.wait(told)
    other = forks.submit(more={"FEDSIM_PLUGINS": "parting"})
    forks.wait(other)
    assert (forks.seen(told), forks.seen(other)) == ("one", "none")


def test_the_output_and_the_log_of_each_job_are_its_own(forks: Forks) -> None:
    jobs = [forks.submit(seed=seed) for seed in (0, 1)]
    for job in jobs:
        forks.wait(job)
        text = forks.settings.log_path(job.id).read_text()
        assert text.count("ended SUCCEEDED") == 1
        assert forks.cluster.read_log_tail(get_ray_job_id(job), 1).endswith("ended SUCCEEDED")
    assert forks.cluster.read_log_tail("unknown") == "its last words"


def test_every_change_of_the_code_changes_its_state(tmp_path: Path) -> None:
    module = tmp_path / "jobs" / "run" / "runner.py"
    module.parent.mkdir(parents=True)
    states = {compute_code_state(tmp_path)}
    module.write_text("")
    states.add(compute_code_state(tmp_path))
    os.utime(module, ns=(1, 1))
    states.add(compute_code_state(tmp_path))
    assert len(states) == 3
    assert compute_code_state() != compute_code_state(tmp_path)
    assert (ROOT / "jobs" / "run" / "runner.py").is_file()


@pytest.mark.parametrize("way", ["code", "path"])
def test_a_runner_of_other_code_is_a_job_of_ray(
    forks: Forks, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "path":
        job = forks.submit(more={"PYTHONPATH": "/elsewhere"})
    else:
        monkeypatch.setattr("jobs.run.forks.forked_runners.compute_code_state", lambda: "other")
        job = forks.submit()
        # The server ends, because its code is old, and comes back for the next question.
        forks.until(lambda: not forks.process._is_alive())
        monkeypatch.undo()
        assert forks.tend(lambda: forks.wait(forks.submit())).exit_code == 0
    assert get_ray_job_id(job) in forks.ray.jobs


def test_an_unknown_job_is_unknown(forks: Forks) -> None:
    assert forks.cluster.find("fedsim-nothing-0") is None
    forks.cluster.stop("fedsim-nothing-0")
    assert forks.ray.stopped[-1:] == ["fedsim-nothing-0"]


def test_a_runner_that_ignores_signals_is_killed(forks: Forks) -> None:
    job = forks.submit("stubborn")
    forks.until(lambda: (forks.settings.home / "stubborn").exists())
    assert forks.process.has_runners()
    # When memory runs out, the kernel ends the runner, and neither its server nor the service.
    [runner] = Path(f"/proc/{forks.pid()}/task/{forks.pid()}/children").read_text().split()
    scores = [Path(f"/proc/{process}/oom_score_adj").read_text() for process in (runner, "self")]
    assert int(scores[0]) == 1000 > int(scores[1])
    forks.cluster.stop(get_ray_job_id(job))
    assert forks.wait(job).exit_code == -signal.SIGKILL
    assert not forks.process.has_runners()


def test_runners_end_with_the_server(forks: Forks) -> None:
    job = forks.submit(rounds=100_000)
    forks.until(lambda: forks.store.get(job.id).rounds_done > 2)
    os.kill(forks.pid(), signal.SIGKILL)
    forks.until(lambda: not forks.process._is_alive())
    done = forks.until(lambda: forks.store.get(job.id).rounds_done)
    time.sleep(1.0)
    assert forks.store.get(job.id).rounds_done <= done + 1
    assert forks.tend(lambda: forks.cluster.find(get_ray_job_id(job))) is None


def test_an_idle_server_ends(tmp_path: Path) -> None:
    process = ForkServerProcess(tmp_path, 1)
    assert ask_fork_server(tmp_path / FORK_SOCKET, {"ask": "count"}) == {"running": 0}
    deadline = time.monotonic() + 30
    while process._is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.start_if_asked()
    assert not process._is_alive()
    process.end()


@pytest.mark.weekly
@pytest.mark.timeout(900)
def test_two_hundred_runs_take_no_memory(forks: Forks) -> None:
    def count_bytes() -> int:
        """The private memory of the server."""
        lines = Path(f"/proc/{forks.pid()}/smaps_rollup").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))

    forks.wait(forks.submit(rounds=1))
    before = count_bytes()
    for start in range(0, 200, 4):
        jobs = [forks.submit(rounds=1, seed=seed) for seed in range(start, start + 4)]
        assert [forks.wait(job).exit_code for job in jobs] == [0] * 4
    assert count_bytes() - before < 50e6


def test_a_server_that_cannot_start_leaves_all_jobs_to_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # here no `jobs` can be imported
    (tmp_path / "jobs.py").write_text("raise ImportError")
    process = ForkServerProcess(tmp_path, 600)
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(ask_fork_server, tmp_path / FORK_SOCKET, {"ask": "count"})
        deadline = time.monotonic() + 60
        while not asked.done():
            process.start_if_asked()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    with pytest.raises((OSError, ValueError)):
        asked.result()
    with pytest.raises(ConnectionRefusedError):
        ask_fork_server(tmp_path / FORK_SOCKET, {"ask": "count"})
    process.end()
