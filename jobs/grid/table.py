"""A table of results: a base spec, axes of overrides, seeds and claims; and its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedsim.errors import SettingsError, SpecError
from fedsim.learning_tasks.metrics import is_lower_better
from jobs.grid.claims import Claim, ShownFigure
from jobs.spec import parse_text, preset_text, presets
from jobs.spec.grid import cells, make_set_items
from jobs.spec.sweep import Member, Sweep, members

FOLDER = Path(__file__).parent / "tables"

FILES = (".yaml", ".yml")
"""Endings of the files of tables and specs."""

TABLE, PRESET = "table", "preset"
"""The labels of jobs that are runs of a built-in table: its name, and the preset of its scale."""

OWN_SCALE = "small"
"""The scale of a table's own preset."""

SHOWN = ("overview", "curve", *get_args(ShownFigure))
"""The figures that a table can show."""

FOR_RISING = ("overview", "reach", "reach_best", "converged", "spent", "fall")
"""The figures that look for a round in which the metric reached a value, or fell."""

OVERVIEW = {
    "global_accuracy": "accuracy",
    "personal_accuracy_mean": "personal accuracy",
    "personal_accuracy_worst10": "of the worst tenth",
}
"""The scores of an overview, and the headings of their columns."""


class View(BaseModel):
    """A column that shows another metric of the runs of an existing column.

    Attributes:
        of: the label whose runs they are.
        metric: in the place of the table's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: str
    metric: str


class Search(BaseModel):
    """The source of chosen values: another table, whose runs choose them by a validation set.

    Attributes:
        table: the name of the other table.
        axis: the axis that both have; its labels choose values each for itself.
        otherwise: the label of the other table whose values a label takes that the other table lacks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    axis: str
    otherwise: str


class Choice(BaseModel):
    """The values that a search chose for one label.

    Attributes:
        search: the table of the search.
        labels: of the best candidate of the search.
        items: `--set` items that they stand for.
        score: the candidate's mean on the validation set; None for a label that no search has.
        candidates: how many the label chose among; 0 for a label that no search has.
    """

    model_config = ConfigDict(frozen=True)

    search: str
    labels: tuple[str, ...]
    items: tuple[str, ...]
    score: float | None = None
    candidates: int = 0


class Table(BaseModel):
    """One result table.

    Attributes:
        name: of its file.
        page: the page that the table belongs to: one page for each paper, such as "kdia".
        title: the heading of its section.
        about: the setup of the runs, as Markdown.
        preset: the base spec: the name of a preset, or a YAML file (in a table's file, relative to it).
        paper: the preset of the paper's scale; by default `preset` without "-small". A table whose data set
            replaces that of the paper names the paper's own here.
        set: `--set` items of every run.
        axes: {axis: {label: `--set` items}}.
        instead: {preset: {label: `--set` items}}: what labels stand for where that is the base spec.
        rows, columns: axes; together all of them.
        seeds: of each cell.
        metric: a score of the round records.
        views: {label: view}, further labels of the (one) column axis: other models of the same runs.
        show: which tables are rendered: an `overview` for each column, with accuracies and the costs until a
            run reaches `against`; `final` round, `best` round, the one that the validation set chooses
            (`chosen`), the mean of the last 10 rounds, as far as they were scored (`tail`), the accuracy by
            round (`curve`), how much it goes up and down from point to point of the second half of the curve
            (`swing`) or down alone, a rise counting 0, so that a curve that is still rising is not taken for
            an unsteady one (`fall`), the first round of the curve in which a run reaches what
            `against` has in the end (`reach`) or in its best round (`reach_best`), seed by seed, or rounds,
            bytes, seconds and joules until a run has `converged`: until it is at most 0.01 below its own
            tail; or the same until it reaches each of `targets` (`spent`).
        also: other figures of the runs, each a table of its own: metrics of the last round, and the sums
            `updates`, `flops`, `tuning_updates`, `tuning_flops`, `down` and `up`.
        curves: other metrics whose values by round are kept and shown, each a table of its own, of the
            cells that have the metric.
        targets: values of the metric, for `spent`.
        against: a label of the (one) column axis or of the (one) row axis; the differences to it are
            rendered too, paired by seed.
        curve_every: rounds between the points of the curve that is kept.
        percent: render the metric in percent.
        hours: processor hours of all runs, as measured by this project; None if not measured.
        claims: of the paper, each with a comparison of cells that decides it.
        searches: the tables that choose values for this one; () for a table with its own values. See
            `jobs.grid.search.choose_values`.
        choices: {label: the values that a search chose}; {} before they are taken, and without a search.
        words: what follows `fedsim reproduce` in the command that makes these runs; "" for the name alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    page: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    title: str
    about: str = ""
    preset: str
    paper: str | None = None
    set: tuple[str, ...] = ()
    axes: dict[str, dict[str, tuple[str, ...]]]
    instead: dict[str, dict[str, tuple[str, ...]]] = {}
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    seeds: tuple[int, ...] = Field(min_length=1)
    metric: str = "global_accuracy"
    views: dict[str, View] = {}
    show: tuple[str, ...] = ("final",)
    also: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()
    against: str | None = None
    curve_every: int = Field(default=10, ge=1)
    percent: bool = True
    hours: float | None = None
    claims: tuple[Claim, ...] = ()
    searches: tuple[Search, ...] = ()
    choices: dict[str, Choice] = {}
    words: str = ""

    @model_validator(mode="after")
    def _goes_together(self) -> Table:
        if sorted([*self.rows, *self.columns]) != sorted(self.axes):
            raise ValueError(f"rows and columns have to name each axis once: {', '.join(self.axes)}")
        if self.against is not None and self.compared is None:
            raise ValueError(f"against: {self.against!r} is no label of a single column or row axis")
        if len(axes := {search.axis for search in self.searches}) > 1 or axes - self.axes.keys():
            raise ValueError(f"searches: {', '.join(sorted(axes))!r} is not one axis of the table")
        every = {label for labels in self.axes.values() for label in labels}
        if unknown := {label for items in self.instead.values() for label in items} - every:
            raise ValueError(f"instead: {', '.join(sorted(unknown))!r} is no label of an axis")
        labels = self.axes[self.columns[0]] if len(self.columns) == 1 else {}
        for name, view in self.views.items():
            if view.of not in labels or name in labels:
                raise ValueError(
                    f"views: {name!r} is no new label, or {view.of!r} none of a single column axis"
                )
        self._check_shown()
        self._check_claims()
        return self

    def _check_shown(self) -> None:
        if wrong := set(self.show).difference(SHOWN):
            raise ValueError(f"show: {', '.join(sorted(wrong))!r} is none of {', '.join(SHOWN)}")
        if {"overview", "reach", "reach_best"}.intersection(self.show) and self.against is None:
            raise ValueError("show: this needs `against`, whose accuracy is the target")
        shown = {*self.show, *(claim.show for claim in self.claims)}
        if is_lower_better(self.metric) and (rising := shown.intersection(FOR_RISING)):
            named = ", ".join(sorted(rising))
            raise ValueError(f"show: {named} needs a metric of which more is better, not {self.metric!r}")
        if ("spent" in self.show) != bool(self.targets):
            raise ValueError("targets: `show: [spent]` needs them, and nothing else does")
        if self.metric in self.curves:
            raise ValueError(f"curves: {self.metric!r} is the table's own metric; show it by `show: [curve]`")

    def _check_claims(self) -> None:
        known = self.list_views_as_labels().axes
        for claim in self.claims:
            for part in (claim, *claim.control):
                faults = part.find_unknown_labels(known)
                if part.show.startswith("reach") and self.against is None:
                    raise ValueError(f"claims: {claim.id}: show: {part.show} needs `against`")
                if faults:
                    raise ValueError(f"claims: {claim.id}: {', '.join(faults)} is no axis with such a label")

    @property
    def compared(self) -> str | None:
        """The axis that has the label `against`."""
        alone = [axes[0] for axes in (self.columns, self.rows) if len(axes) == 1]
        return next((axis for axis in alone if self.against in self.axes[axis]), None)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The table's metric, the metrics of the views, and those whose curves are kept."""
        views = (view.metric for view in self.views.values())
        overview = OVERVIEW if "overview" in self.show else ()
        return tuple(dict.fromkeys((self.metric, *views, *self.curves, *overview)))

    def on(self, preset: str) -> Table:
        """Return the table with another base spec, and with the overrides of that preset."""
        if preset == self.preset:
            return self
        items = self.instead.get(preset, {})
        about = f"This table was made with `{preset}`. The text describes `{self.preset}`.\n\n{self.about}"
        axes = {
            axis: {label: items.get(label, own) for label, own in labels.items()}
            for axis, labels in self.axes.items()
        }
        title = f"{self.title}, with `{preset}`"
        return self.model_copy(
            update={"preset": preset, "title": title, "about": about, "axes": axes, "hours": None}
        )

    def list_views_as_labels(self) -> Table:
        """Return the table with the views among the labels, each after the label whose runs it shows."""
        if not self.views:
            return self
        labels: dict[str, tuple[str, ...]] = {}
        for label, items in self.axes[self.columns[0]].items():
            labels[label] = items
            labels.update({name: items for name, view in self.views.items() if view.of == label})
        return self.model_copy(update={"axes": {**self.axes, self.columns[0]: labels}})

    @property
    def sweep(self) -> Sweep:
        """The runs as a sweep, whose jobs have the specs of the table."""
        is_file = self.preset.endswith(FILES)
        text = Path(self.preset).read_text("utf-8") if is_file else preset_text(self.preset)
        # The service judges claims by these labels; it does not know a table of one's own.
        own = self.name not in list_tables() or self.words.split(" --")[0] not in ("", self.name)
        labels = {} if own else {TABLE: self.name, PRESET: self.preset}
        return Sweep(
            name=self.name,
            base=parse_text(text),
            set=self.set,
            axes=self.axes,
            seeds=self.seeds,
            labels=labels,
        )

    def runs(self) -> list[Member]:
        """Return all runs, seed by seed, so that every cell has a first figure early.

        Raises:
            SpecError: if specs are wrong; with every fault.
        """
        return members(self.sweep)

    def cells(self, axes: Sequence[str]) -> list[tuple[str, ...]]:
        """Return all combinations of the labels of these axes."""
        return cells(self.axes, axes)

    @property
    def command(self) -> str:
        """The command that makes these runs."""
        return f"fedsim reproduce {self.words or self.name}"

    def with_seeds(self, number: int) -> Table:
        """Return the table with this number of seeds: the first ones, or more that follow the last."""
        more = range(max(self.seeds) + 1, max(self.seeds) + 1 + number - len(self.seeds))
        words = f"{self.words or self.name} --seeds {number}"
        return self.model_copy(update={"seeds": (*self.seeds, *more)[:number], "words": words})

    def at_scale(self, scale: str) -> Table:
        """Return the table at another scale.

        Args:
            scale: "small" for the table's own preset, "paper" for that of the paper's scale, or the name of a
                preset.

        Raises:
            SettingsError: if there is no such preset.
        """
        if scale == OWN_SCALE:
            return self
        preset = scale if scale != "paper" else self.paper or self.preset.removesuffix("-small")
        if preset not in presets():
            is_unnamed = scale == "paper" and self.paper is None
            missing = "preset of a paper's scale" if is_unnamed else f"preset {preset!r}"
            hint = "leave --scale out, or name a preset that `fedsim presets` lists"
            raise SettingsError(f"--scale {scale}: {self.name} has no {missing}", hint)
        return self.on(preset).model_copy(update={"words": f"{self.words or self.name} --scale {scale}"})


def list_tables() -> list[str]:
    """Return the names of all tables."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def load_table(name: str) -> Table:
    """Load the table of this name, or of this YAML file.

    Raises:
        SettingsError: if there is none, or its file is wrong.
    """
    if name.endswith(FILES):
        return read_table(Path(name)).model_copy(update={"words": name})
    if name not in list_tables():
        raise SettingsError(f"{name!r} is no table", f"there are: {', '.join(list_tables())}")
    return read_table(FOLDER / f"{name}.yaml")


def read_table(file: Path) -> Table:
    """Read a table from its file.

    Raises:
        SettingsError: if the file cannot be read, or is wrong.
    """
    try:
        data = dict(_read_fields(file))
        if isinstance(preset := data.get("preset"), str) and preset.endswith(FILES):
            data["preset"] = str(file.parent / preset)
            (file.parent / preset).read_bytes()
        overrides = {part: _list_items(data.get(part, {})) for part in ("axes", "instead")}
        overrides["set"] = _make_items(data.get("set"))
        return Table.model_validate({**data, "name": file.stem, **overrides})
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise SettingsError(f"{file.name}: {'; '.join(faults)}") from None
    except SpecError as error:
        raise SettingsError(f"{file.name}: {error.errors[0].message}") from None
    except (OSError, UnicodeDecodeError) as error:
        lost = getattr(error, "filename", None) or file
        raise SettingsError(f"{lost} cannot be read: {getattr(error, 'strerror', error)}") from None


def _read_fields(file: Path) -> Mapping[str, Any]:
    """Read the fields of a table; those that it lacks come from the table that it is `like`.

    `hours` do not come from there: they were measured for other runs. Nor does `paper` for another preset.
    """
    data = parse_text(file.read_text("utf-8"))
    if not isinstance(data, Mapping):
        raise SettingsError(f"{file.name} is no mapping of fields", f"see {FOLDER / 'demo-claim.yaml'}")
    if "like" not in data:
        return data
    like = data["like"]
    if like not in list_tables():
        known = f"there are: {', '.join(list_tables())}"
        raise SettingsError(f"{file.name}: like: {like!r} is no table of fedsim", known)
    other = parse_text((FOLDER / f"{like}.yaml").read_text("utf-8"))
    if "like" in other:
        hint = f"write like: {other['like']}, and the fields that differ from it"
        raise SettingsError(f"{file.name}: like: {like} is itself like {other['like']}", hint)
    own = {name: value for name, value in data.items() if name != "like"}
    paper = None if "preset" in own else other.get("paper")
    return {**other, "hours": None, "paper": paper, **own}


def _list_items(axes: Any) -> Any:
    """Make the items of each label a list; leave another shape as it is, which the model refuses."""
    if not isinstance(axes, Mapping):
        return axes
    return {
        axis: {label: _make_items(items) for label, items in labels.items()}
        if isinstance(labels, Mapping)
        else labels
        for axis, labels in axes.items()
    }


def _make_items(value: Any) -> Any:
    try:
        return make_set_items(value)
    except TypeError:
        return value
