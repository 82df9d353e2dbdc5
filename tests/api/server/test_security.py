"""Who may ask, and how much they may bring along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.sdk.transport.addresses import is_loopback
from api.server.security import AllowedHosts, close_beyond_loopback, read_token_file
from fedsim.errors import SettingsError
from jobs.settings import Limits, Settings
from tests.api.service import RunningService, running_service

JOBS = "/api/v1/jobs"
BODY_LIMIT = Limits().body_bytes
TOKEN = "a-token-for-this-test-only"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("guarded"), token=TOKEN) as running:
        yield running


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.1.2.3", False),
        ("example.org", False),
    ],
)
def test_beyond_loopback_a_token_is_required(host: str, loopback: bool, tmp_path: Path) -> None:
    assert is_loopback(host) is loopback
    close_beyond_loopback(host, Settings(tmp_path, token=TOKEN))
    if loopback:
        assert close_beyond_loopback(host, Settings(tmp_path)) == Settings(tmp_path)
    else:
        with pytest.raises(SettingsError, match="FEDSIM_TOKEN"):
            close_beyond_loopback(host, Settings(tmp_path))


@pytest.mark.parametrize(("allowed", "beyond"), [(None, False), (False, False), (True, True)])
def test_beyond_loopback_ray_needs_a_token_unless_that_is_allowed(
    allowed: bool | None, beyond: bool, tmp_path: Path
) -> None:
    settings = Settings(tmp_path, token=TOKEN, allow_open_ray=allowed)
    assert close_beyond_loopback("127.0.0.1", settings).allow_open_ray is allowed
    assert close_beyond_loopback("0.0.0.0", settings).allow_open_ray is beyond


def test_a_token_file_holds_one_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\n")
    assert read_token_file(file) == TOKEN
    file.write_text("\n")
    with pytest.raises(SettingsError, match="holds no token"):
        read_token_file(file)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_token_file(tmp_path / "missing")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN],
)
def test_missing_and_wrong_tokens_get_one_and_the_same_answer(
    guarded: RunningService, header: str | None
) -> None:
    same = {"X-Request-Id": "one-and-the-same"}
    headers = same if header is None else {"Authorization": header, **same}
    response = httpx.get(f"{guarded.url}{JOBS}", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["code"] == "UNAUTHORIZED"
    assert response.json()["hint"] == ""
    assert TOKEN not in response.text
    assert response.content == httpx.get(f"{guarded.url}{JOBS}", headers=same).content


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_the_right_token_opens_everything(guarded: RunningService, scheme: str) -> None:
    for path in (JOBS, "/version", "/api/v1/openapi.json", "/api/v1/presets"):
        assert httpx.get(f"{guarded.url}{path}", headers={"Authorization": f"{scheme} {TOKEN}"}).is_success


def test_health_and_the_empty_page_need_no_token(guarded: RunningService) -> None:
    for path in ("/healthz", "/readyz", "/", "/static/app.js", "/static/plotly.min.js", "/favicon.ico"):
        assert httpx.get(f"{guarded.url}{path}").is_success, path
    for path in (JOBS, "/version", "/api/v1/openapi.json", "/static/../api/v1/jobs", "//healthz"):
        assert not httpx.get(f"{guarded.url}{path}").is_success, path


def test_every_route_but_health_asks_for_the_token(guarded: RunningService) -> None:
    paths = guarded.app.openapi()["paths"]
    routes = {(method, re.sub(r"{\w+}", "x", path)) for path, methods in paths.items() for method in methods}
    assert len(routes) > 20
    with httpx.Client(base_url=guarded.url) as client:
        opened = {path for method, path in routes if client.request(method, path).status_code != 401}
    assert opened == {"/healthz", "/readyz"}


def test_files_beside_the_page_are_not_served(guarded: RunningService) -> None:
    with httpx.Client(base_url=guarded.url) as client:
        for path in ("/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/"):
            assert client.get(path).status_code in (401, 404), path


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.nip.example", "10.0.0.1"]
)
def test_a_foreign_host_is_refused(service: RunningService, host: str) -> None:
    response = httpx.get(f"{service.url}{JOBS}", headers={"Host": host})
    # An empty Host may already be refused by the HTTP layer.
    assert response.status_code == 403 or (host == "" and response.status_code == 400)


def test_own_names_are_answered(service: RunningService) -> None:
    for host in (f"localhost:{service.port}", f"127.0.0.1:{service.port}", "LOCALHOST", "[::1]"):
        assert httpx.get(f"{service.url}{JOBS}", headers={"Host": host}).is_success, host


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://localhost:1",
        "file://",
        "http://127.0.0.1",
        "http://[broken",
    ],
)
def test_a_page_from_elsewhere_may_not_call(service: RunningService, origin: str) -> None:
    response = httpx.post(
        f"{service.url}{JOBS}", json={"spec": {"algorithm": "fedavg"}}, headers={"Origin": origin}
    )
    assert response.status_code == 403, response.text
    assert response.json()["code"] == "FORBIDDEN"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_from_elsewhere_may_not_show_an_answer_as_an_image(service: RunningService, site: str) -> None:
    """Browsers send no `Origin` for an image or a script."""
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    refused = httpx.get(f"{service.url}{JOBS}", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
    assert refused.headers["cross-origin-resource-policy"] == "same-origin"
    for name, value in (("Mode", "navigate"), ("Site", "same-origin"), ("Site", "none")):
        more = {f"Sec-Fetch-{name}": value}
        assert httpx.get(f"{service.url}{JOBS}", headers=headers | more).status_code == 200
    assert httpx.get(f"{service.url}/healthz", headers=headers).status_code == 200


def test_the_own_page_may_call(service: RunningService) -> None:
    assert httpx.get(f"{service.url}{JOBS}", headers={"Origin": service.url}).is_success


def test_beyond_loopback_addresses_and_own_names_are_allowed() -> None:
    hosts = AllowedHosts.for_address("0.0.0.0", ["Fedsim.Example"])
    for name in ("10.0.0.7:8000", "fedsim.example", "localhost:8000", "[fe80::1]:8000"):
        assert hosts.allows_host(name), name
    for name in ("evil.example", "fedsim.example.evil.example", "10.0.0.7.evil.example", "[broken"):
        assert not hosts.allows_host(name), name
    assert hosts.allows_origin("https://fedsim.example", "backend:8000")
    assert not hosts.allows_origin("https://evil.example", "backend:8000")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused(service: RunningService, chunked: bool) -> None:
    body = b'{"spec": {"name": "' + b"x" * 10 * BODY_LIMIT + b'"}}'
    content = iter([body[at : at + 65_536] for at in range(0, len(body), 65_536)]) if chunked else body
    try:
        response = httpx.post(
            f"{service.url}{JOBS}", content=content, headers={"Content-Type": "application/json"}
        )
    except httpx.WriteError:
        # The server has answered and hung up before all was sent; it has not read it, which is the point.
        return
    assert response.status_code == 413
    assert response.json()["code"] == "TOO_LARGE"


def test_a_body_of_almost_the_limit_is_read(service: RunningService) -> None:
    body = b'{"spec": {"name": "' + b"x" * (BODY_LIMIT - 100) + b'"}}'
    response = httpx.post(
        f"{service.url}{JOBS}", content=body, headers={"Content-Type": "application/json"}, timeout=30
    )
    assert response.status_code == 422
    assert len(response.content) < 10_000


def test_answers_forbid_what_browsers_might_do_with_them(service: RunningService) -> None:
    for path in (JOBS, "/", "/nothing", "/static/app.js"):
        headers = httpx.get(f"{service.url}{path}").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    policy = httpx.get(f"{service.url}/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.write_text, (self.file, "caught")


def test_a_spec_reaches_no_file_outside_the_data_roots(service: RunningService) -> None:
    (service.settings.home / "secret.npz").write_bytes(b"not for you")
    for path in ("/etc/passwd", "../secret.npz", "a/../../secret.npz"):
        kinds = ("npz", "image_folder", "audio_folder", "hugging_face")
        data = [{"dataset": {"name": kind, "path": path}} for kind in kinds]
        data.append({"dataset": {"name": "table", "path": path, "target": "y"}})
        data.append({"partition": {"kind": "file", "path": path}})
        for section in data:
            spec = {"algorithm": "fedavg", "data": section}
            answer = httpx.post(f"{service.url}{JOBS}", json={"spec": spec}, timeout=30)
            assert answer.status_code == 422
            [fault] = answer.json()["errors"]
            assert (fault["path"], fault["value"]) == (f"data.{next(iter(section))}.path", path)
            assert "not for you" not in answer.text


def test_a_spec_reaches_no_file_where_the_service_was_started(
    service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text("[[0]]")
    spec = {"algorithm": "fedavg", "data": {"partition": {"kind": "file", "path": "mine.json"}}}
    answer = httpx.post(f"{service.url}{JOBS}", json={"spec": spec}, timeout=30)
    assert answer.status_code == 422
    assert "found none of mine.json" in answer.text


def test_pickles_are_never_opened(service: RunningService, tmp_path: Path) -> None:
    import numpy as np

    data = service.settings.home / "data"
    data.mkdir(exist_ok=True)
    trap = np.array([Trap(tmp_path / "caught")], dtype=object)
    np.savez(data / "trap.npz", x_train=trap, y_train=trap, x_test=trap, y_test=trap)
    spec = {"algorithm": "fedavg", "data": {"dataset": {"name": "npz", "path": "trap.npz"}}}
    answer = httpx.post(f"{service.url}{JOBS}", json={"spec": spec}, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (422, "BAD_DATA")
    assert not (tmp_path / "caught").exists()


@pytest.mark.parametrize(
    "text",
    ["!!python/object/apply:os.system [echo]", "!!python/name:os.system x", "&a [*a]", "!!binary aGk="],
)
def test_yaml_that_is_more_than_data_is_refused(service: RunningService, text: str) -> None:
    body = f"spec: {{algorithm: fedavg, name: {text}}}"
    answer = httpx.post(f"{service.url}{JOBS}", content=body, headers={"Content-Type": "application/yaml"})
    assert (answer.status_code, answer.json()["code"]) == (422, "BAD_SPEC")
    assert "not allowed" in answer.text
