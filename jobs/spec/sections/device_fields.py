"""The section of a spec for the devices of the clients, which turns on the simulated clock."""

from __future__ import annotations

from pydantic import Field

from jobs.spec.fields import Choice, Named, Number, Section


class DevicesSection(Section):
    """The devices of the clients: `phones`, or `{fleet: phones, policy: {name: deadline, seconds: 60}}`."""

    fleet: Named = Field(description="the speeds and the energy of the devices, with its parameters")
    policy: Named = Field(
        default=Choice(name="wait"), description="for whom the server waits, with its parameters"
    )
    dropout: Number = Field(
        default=0.0, ge=0, lt=1, description="probability that a client vanishes during a round"
    )
    server_gflops: Number | None = Field(
        default=None,
        ge=1e-6,
        le=1e12,
        description="speed of the server in 10^9 operations per second; null: infinite",
    )
