"""`fedsim new`: write a package with an algorithm, a model, a data set or a partition of one's own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsim.errors import SettingsError


class NewKind(StrEnum):
    """The kinds of plug-ins; `method` is another word for `algorithm`."""

    ALGORITHM = "algorithm"
    METHOD = "method"
    MODEL = "model"
    DATASET = "dataset"
    PARTITION = "partition"


KindArgument = Annotated[NewKind, typer.Argument(help="What to write; a method is an algorithm.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name in specs, such as my_method.")]
FolderOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The new folder. Default: NAME, here.")
]


def new(kind: KindArgument, name: NameArgument, out: FolderOption = None) -> None:
    """Write a package that adds an algorithm, a model, a data set or a partition to fedsim, with its test."""
    from api.cli.display import print_message
    from api.cli.scaffold import KINDS, render_plugin

    chosen = "algorithm" if kind is NewKind.METHOD else kind.value
    texts, folder = render_plugin(chosen, name), out or Path(name)
    _refuse_taken_name(KINDS[chosen].group, name)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        message = f"{folder} cannot be created: {error.strerror}"
        raise SettingsError(message, "name another folder with --out") from error
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    print_message(f"wrote {', '.join(texts)} into {folder}; next:")
    install = "pip install --editable . pytest"
    for command in (f"cd {folder}", install, "fedsim run experiment.yaml", "pytest"):
        print_message(f"  {command}")


def _refuse_taken_name(group: str, name: str) -> None:
    """Raise an error for a name that fedsim or an installed plug-in has already."""
    from fedsim.algorithms import ALGORITHMS
    from fedsim.data import DATASETS, PARTITIONS
    from fedsim.models import MODELS
    from fedsim.plugins import Registry

    registries: tuple[Registry[Any], ...] = (ALGORITHMS, MODELS, DATASETS, PARTITIONS)
    taken = next(each for each in registries if each.kind == group)
    if name in taken:
        hint = f"choose another name; `fedsim {group}` lists those in use"
        raise SettingsError(f"NAME {name!r} is taken by {taken.source(name) or 'fedsim'}", hint)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Specs")(new)
