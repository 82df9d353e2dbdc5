"""A process that works for the service: its answers, its errors and its limits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from api.server.work_process import WorkProcess, make_environment, make_environment_with_ray
from fedsim.errors import ServiceError, SpecError
from jobs.local_ray.embedded_ray import package_path
from jobs.settings import Settings

MODULE = """
import sys, time
from fedsim.errors import FieldError, SpecError
from jobs.json_process import answer_standard_input

def work(question):
    print("a line that is no part of the answer")
    if question == "crash":
        sys.exit("no memory is left")
    if question == "pid":
        import os
        return os.getpid()
    if question == "folder":
        import os
        return os.getcwd()
    if question == "die":
        import os
        os.abort()
    if question == "refuse":
        raise SpecError([FieldError("rounds", 0, "is too small", "set it to 1")])
    time.sleep(question)
    return {"slept": question}

if __name__ == "__main__":
    sys.exit(answer_standard_input(work))
"""


def make_process(folder: Path, seconds: float = 30.0, **options: Any) -> WorkProcess:
    (folder / "sleeping.py").write_text(MODULE)
    environment = make_environment(Settings(home=folder))
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
    return WorkProcess("sleeping", "sleep", seconds, lambda: environment, **options)


def test_an_answer_is_json_without_other_output(tmp_path: Path) -> None:
    assert asyncio.run(make_process(tmp_path).run(0)) == {"slept": 0}


def test_no_code_of_the_working_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody may write where a service was started, such as in /tmp."""
    folder = tmp_path / "started here"
    folder.mkdir()
    for module in ("fractions", "fedsim", "json"):
        (folder / f"{module}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n")
    process = make_process(tmp_path)
    monkeypatch.chdir(folder)
    assert asyncio.run(process.run("folder")) == str(tmp_path)
    assert not (tmp_path / "marker").exists()


def test_a_relative_path_of_modules_stays_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", "", "plugins"]))
    assert package_path().split(os.pathsep)[1:] == [str(tmp_path), str(tmp_path / "plugins")]


@pytest.mark.slow
def test_a_ray_that_a_plan_starts_listens_on_loopback_only(tmp_path: Path) -> None:
    code = "import ray; ray.init(num_cpus=1, logging_level=40); print(ray.nodes()[0]['NodeManagerAddress'])"
    environment = make_environment_with_ray(Settings(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == "127.0.0.1"


def test_an_error_keeps_its_code_and_its_fields(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        asyncio.run(make_process(tmp_path).run("refuse"))
    assert [(fault.path, fault.hint) for fault in caught.value.errors] == [("rounds", "set it to 1")]


def test_a_crash_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)sleeping ended with 1: .*no memory is left"):
        asyncio.run(make_process(tmp_path).run("crash"))


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    process = make_process(tmp_path, seconds=0.3)
    with pytest.raises(ServiceError, match=r"the sleep took longer than 0\.3 s") as caught:
        asyncio.run(process.run(60))
    assert (caught.value.status, caught.value.code, process.pending) == (503, "NOT_READY", 0)


def test_a_process_ends_when_its_caller_leaves(tmp_path: Path) -> None:
    async def is_gone() -> bool:
        return True

    with pytest.raises(ServiceError, match="nobody waits for this sleep"):
        asyncio.run(make_process(tmp_path).run(60, is_gone))


def test_nobody_waits_behind_too_many(tmp_path: Path) -> None:
    process = make_process(tmp_path)
    process.pending = 8
    with pytest.raises(ServiceError, match="8 sleeps"):
        asyncio.run(process.run(0))


def test_processes_end_with_the_service(tmp_path: Path) -> None:
    async def close() -> float:
        process = make_process(tmp_path)
        calls = [asyncio.create_task(process.run(60)) for _ in range(2)]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        process.close()
        errors: list[Any] = await asyncio.gather(*calls, process.run(0), return_exceptions=True)
        assert [str(error) for error in errors] == [str(errors[0])] * 3
        assert "the service is stopping" in str(errors[0])
        assert process.pending == 0
        return time.monotonic() - began

    assert asyncio.run(close()) < 4


def test_a_kept_process_answers_again_and_is_replaced_when_it_dies(tmp_path: Path) -> None:
    async def ask() -> None:
        process = make_process(tmp_path, keep=True)
        await process.warm_up()
        first = await process.run("pid")
        with pytest.raises(SpecError):
            await process.run("refuse")
        assert await process.run("pid") == first
        with pytest.raises(ServiceError, match="was killed"):
            await process.run("die")
        assert await process.run("pid") != first
        process.close()
        await process.wait_until_closed()

    asyncio.run(ask())


def test_so_many_processes_work_at_once_and_one_is_kept(tmp_path: Path) -> None:
    async def ask() -> None:
        process = make_process(tmp_path, keep=True, processes=2)
        # With one process the second call would wait for the first.
        slow = asyncio.create_task(process.run(60))
        pids = [await process.run("pid") for _ in range(2)]
        assert pids[0] == pids[1]
        slow.cancel()
        process.close()
        await process.wait_until_closed()

    asyncio.run(ask())
