"""Copies of a store, and what is said of a damaged one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.main import app
from fedsim.errors import SettingsError, StoreError, StoreUnusable
from jobs.spec import parse_spec
from jobs.store.backup import back_up_store
from jobs.store.job_store import JobStore


def damage(file: Path) -> None:
    """Overwrite everything behind the header of a database."""
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * (len(content) - 100))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store with 50 jobs, in one file."""
    path = tmp_path / "fedsim.db"
    with JobStore.open(f"sqlite:///{path}") as store:
        for number in range(50):
            store.create(parse_spec({"algorithm": "fedavg", "name": f"job-{number}"}))
    return path


def test_a_copy_of_an_open_store_has_its_jobs(file: Path, tmp_path: Path) -> None:
    with JobStore.open(f"sqlite:///{file}") as store:
        job = store.create(parse_spec({"algorithm": "fedavg"}))[0]
        size = back_up_store(f"sqlite:///{file}", tmp_path / "copy.db")
    assert size == (tmp_path / "copy.db").stat().st_size
    with JobStore.open(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert copy.get(job.id) == job


def test_nobody_else_can_read_the_copy(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_DATABASE_URL", f"sqlite:///{file}")
    result = CliRunner().invoke(app, ["backup", str(tmp_path / "copy.db")])
    assert result.exit_code == 0
    assert not (tmp_path / "copy.db").stat().st_mode & 0o077


def test_a_damaged_store_is_said_to_be(file: Path, tmp_path: Path) -> None:
    damage(file)
    with pytest.raises(StoreUnusable, match=r"fedsim\.db is damaged: "):
        back_up_store(f"sqlite:///{file}", tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
    with pytest.raises(StoreUnusable, match=r"fedsim\.db: the store is damaged: .* \(stop the service; put"):
        JobStore.open(f"sqlite:///{file}")


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("sqlite:///{}/none.db", StoreError, "there is no store"),
        ("sqlite:///{}/fedsim.db", SettingsError, "copy.db exists"),
        ("postgresql://user@host/fedsim", SettingsError, "pg_dump"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    file: Path, url: str, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    target = tmp_path / "copy.db"
    if "exists" in message:
        target.write_text("another file")
    with pytest.raises(kind, match=message):
        back_up_store(url.format(tmp_path), target)
    assert target.exists() == ("exists" in message)
    assert not (tmp_path / "none.db").exists()
