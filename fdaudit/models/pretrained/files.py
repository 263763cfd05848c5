"""The files of an encoder as Hugging Face ships them: `config.json`, `vocab.txt` and `model.safetensors`.

Guarantees:
  * nothing is unpickled and nothing is downloaded: weights are read from safetensors alone;
  * a relative path never leaves the folder of datasets, through `..` or a link;
  * every process that builds a network checks its files against the digest that the architecture states;
  * every size is bounded, and every tensor has the shape that `config.json` implies, before any network is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import AliasChoices, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from fdaudit.config import Config
from fdaudit.data.datasets import data_root
from fdaudit.data.files import resolve_path
from fdaudit.data.texts.wordpieces import VOCABULARY_FILE, Pieces, pieces_of
from fdaudit.errors import DataError, IntegrityError, SpecError
from fdaudit.limits import JSON_BYTES, TABLE_BYTES, TENSOR_BYTES, Limit, read_file
from fdaudit.storage.files import decode, parse_json

__all__ = ["FIELD", "FILES", "Sizes", "Weights", "found_in", "sizes_in"]

FIELD = "model.params.path"
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
FILES: Mapping[str, Limit] = {
    CONFIG_FILE: JSON_BYTES,
    VOCABULARY_FILE: TABLE_BYTES,
    WEIGHTS_FILE: TENSOR_BYTES,
}
"""The files of a network with the most bytes that are read of each, in the order of its digest."""
_GET = "Put config.json, vocab.txt and model.safetensors of a BERT or DistilBERT there."


class Sizes(Config):
    """The part of `config.json` that decides what the network computes. Other entries are not read."""

    model_config = ConfigDict(extra="ignore")

    model_type: Literal["bert", "distilbert"]
    activation: Literal["gelu"] = Field("gelu", validation_alias=AliasChoices("activation", "hidden_act"))
    width: int = Field(ge=2, le=4096, validation_alias=AliasChoices("dim", "hidden_size"))
    """Entries d of a state; a multiple of `heads`."""
    hidden: int = Field(ge=1, le=16_384, validation_alias=AliasChoices("hidden_dim", "intermediate_size"))
    """Entries of a state between the two linear layers of a block."""
    layers: int = Field(ge=1, le=48, validation_alias=AliasChoices("n_layers", "num_hidden_layers"))
    heads: int = Field(ge=1, le=128, validation_alias=AliasChoices("n_heads", "num_attention_heads"))
    positions: int = Field(ge=3, le=8192, validation_alias="max_position_embeddings")
    vocabulary: int = Field(ge=5, le=1_000_000, validation_alias="vocab_size")
    segments: int = Field(2, ge=1, le=64, validation_alias="type_vocab_size")
    """Kinds of segments that BERT tells apart; every text here is of the first."""

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"states of {self.width} entries are not divided by {self.heads} heads")
        return self


@dataclass(frozen=True, eq=False)
class Weights:
    """The files of one network.

    Attributes:
        folder: its absolute path.
        sizes: what `config.json` says.
        pieces: its vocabulary.
        stored: the tensors, by name in the file.
        digest: SHA-256 of the three files one after the other, in the order of `FILES`.
    """

    folder: Path
    sizes: Sizes
    pieces: Pieces
    stored: Mapping[str, Tensor]
    digest: str

    def tensors(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the tensors that a network has, float32 and finite; heads of other tasks are left out.

        Args:
            shapes: by name, without the prefix that names in the file may have.

        Raises:
            SpecError: a tensor is absent, has another shape, or is not of finite floats.
        """
        file = self.folder / WEIGHTS_FILE
        stored = {}
        for stored_name, tensor in self.stored.items():
            name = stored_name.removeprefix(f"{self.sizes.model_type}.")
            # Older files say gamma and beta in a LayerNorm.
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
            stored[name.replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
        parameters = {}
        for name, shape in shapes.items():
            if name not in stored:
                raise _wrong(file, f"has no tensor {name}")
            tensor = stored[name]
            if tuple(tensor.shape) != shape or not tensor.is_floating_point():
                kind = str(tensor.dtype).removeprefix("torch.")
                problem = f"has {name} as {kind} {tuple(tensor.shape)}; config.json implies floats {shape}"
                raise _wrong(file, problem)
            parameters[name] = tensor.to(torch.float32)
            if not torch.isfinite(parameters[name]).all():
                raise _wrong(file, f"holds NaN or infinite values in {name}")
        return parameters


def found_in(path: str, digest: str | None = None, root: Path | None = None) -> Weights:
    """Return the files in a folder.

    Args:
        path: the folder: absolute, or below `root`.
        digest: the digest that the files must have, if one is known.
        root: the folder of datasets; default: FDAUDIT_DATA.

    Raises:
        SpecError: a file is absent, too large, damaged or outside the folder of datasets, lacks a tensor or has
            one of another shape, or the files have another digest.
    """
    folder = _resolved(path, root)
    content, hashed = {}, hashlib.sha256()
    for name, limit in FILES.items():
        content[name] = _read(folder, _resolved(str(Path(path) / name), root), limit)
        hashed.update(content[name])
    actual = hashed.hexdigest()
    if digest not in (None, actual):
        problem = f"is not the digest of the files in {folder}: they have {actual}"
        raise SpecError("model.params.sha256", digest, problem, "Correct it, or put the right files there.")
    sizes = _sizes(folder / CONFIG_FILE, content[CONFIG_FILE])
    try:
        pieces = pieces_of(content[VOCABULARY_FILE], folder / VOCABULARY_FILE, FIELD)
    except DataError as error:
        raise SpecError(error.field, error.value, error.problem, error.remedy) from None
    if len(pieces.listed) != sizes.vocabulary:
        problem = f"has {len(pieces.listed):,} pieces, but config.json says vocab_size {sizes.vocabulary:,}"
        raise _wrong(folder / VOCABULARY_FILE, problem)
    try:
        stored = decode(content[WEIGHTS_FILE])
    except IntegrityError:
        raise _wrong(folder / WEIGHTS_FILE, "is no safetensors file") from None
    return Weights(folder, sizes, pieces, stored, actual)


def sizes_in(path: str) -> Sizes:
    """Return the sizes of the network in a folder, which is absolute or below FDAUDIT_DATA.

    Raises:
        SpecError: `config.json` is absent, or describes neither BERT nor DistilBERT.
    """
    file = _resolved(str(Path(path) / CONFIG_FILE), None)
    return _sizes(file, _read(file.parent, file, FILES[CONFIG_FILE]))


def _resolved(path: str, root: Path | None) -> Path:
    try:
        return resolve_path(path, data_root() if root is None else root, FIELD)
    except DataError as error:
        raise SpecError(error.field, error.value, error.problem, error.remedy) from None


def _read(folder: Path, place: Path, limit: Limit) -> bytes:
    try:
        return read_file(place, limit)
    except FileNotFoundError:
        pickled = list[str]()
        for file in folder.glob("*"):
            if file.suffix in (".bin", ".pt", ".pth", ".ckpt"):
                pickled.append(file.name)
        if place.name == WEIGHTS_FILE and pickled:
            problem = f"has no {WEIGHTS_FILE}; {min(pickled)}, a pickle that may run code, is not read"
        else:
            problem = f"has no {place.name}" if folder.is_dir() else "is no folder"
        raise SpecError(FIELD, str(folder), problem, _GET) from None
    except OSError as error:
        raise _wrong(place, f"cannot be read ({error.strerror})") from None


def _sizes(file: Path, content: bytes) -> Sizes:
    try:
        return Sizes.model_validate(parse_json(content))
    except ValidationError as error:
        first: Any = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        where = f"{name}: " if name else ""
        problem = f"describes neither BERT nor DistilBERT as it is read ({where}{reason})"
        raise _wrong(file, problem) from None
    except ValueError as error:
        raise _wrong(file, f"is no JSON ({error})") from None


def _wrong(file: Path, problem: str) -> SpecError:
    return SpecError(FIELD, str(file), problem, _GET)
