"""The form for a new job in a browser, against a real server; skipped without a Chromium."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from fedsim.errors import ServiceError
from jobs.spec import parse_spec
from jobs.spec.spec_text import parse_text
from jobs.spec.sweep import members, read_sweep
from jobs.store.states import JobState
from tests.api.axe import violations
from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.service import RunningService

FILL = """
    const area = document.querySelector("#yaml");
    area.value = arguments[0];
    area.dispatchEvent(new Event("input"));
"""
BREAK = """
    // Of the submissions, the one of this number is lost on its way.
    const [lost, real] = [arguments[0], window.fetch];
    let count = 0;
    window.fetch = async (url, options) => {
        const isSubmission = url.endsWith("/jobs") && options.method === "POST";
        if (isSubmission && ++count === lost) throw new TypeError("Failed to fetch");
        return real(url, options);
    };
"""
HIDDEN = """
    // The controls that the header or the bar covers when they have the focus.
    const [header, bar] = ["header", ".submit-bar"].map((each) => document.querySelector(each));
    const isHidden = (control) => {
        control.focus();
        const { top, bottom } = control.getBoundingClientRect();
        return top < header.getBoundingClientRect().bottom || bottom > bar.getBoundingClientRect().top;
    };
    const all = [...document.querySelectorAll(".new-split :is(input, select, button, summary)")];
    return all.filter((each) => each.checkVisibility() && isHidden(each)).map(({ name, id }) => name || id);
"""
ARROW = 16  # pixels of a choice, at its right
TAKEN = "This spec is valid."

FITS = {
    "fits": True,
    "rounds": 20,
    "evaluations": 20,
    "clients": {"total": 50, "per_round": 10, "per_worker": 5},
    "device": "cpu",
    "workers": 2,
    "nodes": [{"name": "127.0.0.1", "cpus": 8, "gpus": 0, "fit": 8}],
    "memory": {"worker": 300_000_000, "shared": 1_000_000},
    "seconds": {
        "startup": 3.0,
        "round": {"total": 2.0, "train": 1.5},
        "overhead": 0.1,
        "evaluation": 0.2,
        "total": 43.0,
    },
    "bytes": {"round": {"down": 192_400, "up": 192_400}, "total": {"down": 3_848_000, "up": 3_848_000}},
    "faster": ["4 workers would take 1.1 s a round"],
}
DOES_NOT_FIT = {
    "fits": False,
    "message": "5000 workers x 1 CPU asked, 8 CPU here, 8 fit",
    "hint": "ask for at most 8",
    "rounds": 20,
    "evaluations": 20,
    "clients": {"total": 50, "per_round": 10, "per_worker": 1},
}


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
def test_a_purpose_leaves_its_algorithms_and_the_chosen_one(form: Browser) -> None:
    form.choose(field("purpose"), "clustering")
    listed = ["ace_pfl", "cfl", "clustered_fedavg", "fedavg", "ifca"]
    until(lambda: form.options(field("algorithm")) == listed)
    form.choose(field("algorithm"), "ifca")
    until(lambda: "down: models, up: cluster, params" in form.text('[data-path="algorithm"]'))
    assert "fedavg" not in form.options(field("algorithm"))
    assert "purpose" not in form.value("#yaml")
    form.choose(field("purpose"), "")
    until(lambda: "fedavg" in form.options(field("algorithm")))
    assert form.value(field("algorithm")) == "ifca"


@NEEDS_CHROMIUM
def test_a_job_is_made_by_the_form(form: Browser, service: RunningService) -> None:
    assert violations(form) == []
    form.write(field("name"), "made by hand")
    form.choose(field("algorithm"), "fedprox")
    about = "Li et al., MLSys 2020; for client-drift; relative to FedAvg: traffic 1, computing 1"
    assert about in form.text('[data-path="algorithm"]')
    form.write(field("algorithm.mu"), "0.25")
    form.write(field("labels"), "group=mine, note")
    until(lambda: "algorithm: {name: fedprox, mu: 0.25}" in form.value("#yaml"))
    form.click("#submit")
    until(lambda: form.text("#job-head") == "made by hand")
    job = service.store.list(label="group=mine").jobs[0]
    assert (job.state, job.labels) == (JobState.QUEUED, {"group": "mine", "note": ""})
    assert job.spec["algorithm"] == {"name": "fedprox", "mu": 0.25}
    # The rest is the preset that the form began with.
    assert job.spec["data"]["partition"] == {"kind": "dirichlet", "beta": 0.5, "min_size": 5}
    form.click('[data-action="clone"]')
    until(lambda: form.visible(field("algorithm.mu")))
    assert form.value(field("algorithm.mu")) == "0.25"


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("width", [360, 1400, 1600])
def test_what_is_chosen_is_not_cut_short(browser: Browser, service: RunningService, width: int) -> None:
    cut = """const pen = document.createElement("canvas").getContext("2d");
        const isCut = (each) => {
          const { font, paddingLeft, paddingRight } = getComputedStyle(each);
          pen.font = font;
          const room = each.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight) - arguments[0];
          return pen.measureText(each.selectedOptions[0].text).width > room;
        };
        return [...document.querySelectorAll("#spec-form select")].filter(isCut).map(({ name }) => name);"""
    browser.open(f"{service.url}/#/new", width)
    until(lambda: browser.text("#verdict") == TAKEN, seconds=40)
    for method in ("fedcl", "kdia", "ace_pfl"):
        browser.choose(field("algorithm"), method)
        until(lambda name=method: browser.visible('[name^="algorithm."]') and name in browser.value("#yaml"))
        browser.choose(field("clients.sampler"), "power_of_choice")
        browser.script(
            "document.querySelectorAll('#spec-form details').forEach((each) => { each.open = true; })"
        )
        assert browser.script(cut, ARROW) == [], method


@NEEDS_CHROMIUM
def test_a_model_says_that_its_clients_train_one_by_one(form: Browser, service: RunningService) -> None:
    form.choose(field("model"), "resnet18")
    until(
        lambda: (
            "cannot train stacked clients with its defaults: BatchNorm" in form.text('[data-path="model"]')
        )
    )
    form.choose(field("model"), "mlp")
    until(lambda: "stacked clients" not in form.text('[data-path="model"]'))


@NEEDS_CHROMIUM
def test_wrong_input_is_told_at_its_field(form: Browser, service: RunningService) -> None:
    form.write(field("clients.fraction"), "2")
    form.write(field("rounds"), "many")
    until(lambda: form.text(fault("rounds")))
    assert form.text(fault("clients.fraction"))
    assert form.find(field("clients.fraction")).get_attribute("aria-invalid") == "true"
    assert "2 errors" in form.text("#verdict")
    assert violations(form) == []
    form.click("#submit")
    until(lambda: form.script("return document.activeElement.name") == "rounds")
    form.write(field("rounds"), "3")
    form.write(field("clients.fraction"), "")
    until(lambda: form.text("#verdict") == TAKEN)
    assert form.text(fault("rounds")) == ""


@NEEDS_CHROMIUM
def test_yaml_fills_the_form(form: Browser, service: RunningService) -> None:
    form.script(FILL, "algorithm: {name: fedprox, mu: -1}\nsurprise: 3\nlocal: {lr_decay: {alpha: 0.5}}\n")
    until(lambda: form.text(fault("algorithm.mu")))
    assert "surprise" in form.text("#other-faults")
    assert form.value(field("local.lr_decay.alpha")) == "0.5"
    form.script(FILL, "algorithm: [")
    until(lambda: "cannot be read" in form.text("#other-faults"))


@NEEDS_CHROMIUM
def test_a_number_that_is_chosen_stays_a_number(form: Browser, service: RunningService) -> None:
    form.choose(field("data.dataset"), "synthetic_images")
    until(lambda: form.visible(field("data.dataset.channels")))
    form.choose(field("data.dataset.channels"), "1")
    until(lambda: "channels: 1" in form.value("#yaml"))
    form.choose(field("data.dataset.channels"), "")
    until(lambda: "channels" not in form.value("#yaml"))


@NEEDS_CHROMIUM
def test_what_is_written_short_fills_its_fields_and_loses_nothing(
    form: Browser, service: RunningService
) -> None:
    form.script(FILL, "algorithm: fedavg\ndata: {dataset: digits, tests: merged}\n")
    until(lambda: form.value(field("data.tests.kind")) == "merged")
    form.write(field("data.tests.share"), "0.4")
    until(lambda: "tests: {kind: merged, share: 0.4}" in form.value("#yaml"))
    until(lambda: form.text("#verdict") == TAKEN)
    form.script(FILL, "algorithm: fedavg\ndata: {dataset: digits, tests: [matched, global]}\n")
    until(lambda: form.value(field("data.tests.kind")) == "matched")
    form.choose(field("data.tests.kind"), "labels")
    until(lambda: "kind: labels\n    also: [global]\n" in form.value("#yaml"))
    until(lambda: form.text("#verdict") == TAKEN)


@NEEDS_CHROMIUM
def test_what_is_seen_is_what_is_sent(form: Browser, service: RunningService) -> None:
    """Submit is clicked before the page has looked at the text that was written last."""
    before = len(service.store.queue())
    submit = FILL + "document.querySelector('#submit').click();"
    form.script(submit, "algorithm: [")
    until(lambda: "cannot be read" in form.text("#other-faults"))
    assert len(service.store.queue()) == before
    form.script(submit, "algorithm: fedavg\nrounds: 7\n")
    until(lambda: form.text("#job-head") == "fedavg")
    assert form.text("#job-rounds") == "0 of 7 rounds"


@NEEDS_CHROMIUM
def test_a_seed_is_sent_as_it_is_written_and_cloned_as_it_is(form: Browser, service: RunningService) -> None:
    """JavaScript would round each of them to the even number beside it."""
    submit = FILL + "document.querySelector('#submit').click();"
    form.script(submit, f"algorithm: fedavg\nseed: {2**53 + 1}\n")
    until(lambda: form.text("#job-head") == "fedavg")
    assert service.store.queue()[-1].spec["seed"] == 2**53 + 1
    form.click("#job-actions [data-action=clone]")
    until(lambda: f"seed: {2**53 + 1}" in form.value("#yaml"))
    form.write(field("seed"), str(2**53 + 3))
    until(lambda: f"seed: {2**53 + 3}" in form.value("#yaml"))
    form.click("#submit")
    until(lambda: service.store.queue()[-1].spec["seed"] == 2**53 + 3)


@NEEDS_CHROMIUM
def test_a_clone_keeps_labels_and_not_the_name_of_its_method(
    browser: Browser, service: RunningService
) -> None:
    spec = parse_spec({"algorithm": "fedavg", "rounds": 2})
    labels = {"note": "a, b=c", "kept": ""}
    job = service.store.create(spec, labels=labels)[0]
    browser.open(f"{service.url}/#/new?from={job.id}")
    until(lambda: browser.text("#verdict") == TAKEN, seconds=40)
    browser.choose(field("algorithm"), "fedprox")
    browser.click("#submit")
    until(lambda: browser.text("#job-head") == "fedprox")
    made = service.store.list(label="kept", algorithm="fedprox").jobs
    assert [each.labels for each in made] == [labels]


@NEEDS_CHROMIUM
def test_a_clone_of_a_run_of_a_sweep_has_neither_its_labels_nor_its_name(
    browser: Browser, service: RunningService
) -> None:
    spec = parse_spec({"algorithm": "fedavg", "rounds": 2, "name": "rates: lr=0.1, seed 1", "seed": 1})
    job = service.store.create(spec, labels={"group": "rates", "local.lr": "0.1", "seed": "1"})[0]
    browser.open(f"{service.url}/#/new?from={job.id}")
    until(lambda: browser.text("#verdict") == TAKEN, seconds=40)
    assert (browser.value('[name="labels"]'), browser.value('[name="name"]')) == ("", "")
    assert "seed: 1" in browser.value("#yaml")


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_plan_is_told_beside_the_form(
    form: Browser, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's part; planners measure for half a minute, and are tested for themselves."""
    asked, answers, measured = [], iter([FITS, DOES_NOT_FIT]), threading.Event()

    async def planned(spec: dict[str, object], is_gone: object) -> dict[str, object]:
        asked.append(spec["name"])
        await asyncio.to_thread(measured.wait, 20)
        found = next(answers, None)
        if found is None:
            raise ServiceError("8 plans are being made or wait for it", "ask later", status=503)
        return found

    monkeypatch.setattr(service.app.state.service.planner, "run", planned)
    # As a window of this size shows it, without scrolling.
    form.open(form.driver.current_url, 1400, 900)
    until(lambda: form.text("#verdict") == TAKEN, seconds=40)
    form.write('[name="name"]', "to be measured")
    inside = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom <= innerHeight"
    assert all(form.script(inside, each) for each in ("#submit", "#plan-start", "#verdict", "#job-count"))
    form.click("#plan-start")
    assert "Measuring" in form.text("#plan")
    assert form.find("#plan-start").get_attribute("aria-disabled")
    measured.set()
    until(lambda: "The job fits the cluster." in form.text("#plan"))
    words = form.text("#plan")
    for figure in (
        "10 of 50",
        "2, at most 5 clients each per round",
        "2 s",
        "43 s",
        "192 kB",
        "7.7 MB",
        "300 MB",
    ):
        assert figure in words
    assert "8 workers fit" in words
    assert "4 workers would take 1.1 s a round" in words
    assert asked == ["to be measured"]
    assert form.text("#plan-summary") == "fits: 2 workers, 7.7 MB of traffic, 43 s"
    assert form.script(inside, "#plan-summary")
    form.write(field("seed"), "7, 8, 9")
    several = "fits: 2 workers, 7.7 MB of traffic each, 3 jobs x 43 s = 2 min 9 s, one after the other"
    until(lambda: form.text("#plan-summary") == several)
    form.write(field("rounds"), "40")
    until(lambda: form.text("#plan-summary") == f"{several} (measured before the last change)")
    assert violations(form) == []
    form.click("#plan-start")
    until(lambda: "The job does not fit the cluster: 5000 workers x 1 CPU asked" in form.text("#plan"))
    assert "ask for at most 8" in form.text("#plan")
    form.click("#plan-start")
    until(lambda: "8 plans are being made or wait for it: ask later" in form.text("#plan"))
    assert form.find("#plan-start").get_attribute("aria-disabled") is None
    assert all("status of 503" in error for error in form.errors())


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_long_run_is_told_beside_submit(form: Browser, service: RunningService) -> None:
    form.write(field("rounds"), "100000")
    form.write(field("local.epochs"), "500")
    until(lambda: "this run takes roughly" in form.text("#plan-summary"))
    form.write(field("rounds"), "2")
    until(lambda: form.text("#plan-summary") == "")


@NEEDS_CHROMIUM
def test_what_is_wrong_beside_the_spec_is_told_at_its_field_too(
    form: Browser, service: RunningService
) -> None:
    form.write(field("priority"), "high")
    form.click("#submit")
    until(lambda: form.text(fault("priority")))
    assert form.script("return document.activeElement.name") == "priority"
    form.write(field("priority"), "2")
    form.write(field("labels"), "bad key=1")
    form.click("#submit")
    until(lambda: form.text(fault("labels")))
    assert form.text(fault("priority")) == ""
    assert service.store.list(search="demo").jobs == []
    assert all("status of 422" in error for error in form.errors())


def test_a_spec_is_looked_over(http: httpx.Client) -> None:
    good = http.post("/api/v1/check", json={"algorithm": "fedavg"})
    told = {"valid": True, "errors": [], "data": {"algorithm": "fedavg"}, "name": "fedavg", "warning": None}
    assert good.json() == told
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


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_optimizers_and_schedules_are_chosen_with_their_parameters(
    form: Browser, service: RunningService
) -> None:
    form.choose(field("local.optimizer"), "adamw")
    until(lambda: form.visible(field("local.optimizer.betas")))
    form.write(field("local.optimizer.betas"), "[0.9, 0.99]")
    form.choose(field("local.schedule"), "cosine")
    until(lambda: form.visible(field("local.schedule.warmup")))
    form.write(field("local.schedule.warmup"), "1")
    until(lambda: "name: adamw\n    betas: [0.9, 0.99]" in form.value("#yaml"))
    until(lambda: form.text("#verdict") == TAKEN)
    assert violations(form) == []
    form.write(field("local.momentum"), "0.9")
    until(lambda: "the first of its betas" in form.text(fault("local.momentum")))


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_fleets_and_policies_are_chosen_with_their_parameters(form: Browser, service: RunningService) -> None:
    form.script(FILL, "algorithm: fedavg\ndevices: phones\n")
    until(lambda: form.value(field("devices.fleet")) == "phones")
    form.choose(field("devices.fleet.link"), "4g")
    form.choose(field("devices.policy"), "fedbuff")
    until(lambda: form.visible(field("devices.policy.buffer")))
    form.write(field("devices.policy.buffer"), "3")
    until(lambda: form.text("#verdict") == TAKEN)
    assert "buffer: 3" in form.value("#yaml")
    assert 'link: "4g"' in form.value("#yaml")
    assert violations(form) == []
    form.write(field("devices.policy.buffer"), "3000")
    until(lambda: "cannot fill it" in form.text(fault("devices.policy.buffer")))
    form.choose(field("devices.policy"), "wait")
    form.choose(field("devices.fleet"), "")
    until(lambda: "fleet" not in form.value("#yaml"))


def varied(form: Browser, path: str, values: str) -> None:
    """Vary a field."""
    form.click("#vary-add")
    rows = form.count(".vary")
    form.choose(f".vary:nth-child({rows}) select", path)
    form.write(f".vary:nth-child({rows}) .values", values)


@NEEDS_CHROMIUM
def test_seeds_and_varied_fields_make_the_jobs_of_a_sweep(form: Browser, service: RunningService) -> None:
    form.write(field("name"), "two axes")
    form.write(field("seed"), f"3, 5-6, {2**53 + 1}")
    varied(form, "data.partition.beta", "0.1, 1e2")
    varied(form, "local.lr", "0.00001")
    varied(form, "algorithm", 'fedavg, {"name": "fedprox", "mu": 0.1}')
    form.write(field("labels"), "owner=ada")
    assert form.text("#job-count") == "16 jobs: 2 x 1 x 2 x 4 seeds"
    until(lambda: form.text("#verdict") == "Each value is valid. Submit checks every combination.")
    form.script("document.querySelector('#sweep-file').open = true")
    assert violations(form) == []
    file = form.text("#sweep-yaml")
    expected = members(read_sweep(parse_text(file)))
    form.click("#submit")
    until(lambda: form.script("return location.hash") == "#/jobs?label=group%3Dtwo+axes")
    jobs = service.store.list(label="group=two axes", order_by="created_at").jobs
    # `fedsim sweep` finds them by these.
    sweep = read_sweep(parse_text(file))
    assert [sweep.hash_spec(parse_spec(job.spec)) for job in jobs] == [
        member.spec_hash for member in expected
    ]
    assert [job.labels for job in jobs] == [member.labels for member in expected]
    assert [job.name for job in jobs][-1] == f"two axes: beta=100, lr=1e-05, fedprox mu=0.1, seed {2**53 + 1}"
    assert jobs[0].labels == {
        "data.partition.beta": "0.1",
        "local.lr": "1e-05",
        "algorithm": "fedavg",
        "seed": "3",
        "owner": "ada",
        "group": "two axes",
    }


@NEEDS_CHROMIUM
def test_each_varied_value_is_checked_while_it_is_typed(form: Browser, service: RunningService) -> None:
    varied(form, "local.lr", "0.01, 0.1, abc")
    until(lambda: '"abc"' in form.text(".vary .fault"))
    assert "(in local.lr abc)" in form.text(".vary .fault")
    assert form.text("#verdict") == "1 error: see the marked fields"
    assert form.find(".vary .values").get_attribute("aria-invalid") == "true"
    # The form's own errors are told once, at their fields.
    form.write(field("rounds"), "many")
    until(lambda: form.text("#verdict") == "2 errors: see the marked fields")
    assert "rounds" not in form.text(".vary .fault")
    form.write(field("rounds"), "3")
    form.write(".vary .values", "0.01, 0.1, 1")
    until(lambda: form.text("#verdict") == "Each value is valid. Submit checks every combination.")
    assert form.text(".vary .fault") == ""
    form.write(".vary .values", ", ".join(str(number) for number in range(1, 23)))
    until(lambda: form.text("#verdict") == "20 values are checked and valid. Submit checks all.")


@NEEDS_CHROMIUM
def test_a_field_that_is_written_again_keeps_its_place(form: Browser, service: RunningService) -> None:
    def keys() -> list[str]:
        return [line.split(":")[0] for line in form.value("#yaml").splitlines() if not line.startswith(" ")]

    before = keys()
    for name, text in (("rounds", "9"), ("seed", "3, 4"), ("name", "again")):
        form.write(field(name), "")
        until(lambda name=name: name not in keys())
        form.write(field(name), text)
    until(lambda: keys() == before)
    assert before[:3] == ["name", "seed", "rounds"]


@NEEDS_CHROMIUM
def test_every_combination_is_checked_before_the_first_job(form: Browser, service: RunningService) -> None:
    form.write(field("name"), "checked")
    form.click("#vary-add")
    form.click("#submit")
    until(lambda: form.text(".vary .fault") == "choose a field")
    form.choose(".vary select", "local.lr")
    form.write(".vary .values", "0.05, 0.1, -1")
    form.click("#submit")
    until(lambda: "(in local.lr -1)" in form.text(".vary .fault"))
    assert form.script("return document.activeElement.className") == "values"
    assert service.store.list(search="checked").jobs == []
    form.write(".vary .values", "")
    form.click("#submit")
    until(lambda: form.text(".vary .fault") == "give at least one value")
    form.click('.vary [aria-label^="Do not"]')
    assert form.text("#job-count") == "1 job"
    assert not form.visible("#sweep-file")


@NEEDS_CHROMIUM
def test_a_submission_that_breaks_goes_on_where_it_broke(form: Browser, service: RunningService) -> None:
    form.write(field("name"), "broken")
    form.write(field("seed"), "1-4")
    form.script(BREAK, 3)
    form.click("#submit")
    until(lambda: '2 of 4 jobs are submitted, up to "seed 2". the service does' in form.text("#verdict"))
    assert [job.labels["seed"] for job in service.store.list(label="group=broken").jobs] == ["2", "1"]
    form.click("#submit")
    until(lambda: form.script("return location.hash") == "#/jobs?label=group%3Dbroken")
    jobs = service.store.list(label="group=broken", order_by="created_at").jobs
    assert [job.name for job in jobs] == [f"broken: seed {seed}" for seed in (1, 2, 3, 4)]


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_many_jobs_are_confirmed_and_too_many_refused(form: Browser, service: RunningService) -> None:
    form.write(field("name"), "many")
    form.write(field("seed"), "1-67")
    varied(form, "local.lr", "0.1, 0.2, 0.3")
    form.click("#submit")
    until(lambda: "201 jobs are more than the 200" in form.text("#verdict"))
    assert "fedsim sweep FILE" in form.text("#verdict")
    form.write(field("seed"), "1-17")
    until(lambda: form.text("#job-count") == "51 jobs: 3 x 17 seeds")
    form.click("#submit")
    until(lambda: form.text("#confirm-head") == "Submit 51 jobs?")
    form.click("#confirm-no")
    assert service.store.list(label="group=many").jobs == []
    # A group that has jobs already is confirmed too.
    service.store.create(parse_spec({"algorithm": "fedavg"}), labels={"group": "many"})
    form.write(field("seed"), "1-2")
    until(lambda: form.text("#job-count") == "6 jobs: 3 x 2 seeds")
    assert form.text("#vary-words").endswith("of the group many")
    form.click("#submit")
    until(lambda: "The group many has jobs already" in form.text("#confirm-text"))
    form.click("#confirm-no")
    assert len(service.store.list(label="group=many").jobs) == 1


@NEEDS_CHROMIUM
def test_fields_have_the_names_of_the_yaml(form: Browser, service: RunningService) -> None:
    labels = """return Object.fromEntries([...document.querySelectorAll("#spec-form .field")]
        .map((each) => [each.dataset.path, each.querySelector("label").textContent]))"""
    found = form.script(labels)
    assert found["local.batch_size"] == "batch_size"
    assert found["data.partition.min_size"] == "partition.min_size"
    assert all(path == label or path.endswith(f".{label}") for path, label in found.items() if path != "seed")
    # Every field says in words what it is.
    hints = """return [...document.querySelectorAll("#spec-form .field:not(:has(.hint)) [name]")]
        .map(({ name }) => name)"""
    assert form.script(hints) == []
    assert "examples in a batch" in form.text('[data-path="local.batch_size"]')


@NEEDS_CHROMIUM
def test_submit_is_in_reach_on_a_phone_and_covers_no_field(browser: Browser, service: RunningService) -> None:
    browser.open(f"{service.url}/#/new", 390, 844)
    until(lambda: browser.text("#verdict") == TAKEN, seconds=40)
    bottom = "return document.querySelector('#submit').getBoundingClientRect().bottom"
    assert browser.script(bottom) <= 844
    assert browser.script(HIDDEN) == []
    browser.script("window.scrollTo(0, 1e6)")
    assert browser.script(bottom) <= 844
