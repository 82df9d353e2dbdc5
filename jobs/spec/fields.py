"""The sections of a spec: their fields, defaults and ranges.

Numbers are strict: `"3"`, `true` and `3.0` are no whole numbers, so that a typing error is reported. Checks
that need the catalogue are in `jobs.spec.checks.name_checks`; checks that need the data are in
`jobs.spec.checks.data_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    Tag,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from jobs.settings import JOB_ID

MAX_ROUNDS = 100_000
MAX_CLIENTS = 10_000_000
MAX_NAME = 100
MAX_MODELS = 32
MAX_IGNORED = 100

Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), AllowInfNan(False)]
Name = Annotated[str, Strict(), Field(min_length=1, max_length=MAX_NAME)]

NEW_JOB_ID = re.compile("[0-9a-hjkmnp-tv-z]{12}")
"""The form of the ids that `jobs.spec.submission.new_job_id` makes."""


def make_fault(message: str, hint: str, field: str = "") -> PydanticCustomError:
    """Make an error for pydantic with fedsim's message, about `field` of the section, or the value itself."""
    return PydanticCustomError("fedsim", "{message}", {"message": message, "hint": hint, "field": field})


class Section(BaseModel):
    """A part of a spec: immutable; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Choice(BaseModel):
    """An entry of the catalogue with its parameters: `fedprox`, or `{name: fedprox, mu: 0.1}`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Name = Field(description="an entry of the catalogue; its parameters stand beside the name")

    @property
    def params(self) -> dict[str, Any]:
        """Return the parameters beside the name."""
        return dict(self.model_extra or {})


class Init(Section):
    """The weights from which a model begins: a file, or the final model of a job of the same service."""

    file: Annotated[str, Strict(), Field(min_length=1)] | None = Field(
        default=None,
        description="a state dict (safetensors or torch.save), or a folder of `fedsim run`; a service reads "
        "only files in its data roots",
    )
    job: Name | None = Field(default=None, description="the id of a job that has succeeded")
    ignore: tuple[Name, ...] = Field(
        default=(), max_length=MAX_IGNORED, description="patterns of parameters that begin anew"
    )
    sha256: Name | None = Field(
        default=None, description="of the file; fedsim fills it in, and refuses another file from then on"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Init:
        if (self.file is None) == (self.job is None):
            raise make_fault("needs either 'file' or 'job'", "such as init: weights.safetensors")
        if self.job is not None and not JOB_ID.fullmatch(self.job):
            raise make_fault("is not a job id", "`fedsim list` shows the jobs with their ids", "job")
        return self


def drop_weight_hashes(spec: dict[str, Any]) -> dict[str, Any]:
    """Remove the SHA-256 of initial weights, which fedsim fills in, from a spec as plain data; return it."""
    for model in spec["model"] if isinstance(spec.get("model"), list) else [spec.get("model", {})]:
        (model.get("init") or {}).pop("sha256", None)
    return spec


def _expand_init(value: Any) -> Any:
    """Expand `init: FILE` and `init: JOB`; a file that looks like a job's id can be written `./FILE`."""
    if not isinstance(value, str):
        return value
    return {"job" if re.fullmatch(NEW_JOB_ID, value) else "file": value}


class ModelChoice(Choice):
    """A model with its parameters, and the weights from which it begins."""

    init: Annotated[Init | None, BeforeValidator(_expand_init, json_schema_input_type=str | Init | None)] = (
        Field(default=None, description="weights to begin from; by default the model's own initialisers")
    )

    @model_serializer(mode="wrap")
    def _leave_out_no_init(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        own = {} if self.init is None else {"init": self.init.model_dump(mode="json", exclude_defaults=True)}
        return {key: value for key, value in data.items() if key != "init"} | own


class PartitionSection(BaseModel):
    """The partition of the training data among the clients: `iid`, or `{kind: dirichlet, beta: 0.5}`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Name

    @property
    def params(self) -> dict[str, Any]:
        """Return the parameters beside the kind."""
        return dict(self.model_extra or {})


def find_algorithm_name(data: Mapping[str, Any]) -> Any:
    """Return the name of a spec's algorithm, a mapping or a `Choice`; any other value as it is."""
    algorithm = data.get("algorithm")
    return algorithm.get("name") if isinstance(algorithm, Mapping) else getattr(algorithm, "name", algorithm)


def _expand_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def expand_kind(value: Any) -> Any:
    """Expand `KIND` into `{kind: KIND}`."""
    return {"kind": value} if isinstance(value, str) else value


def _tag_one_or_several(value: Any) -> str:
    return "<several>" if isinstance(value, (list, tuple)) else "<one>"


NamedModel = Annotated[ModelChoice, BeforeValidator(_expand_name, json_schema_input_type=str | ModelChoice)]
Named = Annotated[Choice, BeforeValidator(_expand_name, json_schema_input_type=str | Choice)]
Several = Annotated[tuple[NamedModel, ...], Field(min_length=1, max_length=MAX_MODELS)]
OneOrSeveral = Annotated[
    Annotated[NamedModel, Tag("<one>")] | Annotated[Several, Tag("<several>")],
    Discriminator(_tag_one_or_several),
]
OfKind = Annotated[
    PartitionSection, BeforeValidator(expand_kind, json_schema_input_type=str | PartitionSection)
]


class Clients(Section):
    """N clients, of which a fraction C takes part in a round."""

    total: Whole = Field(default=50, ge=1, le=MAX_CLIENTS, description="N, the number of clients")
    fraction: Number = Field(default=0.2, gt=0, le=1, description="C, the share of the clients in a round")
    sampler: Named = Field(
        default=Choice(name="uniform"),
        description="who takes part in a round, with its parameters: such as power_of_choice or oort",
    )

    @property
    def cohort_size(self) -> int:
        """K: C x N, rounded to the nearest whole number, and at least 1."""
        return max(1, round(self.fraction * self.total))


class LearningRateDecay(Section):
    """Within a round, step i (from 0) has the learning rate `lr (1 + alpha i)^-power`."""

    alpha: Number = Field(default=0.001, ge=0, le=1000, description="how fast it falls from step to step")
    power: Number = Field(default=0.75, ge=0, le=1000, description="exponent of the fall; 0: no fall")


class LocalSection(Section):
    """The local training of a client in a round; `steps` replaces `epochs`."""

    epochs: Whole | None = Field(default=5, ge=1, le=10_000, description="passes over the client's data")
    steps: Whole | None = Field(default=None, ge=1, le=1_000_000, description="batches, in place of epochs")
    batch_size: Whole = Field(default=10, ge=1, le=1_000_000, description="examples in a batch")
    optimizer: Named = Field(
        default=Choice(name="sgd"),
        description="sgd, adam, adamw, rmsprop or adagrad, with its parameters; starts anew in each round",
    )
    lr: Number = Field(default=0.05, gt=0, le=1000, description="learning rate; Adam needs about 0.001")
    momentum: Number = Field(default=0.0, ge=0, lt=1, description="of sgd and rmsprop")
    weight_decay: Number = Field(
        default=0.0, ge=0, le=1000, description="added to gradients; adamw shrinks the weights by it instead"
    )
    clip_norm: Number | None = Field(
        default=None, gt=0, description="the largest norm of a gradient; longer ones are scaled down"
    )
    label_smoothing: Number = Field(
        default=0.0, ge=0, lt=1, description="share of a label that is spread over all classes in training"
    )
    schedule: Named = Field(
        default=Choice(name="constant"),
        description="of the learning rate: constant, step, cosine or plateau, with its parameters",
    )
    lr_decay: LearningRateDecay | None = Field(
        default=None, description="a learning rate that falls in each step, and starts again in each round"
    )
    round_decay: Number = Field(
        default=1.0, gt=0, le=1, description="factor of the learning rate from one round to the next"
    )
    precision: Literal["float32", "tf32", "bf16"] = Field(
        default="float32",
        description="number type in which steps multiply; parameters stay in float32, and tf32 needs a GPU",
    )

    @model_validator(mode="before")
    @classmethod
    def _steps_replace_epochs(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("steps") is None:
            return data
        if data.get("epochs") is not None:
            raise make_fault(
                "stands beside 'epochs', and only one of them can be", "leave one of them out", "steps"
            )
        return {**data, "epochs": None}

    @model_validator(mode="after")
    def _some_work(self) -> LocalSection:
        if self.epochs is None and self.steps is None:
            raise make_fault("is null, and so is 'steps'", "give one of them", "epochs")
        return self
