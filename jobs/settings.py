"""Where fedsim keeps things and what it talks to, read once from the environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsim.errors import JobNotFound, SettingsError

SECRETS = "FEDSIM_SECRETS"
"""Names a file of further variables, as JSON, for a process whose own variables everybody can see."""

JOB_ID = re.compile(r"[a-z0-9]{1,32}")


LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class Limits:
    """How much callers of the API may ask for.

    Attributes:
        body_bytes: of the largest body that is read (`FEDSIM_MAX_BODY`).
        requests_per_minute: of one address beyond loopback, at once or spread (`FEDSIM_RATE_LIMIT`); 0 is
            no limit. Callers on loopback are never counted.
        streams: event streams and followed logs that may be open at once (`FEDSIM_MAX_STREAMS`).
    """

    body_bytes: int = 1_000_000
    requests_per_minute: int = 1200
    streams: int = 1000

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Limits:
        """Read the limits from the environment.

        Raises:
            SettingsError: a variable that is not what it should be.
        """
        given = {
            "body_bytes": _whole(env, "FEDSIM_MAX_BODY", minimum=1000),
            "requests_per_minute": _whole(env, "FEDSIM_RATE_LIMIT", minimum=0),
            "streams": _whole(env, "FEDSIM_MAX_STREAMS", minimum=1),
        }
        return cls(**{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Settings:
    """Everything that the environment decides; secrets are left out of its repr.

    Attributes:
        home: the directory of the database, the jobs and the data (`FEDSIM_HOME`).
        database_url: an SQLAlchemy URL (`FEDSIM_DATABASE_URL`); empty means an SQLite file in `home`.
        storage: fsspec URL for checkpoints and artifacts (`FEDSIM_STORAGE`); None means `home`.
        data_roots: where data sets are looked for, in this order (`home/data`, then `FEDSIM_DATA`).
        max_running: how many jobs may hold the cluster at once (`FEDSIM_MAX_RUNNING`).
        ray_address: the Ray cluster to use (`FEDSIM_RAY_ADDRESS`); None means a local Ray of fedsim's own.
        ray_num_cpus: CPUs of the local Ray (`FEDSIM_RAY_NUM_CPUS`); None means all it may use.
        ray_num_gpus: GPUs of the local Ray (`FEDSIM_RAY_NUM_GPUS`); None means all of the machine.
        ray_idle_seconds: how long the local Ray outlives the last API and the last job (`FEDSIM_RAY_IDLE`).
        token: what callers of the API must present (`FEDSIM_TOKEN`); None means no token.
        limits: how much callers of the API may ask for.
        drain_seconds: how long the API goes on serving after it was told to end, while `/readyz` already
            says no (`FEDSIM_DRAIN`).
        log_format: of the API's own log, `text` or `json` (`FEDSIM_LOG_FORMAT`).
        plugins: modules that register methods, models and data, separated by commas (`FEDSIM_PLUGINS`).
    """

    home: Path
    database_url: str = field(default="", repr=False)
    storage: str | None = field(default=None, repr=False)
    data_roots: tuple[Path, ...] = ()
    max_running: int = 1
    ray_address: str | None = None
    ray_num_cpus: int | None = None
    ray_num_gpus: int | None = None
    ray_idle_seconds: int = 60
    token: str | None = field(default=None, repr=False)
    limits: Limits = Limits()
    drain_seconds: int = 0
    log_format: str = "text"
    plugins: str = ""

    def __post_init__(self) -> None:
        home = Path(self.home).expanduser().absolute()
        object.__setattr__(self, "home", home)
        database = _absolute_database(self.database_url) or f"sqlite:///{home / 'fedsim.db'}"
        object.__setattr__(self, "database_url", database)
        object.__setattr__(self, "storage", None if self.storage is None else _absolute_storage(self.storage))
        object.__setattr__(self, "data_roots", self.data_roots or (home / "data",))
        object.__setattr__(self, "token", None if self.token is None else checked_token(self.token))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Read the settings from the environment.

        Args:
            environ: the variables; by default those of this process.
            overrides: fields that take precedence (command-line options); None means "not given".

        Raises:
            SettingsError: a variable that is not what it should be.
        """
        env = os.environ if environ is None else environ
        env = {**env, **_handed_over(env)}
        home = Path(env.get("FEDSIM_HOME") or "~/.fedsim").expanduser().absolute()
        more = [Path(p).expanduser().absolute() for p in env.get("FEDSIM_DATA", "").split(os.pathsep) if p]
        values: dict[str, Any] = {
            "home": home,
            "database_url": env.get("FEDSIM_DATABASE_URL", ""),
            "storage": env.get("FEDSIM_STORAGE") or None,
            "data_roots": tuple(dict.fromkeys([home / "data", *more])),
            "max_running": _whole(env, "FEDSIM_MAX_RUNNING", minimum=1) or 1,
            "ray_address": env.get("FEDSIM_RAY_ADDRESS") or None,
            "ray_num_cpus": _whole(env, "FEDSIM_RAY_NUM_CPUS", minimum=1),
            "ray_num_gpus": _whole(env, "FEDSIM_RAY_NUM_GPUS", minimum=0),
            "ray_idle_seconds": _whole(env, "FEDSIM_RAY_IDLE", minimum=1) or 60,
            "token": env.get("FEDSIM_TOKEN") or None,
            "limits": Limits.from_env(env),
            "drain_seconds": _whole(env, "FEDSIM_DRAIN", minimum=0) or 0,
            "log_format": _one_of(env, "FEDSIM_LOG_FORMAT", LOG_FORMATS),
            "plugins": env.get("FEDSIM_PLUGINS", ""),
        }
        return cls(**values | {name: value for name, value in overrides.items() if value is not None})

    def environment(self) -> dict[str, str]:
        """The variables that give a child process these settings, without the API's token."""
        return self.open_environment() | self.secrets()

    def secrets(self) -> dict[str, str]:
        """The variables that may hold a password."""
        variables = {"FEDSIM_DATABASE_URL": self.database_url, "FEDSIM_STORAGE": self.storage}
        return {name: value for name, value in variables.items() if value}

    def open_environment(self) -> dict[str, str]:
        """The variables that anybody may see."""
        variables = {
            "FEDSIM_HOME": str(self.home),
            "FEDSIM_DATA": os.pathsep.join(str(root) for root in self.data_roots),
            "FEDSIM_MAX_RUNNING": str(self.max_running),
            "FEDSIM_RAY_ADDRESS": self.ray_address,
            "FEDSIM_PLUGINS": self.plugins,
        }
        return {name: value for name, value in variables.items() if value}

    def ray_sizes(self) -> dict[str, str]:
        """The variables that give a child process the numbers of the local Ray."""
        numbers = {"FEDSIM_RAY_NUM_CPUS": self.ray_num_cpus, "FEDSIM_RAY_NUM_GPUS": self.ray_num_gpus}
        return {name: str(value) for name, value in numbers.items() if value is not None}

    def make_home(self) -> Path:
        """Create `home`, readable by its owner only, where it does not exist yet; returns it."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.home

    def job_dir(self, job_id: str) -> Path:
        """The directory of one job, made on first use.

        Raises:
            JobNotFound: a text that cannot be a job id, and so must not become a path.
        """
        if not JOB_ID.fullmatch(job_id):
            raise JobNotFound(f"{job_id!r} is not a job id", "`fedsim list` shows the jobs with their ids")
        self.make_home()
        directory = self.home / "jobs" / job_id
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def checkpoints(self, job_id: str) -> str:
        """Where one job's checkpoints are: a path in its directory, or a URL below `storage`."""
        if self.storage is None:
            return str(self.job_dir(job_id) / "checkpoints")
        return f"{self.storage.rstrip('/')}/jobs/{job_id}/checkpoints"

    def artifacts(self, job_id: str) -> str:
        """Where the files that a job leaves are: a path in its directory, or a URL below `storage`."""
        if self.storage is None:
            return str(self.job_dir(job_id) / "artifacts")
        return f"{self.storage.rstrip('/')}/jobs/{job_id}/artifacts"

    def log_path(self, job_id: str) -> Path:
        """The file of one job's own log, in its directory; the file itself may not exist yet."""
        return self.job_dir(job_id) / "job.log"


def checked_token(text: str) -> str:
    """A token without the white space around it.

    Raises:
        SettingsError: there is nothing else, or no header can carry it: then nobody could ever present it.
    """
    token = text.strip()
    hint = "FEDSIM_TOKEN, or the file of --token-file, holds one long random word of letters and digits"
    if not token:
        raise SettingsError("the token is nothing but white space", hint)
    if not (token.isascii() and token.isprintable()):
        raise SettingsError("the token holds characters that no request can carry", hint)
    return token


def _handed_over(env: Mapping[str, str]) -> dict[str, str]:
    """The variables in the file that `FEDSIM_SECRETS` names; they are meant for this process and go first."""
    path = env.get(SECRETS)
    if not path:
        return {}
    try:
        found = json.loads(Path(path).read_text("utf-8"))
        return {str(name): str(value) for name, value in found.items()}
    except (OSError, ValueError, AttributeError) as error:
        if env.get("FEDSIM_DATABASE_URL"):
            return {}
        raise SettingsError(
            f"{SECRETS} is {path!r}, and that file cannot be read: {error}",
            "share FEDSIM_HOME with the head of the cluster, or set FEDSIM_DATABASE_URL where Ray is started",
        ) from error


def _whole(env: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    """A whole number from the environment, None where the variable is unset or empty."""
    text = env.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < minimum:
        raise SettingsError(
            f"{name} is {text!r}", f"set it to a whole number of at least {minimum}, or unset it"
        )
    return int(text)


def _one_of(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """A word from the environment, the first of those allowed where the variable is unset or empty."""
    text = env.get(name, "").strip() or allowed[0]
    if text not in allowed:
        raise SettingsError(f"{name} is {text!r}", f"set it to {' or '.join(allowed)}, or unset it")
    return text


def _absolute_database(url: str) -> str:
    """The URL, a SQLite file in it by its whole path: runners work in a folder of their own."""
    scheme, mark, rest = url.partition(":///")
    file, more, query = rest.partition("?")
    if not scheme.startswith("sqlite") or not mark or not file or file.startswith((":", "file:")):
        return url
    return f"{scheme}:///{Path(file).expanduser().absolute()}{more}{query}"


def _absolute_storage(place: str) -> str:
    """The same of a folder; a URL is left as it is."""
    return place if "://" in place or "::" in place else str(Path(place).expanduser().absolute())
