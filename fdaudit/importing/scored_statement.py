"""A site's statement: the figures of guesses that it scored, in one strict schema, bound to the guesses.

Guarantees:
  * a statement is checked whole before any of it is used: its form, its figures' names, order, steps and ranges, and
    every field that the guesses have as well;
  * the figures of all parties must follow from those of each;
  * units, notes and intervals' methods are not in a statement. They come from the figures' definitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fdaudit.attestation.statement import STATEMENT_TYPE
from fdaudit.audit.guesses import GuessFile
from fdaudit.config import Config, validate
from fdaudit.errors import IntegrityError, SpecError, UsageError
from fdaudit.importing.coarse_scores import DEFINED, LEAST_RECORDS, MOST_ANSWERS, defined, multiple, together
from fdaudit.result import Target
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import parse_json
from fdaudit.types import Figure

__all__ = [
    "PREDICATE_TYPE",
    "Scored",
    "ScoredFigure",
    "ScoredStatement",
    "ScoredTarget",
    "read_statement",
    "refuse_other_guesses",
    "schema",
    "scored",
]

PREDICATE_TYPE = "https://fdaudit.dev/scored/v2"
_SUBJECT = "guesses.json"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=400)]
Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,39}$")]


class ScoredFigure(Config):
    """One figure. Its unit and meaning follow from its name."""

    name: Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
    """What was measured."""
    value: Annotated[float, Field(ge=0, le=100)]
    """A multiple of the figure's step."""
    low: Annotated[float, Field(ge=0, le=100)] | None
    """Lower end of its one-sided interval; null if it has none."""
    n: Annotated[int, Field(ge=1)]
    """Number of items behind it."""


class ScoredTarget(Config):
    """The figures of one party."""

    target: Text
    """The party, for example `client/0`."""
    figures: tuple[ScoredFigure, ...] = Field(min_length=1, max_length=4)
    """Its figures, in the order of their definitions."""


class Scored(Config):
    """The predicate: what was scored, on which record, and the figures."""

    name: Text
    """As in the guesses."""
    adversary: Text
    """As in the guesses."""
    goal: Literal["reconstruction", "label-distribution"]
    """Goal of the guesses."""
    source: Text
    """As in the guesses."""
    assumes: tuple[Text, ...]
    """As in the guesses."""
    view: Sha256
    """As in the guesses."""
    head: Sha256
    """SHA-256 of the record's last line."""
    card: Sha256
    """SHA-256 of the system's card."""
    asked: Annotated[int, Field(ge=1, le=MOST_ANSWERS)]
    """How often the site has answered about these records, this answer included."""
    asked_elsewhere: Annotated[int, Field(ge=0, lt=MOST_ANSWERS)]
    """How many of these answers the ledger beside the truth did not have: it was removed, or the truth was copied."""
    figures: tuple[ScoredFigure, ...] = Field(min_length=1, max_length=8)
    """The figures of all parties, which follow from those of each."""
    targets: tuple[ScoredTarget, ...] = Field(min_length=1)
    """The parties whose records are at the site, in the order of the guesses."""
    versions: dict[Annotated[str, Field(max_length=40)], Version]
    """Versions of the packages that scored."""

    @model_validator(mode="after")
    def _figures_follow(self) -> Self:
        parties = [target.target for target in self.targets]
        if len(set(parties)) < len(parties):
            raise ValueError("names a party twice. Name each party once.")
        for target in self.targets:
            due = [name for name, definition in DEFINED.items() if definition.goal == self.goal]
            if self.goal == "reconstruction" and not target.figures[0].value:
                due.remove("psnr")
            if [figure.name for figure in target.figures] != due:
                raise ValueError(
                    f"has other figures of {target.target} than {', '.join(due)}. Give these, in this order."
                )
            if len({figure.n for figure in target.figures}) > 1:
                raise ValueError(
                    f"has figures of {target.target} with different n. Give one number of records."
                )
            for figure in target.figures:
                _refuse_value(f"{figure.name} of {target.target}", self.goal, figure)
        overall, _ = self.results()
        if [_written(figure) for figure in overall] != [f.model_dump(mode="json") for f in self.figures]:
            raise ValueError(
                "holds figures of all parties that do not follow from each party's. Recompute them."
            )
        if self.asked_elsewhere >= self.asked:
            raise ValueError("was answered elsewhere more often than at all. Correct the counts.")
        return self

    def results(self) -> tuple[tuple[Figure, ...], tuple[Target, ...]]:
        """Return the figures of all parties, and the result of each."""
        by_party, targets = dict[str, tuple[Figure, ...]](), list[Target]()
        for scored in self.targets:
            # With what their definitions say.
            figures = []
            for f in scored.figures:
                figure = defined(f.name, f.value, f.low, f.n)
                figures.append(figure)
            by_party[scored.target] = tuple(figures)
            targets.append(Target(target=scored.target, figures=tuple(figures)))
        return together(by_party), tuple(targets)


class _Digest(Config):
    sha256: Sha256
    """SHA-256 of the file of guesses."""


class _Subject(Config):
    name: Literal["guesses.json"]
    """The file of guesses."""
    digest: _Digest
    """Its digest."""


class ScoredStatement(Config):
    """An in-toto statement with a site's figures; a DSSE envelope carries it."""

    type_name: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    """The kind of statement."""
    subject: tuple[_Subject] = Field(min_length=1, max_length=1)
    """What it is about."""
    predicate_type: Literal["https://fdaudit.dev/scored/v2"] = Field(alias="predicateType")
    """Version of this format."""
    predicate: Scored
    """What was scored."""

    def to_bytes(self) -> bytes:
        """Return its canonical form, which is signed."""
        return canonical(self.model_dump(mode="json", by_alias=True))

    @property
    def guesses(self) -> str:
        """Return the SHA-256 of the file of guesses."""
        return self.subject[0].digest.sha256


def schema() -> dict[str, Any]:
    """Return the JSON schema of a statement."""
    return ScoredStatement.model_json_schema(by_alias=True)


def scored(
    given: GuessFile, digest: str, by_party: Mapping[str, Sequence[Figure]], **fields: Any
) -> ScoredStatement:
    """Return the statement of a site.

    Args:
        given: the guesses.
        digest: SHA-256 of their file.
        by_party: the coarse figures of each party.
        **fields: head, card, counts and versions.
    """
    targets = []
    for party, figures in by_party.items():
        targets.append({"target": party, "figures": [_written(figure) for figure in figures]})
    predicate = {
        "name": given.name,
        "adversary": given.adversary,
        "goal": given.goal,
        "source": given.source,
        "assumes": list(given.assumes),
        "view": given.view,
        "figures": [_written(figure) for figure in together(by_party)],
        "targets": targets,
        **fields,
    }
    value = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": _SUBJECT, "digest": {"sha256": digest}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return validate(ScoredStatement, value, "statement")


def read_statement(payload: bytes, name: str) -> ScoredStatement:
    """Return a statement after all checks that need neither the guesses nor the run.

    Args:
        payload: its bytes, in canonical form.
        name: name of the file, for messages.

    Raises:
        IntegrityError: it is malformed, or its figures cannot be a site's.
    """
    try:
        value = parse_json(payload)
        if canonical(value) != payload:
            raise ValueError("it is not in canonical form")
        return validate(ScoredStatement, value, "statement")
    except (SpecError, ValueError) as error:
        raise IntegrityError([f"{name} is malformed: {error}"]) from None


def refuse_other_guesses(statement: ScoredStatement, given: GuessFile, digest: str, path: str) -> None:
    """Refuse a statement that says anything else than the guesses, or is about a party that they do not name.

    Args:
        statement: the statement.
        given: the guesses.
        digest: SHA-256 of their file.
        path: that file, for messages.

    Raises:
        UsageError: the guesses are not those that the site scored.
        IntegrityError: the statement contradicts them.
    """
    if statement.guesses != digest:
        raise UsageError("GUESSES", path, "are not those that the site scored", "Give the same file.")
    predicate = statement.predicate
    for field in ("name", "adversary", "goal", "source", "assumes", "view"):
        if getattr(predicate, field) != getattr(given, field):
            raise IntegrityError([f"the statement's {field} differs from that of the guesses"])
    if given.head not in (None, predicate.head):
        raise IntegrityError(["the statement's head differs from that of the guesses"])
    guessed = [entry.target for entry in given.entries]
    about = [target.target for target in predicate.targets]
    if about != [target for target in guessed if target in about]:
        raise IntegrityError(["the statement's targets are not some of the guesses', in their order"])


# -- figures ------------------------------------------------------------------------------------------------------


def _refuse_value(what: str, goal: str, figure: ScoredFigure) -> None:
    """Refuse a figure that a site could not have rounded so."""
    definition = DEFINED[figure.name]
    for value in (figure.value, figure.low):
        if value is None:
            continue
        on_step = value == multiple(figure.name, round(value / definition.step))
        if value > definition.most or not on_step:
            steps = f"multiple of {definition.step} up to {definition.most}"
            raise ValueError(f"has {value} for {what}, no {steps}. Correct it.")
    if figure.name == "label_tv" and not figure.value:
        raise ValueError(f"has 0 for {what}, which a site rounds up. Correct it.")
    if definition.bounded != (figure.low is not None) or (figure.low or 0.0) > figure.value:
        raise ValueError(f"has no interval around {what}, or one above its value. Correct it.")
    if figure.n != 1 and goal == "label-distribution":
        raise ValueError(f"counts {figure.n} parties for {what}. Give 1.")
    if figure.n < LEAST_RECORDS and goal == "reconstruction":
        raise ValueError(f"counts fewer than {LEAST_RECORDS} records for {what}. Give figures of more.")


def _written(figure: Figure) -> dict[str, Any]:
    """Return a figure as a statement holds it."""
    return {"name": figure.name, "value": figure.value, "low": figure.low, "n": figure.n}
