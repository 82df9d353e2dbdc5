"""`export_model`: write the model of a run in a format that other programs read, with a model card."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from fedsim.base.extras import describe_install
from fedsim.errors import SettingsError
from jobs.export.model_card import render_card
from jobs.export.source import ModelSource
from jobs.run.artifacts import MODEL, SPEC
from jobs.spec.spec_text import dump_spec

Format: TypeAlias = Literal["safetensors", "huggingface", "export", "onnx"]

WriteProgram: TypeAlias = Callable[[ModelSource, int, Path], None]

CONFIG, CARD = "config.json", "README.md"

LOAD_PROGRAM = """import torch

model = torch.export.load("{program}").module()
logits = model(inputs)  # {kind} [n, {shape}], as the data set stores them"""

LOAD_ONNX = """import onnxruntime

session = onnxruntime.InferenceSession("{program}")
[logits] = session.run(None, {{"x": inputs}})  # {kind} [n, {shape}], as the data set stores them"""

LOAD_WEIGHTS = """from safetensors.torch import load_file

model.load_state_dict(load_file("model.safetensors"), strict=False)  # your module, or that of config.json:
# fedsim.models.make_net(**config["net"]).build()"""


def export_model(source: ModelSource, format: Format, folder: Path) -> list[str]:
    """Write a model into a folder.

    Args:
        source: the model.
        format: `safetensors` writes the weights; `export` a program of `torch.export`, which plain PyTorch
            loads without the code of the model; `onnx` the same as ONNX; `huggingface` the weights, the
            program and the card of a repository on the Hugging Face Hub.
        folder: existing; files of the same names are replaced.

    Returns:
        The names of the files.

    Raises:
        SettingsError: the model cannot be written in this format.
    """
    _check_installed(format)
    stems = ["model"] if len(source.nets) == 1 else [f"model-{number}" for number in range(len(source.nets))]
    names = list[str]()
    if format in ("export", "huggingface"):
        names += _write_programs(source, stems, folder, ".pt2", _write_program)
    if format == "onnx":
        names += _write_programs(source, stems, folder, ".onnx", _write_onnx)
    if format in ("safetensors", "huggingface"):
        names += _write_weights(source, folder)
    (folder / SPEC).write_text(dump_spec(source.spec), "utf-8")
    (folder / CARD).write_text(render_card(source, _describe_loading(source, format, names[0])), "utf-8")
    return [*names, SPEC, CARD]


def _check_installed(format: Format) -> None:
    if format == "onnx" and None in (find_spec("onnx"), find_spec("onnxscript")):
        raise SettingsError("ONNX is not installed", describe_install("onnx"))


def _describe_loading(source: ModelSource, format: Format, program: str) -> str:
    if format == "safetensors":
        return LOAD_WEIGHTS
    form = source.input_form(0)
    shape, kind = ", ".join(map(str, form.shape)), "int64" if form.vocabulary else "float32"
    template = LOAD_ONNX if format == "onnx" else LOAD_PROGRAM
    return template.format(program=program, shape=shape, kind=kind)


def _write_weights(source: ModelSource, folder: Path) -> list[str]:
    from safetensors.numpy import save_file

    weights = {name: np.ascontiguousarray(each) for name, each in source.weights.items()}
    save_file(weights, folder / MODEL, dict(source.notes))
    nets = source.nets
    config = {
        "net": nets[0] if len(nets) == 1 else nets,
        "normalise": json.loads(source.notes["normalise"]),
        "classes": json.loads(source.notes.get("classes", "null")),
        "columns": json.loads(source.notes.get("columns", "null")),
        "targets": json.loads(source.notes.get("targets", "null")),
        "round": int(source.notes["round"]),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return [MODEL, CONFIG]


def _write_programs(
    source: ModelSource,
    stems: list[str],
    folder: Path,
    ending: str,
    write: WriteProgram,
) -> list[str]:
    """Write one program for each architecture."""
    names = [f"{stem}{ending}" for stem in stems]
    for number, name in enumerate(names):
        try:
            write(source, number, folder / name)
        except SettingsError:
            raise
        except Exception as error:  # the exporters of PyTorch raise errors of many types
            first = str(error).strip().partition("\n")[0][:300]
            message = f"PyTorch cannot export the model {source.nets[number]['name']!r}: {first}"
            raise SettingsError(message, "export the weights: --to safetensors") from error
    return names


def _write_program(source: ModelSource, number: int, path: Path) -> None:
    import torch

    from jobs.export.module import build_module, make_example

    sizes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(
        build_module(source, number), (make_example(source, number),), dynamic_shapes=sizes
    )
    torch.export.save(program, path)


def _write_onnx(source: ModelSource, number: int, path: Path) -> None:
    import torch

    from jobs.export.module import build_module, make_example

    torch.onnx.export(
        build_module(source, number),
        (make_example(source, number),),
        str(path),
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
        dynamo=True,
        external_data=False,
        verbose=False,
    )
