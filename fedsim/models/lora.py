"""LoRA: small adapters beside the frozen weights of a model, by peft (the optional extra `peft`).

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, arXiv:2106.09685. Frozen weights
are constants: they neither train nor travel, so that the traffic of a run is that of the adapters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from fedsim.base.extras import import_extra
from fedsim.base.parameters import make_spec_error
from fedsim.models.libraries.hugging_face import import_transformers

LOADING_ARGUMENTS = frozenset({"auto_mapping", "megatron_config", "megatron_core"})
"""Arguments of peft that name modules to import."""

MOST_REPETITIONS = 4

MOST_ALTERNATIVES = 8
"""The most signs `|` of a pattern: `(a|b)(c|d)...` with n of them can match in 2^n ways."""

REPEATED_GROUP = re.compile(r"\)[*+{]")


def build_with_lora(build: Callable[[], nn.Module], lora: Mapping[str, Any]) -> nn.Module:
    """Return a model whose weights are frozen, with adapters that train.

    Args:
        build: makes the model.
        lora: the arguments of `peft.LoraConfig`: `r`, `lora_alpha`, `target_modules`, `lora_dropout`,
            `modules_to_save` (parts that train whole, such as a new head), ...

    Raises:
        SpecError: with path `lora`, if peft does not take the arguments, or they suit no layer of the model.
        ValueError: if the package peft is not installed.
    """
    for name in LOADING_ARGUMENTS & lora.keys():
        raise make_spec_error(f"lora.{name}", lora[name], "cannot be set: it names code", "leave it out")
    for pattern in _list_texts(lora):
        _check_pattern(pattern)
    import_transformers()  # peft imports it, and it needs a preparation
    peft = import_extra("peft", "peft")
    try:
        config = peft.LoraConfig(**lora)
        module = build()
        peft.inject_adapter_in_model(config, module)
    except (TypeError, ValueError) as error:
        hint = "it has the arguments of peft.LoraConfig, such as {r: 8, target_modules: [query, value]}"
        raise make_spec_error("lora", dict(lora), f"cannot be used: {error}", hint) from error
    return module


def _list_texts(value: object) -> Iterator[str]:
    """Yield all texts in the arguments; peft takes most of them as regular expressions."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in [*value, *(value.values() if isinstance(value, Mapping) else ())]:
            yield from _list_texts(item)


def _check_pattern(pattern: str) -> None:
    """Raise an error for a regular expression whose search could take forever.

    Raises:
        SpecError: with path `lora`.
    """
    repetitions, alternatives = sum(map(pattern.count, "*+?{")), pattern.count("|")
    is_slow = repetitions > MOST_REPETITIONS or alternatives > MOST_ALTERNATIVES
    if is_slow or REPEATED_GROUP.search(pattern):
        message = f"has a pattern that repeats a group, or has more than {MOST_REPETITIONS} repetitions or "
        message += f"{MOST_ALTERNATIVES} signs |"
        hint = "name the modules, such as target_modules: [query, value]"
        raise make_spec_error("lora", pattern, message, hint)
