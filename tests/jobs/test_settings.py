from pathlib import Path

import pytest

from fedsim.errors import JobNotFound, SettingsError
from jobs.settings import Settings


def test_an_empty_environment_has_defaults():
    settings = Settings.from_env({})
    assert settings.home == Path("~/.fedsim").expanduser()
    assert settings.database_url == f"sqlite:///{settings.home}/fedsim.db"
    assert settings.data_roots == (settings.home / "data",)
    assert (settings.max_running, settings.ray_address, settings.token) == (None, None, None)


def test_the_environment_is_read(tmp_path):
    env = {
        "FEDSIM_HOME": str(tmp_path / "home"),
        "FEDSIM_DATABASE_URL": "postgresql://user:secret@host/db",
        "FEDSIM_DATA": f"{tmp_path / 'a'}:{tmp_path / 'b'}",
        "FEDSIM_MAX_RUNNING": "3",
        "FEDSIM_TOKEN": "hush",
        "FEDSIM_PLUGINS": "mine,yours",
    }
    settings = Settings.from_env(env, ray_address="auto", token=None)
    assert settings.data_roots == (tmp_path / "home/data", tmp_path / "a", tmp_path / "b")
    assert (settings.max_running, settings.ray_address, settings.token) == (3, "auto", "hush")
    assert "secret" not in repr(settings)
    assert "hush" not in repr(settings)
    assert not (tmp_path / "home").exists()
    again = Settings.from_env(settings.environment())
    assert (again.home, again.database_url, again.data_roots, again.plugins) == (
        settings.home,
        settings.database_url,
        settings.data_roots,
        "mine,yours",
    )
    assert "FEDSIM_TOKEN" not in settings.environment()


def test_a_token_that_no_request_can_carry_is_refused():
    assert Settings.from_env({"FEDSIM_TOKEN": " hush\n"}).token == "hush"
    for token in (" ", "schlüssel", "two\nlines"):
        with pytest.raises(SettingsError, match="the token") as caught:
            Settings.from_env({"FEDSIM_TOKEN": token})
        assert token not in f"{caught.value}" or not token.strip()


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "²"])
def test_a_wrong_number_says_which_variable_and_what_to_do(text):
    with pytest.raises(SettingsError, match=r"FEDSIM_MAX_RUNNING is .* at least 1"):
        Settings.from_env({"FEDSIM_MAX_RUNNING": text})


def test_directories_are_made_when_they_are_asked_for(tmp_path):
    settings = Settings(tmp_path / "home")
    log = settings.log_path("0abc")
    assert log == tmp_path / "home/jobs/0abc/job.log"
    assert log.parent.is_dir()
    assert (tmp_path / "home").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("job_id", ["", "..", "../x", "a/b", "A", "x" * 33])
def test_what_is_no_job_id_becomes_no_path(tmp_path, job_id):
    with pytest.raises(JobNotFound):
        Settings(tmp_path).job_dir(job_id)
    assert not list(tmp_path.iterdir())


def test_a_file_of_secrets_that_is_not_there_says_what_to_do(tmp_path):
    gone = {"FEDSIM_HOME": str(tmp_path), "FEDSIM_SECRETS": str(tmp_path / "gone.json")}
    with pytest.raises(SettingsError, match=r"share FEDSIM_HOME.*set FEDSIM_DATABASE_URL"):
        Settings.from_env(gone)
    found = Settings.from_env(gone | {"FEDSIM_DATABASE_URL": "sqlite:////set/where/ray/is.db"})
    assert found.database_url == "sqlite:////set/where/ray/is.db"
    (tmp_path / "odd.json").write_text("[1]")
    with pytest.raises(SettingsError, match=r"odd\.json"):
        Settings.from_env(gone | {"FEDSIM_SECRETS": str(tmp_path / "odd.json")})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("sqlite:///mine.db", "sqlite:///{here}/mine.db"),
        ("sqlite+pysqlite:///a/b.db?timeout=5", "sqlite+pysqlite:///{here}/a/b.db?timeout=5"),
        ("sqlite:////abs/mine.db", "sqlite:////abs/mine.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///file:x?uri=true", "sqlite:///file:x?uri=true"),
        ("postgresql+psycopg://me:secret@host/fedsim", "postgresql+psycopg://me:secret@host/fedsim"),
    ],
)
def test_a_database_in_this_folder_is_the_same_from_every_folder(given, kept, tmp_path, monkeypatch):
    """Runners and coordinators work in folders of their own."""
    monkeypatch.chdir(tmp_path)
    assert Settings(home=tmp_path / "home", database_url=given).database_url == kept.format(here=tmp_path)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("store", "{here}/store"),
        ("/srv/fedsim", "/srv/fedsim"),
        ("s3://bucket/fedsim", "s3://bucket/fedsim"),
        ("simplecache::s3://bucket", "simplecache::s3://bucket"),
    ],
)
def test_so_is_storage(given, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({"FEDSIM_HOME": str(tmp_path / "home"), "FEDSIM_STORAGE": given})
    assert settings.storage == kept.format(here=tmp_path)
    assert settings.environment()["FEDSIM_STORAGE"] == settings.storage
