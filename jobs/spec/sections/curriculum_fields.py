"""The sections of a spec for the data curriculum and the client curriculum."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from jobs.spec.fields import MAX_ROUNDS, Number, Section, Whole, make_fault


class PacingSection(Section):
    """How many examples, or clients, a curriculum opens at a time; see docs/methods/curricula.md."""

    pacing: Literal["linear", "quadratic", "root", "exponential", "step"] = Field(
        default="linear", description="family of the pacing function"
    )
    a: Number = Field(
        default=0.8, ge=0, le=1, description="share of the budget after which everything is open"
    )
    b: Number = Field(default=0.2, ge=0, le=1, description="share that is open at the start")
    order: Literal["curriculum", "anti", "random"] = Field(
        default="curriculum",
        description="curriculum: easy first; anti: hard first; random: new random ones in each step",
    )


class DataCurriculumSection(PacingSection):
    """The order of the examples inside each client."""

    score: Literal[
        "global_loss",
        "local_loss",
        "both_loss",
        "global_prediction",
        "local_prediction",
        "both_prediction",
        "expert_loss",
    ] = Field(default="global_loss", description="the score by which examples are ordered from easy to hard")
    budget: Literal["local", "global"] = Field(
        default="local", description="pace over the steps of a round, or of the whole run"
    )
    expert_epochs: Whole = Field(
        default=20, ge=1, le=10_000, description="epochs of training for the expert of 'expert_loss'"
    )

    @property
    def needs_expert(self) -> bool:
        """Whether an expert scores the examples; a random order needs no scores."""
        return self.score == "expert_loss" and self.order != "random"


class ClientCurriculumSection(PacingSection):
    """The order in which clients are selected; its budget is the rounds of the run."""

    scores: Literal["all", "kept", "expert"] = Field(
        default="all",
        description="all: ask every client before each round; kept: use the last scores of earlier cohorts; "
        "expert: ask every client once, by an expert's loss",
    )
    expert_epochs: Whole = Field(
        default=20, ge=1, le=10_000, description="epochs of training for the expert of scores: expert"
    )
    half_life: Number = Field(default=10.0, gt=0, description="rounds after which a kept score counts half")
    batches: Literal["one", "all", "together"] = Field(
        default="one",
        description="cohorts drawn from the open clients before they are ranked again; or all in one cohort",
    )
    pace: Literal["rounds", "outer"] = Field(
        default="rounds",
        description="pace over the rounds of the run, or with batches: all over the rankings of the clients",
    )

    @model_validator(mode="after")
    def _check_pace(self) -> ClientCurriculumSection:
        if self.pace == "outer" and self.batches != "all":
            message = f"has no meaning with batches: {self.batches}"
            raise make_fault(message, "leave it out, or use batches: all", "pace")
        return self

    @property
    def surveys_all_clients(self) -> bool:
        """Whether every client scores the model before a round; a random order needs no scores."""
        return self.scores == "all" and self.order != "random"

    @property
    def needs_expert(self) -> bool:
        """Whether an expert scores the clients; a random order needs no scores."""
        return self.scores == "expert" and self.order != "random"


class LayerCurriculumSection(Section):
    """The rounds in which the blocks before the head open, around any algorithm."""

    order: Literal["vanilla", "anti"] = Field(
        default="vanilla", description="vanilla: from the input on; anti: from the head on"
    )
    times: tuple[Annotated[Whole, Field(ge=0, le=MAX_ROUNDS)], ...] | Literal["even"] | None = Field(
        default=None, description="the round of each opening; even: spread over the run; null: see every"
    )
    every: Whole = Field(
        default=100, ge=0, le=MAX_ROUNDS, description="rounds between openings, if times is null"
    )


class PhaseCurriculumSection(Section):
    """The phases of FedCL, which all clients pass together, around any algorithm."""

    levels: tuple[Annotated[Number, Field(gt=0, lt=1)], ...] = Field(
        default=(0.3, 0.6, 0.9), description="the quantile of difficulty that each phase asks for"
    )
    order: Literal["ascending", "descending"] = Field(
        default="ascending", description="order of the levels: from the smallest, or from the largest"
    )
    v: Number = Field(
        default=0.7, ge=0, le=1, description="share of a client's difficulties to reach the goal"
    )
    finished: Number = Field(
        default=0.8, gt=0, le=1, description="share of the clients that ends a phase when they have finished"
    )
    cap: Whole | None = Field(
        default=None, ge=1, le=MAX_ROUNDS, description="most rounds of a phase; null cuts the run evenly"
    )
    components: Whole = Field(default=3, ge=1, le=50, description="components of a client's mixture")
    draws: Whole = Field(
        default=100, ge=1, le=100_000, description="numbers that the server draws from each mixture"
    )


class Curriculum(Section):
    """The curricula around the algorithm; null is none."""

    data: DataCurriculumSection | None = Field(
        default=None, description="the order of the examples in a client"
    )
    clients: ClientCurriculumSection | None = Field(default=None, description="the order of the clients")
    layers: LayerCurriculumSection | None = Field(
        default=None, description="the openings of the blocks before the head"
    )
    phases: PhaseCurriculumSection | None = Field(
        default=None, description="phases that all clients pass together"
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Curriculum:
        if self.phases is not None and self.clients is not None:
            raise make_fault("chooses the clients, and so does curriculum.clients", "leave one out", "phases")
        return self

    @model_validator(mode="after")
    def _check_expert(self) -> Curriculum:
        if len(epochs := self._list_expert_epochs()) > 1 and epochs[0] != epochs[1]:
            message = f"differs from curriculum.data.expert_epochs, {epochs[0]}, and there is one expert"
            raise make_fault(message, "give both the same number", "clients.expert_epochs")
        return self

    def _list_expert_epochs(self) -> list[int]:
        sections = (self.data, self.clients)
        return [each.expert_epochs for each in sections if each is not None and each.needs_expert]

    @property
    def expert_epochs(self) -> int | None:
        """Epochs that the expert of the curricula trains; None if nothing needs an expert."""
        return next(iter(self._list_expert_epochs()), None)
