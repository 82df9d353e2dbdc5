"""The sections of a spec for differential privacy and for fairness among clients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from jobs.spec.fields import Number, Section, make_fault


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
    """Differential privacy for each client, around any algorithm whose clients send models."""

    kind: Literal["central", "local"] = Field(
        default="central",
        description="central: the server adds noise to the sum of updates; local: every client to its own",
    )
    clip: Number = Field(default=1.0, gt=0, description="the largest Euclidean norm of an update")
    adaptive_clip: AdaptiveClipSection | None = Field(
        default=None, description="a bound that changes; `clip` is then that of the first round"
    )
    noise_multiplier: Number | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="standard deviation of the noise, divided by `clip`; by default found for `epsilon`",
    )
    epsilon: Number | None = Field(
        default=None, gt=0, description="the budget of the whole run, which it must keep; null: none"
    )
    delta: Number = Field(
        default=1e-5, gt=0, lt=1, description="of the budget; below 1 divided by the number of clients"
    )
    accountant: Literal["rdp", "prv"] = Field(
        default="rdp", description="computes the budget: rdp is fast; prv is tighter, and slower"
    )

    @model_validator(mode="after")
    def _check_noise(self) -> PrivacySection:
        if self.noise_multiplier is None and self.epsilon is None:
            raise make_fault("needs the noise or the budget", "set epsilon, such as 8, or noise_multiplier")
        if self.adaptive_clip is not None and self.kind == "local":
            raise make_fault("has no meaning with kind: local", "leave it out", "adaptive_clip")
        return self


class Fairness(Section):
    """Weights of clients that make their losses more alike."""

    tilt: Number = Field(
        ge=-10,
        le=10,
        description="t: the weight of a client grows with exp(t loss); 0: no change, below 0: the other way",
    )
