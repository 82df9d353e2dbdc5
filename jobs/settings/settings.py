"""Settings: fedsim's folders, addresses and limits, read once from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.errors import JobNotFound, SettingsError
from jobs.settings.limits import Limits
from jobs.settings.variables import read_choice, read_secrets_file, read_switch, read_whole_number

JOB_ID = re.compile(r"[a-z0-9]{1,32}")

MODEL_FILE = "model.safetensors"
"""The final model, among the artifacts of a job and in the folder of a run."""

LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class Settings:
    """All values from the environment; its `repr` leaves out the secrets.

    Attributes:
        home: the directory of the database, the jobs and the data (`FEDSIM_HOME`).
        database_url: an SQLAlchemy URL (`FEDSIM_DATABASE_URL`); empty means an SQLite file in `home`.
        storage: fsspec URL for checkpoints and artifacts (`FEDSIM_STORAGE`); None means `home`.
        data_roots: the folders with data sets, in the order of the search (`home/data`, then `FEDSIM_DATA`).
        max_running: the most jobs that run at once (`FEDSIM_MAX_RUNNING`); None means as many as the CPUs and
            GPUs of the cluster hold.
        ray_address: of the Ray cluster (`FEDSIM_RAY_ADDRESS`); None means a local Ray that fedsim starts.
        ray_num_cpus: CPUs of the local Ray (`FEDSIM_RAY_NUM_CPUS`); None means all that it may use.
        ray_num_gpus: GPUs of the local Ray (`FEDSIM_RAY_NUM_GPUS`); None means all of the machine.
        ray_idle_seconds: how long the local Ray outlives the last API and the last job (`FEDSIM_RAY_IDLE`).
        runner_idle_seconds: how long the process that starts the runners stays without one
            (`FEDSIM_RUNNER_IDLE`); 0: there is no such process, and every job is a job of Ray.
        token: that callers of the API must send (`FEDSIM_TOKEN`); None means no token.
        limits: for the callers of the API.
        drain_seconds: how long the API goes on serving after a request to end, while `/readyz` answers no
            (`FEDSIM_DRAIN`).
        log_format: of the API's own log, `text` or `json` (`FEDSIM_LOG_FORMAT`).
        plugins: modules that register algorithms, models and data, separated by commas (`FEDSIM_PLUGINS`).
        track: the trackers of every run (`FEDSIM_TRACK`), such as ("mlflow",).
        allow_python: whether models may come from Python files (`FEDSIM_ALLOW_PYTHON`, 0 or 1), which is
            code that runs here and on the cluster. None: the command line and the library allow it, a service
            does not.
        allow_open_ray: whether a service may use a Ray cluster that takes jobs without a token
            (`FEDSIM_ALLOW_OPEN_RAY`, 0 or 1). None: with a warning; `fedsim serve` on an address beyond
            loopback sets it to False.
    """

    home: Path
    database_url: str = field(default="", repr=False)
    storage: str | None = field(default=None, repr=False)
    data_roots: tuple[Path, ...] = ()
    max_running: int | None = None
    ray_address: str | None = None
    ray_num_cpus: int | None = None
    ray_num_gpus: int | None = None
    ray_idle_seconds: int = 60
    runner_idle_seconds: int = 600
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    drain_seconds: int = 0
    log_format: str = "text"
    plugins: str = ""
    track: tuple[str, ...] = ()
    allow_python: bool | None = None
    allow_open_ray: bool | None = None

    def __post_init__(self) -> None:
        home = Path(self.home).expanduser().absolute()
        object.__setattr__(self, "home", home)
        database = _absolute_database(self.database_url) or f"sqlite:///{home / 'fedsim.db'}"
        object.__setattr__(self, "database_url", database)
        object.__setattr__(self, "storage", None if self.storage is None else _absolute_storage(self.storage))
        object.__setattr__(self, "data_roots", self.data_roots or (home / "data",))
        object.__setattr__(self, "token", None if self.token is None else check_token(self.token))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Read the settings from the environment.

        Args:
            environ: the variables; by default those of this process.
            overrides: fields that take precedence (command-line options); None means "not given".

        Raises:
            SettingsError: if a variable has a wrong value.
        """
        env = os.environ if environ is None else environ
        env = {**env, **read_secrets_file(env)}
        home = Path(env.get("FEDSIM_HOME") or "~/.fedsim").expanduser().absolute()
        more = [Path(p).expanduser().absolute() for p in env.get("FEDSIM_DATA", "").split(os.pathsep) if p]
        values: dict[str, Any] = {
            "home": home,
            "database_url": env.get("FEDSIM_DATABASE_URL", ""),
            "storage": env.get("FEDSIM_STORAGE") or None,
            "data_roots": tuple(dict.fromkeys([home / "data", *more])),
            "max_running": read_whole_number(env, "FEDSIM_MAX_RUNNING", minimum=1),
            "ray_address": env.get("FEDSIM_RAY_ADDRESS") or None,
            "ray_num_cpus": read_whole_number(env, "FEDSIM_RAY_NUM_CPUS", minimum=1),
            "ray_num_gpus": read_whole_number(env, "FEDSIM_RAY_NUM_GPUS", minimum=0),
            "ray_idle_seconds": read_whole_number(env, "FEDSIM_RAY_IDLE", minimum=1),
            "runner_idle_seconds": read_whole_number(env, "FEDSIM_RUNNER_IDLE", minimum=0),
            "token": env.get("FEDSIM_TOKEN") or None,
            "limits": Limits.from_env(env),
            "drain_seconds": read_whole_number(env, "FEDSIM_DRAIN", minimum=0),
            "log_format": read_choice(env, "FEDSIM_LOG_FORMAT", LOG_FORMATS),
            "plugins": env.get("FEDSIM_PLUGINS", ""),
            "track": tuple(name.strip() for name in env.get("FEDSIM_TRACK", "").split(",") if name.strip()),
            "allow_python": read_switch(env, "FEDSIM_ALLOW_PYTHON"),
            "allow_open_ray": read_switch(env, "FEDSIM_ALLOW_OPEN_RAY"),
        }
        values |= {name: value for name, value in overrides.items() if value is not None}
        return cls(**{name: value for name, value in values.items() if value is not None})

    def add_local_folders(self, spec: str = "") -> Settings:
        """Return the settings of a command that runs a spec, with two more data roots at the end.

        They are the working folder, and the folder of the spec. A service has no such roots: its callers may
        not read files of the folder where it was started.

        Args:
            spec: the argument of the command; a preset or `-` adds no folder.
        """
        beside = [Path(spec).absolute().parent] if spec and Path(spec).is_file() else []
        return replace(self, data_roots=tuple(dict.fromkeys([*self.data_roots, Path.cwd(), *beside])))

    def environment(self) -> dict[str, str]:
        """Return the variables that give a child process these settings, without the API's token."""
        return self.public_environment() | self.secret_environment()

    def secret_environment(self) -> dict[str, str]:
        """Return the variables that may hold a password."""
        variables = {"FEDSIM_DATABASE_URL": self.database_url, "FEDSIM_STORAGE": self.storage}
        return {name: value for name, value in variables.items() if value}

    def public_environment(self) -> dict[str, str]:
        """Return the variables that everybody may see."""
        variables = {
            "FEDSIM_HOME": str(self.home),
            "FEDSIM_DATA": os.pathsep.join(str(root) for root in self.data_roots),
            "FEDSIM_MAX_RUNNING": str(self.max_running or ""),
            "FEDSIM_RAY_ADDRESS": self.ray_address,
            "FEDSIM_PLUGINS": self.plugins,
            "FEDSIM_TRACK": ",".join(self.track),
        }
        return {name: value for name, value in variables.items() if value}

    def ray_sizes(self) -> dict[str, str]:
        """The variables that give a child process the numbers of the local Ray."""
        numbers = {"FEDSIM_RAY_NUM_CPUS": self.ray_num_cpus, "FEDSIM_RAY_NUM_GPUS": self.ray_num_gpus}
        return {name: str(value) for name, value in numbers.items() if value is not None}

    def check_environment(self) -> dict[str, str]:
        """The variables that a process that checks specs has beside the others."""
        memory = self.limits.check_gigabytes
        allowed = "1" if self.allow_python else "0"
        return {
            "FEDSIM_CHECK_MEMORY": "" if memory is None else str(memory),
            "FEDSIM_ALLOW_PYTHON": allowed,
        }

    def make_home(self) -> Path:
        """Create `home` if it does not exist, readable by its owner only, and return it."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.home

    def job_dir(self, job_id: str) -> Path:
        """Return the directory of a job; make it on first use.

        Raises:
            JobNotFound: if the text is no job id: it must not become a path.
        """
        if not JOB_ID.fullmatch(job_id):
            raise JobNotFound(f"{job_id!r} is not a job id", "`fedsim list` shows the jobs with their ids")
        self.make_home()
        directory = self.home / "jobs" / job_id
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def checkpoint_url(self, job_id: str) -> str:
        """Return the folder of a job's checkpoints: a path in its directory, or a URL below `storage`."""
        if self.storage is None:
            return str(self.job_dir(job_id) / "checkpoints")
        return f"{self.storage.rstrip('/')}/jobs/{job_id}/checkpoints"

    def artifact_url(self, job_id: str) -> str:
        """Return the folder of a job's artifacts: a path in its directory, or a URL below `storage`."""
        if self.storage is None:
            return str(self.job_dir(job_id) / "artifacts")
        return f"{self.storage.rstrip('/')}/jobs/{job_id}/artifacts"

    def log_path(self, job_id: str) -> Path:
        """Return the path of a job's log file; the file may not exist yet."""
        return self.job_dir(job_id) / "job.log"


def check_token(text: str) -> str:
    """Return a token without the white space around it.

    Raises:
        SettingsError: if the token is empty, or has characters that no HTTP header can carry.
    """
    token = text.strip()
    hint = "FEDSIM_TOKEN, or the file of --token-file, holds one long random word of letters and digits"
    if not token:
        raise SettingsError("the token is empty", hint)
    if not (token.isascii() and token.isprintable()):
        raise SettingsError("the token holds characters that no request can carry", hint)
    return token


def _absolute_database(url: str) -> str:
    """Return the URL with the absolute path of a SQLite file: runners work in another folder."""
    scheme, mark, rest = url.partition(":///")
    file, more, query = rest.partition("?")
    if not scheme.startswith("sqlite") or not mark or not file or file.startswith((":", "file:")):
        return url
    return f"{scheme}:///{Path(file).expanduser().absolute()}{more}{query}"


def _absolute_storage(place: str) -> str:
    """Return the absolute path of a folder; return a URL as it is."""
    return place if "://" in place or "::" in place else str(Path(place).expanduser().absolute())
