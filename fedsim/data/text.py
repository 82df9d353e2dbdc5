"""Texts to token numbers, with a Hugging Face tokenizer: trained on the texts, or an existing one."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsim.base.parameters import make_spec_error
from fedsim.data.dataset import Array
from fedsim.data.places import FETCH_HINT, TEXT_EXTRA, DataRoots, leaves_root
from fedsim.errors import DataError, DataNotFound

TRAINED_TOKENIZER = "bpe"
_PADDING_NAMES = ("[PAD]", "<pad>")


class Tokens(NamedTuple):
    """Texts of equal length, as token numbers.

    Attributes:
        train: int32 [n, L]; 0 is padding.
        test: int32 [m, L].
        vocabulary: number of tokens.
    """

    train: Array
    test: Array
    vocabulary: int


def tokenise_texts(
    places: DataRoots,
    train: Sequence[str],
    test: Sequence[str],
    *,
    tokenizer: str,
    vocabulary: int,
    length: int,
) -> Tokens:
    """Turn texts into token numbers, cut or padded to one length.

    Args:
        places: the data roots for a folder with a `tokenizer.json`, and whether downloads are allowed.
        train: the training texts; a tokenizer is trained on these alone.
        test: the test texts.
        tokenizer: "bpe" to train one by byte-pair encoding, or the name of an existing one.
        vocabulary: largest number of tokens of a trained tokenizer.
        length: L.

    Raises:
        DataNotFound: if the tokenizer, or its package, is missing.
        SpecError: if the tokenizer does not pad with token 0.
    """
    made = (
        _train_tokenizer(train, vocabulary)
        if tokenizer == TRAINED_TOKENIZER
        else _load_tokenizer(places, tokenizer)
    )
    padding = next((name for name in _PADDING_NAMES if made.token_to_id(name) == 0), None)
    if padding is None:
        raise make_spec_error(
            "tokenizer", tokenizer, "has no padding token with the number 0", "use another one"
        )
    made.enable_truncation(length)
    made.enable_padding(pad_id=0, pad_token=padding, length=length)
    return Tokens(
        _encode_texts(made, train, length), _encode_texts(made, test, length), int(made.get_vocab_size())
    )


def tokenizer_fingerprint(places: DataRoots, tokenizer: str) -> str:
    """A tokenizer's name for the cache's recipe, with the SHA-256 of its file if it is in a data root.

    Raises:
        SpecError: if the name is a path outside the data roots.
        DataError: if the file cannot be read.
    """
    file = None if tokenizer == TRAINED_TOKENIZER else _tokenizer_file(places, tokenizer)
    try:
        return tokenizer if file is None else f"{tokenizer} {hashlib.sha256(file.read_bytes()).hexdigest()}"
    except OSError as error:
        raise _unreadable_error(tokenizer, error) from error


class TokenizerNotFound(DataNotFound):
    """A tokenizer is in no data root; a run may download it."""


def _tokenizer_file(places: DataRoots, name: str) -> Path | None:
    if leaves_root(name):
        raise make_spec_error("tokenizer", name, "has to be a name, or a folder inside a data root")
    return places.find_path((f"{name}/tokenizer.json",))


def _unreadable_error(name: str, error: Exception) -> DataError:
    return DataError(f"tokenizer {name!r}: cannot be read ({error})", f"use {TRAINED_TOKENIZER!r}")


def _import_tokenizers() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        raise DataNotFound("texts need the package 'tokenizers'", TEXT_EXTRA) from error


def _train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Train by byte-pair encoding, the library's only subword trainer with reproducible results."""
    library = _import_tokenizers()
    made = library.Tokenizer(library.models.BPE(unk_token="[UNK]"))
    made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["[PAD]", "[UNK]", "[CLS]"], show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    return made


def _load_tokenizer(places: DataRoots, name: str) -> Any:
    """A tokenizer in a data root, or one from the hub if downloads are allowed."""
    library = _import_tokenizers()
    file = _tokenizer_file(places, name)
    try:
        if file is not None:
            return library.Tokenizer.from_file(str(file))
        if places.download:
            return library.Tokenizer.from_pretrained(name)
    except (
        Exception
    ) as error:  # the library raises plain Exception for a damaged file and for a failed download
        raise _unreadable_error(name, error) from error
    get = (
        f"put its tokenizer.json into a folder of that name there, {FETCH_HINT}, or use {TRAINED_TOKENIZER!r}"
    )
    missing = places.make_not_found_error(f"tokenizer {name!r}", (f"{name}/tokenizer.json",), get)
    raise TokenizerNotFound(missing.message, missing.hint)


def _encode_texts(made: Any, texts: Sequence[str], length: int) -> Array:
    encodings = made.encode_batch(list(texts))
    return np.array([encoding.ids for encoding in encodings], np.int32).reshape(len(texts), length)
