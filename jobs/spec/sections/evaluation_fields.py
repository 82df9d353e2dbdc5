"""The section of a spec for the evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from fedsim.learning_tasks.metrics import MetricName
from jobs.spec.fields import MAX_CLIENTS, MAX_ROUNDS, Number, Section, Whole, make_fault

MAX_AVERAGED = 100


class ModelAverage(Section):
    """An average of models: of the global ones of several rounds, or of all clients' last ones.

    `{ema: 0.9}`, `{last: 5}` or `{clients: geometric}`.
    """

    ema: Number | None = Field(
        default=None, ge=0, lt=1, description="decay d of the exponential mean: m becomes d m + (1 - d) w"
    )
    last: Whole | None = Field(
        default=None, ge=1, le=MAX_AVERAGED, description="the plain mean of the last n rounds' models"
    )
    clients: Literal["geometric", "arithmetic", "interval", "count", "volume"] | None = Field(
        default=None, description="the weights of the mean of all clients' last models, as of KDIA's teacher"
    )

    @model_validator(mode="after")
    def _check_kind(self) -> ModelAverage:
        if len(self.model_dump(exclude_none=True)) != 1:
            hint = "such as {ema: 0.9}, {last: 5} or {clients: geometric}"
            raise make_fault("has to be one of ema, last and clients", hint)
        return self


class Evaluation(Section):
    """When and how the models are scored."""

    every: Whole = Field(
        default=1, ge=1, le=MAX_ROUNDS, description="score on every n-th round, and on the last"
    )
    validation: Number = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the training data for the validation set, which chooses the final model",
    )
    test: Annotated[bool, Strict()] = Field(
        default=True,
        description="score models on test examples; false: on the validation set alone, as a search does",
    )
    metrics: list[MetricName] | None = Field(
        default=None,
        min_length=1,
        description="metrics of the models; by default those of the data: accuracy for classes and labels, "
        "rmse for a regression, perplexity and accuracy for next tokens, mean_iou for segmentation",
    )
    personal: Literal["auto", "never", "last", "always"] = Field(
        default="auto",
        description="when to score each client's personal model; auto: in every scored round, but only "
        "after the last round if clients fine-tune for it; with data.tests: global, only after the last "
        "round, and only if the algorithm has no global model",
    )
    personal_clients: Whole | None = Field(
        default=None,
        ge=1,
        le=MAX_CLIENTS,
        description="number of clients whose personal models are scored, drawn once by the seed; by default "
        "all clients",
    )
    dissimilarity: Annotated[bool, Strict()] = Field(
        default=False, description="record how much the clients' updates of a round disagree"
    )
    membership: Annotated[bool, Strict()] = Field(
        default=False,
        description="record how well an example's loss tells whether a client trained on it",
    )
    average: ModelAverage | None = Field(
        default=None,
        description="an average of the global models of several rounds, or of all clients' last models, "
        "scored as `average` beside them",
    )
