"""The form for a new job in a browser, against a real server; skipped without a Chromium."""

from __future__ import annotations

import httpx
import pytest

from jobs.states import JobState
from tests.api.axe import violations
from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.service import RunningService

TAKEN = "The service would take this spec."


def field(path: str) -> str:
    return f'[name="{path}"]'


def fault(path: str) -> str:
    return f'[data-path="{path}"] .fault'


@pytest.fixture
def form(browser: Browser, service: RunningService) -> Browser:
    browser.open(f"{service.url}/#/new")
    until(lambda: browser.text("#verdict") == TAKEN, seconds=40)
    return browser


@NEEDS_CHROMIUM
def test_a_job_is_made_by_the_form(form: Browser, service: RunningService) -> None:
    assert violations(form) == []
    form.write(field("name"), "made by hand")
    form.choose(field("algorithm"), "fedprox")
    form.write(field("algorithm.mu"), "0.25")
    form.write(field("labels"), "group=mine, note")
    until(lambda: "algorithm: {name: fedprox, mu: 0.25}" in str(form.find("#yaml").get_property("value")))
    form.click("#submit")
    until(lambda: form.text("#job-head") == "made by hand")
    job = service.store.list(label="group=mine").jobs[0]
    assert (job.state, job.labels) == (JobState.QUEUED, {"group": "mine", "note": ""})
    assert job.spec["algorithm"] == {"name": "fedprox", "mu": 0.25}
    # The rest is the preset that the form began with.
    assert job.spec["data"]["partition"] == {"kind": "dirichlet", "beta": 0.5, "min_size": 5}
    form.click('[data-action="clone"]')
    until(lambda: form.visible(field("algorithm.mu")))
    assert form.find(field("algorithm.mu")).get_property("value") == "0.25"
    assert form.errors() == []


@NEEDS_CHROMIUM
def test_wrong_input_is_told_at_its_field(form: Browser, service: RunningService) -> None:
    form.write(field("clients.fraction"), "2")
    form.write(field("rounds"), "many")
    until(lambda: form.text(fault("rounds")))
    assert form.text(fault("clients.fraction"))
    assert form.find(field("clients.fraction")).get_attribute("aria-invalid") == "true"
    assert "2 faults" in form.text("#verdict")
    assert violations(form) == []
    form.click("#submit")
    until(lambda: form.script("return document.activeElement.name") == "rounds")
    form.write(field("rounds"), "3")
    form.write(field("clients.fraction"), "")
    until(lambda: form.text("#verdict") == TAKEN)
    assert form.text(fault("rounds")) == ""
    assert form.errors() == []


@NEEDS_CHROMIUM
def test_yaml_fills_the_form(form: Browser, service: RunningService) -> None:
    fill = """
        const area = document.querySelector("#yaml");
        area.value = arguments[0];
        area.dispatchEvent(new Event("input"));
    """
    form.script(fill, "algorithm: {name: fedprox, mu: -1}\nsurprise: 3\nlocal: {lr_decay: {alpha: 0.5}}\n")
    until(lambda: form.text(fault("algorithm.mu")))
    assert "surprise" in form.text("#other-faults")
    assert form.find(field("local.lr_decay.alpha")).get_property("value") == "0.5"
    form.script(fill, "algorithm: [")
    until(lambda: "cannot be read" in form.text("#other-faults"))


def test_a_spec_is_looked_over(http: httpx.Client) -> None:
    good = http.post("/api/v1/check", json={"algorithm": "fedavg"})
    assert good.json() == {"valid": True, "errors": [], "data": {"algorithm": "fedavg"}, "name": "fedavg"}
    wrong = http.post("/api/v1/check", json={"algorithm": "fedavgg", "rounds": 0})
    assert wrong.status_code == 200
    assert {error["path"] for error in wrong.json()["errors"]} == {"algorithm.name", "rounds"}
    as_yaml = {"Content-Type": "application/yaml"}
    unread = http.post("/api/v1/check", content="a: [", headers=as_yaml).json()
    assert (unread["valid"], unread["data"], unread["errors"][0]["path"]) == (False, None, "spec")
    missing = http.post("/api/v1/check", json={"algorithm": "fedavg", "data": {"dataset": "celeba"}}).json()
    assert [error["path"] for error in missing["errors"]] == ["data.dataset.name"]
    huge = {"algorithm": "fedavg", "resources": {"workers": 500}}
    assert [error["path"] for error in http.post("/api/v1/check", json=huge).json()["errors"]] == [
        "resources.workers"
    ]
    assert http.post("/api/v1/check", json=[1]).json()["data"] is None
