"""Claims of a paper as data: the compared cells, the direction, and the figures of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from jobs.grid.journal import Spending
from jobs.spec.grid import Axes, cells

ShownFigure: TypeAlias = Literal[
    "final", "best", "chosen", "tail", "swing", "fall", "reach", "reach_best", "converged", "spent"
]
"""A figure of a run, which a table shows and a claim compares."""


class Comparison(BaseModel):
    """Two cells of a table, or as many pairs of cells as the open axes have labels.

    Attributes:
        value: {axis: label} of the cells that are judged. The other axes are open: the comparison is made
            once for each of their labels.
        baseline: {axis: label} in which the cell that a cell is compared with differs from it.
        where: {open axis: labels} that are judged; by default all.
        more_than: {axis: label} of another pair of cells. Its difference is subtracted, seed by seed: is the
            difference larger here than there?
        metric: a metric of the last round, or a sum such as `updates` or `up`; None for the table's metric.
        round: compare the curves of the metric after this round, in place of `show`.
        show: the figure of a run: in the `final` round, in the round that validation chooses (`chosen`), in
            the `best` round on the test set, the mean of the last rounds (`tail`), the mean change (`swing`)
            or fall (`fall`) from point to point of the curve's second half; the rounds until the curve comes
            up to the last (`reach`) or best (`reach_best`) value of the table's `against` with the same seed.
            A run that never does counts as one round more than it has, so its true number is larger. Or what
            a run has spent until it has `converged`, at the first point of its curve that is at most 0.01
            below the mean of its last rounds, or until its curve reaches `target` (`spent`). Then
            `metric` is `rounds` (by default), `bytes`, `simulated_seconds` or `joules` (of a run with
            `devices`), or `processor_seconds`.
        target: of `spent`, a value of the table's metric; None for the end of the run. A seed with a run that
            never reaches it is left out.
        direction: of the difference of the value to the baseline: `above` 0, `below` 0, `level`, within the
            margin on both sides, or `not_below`, at most the margin below 0.
        margin: in the units of the metric (0.01 is one point of accuracy), of `level` and `not_below`.
        by: how much more than 0 the difference has to be in the direction `above` or `below`, in the units of
            the metric; None for nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: dict[str, str] = {}
    baseline: dict[str, str] = {}
    where: dict[str, tuple[str, ...]] = {}
    more_than: dict[str, str] = {}
    metric: str | None = None
    round: int | None = Field(default=None, ge=1)
    show: ShownFigure = "final"
    target: float | None = None
    direction: Literal["above", "below", "level", "not_below"] = "above"
    margin: float | None = Field(default=None, gt=0)
    by: float | None = Field(default=None, gt=0)

    def find_unknown_labels(self, axes: Axes) -> list[str]:
        """List the `axis: label` pairs that a table with these axes does not have."""
        named = [*self.value.items(), *self.baseline.items(), *self.more_than.items()]
        named += [(axis, label) for axis, labels in self.where.items() for label in labels]
        return [f"'{axis}: {label}'" for axis, label in named if label not in axes.get(axis, {})]

    def open_cells(self, axes: Axes) -> Iterator[dict[str, str]]:
        """Yield the labels of the open axes, once for each pair of different cells."""
        names = [axis for axis in axes if axis not in self.value]
        for labels in cells(axes, names):
            cell = dict(zip(names, labels, strict=True))
            differs = {**cell, **self.value} != {**cell, **self.value, **self.baseline}
            if differs and all(cell.get(axis) in allowed for axis, allowed in self.where.items()):
                yield cell


class Control(Comparison):
    """A comparison that must not contradict the claim.

    Attributes:
        sentence: why the claim's figures say nothing if the control contradicts it.
        must_hold: whether anything but a held control contradicts the claim. By default only a reversed one
            does: it is enough that the runs do not speak against the claim.
        only_held: whether it can contradict a held claim alone, and leaves a reversed one as it is. For a
            control that names another cause of a gain: a gain that is missing needs no other cause.
    """

    sentence: str
    must_hold: bool = False
    only_held: bool = False


SPENT = ("rounds", *Spending.model_fields)
"""The costs until a run converges or reaches a target."""

OF_SPENT = ("converged", "spent")
"""The values of `show` whose figures are those of `SPENT`."""


def _make_list(controls: Any) -> Any:
    """Return one control as a list of one."""
    return controls if isinstance(controls, (list, tuple)) else [controls]


class Claim(Comparison):
    """A sentence of a paper, and the comparison that decides it.

    Attributes:
        id: the same in all tables that test the claim.
        sentence: what the paper claims.
        place: in the paper, such as "Table 2".
        figure: the paper's own figures.
        control: one or several comparisons in the same cell, but for the labels that they name. If one of
            them contradicts the claim, the claim is not testable here.
        why_not: the reason why no run of the table can test the claim; in place of a `baseline`.
    """

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    sentence: str
    place: str = ""
    figure: str = ""
    control: Annotated[tuple[Control, ...], BeforeValidator(_make_list)] = ()
    why_not: str = ""

    @model_validator(mode="after")
    def _is_complete(self) -> Claim:
        if bool(self.why_not) == bool(self.baseline):
            raise ValueError(f"{self.id}: write either a baseline or why_not")
        for part in (self, *self.control):
            if (part.direction in ("level", "not_below")) != (part.margin is not None):
                message = "directions level and not_below need a margin, and no other direction has one"
                raise ValueError(f"{self.id}: {message}")
            if part.by is not None and part.margin is not None:
                raise ValueError(f"{self.id}: by belongs to direction above or below, and has no margin")
            if part.show in OF_SPENT and part.metric not in (None, *SPENT):
                raise ValueError(f"{self.id}: with show: {part.show} the metric is one of {', '.join(SPENT)}")
            if part.target is not None and part.show != "spent":
                raise ValueError(f"{self.id}: target belongs to show: spent, and show is {part.show}")
        return self
