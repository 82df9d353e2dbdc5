"""Both clients where answers are refusals, late, missing or of somebody else: one body of tests."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from api.sdk.client import FedSimClient
from api.sdk.refusals import ERRORS
from api.sdk.transport import connection
from fedsim.errors import (
    ArtifactNotFound,
    BadPageToken,
    Conflict,
    DataError,
    DoesNotFit,
    FedsimError,
    JobNotFound,
    RayUnavailable,
    ServiceError,
    SettingsError,
    Unreachable,
)
from tests.api.blocking import Answering, client_maker
from tests.api.service import a_job


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("DOES_NOT_FIT", 422, DoesNotFit),
        ("BAD_DATA", 422, DataError),
        ("JOB_NOT_FOUND", 404, JobNotFound),
        ("ARTIFACT_NOT_FOUND", 404, ArtifactNotFound),
        ("CONFLICT", 409, Conflict),
        ("BAD_PAGE_TOKEN", 400, BadPageToken),
        ("RAY_UNAVAILABLE", 503, RayUnavailable),
        ("FORBIDDEN", 403, ServiceError),
    ],
)
def test_codes_become_the_errors_they_stand_for(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, code: str, status: int, kind: type[FedsimError]
) -> None:
    monkeypatch.setattr(connection, "PAUSES", ())
    client, _ = answering({"status": status, "code": code, "detail": "the arithmetic", "hint": "less"})
    with pytest.raises(kind) as caught:
        client.version()
    assert (caught.value.code, caught.value.message, caught.value.hint) == (code, "the arithmetic", "less")
    assert ERRORS.get(code, ServiceError) is type(caught.value)


@pytest.mark.usefixtures("_no_pauses")
def test_what_may_be_repeated_is_repeated(answering: Answering) -> None:
    client, asked = answering(httpx.ConnectError("no"), 503, httpx.ReadTimeout("late"), {"api": "v1"})
    assert client.version() == {"api": "v1"}
    assert len(asked) == 4


@pytest.mark.usefixtures("_no_pauses")
def test_work_that_took_long_is_not_asked_for_again(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LONG_ATTEMPT", -1.0)
    for failure, kind in ((503, ServiceError), (httpx.ReadTimeout("late"), Unreachable)):
        client, asked = answering(failure, {"api": "v1"})
        with pytest.raises(kind):
            client.version()
        assert len(asked) == 1


def test_a_service_that_says_when_to_come_back_is_obeyed(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PAUSES", (0.05, 0.0))
    later = httpx.Response(429, headers={"Retry-After": "1"}, json={"detail": "slower", "code": "SLOW"})
    client, asked = answering(503, later, {"api": "v1"})
    began = time.monotonic()
    assert client.version() == {"api": "v1"}
    assert time.monotonic() - began > 1
    assert len(asked) == 3
    tomorrow = httpx.Response(503, headers={"Retry-After": "86400"}, json={"detail": "closed", "code": "NO"})
    client, asked = answering(tomorrow)
    with pytest.raises(ServiceError, match="closed"):
        client.version()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7), ("", 0), ("soon", 0), ("-3", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)]
)
def test_when_to_come_back_is_read_as_seconds_or_as_a_date(text: str, seconds: float) -> None:
    assert connection.read_retry_after(httpx.Response(429, headers={"Retry-After": text})) == seconds


def test_a_date_to_come_back_at_is_so_many_seconds_from_now() -> None:
    # Made here and not among the parameters: the workers that share the suite must find the same names.
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=9000))
    found = connection.read_retry_after(httpx.Response(429, headers={"Retry-After": date}))
    assert 8000 <= found <= 9000


@pytest.mark.usefixtures("_no_pauses")
def test_what_may_not_be_repeated_is_sent_once(answering: Answering) -> None:
    for name in ("resume", "delete"):
        job = a_job().model_dump(mode="json")
        client, asked = answering(job, httpx.ReadError("lost"), 200)
        handle = client.job("some")
        with pytest.raises(Unreachable):
            getattr(handle, name)()
        assert len(asked) == 2


@pytest.mark.usefixtures("_no_pauses")
def test_no_error_shows_the_password_of_an_address() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/version"):
            raise httpx.ConnectError("no")
        return httpx.Response(502, text="<html>")

    client = FedSimClient("http://me:hushed@there:8000", transport=httpx.MockTransport(refuse))
    for call in (client.version, lambda: client.job("some")):
        with pytest.raises(ServiceError, match=re.escape("http://***@there:8000")) as caught:
            call()
        assert "hushed" not in f"{caught.value} {client!r}"


@pytest.mark.usefixtures("_no_pauses")
def test_repeating_ends(answering: Answering) -> None:
    client, asked = answering(*[httpx.ConnectError("no")] * 9)
    with pytest.raises(Unreachable, match="no service answers at"):
        client.version()
    assert len(asked) == 4
    client, asked = answering(*[503] * 9)
    with pytest.raises(ServiceError) as caught:
        client.version()
    assert (caught.value.status, len(asked)) == (503, 4)


@pytest.mark.parametrize("status", [200, 404])
def test_a_stranger_at_the_address_is_recognised(answering: Answering, status: int) -> None:
    client, _ = answering(httpx.Response(status, html="<h1>Not here</h1>"))
    with pytest.raises(ServiceError, match=r"not as fedsim does|cannot be read") as caught:
        client.version()
    assert "fedsim" in str(caught.value)


def test_certificates_are_verified_wherever_there_are_any() -> None:
    for url in (
        "http://127.0.0.1:8000",
        "https://127.0.0.1:8000",
        "http://far.example",
        "https://far.example",
    ):
        options = connection.resolve_address(url, None, 30.0).options
        assert options["verify"] == (url != "http://127.0.0.1:8000")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_cannot_be_an_address_is_said_at_once(kind: str) -> None:
    with client_maker(kind) as make:
        for url in ("localhost:8000", "ftp://there", "http://", "nonsense"):
            with pytest.raises(SettingsError, match="no address"):
                make(url)
        with pytest.raises(SettingsError, match="token"):
            make(token="not\na token")
