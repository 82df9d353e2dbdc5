"""The model file of a run, and what is known of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.data.dataset import Column
from fedsim.errors import SettingsError
from fedsim.models.probe import InputForm


@dataclass(frozen=True)
class ModelSource:
    """A model to export.

    Attributes:
        notes: the metadata of its file; see `jobs.run.model_metadata.make_model_notes`.
        weights: NumPy arrays by name; with several architectures `NUMBER/NAME`.
        spec: of the run, as plain data.
        record: of the model's round, as plain data; {} if it is unknown.
    """

    notes: Mapping[str, str]
    weights: Mapping[str, Any]
    spec: Mapping[str, Any]
    record: Mapping[str, Any]

    @property
    def nets(self) -> list[dict[str, Any]]:
        """The arguments of `fedsim.models.make_net` of each architecture."""
        found = json.loads(self.notes["net"])
        return found if isinstance(found, list) else [found]

    @property
    def columns(self) -> list[Column]:
        """For rows of a table, the column of each input value; [] for other data."""
        return [Column(**each) for each in json.loads(self.notes.get("columns", "[]"))]

    def select_weights(self, number: int) -> dict[str, Any]:
        """Return the weights of one architecture.

        Raises:
            SettingsError: the file has an ensemble.
        """
        if any(name.partition("/")[0] == "models" for name in self.weights):
            raise SettingsError("the model is an ensemble of several models", "export --model last")
        if len(self.nets) == 1:
            return dict(self.weights)
        prefix = f"{number}/"
        return {
            name.removeprefix(prefix): each for name, each in self.weights.items() if name.startswith(prefix)
        }

    def input_form(self, number: int) -> InputForm:
        """Return the form of the inputs of one architecture."""
        net = self.nets[number]
        outputs = tuple(net.get("outputs") or (net["num_classes"],))
        return InputForm(tuple(net["input_shape"]), net.get("vocabulary", 0), outputs)


def read_model(path: Path, spec: Mapping[str, Any], records: list[Mapping[str, Any]]) -> ModelSource:
    """Read `model.safetensors` or `chosen.safetensors`.

    Args:
        path: of the file.
        spec: of the run, as plain data.
        records: of its rounds.

    Raises:
        SettingsError: there is no such file, or it was not written by fedsim.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        hint = "only a finished run has one, and only if its algorithm has a global model"
        if path.name == "chosen.safetensors":
            hint = "only a finished run with evaluation.validation has one"
        raise SettingsError(f"there is no {path}", hint)
    try:
        with safe_open(path, "np") as file:
            notes, weights = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise SettingsError(
            f"{path} cannot be read: {error}", "write it again with `fedsim run --out`"
        ) from None
    if not {"net", "normalise", "round"} <= notes.keys():
        raise SettingsError(f"{path} does not say which model it is", "take a file that fedsim wrote")
    record = next((each for each in records if each["round"] == int(notes["round"])), {})
    return ModelSource(notes, weights, spec, record)
