"""`fedsim inspect`: its tables, and the same as JSON."""

from __future__ import annotations

from tests.api.service import Fedsim


def test_the_tables_show_blocks_batch_and_payloads(fedsim: Fedsim) -> None:
    done = fedsim("inspect", "demo", "--set", "algorithm=fedper")
    assert done.code == 0, done.err
    rows = [line.split() for line in done.out.splitlines() if line.strip()]
    assert rows[0][:4] == ["model", "mlp:", "4,810", "parameters;"]
    assert ["fc1", "64", "fc1.0.weight", "64", "x", "64", "4,096", "trained", "yes"] in rows
    assert ["head.bias", "10", "10", "trained", "no"] in rows
    assert ["params", "16,640", "16,640"] in rows
    assert any(row[:2] == ["inputs", "10"] for row in rows)


def test_a_regression_has_no_classes_to_count(fedsim: Fedsim) -> None:
    shown = fedsim("inspect", "demo")
    assert "labels of the batch: " in shown.out
    settings = ("data.dataset=diabetes", "data.partition=iid", "model=mlp")
    shown = fedsim("inspect", "demo", *(word for each in settings for word in ("--set", each)))
    assert shown.code == 0, shown.err
    assert "its first batch" in shown.out
    assert "labels of the batch" not in shown.out


def test_json_has_the_same(fedsim: Fedsim) -> None:
    done = fedsim("inspect", "demo", "--format", "json")
    (model,) = done.data["models"]
    assert model["parameters"] == 4810
    assert model["payloads"] == [{"name": "params", "down": 19240, "up": 19240}]
    assert fedsim("inspect", "demo", "--set", "model=nonsense").code == 2
