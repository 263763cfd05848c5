"""Guesses of an external red team: the file format, and a parser that does not trust it.

Guarantees:
  * each guess names at most one other file, in the same folder, by its bare name; links are not followed;
  * NaN, infinities, duplicate names in an object, unknown fields and numbers given as text are refused, with the name
    of the field.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator

from fdaudit.config import Config, validate
from fdaudit.errors import IntegrityError, UsageError
from fdaudit.limits import JSON_BYTES, read_file
from fdaudit.storage.files import load_tensors, parse_json
from fdaudit.types import Extraction, Goal, Guess, LabelDistribution, Membership, Reconstruction

__all__ = [
    "SCHEMA",
    "ExtractionGuess",
    "Guesses",
    "LabelGuess",
    "MembershipGuess",
    "ReconstructionGuess",
    "guesses_and_digest",
    "read_guesses",
    "schema",
    "to_guesses",
]

SCHEMA = "fdaudit-guesses/1"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=400)]


class MembershipGuess(Config):
    """Membership scores for one victim's challenge."""

    target: Text
    """The victim, for example `client/0`."""
    challenge: Sha256
    """SHA-256 of the file with the candidates, from the card."""
    scores: tuple[float, ...] = Field(min_length=1)
    """One score per candidate, in the file's order; higher means member."""


class LabelGuess(Config):
    """Class shares of one victim's records."""

    target: Text
    """The victim."""
    distribution: tuple[float, ...] = Field(min_length=1)
    """One share per class, with sum 1."""


class ReconstructionGuess(Config):
    """Images reconstructed from messages of one victim."""

    target: Text
    """The victim."""
    messages: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """`seq` of the messages from which the images were reconstructed; at most as many images as records behind them."""
    images: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.safetensors$")]
    """A safetensors file in the same folder: `images` (n, c, h, w) in [0, 1] and, if guessed, `labels` (n,) int64."""


class ExtractionGuess(Config):
    """A copy of a victim's model."""

    target: Text
    """The victim, or `server` for the released model."""
    parameters: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.safetensors$")]
    """A safetensors file in the same folder: the weights of the network that the card names, by parameter."""


class Guesses(Config):
    """Guesses of one kind about the victims of one adversary, from its exported view."""

    schema_name: Literal["fdaudit-guesses/1"] = Field(alias="schema")
    """Version of this format."""
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    """The attack's name in the report: small letters, digits and hyphens."""
    adversary: Text
    """The adversary whose view was attacked."""
    view: Sha256
    """SHA-256 of `view/view.json`, from the card."""
    head: Sha256 | None = None
    """SHA-256 of the last line of the record that was attacked. A site scores on this record only."""
    source: Text = ""
    """The attack's source: a paper or a link."""
    assumes: tuple[Text, ...] = ()
    """Its inputs other than the view."""
    membership: tuple[MembershipGuess, ...] | None = None
    """Give this, or one of the next three."""
    label_distribution: tuple[LabelGuess, ...] | None = None
    """One for each victim."""
    reconstruction: tuple[ReconstructionGuess, ...] | None = None
    """One for each victim, or for some."""
    model_extraction: tuple[ExtractionGuess, ...] | None = None
    """One for each victim, or for some."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [k for k in self._kinds.values() if k]
        if len(given) != 1:
            raise ValueError(
                f"holds {len(given)} kinds of guesses. Give exactly one kind, and one guess at least."
            )
        files = [g.images for g in self.reconstruction or ()] + [
            g.parameters for g in self.model_extraction or ()
        ]
        for what, named in (("victim", [getattr(g, "target", "") for g in given[0]]), ("file", files)):
            if len(set(named)) < len(named):
                raise ValueError(
                    f"names one {what} twice. Give each victim one guess, with a file of its own."
                )
        return self

    @property
    def goal(self) -> Goal:
        """Return the goal of the guesses."""
        return next(goal for goal, given in self._kinds.items() if given)

    @property
    def _kinds(self) -> dict[Goal, tuple[Config, ...] | None]:
        return {
            "membership": self.membership,
            "label-distribution": self.label_distribution,
            "reconstruction": self.reconstruction,
            "model-extraction": self.model_extraction,
        }


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file of guesses."""
    return Guesses.model_json_schema(by_alias=True)


def read_guesses(path: Path) -> Guesses:
    """Return the guesses of a file, after checks that need no run.

    Raises:
        UsageError: the file cannot be read, is not JSON, or a field is wrong.
    """
    return guesses_and_digest(path)[0]


def guesses_and_digest(path: Path) -> tuple[Guesses, str]:
    """Return the guesses of a file, as `read_guesses` does, and the SHA-256 of the file's bytes."""
    remedy = "Write it by guesses.schema.json, which `fdaudit export-view` puts beside the view."
    try:
        data = read_file(path, JSON_BYTES)
        value = parse_json(data)
    except OSError as error:
        raise UsageError("GUESSES", str(path), f"cannot be read ({error.strerror})", remedy) from None
    except ValueError as error:
        raise UsageError("GUESSES", str(path), f"is not JSON: {error}", remedy) from None
    return validate(Guesses, value, "guesses"), hashlib.sha256(data).hexdigest()


def to_guesses(given: Guesses, folder: Path, shape: tuple[int, ...]) -> tuple[Guess, ...]:
    """Return the guesses in the form that attacks return.

    Args:
        given: the file.
        folder: the folder of the files with images or weights.
        shape: (c, h, w) of an image.

    Raises:
        UsageError: such a file is missing, damaged or a link, or holds other content.
    """
    if given.membership:
        return tuple(
            Membership(target=g.target, scores=torch.tensor(g.scores, dtype=torch.float64))
            for g in given.membership
        )
    if given.label_distribution:
        return tuple(
            LabelDistribution(target=g.target, distribution=torch.tensor(g.distribution, dtype=torch.float64))
            for g in given.label_distribution
        )
    if given.model_extraction:
        return tuple(
            Extraction(
                target=g.target,
                parameters=_file(g.parameters, f"guesses.model_extraction.{i}.parameters", folder, _COPY),
            )
            for i, g in enumerate(given.model_extraction)
        )
    return tuple(
        _reconstruction(g, f"guesses.reconstruction.{i}.images", folder, shape)
        for i, g in enumerate(given.reconstruction or ())
    )


_COPY = "Write the copy's weights as float32 tensors, one a parameter of the network, beside the guesses."


def _file(name: str, field: str, folder: Path, remedy: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a file in the folder of the guesses."""
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise UsageError(field, name, "is no file beside the guesses", remedy)
    try:
        return load_tensors(path)
    except IntegrityError as error:
        raise UsageError(field, name, f"cannot be read ({error})", remedy) from None


def _reconstruction(
    given: ReconstructionGuess, field: str, folder: Path, shape: tuple[int, ...]
) -> Reconstruction:
    remedy = "Write float32 images (n, c, h, w) in [0, 1] under the name `images` beside the guesses."
    tensors = _file(given.images, field, folder, remedy)
    images, labels = tensors.get("images"), tensors.get("labels")
    if images is None or images.ndim != 4 or tuple(images.shape[1:]) != shape or not len(images):
        found = "no images" if images is None else f"images of shape {tuple(images.shape)}"
        problem = f"holds {found}, not (n, {', '.join(map(str, shape))})"
        raise UsageError(field, given.images, problem, remedy)
    inside = images.is_floating_point() and bool(((images >= 0) & (images <= 1)).all())
    if not inside:
        raise UsageError(field, given.images, "holds images outside [0, 1]", remedy)
    if labels is not None and (labels.dtype != torch.int64 or labels.shape != (len(images),)):
        raise UsageError(field, given.images, "holds labels that are not one int64 an image", remedy)
    return Reconstruction(target=given.target, messages=given.messages, images=images.float(), labels=labels)
