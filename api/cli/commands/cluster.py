"""`fedsim cluster init`: the description of a Ray cluster that `ray up` starts."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import unquote, urlparse

import typer

from fedsim.errors import SettingsError

EXTRAS = "aws,postgres,table,text,timm,peft,privacy,tune,tensorboard,mlflow,wandb,onnx"
CONFIG = "ray_cluster.yaml"
CONSTRAINTS = "constraints.txt"
NODE_FOLDER = "/home/ray/fedsim"

cluster = typer.Typer(help="Prepare a Ray cluster.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write into.")]
WheelOption = Annotated[
    Path | None,
    typer.Option("--wheel", metavar="FILE", help="The wheel of fedsim to install on the nodes."),
]


class PackageSource(NamedTuple):
    """From where the nodes install fedsim.

    Attributes:
        folder: the checkout, which `ray up` copies to the nodes; None if it copies single files.
        requirement: what the nodes install, without extras.
        wheel: a file to copy into the folder first; None if there is none to copy.
    """

    folder: str | None
    requirement: str
    wheel: Path | None


@cluster.command()
def init(folder: FolderArgument = Path("."), wheel: WheelOption = None) -> None:
    """Write ray_cluster.yaml and the tested versions, for `ray up ray_cluster.yaml`."""
    import shutil

    from api.cli.display import print_message

    source = _from_wheel(wheel) if wheel is not None else _find_source()
    targets = [folder / CONFIG, folder / CONSTRAINTS]
    if taken := next((each for each in targets if each.exists()), None):
        raise SettingsError(f"{taken} exists", "name another folder, as in: fedsim cluster init my-cluster")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        targets[0].write_text(_render_config(source), encoding="utf-8")
        shutil.copyfile(_find_resource(CONSTRAINTS), targets[1])
        if source.wheel is not None and source.wheel.resolve().parent != folder.resolve():
            shutil.copy(source.wheel, folder)
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror}", "name another folder") from error
    print_message(f"wrote {CONFIG} and {CONSTRAINTS} into {folder}; the nodes install {source.requirement}")
    print_message("  next: read its first lines, set provider.region, and run there: ray up ray_cluster.yaml")


def _render_config(source: PackageSource) -> str:
    """Render the file of the checkout for another source of the package."""
    text = _find_resource(CONFIG).read_text("utf-8")
    # Only these files, and not all that stands beside them, such as the keys in a home folder.
    files = [CONSTRAINTS, *([source.wheel.name] if source.wheel else [])]
    single = {f"{NODE_FOLDER}/{name}": f"./{name}" for name in files}
    mounts = single if source.folder is None else {NODE_FOLDER: source.folder}
    install = f"'{source.requirement}[{EXTRAS}]'"
    if source.wheel is not None:
        # pip keeps an installed package of the same version, and with it the code of an older wheel.
        install += f"\n  - pip install --quiet --no-deps --force-reinstall '{source.requirement}'"
    changes = {
        f"  {NODE_FOLDER}: .\n": "".join(
            f"  {there}: {json.dumps(here)}\n" for there, here in mounts.items()
        ),
        f"'{NODE_FOLDER}[{EXTRAS}]'": install,
    }
    for old, new in changes.items():
        if text.count(old) != 1:
            raise RuntimeError(f"{CONFIG} of this installation lacks the line {old!r}")
        text = text.replace(old, new)
    return text


def _find_resource(name: str) -> Path:
    """Find a file of the repository's root: beside the packages in a checkout, else inside the wheel."""
    packages = Path(__file__).parents[3]
    return next(
        path for path in (packages / name, packages / "api" / "cli" / "cluster" / name) if path.is_file()
    )


def _from_wheel(wheel: Path) -> PackageSource:
    if wheel.suffix != ".whl" or not wheel.is_file():
        hint = "name a file such as fedsim_ray-0.2.0-py3-none-any.whl, made by: pip wheel --no-deps ."
        raise SettingsError(f"--wheel {wheel} is no wheel", hint)
    return PackageSource(None, f"{NODE_FOLDER}/{wheel.name}", wheel)


def _find_source() -> PackageSource:
    """Find from where this fedsim was installed: a checkout, a wheel, or a package index."""
    checkout = Path(__file__).parents[3]
    if (checkout / "pyproject.toml").is_file():
        return PackageSource(str(checkout), NODE_FOLDER, None)
    try:
        installed = metadata.distribution("fedsim-ray")
    except metadata.PackageNotFoundError as error:
        raise SettingsError("fedsim-ray is not installed here", "name its wheel with --wheel") from error
    origin = installed.read_text("direct_url.json")  # None if pip took fedsim from an index
    if origin is None:
        return PackageSource(None, f"fedsim-ray=={installed.version}", None)
    place = Path(unquote(urlparse(json.loads(origin)["url"]).path))
    if place.is_dir():
        return PackageSource(str(place), NODE_FOLDER, None)
    if not place.is_file():
        raise SettingsError(f"{place}, from which fedsim was installed, is gone", "name a wheel with --wheel")
    return _from_wheel(place)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(cluster, name="cluster", rich_help_panel="The service")
