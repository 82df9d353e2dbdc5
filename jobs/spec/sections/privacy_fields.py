"""The sections of a spec for differential privacy and for fairness among clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from jobs.spec.fields import MAX_ROUNDS, Number, Section, Whole, make_fault


class AdaptiveClipSection(Section):
    """A clipping bound that follows a quantile of the updates' norms; `{}` takes the defaults."""

    quantile: Number = Field(default=0.5, ge=0, le=1, description="share of updates below the bound")
    learning_rate: Number = Field(default=0.2, gt=0, le=100, description="how fast the bound follows")
    count_noise: Number | None = Field(
        default=None,
        gt=0,
        description="standard deviation of the noise on the number of these updates; by default K / 20",
    )


class PrivacySection(Section):
    """Differential privacy for each client, or for each example, around algorithms that send models."""

    kind: Literal["central", "tree", "local", "examples"] = Field(
        default="central",
        description="central: the server adds noise to the sum of updates of a round; tree: to the running "
        "sum of all rounds (DP-FTRL); local: every client to its own update; examples: every client to the "
        "gradients of its local steps (DP-SGD)",
    )
    clip: Number = Field(
        default=1.0, gt=0, description="the largest Euclidean norm of an update, or of an example's gradient"
    )
    adaptive_clip: AdaptiveClipSection | None = Field(
        default=None, description="a bound that changes; `clip` is then that of the first round"
    )
    tree_rounds: Whole | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="kind tree: another tree begins after so many rounds; null: one tree",
    )
    shuffled: Annotated[bool, Strict()] = Field(
        default=False,
        description="kind local: a shuffler hides from the server which client sent an update",
    )
    noise_multiplier: Number | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="standard deviation of the noise, divided by `clip`; by default found for `epsilon`",
    )
    epsilon: Number | None = Field(
        default=None,
        gt=0,
        description="the budget of the whole run; with noise_multiplier too, the run ends when it is spent",
    )
    delta: Number = Field(
        default=1e-5, ge=1e-100, lt=1, description="of the budget; below 1 divided by the number of clients"
    )
    accountant: Literal["rdp", "prv"] = Field(
        default="rdp", description="computes the budget: rdp is fast; prv is tighter, and slower"
    )

    @model_validator(mode="after")
    def _check_noise(self) -> PrivacySection:
        if self.noise_multiplier is None and self.epsilon is None:
            raise make_fault("needs the noise or the budget", "set epsilon, such as 8, or noise_multiplier")
        if self.adaptive_clip is not None and self.kind != "central":
            raise make_fault(f"has no meaning with kind: {self.kind}", "leave it out", "adaptive_clip")
        if self.tree_rounds is not None and self.kind != "tree":
            raise make_fault(f"has no meaning with kind: {self.kind}", "leave it out", "tree_rounds")
        if self.shuffled and self.kind != "local":
            raise make_fault(f"has no meaning with kind: {self.kind}", "leave it out", "shuffled")
        if self.kind == "examples" and self.noise_multiplier is not None and self.epsilon is not None:
            hint = "leave one of them out: with epsilon, each client finds the noise that spends it"
            raise make_fault("goes without noise_multiplier if kind is examples", hint, "epsilon")
        return self


class SecureAggregationSection(Section):
    """Secure aggregation (SecAgg+): the server sees the sums of a cohort's uploads alone."""

    neighbours: Whole | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="k, with how many clients each client shares its secrets; null: all others",
    )
    threshold: Number = Field(
        default=0.66,
        gt=0,
        le=1,
        description="the smallest share of the cohort that has to remain; with fewer, the round has no sum",
    )


class Fairness(Section):
    """Weights of clients that make their losses more alike."""

    tilt: Number = Field(
        ge=-10,
        le=10,
        description="t: the weight of a client grows with exp(t loss); 0: no change, below 0: the other way",
    )
