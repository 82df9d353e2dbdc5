"""`fedsim check`: whether a spec can run. `fedsim inspect`: its models, a client's batch, the payloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from api.cli.commands.options import Format, FormatOption, SetOption, SpecArgument
from api.reports.formatting import format_count

if TYPE_CHECKING:
    from jobs.plan.inspection import InspectedClient, InspectedModel, InspectedTensor

MODEL_HEADS = ("block", "output", "tensor", "shape", "numbers", "role", "sent")


def check(spec: SpecArgument, sets: SetOption = None, format: FormatOption = Format.TEXT) -> None:
    """Check the names, parameters, data and models of a spec without a run; exit code 2 if wrong."""
    from api.cli.display import print_json, print_message, show_waiting
    from jobs.settings import Settings
    from jobs.spec import read_spec
    from jobs.spec.resolve import parse_spec_and_names

    loaded = parse_spec_and_names(read_spec(spec, sets or ()))
    with show_waiting("loading the libraries") as show:
        show("loading the libraries")
        from jobs.local_ray.machine import count_cpus
        from jobs.plan.long_runs import describe_long_run
        from jobs.spec.resolve import resolve_spec

        settings = Settings.from_env().add_local_folders(spec)
        resolve_spec(loaded, settings)
        warning = describe_long_run(loaded, settings, count_cpus(settings))
    if format is Format.JSON:
        print_json({"valid": True, "warning": warning, "spec": loaded.model_dump(mode="json")})
    else:
        print_message(f"{loaded.name} is valid: {loaded.rounds} rounds, {loaded.clients.total:,} clients")
        if warning:
            print_message(f"note: {warning}")


def inspect(spec: SpecArgument, sets: SetOption = None, format: FormatOption = Format.TEXT) -> None:
    """Show the models of a spec, the first batch of a client, and what travels in a round."""
    from api.cli.display import print_json, show_waiting
    from jobs.settings import Settings
    from jobs.spec import read_spec
    from jobs.spec.resolve import parse_spec_and_names

    loaded = parse_spec_and_names(read_spec(spec, sets or ()))
    with show_waiting("loading the libraries") as show:
        show("loading the libraries")
        from jobs.plan.inspection import inspect_spec

        found = inspect_spec(loaded, Settings.from_env().add_local_folders(spec), show)
    if format is Format.JSON:
        print_json({"models": [model.document() for model in found]})
        return
    for model in found:
        print_model(model)


def print_model(model: InspectedModel) -> None:
    """Print lines and tables about one architecture."""
    from api.cli.display import make_data_console, make_plain_text, make_table, print_table

    console = make_data_console()
    flops = f"{format_count(model.forward_flops)} FLOPs forward, {format_count(model.step_flops)} in a step"
    size = f"{model.parameters:,} parameters"
    console.print(make_plain_text(f"model {model.name}: {size}; for an example {flops}"))
    rows = ([make_plain_text(cell) for cell in row] for row in _list_tensors(model))
    print_table(make_table(MODEL_HEADS, rows, numbers=("numbers",)))
    client = model.client
    work = f"{client.examples:,} examples, {client.steps:,} local steps in round 1"
    console.print(make_plain_text(f"client {client.client}: {work}; its first batch"))
    print_table(make_table(("", "shape", "type", "min", "max"), _list_arrays(client), numbers=("min", "max")))
    if client.labels:
        labels = ", ".join(f"{count} of class {label}" for label, count in client.labels.items())
        console.print(make_plain_text(f"labels of the batch: {labels}"))
    console.print()
    console.print(make_plain_text(f"what travels in round 1 between the server and client {client.client}"))
    payloads = [(each.name, _format_size(each.down), _format_size(each.up)) for each in model.payloads]
    down, up = (sum(getattr(each, way) or 0 for each in model.payloads) for way in ("down", "up"))
    payloads.append(("total", _format_size(down), _format_size(up)))
    ways = ("bytes down", "bytes up")
    print_table(make_table(("payload", *ways), payloads, numbers=ways))


def _list_tensors(model: InspectedModel) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of a model; a block without tensors has one row."""
    for block in model.blocks:
        output = "" if block.output is None else _format_shape(block.output)
        head: tuple[str, str] = (block.name, output)
        if not block.tensors:
            yield (*head, "", "", "", "", "")
        for tensor in block.tensors:
            yield (*head, *_format_tensor(tensor))
            head = ("", "")
    for tensor in model.constants:
        yield ("", "", *_format_tensor(tensor))


def _format_tensor(tensor: InspectedTensor) -> tuple[str, ...]:
    sent = "yes" if tensor.sent else "no"
    return tensor.name, _format_shape(tensor.shape), f"{tensor.numbers:,}", tensor.role, sent


def _list_arrays(client: InspectedClient) -> Iterator[tuple[str, ...]]:
    for name, array in (("inputs", client.x), ("labels", client.y)):
        yield name, _format_shape(array.shape), array.dtype, f"{array.min:g}", f"{array.max:g}"


def _format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _format_size(size: int | None) -> str:
    return "" if size is None else f"{size:,}"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (check, inspect):
        app.command(rich_help_panel="Specs")(command)
