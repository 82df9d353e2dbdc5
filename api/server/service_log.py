"""The log of the service: one line for each event, as text or JSON, without secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

from fedsim.base.secret_urls import find_secrets, hide_secrets
from jobs.settings import Settings

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the current request; empty outside a request."""

CLOSED_SOCKET = "socket.send() raised exception."
"""The message of asyncio for each piece that is sent to a caller who has gone."""


def collect_secrets(settings: Settings) -> frozenset[str]:
    """Return the texts that no log may show: the token, and the passwords in URLs."""
    found = {settings.token} if settings.token else set()
    return frozenset(found | find_secrets(settings.database_url) | find_secrets(settings.storage or ""))


class TextFormatter(logging.Formatter):
    """Writes log lines for people.

    Args:
        secrets: texts to replace.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.secrets = frozenset(secrets)

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        return self.hide_secrets(super().format(record))

    def hide_secrets(self, text: str) -> str:
        """Replace every secret."""
        return hide_secrets(text, self.secrets)


class JsonFormatter(TextFormatter):
    """Writes log lines for programs: one JSON object with `time`, `level`, `logger`, `message` and more.

    A log record may add fields with `extra={"fields": {...}}`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        # Before JSON escapes some characters of a secret.
        clean = {
            name: self.hide_secrets(value) if isinstance(value, str) else value
            for name, value in line.items()
        }
        return json.dumps(clean, ensure_ascii=False, default=str)


def is_news(record: logging.LogRecord) -> bool:
    """Return whether a record of asyncio may be logged: not that a caller has gone, once for each frame."""
    return record.msg != CLOSED_SOCKET


def install_log_handler(settings: Settings, stream: TextIO | None = None) -> logging.Handler:
    """Install a handler that writes all logs of this process in the format of the settings.

    Args:
        settings: settings with the format and the secrets.
        stream: output. Default: standard error.

    Returns:
        The handler.
    """
    handler = logging.StreamHandler(stream)
    formatter = JsonFormatter if settings.log_format == "json" else TextFormatter
    handler.setFormatter(formatter(collect_secrets(settings)))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("fedsim").setLevel(logging.INFO)
    logging.getLogger("asyncio").addFilter(is_news)
    # In a terminal, log refusals and failures, not every request.
    quiet = logging.WARNING if settings.log_format == "text" else logging.INFO
    logging.getLogger("fedsim.access").setLevel(quiet)
    return handler
