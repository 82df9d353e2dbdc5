"""docs/rest.md names every route, state, reason and code of the service, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.server.app import create_app
from api.server.errors import CODE_OF_STATUS, STATUS_OF_CODE
from jobs.settings import Settings
from jobs.store.states import FailureReason, JobState
from tests.api.service import IdleQueue

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rest.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[str]:
    """What stands in the first column of its tables."""
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


def test_every_route_is_named(tmp_path: Path) -> None:
    paths = create_app(Settings(home=tmp_path), dispatcher=IdleQueue()).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    named = rows(section("Routes"))
    assert set(named) == routes
    assert len(named) == len(routes)


def test_every_state_and_every_reason_is_named() -> None:
    assert rows(section("States")) == [*JobState, *FailureReason]


@pytest.mark.parametrize("status", sorted({*CODE_OF_STATUS, *STATUS_OF_CODE.values(), 500}))
def test_every_code_stands_beside_its_status(status: int) -> None:
    lines = re.findall(r"^\| ([\d, ]+) \| (.*) \|$", section("Refusals"), flags=re.MULTILINE)
    [text] = [text for statuses, text in lines if str(status) in statuses.split(", ")]
    pairs = [
        *STATUS_OF_CODE.items(),
        *((code, its) for its, code in CODE_OF_STATUS.items()),
        ("INTERNAL", 500),
    ]
    codes = {code for code, its in pairs if its == status}
    assert codes <= set(re.findall(r"`([A-Z_]+)`", text))


def test_no_other_code_is_named() -> None:
    codes = {*STATUS_OF_CODE, *CODE_OF_STATUS.values(), "INTERNAL"}
    assert set(re.findall(r"`([A-Z_]+)`", section("Refusals"))) == codes


def test_the_page_is_found() -> None:
    assert "(docs/rest.md)" in (ROOT / "README.md").read_text("utf-8")
