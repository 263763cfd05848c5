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
from pydantic import Field, create_model, model_validator

from fdaudit.config import Config, validate
from fdaudit.errors import IntegrityError, UsageError
from fdaudit.goals import GOALS, Goal, Guess
from fdaudit.limits import JSON_BYTES, read_file
from fdaudit.scoring.goals import SCORERS
from fdaudit.scoring.goals.submission import Submission, Text
from fdaudit.storage.files import load_tensors, parse_json

__all__ = [
    "SCHEMA",
    "GuessFile",
    "Guesses",
    "guesses_and_digest",
    "schema",
    "to_guesses",
]

SCHEMA = "fdaudit-guesses/1"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class GuessFile(Config):
    """A file of guesses, without the guesses: `Guesses` adds a field for each goal that a red team may hand in."""

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

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = sum(bool(getattr(self, goal.key)) for goal in SUBMITTED)
        if kinds != 1:
            raise ValueError(
                f"holds {kinds} kinds of guesses. Give exactly one kind, and one guess at least."
            )
        victims, files = [], []
        for entry in self.entries:
            victims.append(entry.target)
            if entry.file:
                files.append(getattr(entry, entry.file))
        for what, names in (("victim", victims), ("file", files)):
            if len(set(names)) < len(names):
                remedy = "Give each victim one guess, with a file of its own."
                raise ValueError(f"names one {what} twice. {remedy}")
        return self

    @property
    def goal(self) -> str:
        """Return the name of the goal of the guesses."""
        for goal in SUBMITTED:  # one of them is there
            if getattr(self, goal.key):
                break
        return goal.name

    @property
    def entries(self) -> tuple[Submission, ...]:
        """Return the guesses as they are written."""
        entries: tuple[Submission, ...] = getattr(self, GOALS[self.goal].key)
        return entries


SUBMITTED = tuple(scorer.goal for scorer in SCORERS.values() if scorer.submission is not None)
"""The goals whose guesses a red team may hand in."""


def _field_of(goal: Goal) -> Any:
    """Return the definition of the field with a goal's guesses."""
    submission: Any = SCORERS[goal.name].submission
    return tuple[submission, ...] | None, Field(None, description=submission.explained)


Guesses: type[GuessFile] = create_model(
    "Guesses",
    __base__=GuessFile,
    __doc__="Guesses of one kind about the victims of one adversary, from its exported view.",
    **{goal.key: _field_of(goal) for goal in SUBMITTED},
)
"""The format of a file of guesses."""


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file of guesses."""
    return Guesses.model_json_schema(by_alias=True)


def guesses_and_digest(path: Path) -> tuple[GuessFile, str]:
    """Return the guesses of a file, after checks that need no run, and the SHA-256 of the file's bytes.

    Raises:
        UsageError: the file cannot be read, is not JSON, or a field is wrong.
    """
    remedy = "Write it by guesses.schema.json, which `fdaudit export-view` puts beside the view."
    try:
        data = read_file(path, JSON_BYTES)
        value = parse_json(data)
    except OSError as error:
        raise UsageError("GUESSES", str(path), f"cannot be read ({error.strerror})", remedy) from None
    except ValueError as error:
        raise UsageError("GUESSES", str(path), f"is not JSON: {error}", remedy) from None
    return validate(Guesses, value, "guesses"), hashlib.sha256(data).hexdigest()


def to_guesses(given: GuessFile, folder: Path, shape: tuple[int, ...]) -> tuple[Guess, ...]:
    """Return the guesses in the form that attacks return.

    Args:
        given: the file.
        folder: the folder of the files with images or weights.
        shape: (c, h, w) of an image.

    Raises:
        UsageError: such a file is missing, damaged or a link, or holds other content.
    """

    def read(name: str, field: str, remedy: str) -> dict[str, torch.Tensor]:
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise UsageError(field, name, "is no file beside the guesses", remedy)
        try:
            return load_tensors(path)
        except IntegrityError as error:
            raise UsageError(field, name, f"cannot be read ({error})", remedy) from None

    place = f"guesses.{GOALS[given.goal].key}"
    guesses = []
    for i, entry in enumerate(given.entries):
        guess = entry.guess(read, f"{place}.{i}", shape)
        guesses.append(guess)
    return tuple(guesses)
