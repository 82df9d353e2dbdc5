"""Run a module of unknown make once on random inputs, to see what reading its code cannot tell.

The probe answers: can it take the data's inputs, does it draw random numbers, can clients be stacked, and
does its head stand alone. It refuses modules whose results would depend on more than parameters and inputs.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedsim.models.state import Params, list_constants, list_ties, run_module, select_keys

EXAMPLES = 3
"""Examples in the batch of a probe."""

PASSES_ON = (
    "which would pass from client to client, or from scores to training; make it a persistent float buffer "
    "that changes in place and in training only, or remove it"
)


class InputForm(NamedTuple):
    """The form of a model's inputs.

    Attributes:
        shape: of one example.
        vocabulary: number of tokens; 0 for inputs that are real numbers.
        outputs: shape of a model's outputs for one example; None if the probe does not check it.
    """

    shape: tuple[int, ...]
    vocabulary: int = 0
    outputs: tuple[int, ...] | None = None

    def make_examples(self, count: int = EXAMPLES) -> Tensor:
        """Return random inputs, the same in every call."""
        generator = torch.Generator("cpu").manual_seed(0)
        size = (count, *self.shape)
        if self.vocabulary:
            return torch.randint(self.vocabulary, size, generator=generator, device="cpu")
        return torch.randn(size, generator=generator, device="cpu")


class ProbeFacts(NamedTuple):
    """The findings of a probe.

    Attributes:
        stochastic: whether the forward pass draws random numbers in training mode.
        unstackable: reason why clients cannot be stacked; "" if they can.
        head: name of the submodule that is the head, if it stands alone; else "".
        head_error: reason why it does not; "" if it does.
    """

    stochastic: bool
    unstackable: str
    head: str
    head_error: str


def select_logits(output: Any) -> Tensor:
    """Return the logits of a module's output.

    Args:
        output: a tensor; or an object or a mapping with `logits`; or a tuple or list whose first entry is it.

    Raises:
        ValueError: for any other output.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return select_logits(output["logits"])
    if hasattr(output, "logits"):
        return select_logits(output.logits)
    if isinstance(output, Sequence) and output and not isinstance(output, str):
        return select_logits(output[0])
    raise ValueError(
        f"its forward returns {type(output).__name__}; return a tensor of logits, "
        "or a tuple that begins with it, or an object with `logits`"
    )


@contextmanager
def skip_breakpoints() -> Iterator[None]:
    """Make `breakpoint()` do nothing in the block: a user debugs the run, not a trial of the model."""
    hook, sys.breakpointhook = sys.breakpointhook, lambda *_args, **_options: None
    try:
        yield
    finally:
        sys.breakpointhook = hook


def probe_module(module: nn.Module, inputs: InputForm, head: str | None = None) -> ProbeFacts:
    """Run a module and return what the runs show.

    Args:
        module: with real weights; the probe leaves its buffers as they were.
        inputs: the form of the data's inputs.
        head: the submodule that should be the head; None for none.

    Raises:
        ValueError: if the module cannot take the inputs, returns no logits of the right shape, or its result
            depends on more than parameters, inputs and torch's random numbers.
    """
    _check_hidden_modules(module)
    _check_finite_buffers(module)
    before = _copy_tensors(module.state_dict())
    buffers, constants = dict(module.named_buffers()), _copy_tensors(_list_fixed_tensors(module))
    x = inputs.make_examples()
    with torch.random.fork_rng(devices=[]), skip_breakpoints():
        torch.manual_seed(0)
        stochastic, logits = _run_watched(module.train(), x, inputs)
        _check_assigned_buffers(module, buffers)
        trained, fixed = (_copy_tensors(each) for each in (module.state_dict(), _list_fixed_tensors(module)))
        draws_always, scores = _run_watched(module.eval(), x, inputs)
        if draws_always:
            raise ValueError(
                "its forward draws random numbers in evaluation mode too, so that scores could not be "
                "repeated; draw them only `if self.training`"
            )
        # The last batch of a client may have one example; in training, BatchNorm takes no single one.
        _run_watched(module, x[:1], inputs)
        _check_unchanged(constants, _list_fixed_tensors(module), "")
        _check_unchanged(trained, module.state_dict(), " in evaluation mode")
        _check_repeated(module, before, inputs, logits, fixed, scores)
        head_error = "no blocks are declared" if head is None else _find_head_error(module, head, x)
        unstackable = (
            "its forward draws random numbers client by client"
            if stochastic
            else _find_vmap_error(module.train(), x)
        )
    module.load_state_dict(before)
    return ProbeFacts(stochastic, unstackable, "" if head_error or head is None else head, head_error)


def _run_watched(module: nn.Module, x: Tensor, inputs: InputForm) -> tuple[bool, Tensor]:
    """Run a forward pass, check its output, and return whether it drew random numbers, and its logits."""
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        logits = select_logits(module(x))
    except ValueError:
        raise
    except Exception as error:
        what = "tokens" if inputs.vocabulary else "numbers"
        raise ValueError(
            f"its forward does not take a batch of {what} of shape {list(x.shape)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    other = [
        name
        for name, changed in (
            ("NumPy", repr(numpy_state) != repr(np.random.get_state())),
            ("random", python_state != random.getstate()),
        )
        if changed
    ]
    if other:
        raise ValueError(f"its forward draws from {other[0]}'s generator; use torch's functions instead")
    wanted = (len(x), *(inputs.outputs or ()))
    found = tuple(logits.shape[: len(wanted)])
    if inputs.vocabulary and len(wanted) == 3 and len(found) == 3 and found[-1] > wanted[-1]:
        found = wanted  # a published model may know more tokens than the texts have
    if found != wanted or not logits.is_floating_point():
        raise ValueError(
            f"its forward returns {logits.dtype} of shape {list(logits.shape)} for {len(x)} examples; "
            f"wanted: logits of shape {list(wanted)}"
        )
    trains = any(weight.requires_grad for weight in module.parameters())
    if trains and torch.is_grad_enabled() and not logits.requires_grad:
        raise ValueError(
            "its forward returns numbers without a gradient, so that nothing could train; "
            "leave out `detach()`, `torch.no_grad()` and conversions to NumPy"
        )
    return not torch.equal(torch_state, torch.get_rng_state()), logits.detach().clone()


def _check_hidden_modules(module: nn.Module) -> None:
    """Raise ValueError if a plain list, tuple or dict keeps modules that torch does not see."""
    seen = set(module.modules())
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute[0] == "_" or not isinstance(value, list | tuple | dict):
                continue
            held = value.values() if isinstance(value, dict) else value
            if any(isinstance(each, nn.Module) and each not in seen for each in held):
                kind, plain = ("ModuleDict", "dict") if isinstance(value, dict) else ("ModuleList", "list")
                raise ValueError(
                    f"it keeps modules in {f'{name}.{attribute}'.lstrip('.')}, a plain {plain}, "
                    f"so that their weights would not train; use nn.{kind}"
                )


def _check_finite_buffers(module: nn.Module) -> None:
    """Raise ValueError for a float buffer that travels and is not finite: its change would be NaN."""
    for name, value in module.state_dict().items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise ValueError(
                f"its buffer {name} is not finite, such as a mask with -inf, and would travel as parameters "
                "do; register it with persistent=False"
            )


def _check_assigned_buffers(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise ValueError if the forward pass puts another tensor in the place of a float buffer."""
    keys = select_keys(module)
    for name, value in module.named_buffers():
        if name in keys and value is not before.get(name):
            raise ValueError(
                f"its forward assigns the buffer {name}, and the new tensor would be lost; "
                f"change it in place: self.{name.rpartition('.')[2]}.copy_(...)"
            )


def _list_fixed_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that are no keys, also those in plain attributes."""
    loose = {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    }
    return {**list_constants(module), **loose}


def _copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


def _check_unchanged(before: Mapping[str, Tensor], after: Mapping[str, Tensor], when: str) -> None:
    """Raise ValueError if a forward pass changed a tensor; one of another shape is a cache."""
    for name, value in before.items():
        now = after.get(name, value)
        if now.shape == value.shape and not torch.equal(now.detach(), value):
            raise ValueError(f"its forward changes {name}{when}, {PASSES_ON}")


def _check_repeated(
    module: nn.Module,
    state: Mapping[str, Tensor],
    inputs: InputForm,
    logits: Tensor,
    fixed: Mapping[str, Tensor],
    scores: Tensor,
) -> None:
    """Raise ValueError if a pass on other inputs changes what the module does with the first ones.

    This shows changes of numbers, lists and dicts, and tensors that appear or grow in a forward pass.

    Args:
        module: the module after its first passes.
        state: its state before them.
        inputs: the form of its inputs.
        logits: of the first pass in training mode.
        fixed: the tensors that are no keys, after that pass.
        scores: the logits of the first pass in evaluation mode.
    """
    others = inputs.make_examples(2 * EXAMPLES)[EXAMPLES:]
    for x in (others, inputs.make_examples()):
        module.load_state_dict(state)
        torch.manual_seed(0)
        _, again = _run_watched(module.train(), x, inputs)
    found = _list_fixed_tensors(module)
    for name, value in fixed.items():
        if not _are_close(found.get(name, value).detach(), value):
            raise ValueError(f"its forward changes {name}, {PASSES_ON}")
    _, repeated_scores = _run_watched(module.eval(), x, inputs)
    if not (_are_close(again, logits) and _are_close(repeated_scores, scores)):
        raise ValueError(
            "its forward returns other logits for the same inputs after a batch of other inputs; it changes "
            f"an attribute, such as a counter or a list, {PASSES_ON}"
        )


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree up to rounding: compiled functions may round otherwise in a second call."""
    return (one.shape, one.dtype) == (other.shape, other.dtype) and torch.allclose(one, other, equal_nan=True)


def _find_head_error(module: nn.Module, head: str, x: Tensor) -> str:
    """Return why the submodule `head` is not what turns features into logits; "" if it is."""
    calls: list[tuple[Any, Any]] = []
    handle = module.get_submodule(head).register_forward_hook(
        lambda _, args, output: calls.append((args, output))
    )
    try:
        logits = select_logits(module(x))
    finally:
        handle.remove()
    if len(calls) != 1:
        return f"the head {head} is called {len(calls)} times in a forward pass"
    args, output = calls[0]
    if len(args) != 1 or not isinstance(args[0], Tensor):
        return f"the head {head} does not take one tensor"
    if not isinstance(output, Tensor) or not torch.equal(output, logits):
        return f"the output of the head {head} is not the output of the model"
    return ""


def _find_vmap_error(module: nn.Module, x: Tensor) -> str:
    """Return why `torch.func.vmap` cannot stack two clients of this module; "" if it can."""
    constants, ties = list_constants(module), list_ties(module)
    params = {key: value.detach() for key, value in select_keys(module).items()}
    stack = {key: torch.stack([value, value]).requires_grad_() for key, value in params.items()}
    alone = {key: value.clone().requires_grad_() for key, value in params.items()}

    def call(own: Params) -> Tensor:
        return select_logits(run_module(module, {**constants, **own}, ties, x)).square().mean()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # vmap warns of operations that it runs one by one
            both = vmap(call)(stack)
            slopes = torch.autograd.grad(both.sum(), list(stack.values()), allow_unused=True)
        value = call(alone)  # fails if the module has kept a tensor of the stack
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return f"torch.func.vmap cannot run its forward: {reason}"
    single = torch.autograd.grad(value, list(alone.values()), allow_unused=True)
    agree = [torch.allclose(both, value.expand(2), rtol=1e-3, atol=1e-5)]
    agree += [
        one is None or (two is not None and torch.allclose(two[0], one, rtol=1e-2, atol=1e-5))
        for one, two in zip(single, slopes, strict=True)
    ]
    return "" if all(agree) else "torch.func.vmap gives other numbers than one client after the other"
