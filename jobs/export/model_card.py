"""The model card of an exported model: data, method, rounds, scores, digest, and how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from jobs.export.source import ModelSource

LICENSE_NOTE = (
    "fedsim does not know the licence of the data set, and sets none for the model. Choose one that the "
    "licence of the data allows, and write it into the first lines of this file."
)


def render_card(source: ModelSource, loading: str) -> str:
    """Return the model card as Markdown, with the header that Hugging Face reads.

    Args:
        source: the model.
        loading: Python code that loads it.
    """
    notes, spec = source.notes, source.spec
    dataset, algorithm = json.loads(notes["dataset"]), json.loads(notes["algorithm"])
    header = {"library_name": "pytorch", "tags": ["federated-learning", "fedsim", algorithm["name"]]}
    if dataset["name"] == "hugging_face" and "/" in str(dataset.get("path", "")):
        header["datasets"] = [dataset["path"]]
    header["license"] = "other"
    sections = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {spec.get('name') or algorithm['name']}",
        f"The global model of a simulated federation: {algorithm['name']} on {dataset['name']}, after round "
        f"{notes['round']}. It was trained with fedsim; `spec.yaml` has the whole experiment.",
        f"## Load it\n\n```python\n{loading}\n```",
        f"## Facts\n\n{_render_facts(source)}",
    ]
    if scores := _render_scores(source.record.get("metrics", {})):
        sections.append(f"## Scores after round {notes['round']}\n\n{scores}")
    if classes := json.loads(notes.get("classes", "null")):
        sections.append(f"## Classes\n\nIn the order of the outputs: {', '.join(map(str, classes))}")
    if source.columns:
        names = [
            each.name if each.category is None else f"{each.name} is {each.category}"
            for each in source.columns
        ]
        order = "In the order of the inputs, numbers as the table has them, and 1 or 0 for a category"
        sections.append(f"## Columns\n\n{order}: {', '.join(names)}")
    sections += [
        "## Limits\n\nThe clients were simulated. The scores are those of the data set's own test or "
        "validation examples; nothing is known of other data.",
        f"## Licence\n\n{LICENSE_NOTE}",
    ]
    return "\n\n".join(sections) + "\n"


def _render_facts(source: ModelSource) -> str:
    notes, spec = source.notes, source.spec
    clients, data = spec.get("clients", {}), spec.get("data", {})
    facts: dict[str, Any] = {
        "data": json.loads(notes["dataset"]),
        "partition": data.get("partition"),
        "inputs": " and ".join(str(net["input_shape"]) for net in source.nets),
        "model": ", ".join(str(net["name"]) for net in source.nets),
        "algorithm": json.loads(notes["algorithm"]),
        "clients": clients.get("total"),
        "share of the clients in a round": clients.get("fraction"),
        "round": notes["round"],
        "seed": notes["seed"],
        "local training": spec.get("local"),
        "chosen by": notes.get("model") and "the validation set, of all rounds",
        "plug-ins": notes.get("plugins"),
        "digest of the server state (SHA-256)": source.record.get("digest"),
        "job": notes.get("job"),
    }
    rows = [f"| {name} | {_write(value)} |" for name, value in facts.items() if value not in (None, "", {})]
    return "\n".join(["| fact | value |", "| --- | --- |", *rows])


def _render_scores(metrics: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {value:.4f} |" for name, value in metrics.items() if isinstance(value, float)]
    return "\n".join(["| metric | value |", "| --- | --- |", *rows]) if rows else ""


def _write(value: Any) -> str:
    """Write a value on one line of a table; mappings as `name key=value`."""
    if isinstance(value, Mapping):
        own = ("name", "kind")
        rest = {key: each for key, each in value.items() if key not in own and each is not None}
        parts = [f"{key}={_write(each)}" for key, each in rest.items()]
        value = " ".join([str(value.get("name") or value.get("kind") or ""), *parts]).strip()
    return str(value).replace("|", "\\|").replace("\n", " ")
