"""JobSpec: the spec of a job, as an immutable value with every default.

This module checks shapes and ranges without torch, Ray or a database, so that the SDK and the command line
read a spec in milliseconds. `jobs.spec.resolve` runs the checks that need the catalogue or the data.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedsim.base.python_source import embed_sources
from fedsim.errors import FieldError, SpecError
from jobs.spec.error_messages import (
    MAX_VALUES,
    count_values,
    find_value_faults,
    shorten_value,
    translate_errors,
)
from jobs.spec.fields import (
    MAX_NAME,
    MAX_ROUNDS,
    Clients,
    LocalSection,
    ModelChoice,
    Name,
    Named,
    OneOrSeveral,
    Section,
    Whole,
    find_algorithm_name,
    make_fault,
)
from jobs.spec.sections.curriculum_fields import Curriculum
from jobs.spec.sections.data_fields import Data
from jobs.spec.sections.device_fields import DevicesSection
from jobs.spec.sections.evaluation_fields import Evaluation
from jobs.spec.sections.privacy_fields import Fairness, PrivacySection, SecureAggregationSection
from jobs.spec.sections.run_fields import Checkpointing, FaultsSection, Resources, Stop
from jobs.spec.spec_text import apply_overrides, parse_text


def _expand_fleet(value: Any) -> Any:
    return {"fleet": value} if isinstance(value, str) else value


class JobSpec(Section):
    """One federated-learning job. `parse_spec` makes one; `model_dump(mode="json")` gives it back as data."""

    name: Name = Field(default="", validate_default=False, description="by default the algorithm's name")
    seed: Whole = Field(
        default=0, ge=0, le=2**63 - 1, description="all randomness of the job comes from this number"
    )
    rounds: Whole = Field(default=20, ge=1, le=MAX_ROUNDS, description="number of rounds")
    clients: Clients = Clients()
    data: Data = Data()
    model: OneOrSeveral = Field(
        default=ModelChoice(name="mlp"),
        description="a model with its parameters, or a list of models that the clients take in turn",
    )
    local: LocalSection = LocalSection()
    algorithm: Named = Field(description="an algorithm, with its hyper-parameters")
    curriculum: Curriculum = Curriculum()
    fairness: Fairness | None = Field(
        default=None, description="larger weights for clients with larger losses; null: none"
    )
    attack: Named | None = Field(
        default=None,
        description="what malicious clients do, with its parameters: such as {name: sign_flip, share: 0.2}",
    )
    aggregation: Named | None = Field(
        default=None,
        description="a robust rule in place of the mean of the clients' models, such as krum or median",
    )
    privacy: PrivacySection | None = Field(
        default=None, description="differential privacy for each client or each example; null: none"
    )
    secure_aggregation: SecureAggregationSection | None = Field(
        default=None, description="the server sees sums of uploads alone, at a cost of bytes; null: none"
    )
    compression: Named | None = Field(
        default=None,
        description="of what clients send, with its parameters: such as {name: top_k, share: 0.01}",
    )
    evaluation: Evaluation = Evaluation()
    stop: Stop = Stop()
    devices: Annotated[
        DevicesSection | None,
        BeforeValidator(_expand_fleet, json_schema_input_type=str | DevicesSection | None),
    ] = Field(default=None, description="the clients' devices, for a simulated clock; null: no clock")
    resources: Resources = Resources()
    faults: FaultsSection = FaultsSection()
    checkpoint: Checkpointing = Checkpointing()

    @property
    def models(self) -> tuple[ModelChoice, ...]:
        """Return the models, one or several."""
        return self.model if isinstance(self.model, tuple) else (self.model,)

    @property
    def last_round(self) -> int:
        """The number of the last round: of `rounds`, or of `stop.round`."""
        return min(self.rounds, self.stop.round or self.rounds)

    def model_path(self, number: int) -> str:
        """Return the path of a model in the spec: `model`, or `model.1` if there are several."""
        return f"model.{number}" if len(self.models) > 1 else "model"

    @model_validator(mode="before")
    @classmethod
    def _fill_name(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("name") is not None:
            return data
        name = find_algorithm_name(data)
        # A wrong algorithm must not also be reported as a wrong name.
        usable = isinstance(name, str) and 0 < len(name) <= MAX_NAME
        return {**data, "name": name if usable else "unnamed"}

    @model_validator(mode="after")
    def _tensor_cores_are_on_gpus(self) -> JobSpec:
        if self.local.precision == "tf32" and not self.resources.gpus_per_worker:
            hint = "set resources.gpus_per_worker, or local.precision: float32"
            raise make_fault("is a number type of GPUs, and the workers have none", hint, "local.precision")
        return self


def parse_spec(data: Mapping[str, Any]) -> JobSpec:
    """Check the shape and the ranges of a spec.

    Args:
        data: the spec as plain data, shorthands allowed.

    Returns:
        The spec with every shorthand expanded and every default filled in.

    Raises:
        SpecError: with all faults of the spec at once.
    """
    if not isinstance(data, Mapping):
        hint = "the smallest spec is: algorithm: fedavg"
        raise SpecError([FieldError("spec", shorten_value(data), "is not a mapping of fields", hint)])
    if count_values(data) > MAX_VALUES:
        raise SpecError([FieldError("spec", None, f"holds more than {MAX_VALUES} values", "make it smaller")])
    errors = {e.path: e for e in find_value_faults(data)}
    try:
        spec = JobSpec.model_validate(dict(data))
    except (ValidationError, RecursionError) as error:
        found = translate_errors(error, json_schema()) if isinstance(error, ValidationError) else []
        errors |= {e.path: e for e in found}
    if errors:
        raise SpecError(errors.values())
    return spec


def load_spec(source: str | Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Read a spec from a file, from standard input (`-`) or from a preset.

    Args:
        source: path of a YAML or JSON file, `-`, or the name of a preset; a file goes before a preset.
        overrides: `PATH=VALUE` items that override the source.

    Raises:
        SpecError: with all faults at once; with path `spec` if the source cannot be read.
    """
    return parse_spec(read_spec(source, overrides))


def read_spec(source: str | Path, overrides: Sequence[str] = ()) -> Any:
    """Read a spec like `load_spec`, but return the plain data, unchecked.

    The text of a Python file with a model becomes part of the data, and a file of weights gets its absolute
    path. A relative file is looked for in the working directory, then in the folder of the spec.

    Raises:
        SpecError: with path `spec`, if the source cannot be read or is a sweep.
    """
    data = parse_text(_read_source(source))
    if not isinstance(data, Mapping):
        return data
    if is_sweep(data):
        hint = "make its runs with `fedsim sweep FILE`, or `client.sweep(FILE)`"
        raise SpecError([FieldError("spec", str(source), "is the file of a sweep", hint)])
    folders = Path(), Path(source).expanduser().parent
    return _locate_weights(embed_sources(apply_overrides(data, overrides), folders), folders)


def is_sweep(data: Mapping[str, Any]) -> bool:
    """Return whether plain data is a sweep, and no spec: only a sweep has a base and seeds."""
    return {"base", "seeds"} <= data.keys()


def _locate_weights(data: Any, folders: Sequence[Path]) -> Any:
    """Return a spec with the absolute path of every file of weights that is in one of the folders."""

    def locate(value: Any, *keys: str) -> Any:
        if isinstance(value, list) and keys[0] == "init":
            return [locate(each, *keys) for each in value]
        if keys and isinstance(value, Mapping):
            key, *rest = keys
            return {**value, key: locate(value[key], *rest)} if key in value else value
        if not isinstance(value, str) or keys not in ((), ("file",)):
            return value
        paths = (folder / Path(value).expanduser() for folder in folders)
        return next((str(path.absolute()) for path in paths if os.path.exists(path)), value)

    return {**data, "model": locate(data["model"], "init", "file")} if "model" in data else data


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the data that `parse_spec` accepts."""
    return JobSpec.model_json_schema(mode="validation")


def presets() -> dict[str, str]:
    """Return fedsim's presets: name and one-line summary."""
    return {name: _extract_summary(file.read_text("utf-8")) for name, file in sorted(_preset_files().items())}


def preset_text(name: str) -> str:
    """Return the YAML text of a preset, with its comments.

    Raises:
        SpecError: with path `spec`, if no preset has this name.
    """
    files = _preset_files()
    if name not in files:
        raise _make_not_found_error(name)
    return files[name].read_text("utf-8")


def _preset_files() -> dict[str, Traversable]:
    folder = resources.files("jobs.spec") / "presets"
    return {f.name.removesuffix(".yaml"): f for f in folder.iterdir() if f.name.endswith(".yaml")}


def _extract_summary(text: str) -> str:
    first = text.partition("\n")[0]
    return first.lstrip("# ").rstrip()


def _read_source(source: str | Path) -> str:
    path = Path(source).expanduser()
    try:
        if source == "-":
            return sys.stdin.read()
        if path.is_file():
            return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise SpecError([FieldError("spec", str(source), f"cannot be read: {error}", "")]) from None
    return preset_text(str(source))


def _make_not_found_error(source: str) -> SpecError:
    if source.endswith((".yaml", ".yml", ".json")):
        where = Path(source).expanduser().absolute()
        return SpecError(
            [FieldError("spec", shorten_value(source), f"there is no file {where}", "name a file")]
        )
    names = sorted(_preset_files())
    close = difflib.get_close_matches(source.lower(), names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the presets are: {', '.join(names)}"
    return SpecError([FieldError("spec", shorten_value(source), "is neither a file nor a preset", hint)])
