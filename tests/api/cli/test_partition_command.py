"""`fedsim partition`: the table, the JSON, the saved partition and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.partition_file import load_partition
from jobs.run.class_map import MAX_CLIENTS_SHOWN
from jobs.run.partition_report import MAX_CLIENTS_MEASURED
from tests.api.service import Fedsim


def test_the_table_says_who_holds_what(fedsim: Fedsim) -> None:
    done = fedsim("partition", "demo")
    assert done.code == 0
    lines = [line for line in done.out.splitlines() if line.strip()]
    assert lines[0].startswith("digits, dirichlet beta=0.5 min_size=5, 50 clients, seed 7")
    assert [line.split()[0] for line in lines[3:]] == ["examples", "classes,", "EMD"]
    assert "dealing 1,438 examples to 50 clients" in done.err


def test_out_writes_the_partition_its_figures_and_a_page(fedsim: Fedsim, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    done = fedsim("partition", "demo", "--out", folder, "--format", "json")
    assert done.code == 0
    document = json.loads(done.out)
    assert json.loads((folder / "statistics.json").read_text()) == document
    partition, card = load_partition(folder / "partition")
    assert card["about"] == document["about"]
    assert card["digest"] == document["digest"]
    assert card["statistics"] == document["statistics"]
    assert int(partition.sizes().sum()) == document["statistics"]["examples"] == 1438
    assert sorted(file.name for file in folder.iterdir()) == [
        "partition.html",
        "partition.json",
        "partition.npz",
        "statistics.json",
    ]


def test_a_saved_partition_in_the_working_folder_is_one_of_a_spec(
    fedsim: Fedsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = fedsim("partition", "demo", "--out", "mine", "--format", "json")
    setting = "data.partition={kind: file, path: mine/partition.npz}"
    again = fedsim("partition", "demo", "--set", setting, "--format", "json")
    assert again.code == 0
    assert json.loads(again.out)["digest"] == json.loads(made.out)["digest"]
    wrong = {"data.public.fraction=0.1": "data.partition.path", "clients.total=9": "clients.total"}
    for more, place in wrong.items():
        done = fedsim("partition", "demo", "--set", setting, "--set", more)
        assert done.code == 2
        assert f"- {place}" in done.err


def test_the_page_needs_no_network_and_holds_the_numbers(fedsim: Fedsim, tmp_path: Path) -> None:
    assert fedsim("partition", "demo", "--out", tmp_path).code == 0
    page = (tmp_path / "partition.html").read_text()
    opening = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page)
    assert opening
    assert not [tag for tag in opening if "src" in tag or "href" in tag]
    assert "50 clients, seed 7" in page
    assert "first 200" not in page
    with np.load(tmp_path / "partition.npz") as arrays:
        sizes = arrays["sizes"].tolist()
    assert json.dumps(sizes, separators=(",", ":")) in page


def test_many_sampling_clients_are_surveyed_and_nothing_is_saved(fedsim: Fedsim, tmp_path: Path) -> None:
    kind = "data.partition={kind: sampled, size: 30, beta: 0.3}"
    done = fedsim("partition", "demo", "--set", kind, "--set", "clients.total=100000", "--out", tmp_path)
    assert done.code == 0
    assert f"the first {MAX_CLIENTS_MEASURED:,} of 100,000 clients" in done.err
    assert sorted(file.name for file in tmp_path.glob("*.*")) == ["partition.html", "statistics.json"]
    figures = json.loads((tmp_path / "statistics.json").read_text())
    assert figures["statistics"]["clients"] == 100_000
    assert figures["surveyed_clients"] == MAX_CLIENTS_MEASURED
    assert figures["digest"] is None
    assert f"the first {MAX_CLIENTS_SHOWN} of 100,000 clients" in (tmp_path / "partition.html").read_text()


def test_the_difficulty_partition_keeps_the_class_counts_of_its_base(fedsim: Fedsim, tmp_path: Path) -> None:
    base = "{kind: dirichlet, beta: 0.5, min_size: 5}"
    hard = f"data.partition={{kind: difficulty, f_ord: 1.0, expert_epochs: 1, base: {base}}}"
    assert fedsim("partition", "demo", "--out", tmp_path / "base").code == 0
    assert fedsim("partition", "demo", "--set", hard, "--out", tmp_path / "hard").code == 0
    loaded = [np.load(tmp_path / name / "partition.npz") for name in ("base", "hard")]
    with loaded[0] as one, loaded[1] as other:
        assert np.array_equal(one["counts"], other["counts"])
        assert not np.array_equal(one["indices"], other["indices"])


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("data.partition=natural", "data.partition.kind"),
        ("data.partition={kind: shards, shards_per_client: 100}", "data.partition."),
        ("data.partition.beta=-1", "data.partition.beta"),
        ("clients.total=5000", "clients.total"),
    ],
)
def test_what_cannot_be_dealt_is_exit_2_with_its_place(fedsim: Fedsim, setting: str, place: str) -> None:
    done = fedsim("partition", "demo", "--set", setting)
    assert done.code == 2
    assert f"- {place}" in done.err


def test_a_folder_that_cannot_be_made_is_said_first(fedsim: Fedsim, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = fedsim("partition", "demo", "--out", tmp_path / "file")
    assert done.code == 2
    assert "--out" in done.err
    assert "dealing" not in done.err
