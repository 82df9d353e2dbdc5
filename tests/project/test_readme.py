"""README: its counts are true, its spec is valid, and its rendering for a package index has no dead link."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
import yaml

from fedsim.algorithms import ALGORITHMS
from jobs.spec import parse_spec

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAPERS = re.compile(r"\((fedcl|curriculum|ace-pfl|kdia|layer-schedules)\.md#card\)")
SETUP = runpy.run_path(str(ROOT / "setup.py"))


def test_the_numbers_of_algorithms_are_true() -> None:
    families = Counter(each.__module__.split(".")[2] for each in ALGORITHMS.values())
    families["averaging"] += families.pop("fedavg")
    rows = re.findall(r"^\| \[\w+\]\(docs/methods/(\w+)\.md\) \| (\d+) \|", README, re.MULTILINE)
    assert {name: int(number) for name, number in rows} == families
    total = str(len(ALGORITHMS))
    assert re.findall(r"^(\d+) algorithms, each in one file", README, re.MULTILINE) == [total]
    assert re.findall(r"^\| algorithms \| (\d+) \|", README, re.MULTILINE) == [total]


def test_the_numbers_of_claims_are_true() -> None:
    results = (ROOT / "docs" / "results" / "README.md").read_text("utf-8")
    rows = [line.split("|") for line in results.splitlines() if "#card)" in line and PAPERS.search(line)]
    verdicts = [row[4] for row in rows if row[3].strip() != "this project"]
    held = [verdict for verdict in verdicts if "**held**" in verdict]
    counts = [re.search(r"\*\*held\*\* in (\d+) of (\d+)", verdict) for verdict in held]
    mostly = [found for found in counts if found is None or 2 * int(found[1]) > int(found[2])]
    turned = [verdict for verdict in verdicts if "**reversed**" in verdict]
    by_holm = [
        [verdict for verdict in verdicts if re.search(rf"\*\*{word}\*\*[^;]*\([1-9]\d* by Holm\)", verdict)]
        for word in ("held", "reversed")
    ]
    words = r"(\d+) claims of five papers.* (\d+) hold in most of their settings, (\d+) in at least one"
    words += r" \((\d+) after Holm's correction\); (\d+) are reversed in at least one \((\d+) after it\)"
    said = re.search(words, README)
    assert said is not None
    found = [len(each) for each in (verdicts, mostly, held, by_holm[0], turned, by_holm[1])]
    assert said.groups() == tuple(map(str, found))


def test_the_spec_is_valid() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert parse_spec(yaml.safe_load(text)).algorithm.name == "fedprox"


@pytest.mark.parametrize("repository", ["https://example.org/fedsim", None])
def test_the_description_on_an_index_has_no_relative_link(repository: str | None) -> None:
    text = SETUP["render_description"](README, repository, "0.2.0")
    links = re.findall(r"\]\(([^)\s]*)\)", text)
    assert links
    assert not [link for link in links if not link.startswith("https://")]
    picture = "https://example.org/fedsim/raw/v0.2.0/docs/page/compare-1600.png"
    assert (picture in links) == (repository is not None)
    assert "[See](#here)" not in SETUP["render_description"]("[See](#here)", repository, "1")
