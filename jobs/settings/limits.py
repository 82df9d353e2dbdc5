"""Limits for the callers of the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.settings.variables import read_whole_number


@dataclass(frozen=True)
class Limits:
    """Limits for the callers of the API.

    Attributes:
        body_bytes: the largest body of a request (`FEDSIM_MAX_BODY`).
        requests_per_minute: of one address (`FEDSIM_RATE_LIMIT`); 0 is no limit. Callers on loopback are not
            counted.
        streams: the most event streams and followed logs that are open at once (`FEDSIM_MAX_STREAMS`).
        check_gigabytes: memory of a process that checks a spec or makes a class map
            (`FEDSIM_CHECK_MEMORY`); None means half of the machine's memory.
        check_seconds: time limit of a check or a class map (`FEDSIM_CHECK_SECONDS`).
        connections: the most open connections (`FEDSIM_MAX_CONNECTIONS`); fewer if the system allows too few
            open files.
        connections_per_address: of one address (`FEDSIM_MAX_CONNECTIONS_PER_ADDRESS`); 0 is no limit. Callers
            on loopback are not counted.
        request_seconds: how long a caller may take for the headers of a request, and again for its body
            (`FEDSIM_REQUEST_SECONDS`); a body gets a second more for each 500 bytes.
    """

    body_bytes: int = 1_000_000
    requests_per_minute: int = 1200
    streams: int = 1000
    check_gigabytes: int | None = None
    check_seconds: int = 300
    connections: int = 4000
    connections_per_address: int = 400
    request_seconds: float = 20

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Limits:
        """Read the limits from the environment.

        Raises:
            SettingsError: if a variable has a wrong value.
        """
        given = {
            "body_bytes": read_whole_number(env, "FEDSIM_MAX_BODY", minimum=1000),
            "requests_per_minute": read_whole_number(env, "FEDSIM_RATE_LIMIT", minimum=0),
            "streams": read_whole_number(env, "FEDSIM_MAX_STREAMS", minimum=1),
            "check_gigabytes": read_whole_number(env, "FEDSIM_CHECK_MEMORY", minimum=1),
            "check_seconds": read_whole_number(env, "FEDSIM_CHECK_SECONDS", minimum=1),
            "connections": read_whole_number(env, "FEDSIM_MAX_CONNECTIONS", minimum=1),
            "connections_per_address": read_whole_number(
                env, "FEDSIM_MAX_CONNECTIONS_PER_ADDRESS", minimum=0
            ),
            "request_seconds": read_whole_number(env, "FEDSIM_REQUEST_SECONDS", minimum=1),
        }
        return cls(**{name: value for name, value in given.items() if value is not None})
