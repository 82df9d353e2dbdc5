"""The section of a spec for the data: data set, partition, client tests, public set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, model_validator

from jobs.spec.fields import (
    Choice,
    Named,
    Number,
    OfKind,
    PartitionSection,
    Section,
    Whole,
    expand_kind,
    make_fault,
)

MAX_EXAMPLES = 1_000_000_000
MAX_COPIES = 100
TEST_SHARE = 0.25


def _expand_kinds(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return expand_kind(value)
    first = expand_kind(value[0]) if value else None
    if not isinstance(first, Mapping):
        raise make_fault("is no list of kinds", "such as [matched, global]")
    return {**first, "also": value[1:]}


class Public(Section):
    """A labelled public set, taken from the data before the partition."""

    fraction: Number = Field(default=0.0, ge=0, lt=1, description="share of the data")
    copies: Whole = Field(
        default=0, ge=0, le=MAX_COPIES, description="augmented copies of each public image, added to the set"
    )
    augment: tuple[Literal["crop", "reflect_crop", "flip", "rotate", "color"], ...] = Field(
        default=("rotate", "crop", "flip"),
        max_length=10,
        description="steps of the augmentation of the copies, in order",
    )

    @model_validator(mode="after")
    def _check_copies(self) -> Public:
        if self.copies and not self.fraction:
            raise make_fault("has no meaning without a public set", "set fraction, such as 0.1", "copies")
        if self.copies and not self.augment:
            raise make_fault("leaves the copies as the images are", "such as [rotate, crop, flip]", "augment")
        return self


TestKind = Literal["global", "labels", "matched", "classes", "merged", "validation"]


class ClientTests(Section):
    """The test examples of each client's personal model: `merged`, or `{kind: merged, share: 0.25}`.

    A list, such as `[matched, global]`, is `{kind: matched, also: [global]}`. `validation` means examples of
    the validation split; it comes after another kind.
    """

    kind: TestKind = Field(
        default="global",
        description="global: the whole test set for all clients; else test examples of each client's own",
    )
    share: Number = Field(
        default=TEST_SHARE, gt=0, lt=1, description="of each client's examples, with kind: merged"
    )
    also: tuple[TestKind, ...] = Field(
        default=(), max_length=4, description="further kinds, by which the same models are scored as well"
    )

    @property
    def kinds(self) -> tuple[TestKind, ...]:
        """Return all kinds, the main one first."""
        return (self.kind, *self.also)

    @property
    def paths(self) -> dict[TestKind, str]:
        """Return the path of each kind in the spec."""
        also = {kind: f"data.tests.also.{place}" for place, kind in enumerate(self.also)}
        return {self.kind: "data.tests.kind", **also}

    @model_validator(mode="after")
    def _check_share(self) -> ClientTests:
        if self.kind != "merged" and self.share != TEST_SHARE:
            raise make_fault(
                f"has no meaning with kind: {self.kind}", "leave it out, or use kind: merged", "share"
            )
        if len(set(self.kinds)) < len(self.kinds):
            raise make_fault("has a kind twice", "name each kind once", "also")
        if self.kind == "validation":
            message = "holds no test examples, so it comes after another kind"
            raise make_fault(message, "use a list, such as [matched, validation]", "kind")
        if "merged" in self.also or (self.kind == "merged" and set(self.also) - {"global", "validation"}):
            message = (
                "merged cuts the tests off the clients' own examples: only global and validation go with it"
            )
            raise make_fault(message, "use [merged, global], or leave it out", "also")
        return self


class Data(Section):
    """The data set, and its partition among the clients."""

    dataset: Named = Field(default=Choice(name="digits"), description="a data set, with its parameters")
    partition: OfKind = Field(
        default=PartitionSection.model_validate({"kind": "dirichlet", "beta": 0.5, "min_size": 1}),
        description="how the training examples are divided among the clients",
    )
    tests: Annotated[
        ClientTests, BeforeValidator(_expand_kinds, json_schema_input_type=str | list[TestKind] | ClientTests)
    ] = Field(
        default=ClientTests(), description="the test examples of each client's personal model, or a list"
    )
    public: Public = Public()
    limit: Whole | None = Field(
        default=None, ge=1, le=MAX_EXAMPLES, description="use the first n training examples only"
    )
    download: Annotated[bool, Strict()] = Field(
        default=False, description="download the data set if it is missing and its source allows it"
    )
