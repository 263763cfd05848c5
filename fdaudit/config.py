"""The base of every configuration: frozen, keyword-only, without extra keys, and with errors that state a remedy."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import textwrap
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema, ErrorDetails

from fdaudit.errors import Mistakes, SpecError, nearest
from fdaudit.limits import MOST_COUNT
from fdaudit.names import text_problem

__all__ = ["Config", "validate"]


class Config(BaseModel):
    """Base of all configurations: frozen; refuses unknown keys, NaN and silent type changes.

    Field docstrings are descriptions in the JSON schema and in a draft. They are read from the source when one is made:
    pydantic's `use_attribute_docstrings` would read them whenever a class is made, which takes longer than all the
    rest of it. A whole number in a field without an upper bound is at most `_most`.
    Every text is one line that prints, unless `_one_line` is false.
    """

    _most: ClassVar[int] = MOST_COUNT
    _one_line: ClassVar[bool] = True

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        strict=True,
        validate_default=True,
        protected_namespaces=(),
    )

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the docstring of each field that has one; empty for a class without source."""
        docs: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if issubclass(base, Config) and base is not Config:
                for name, text in _docs_in(base):
                    docs.pop(name, None)  # declared again without a docstring, a field has none
                    docs |= {name: text} if text else {}
        for name in docs.keys() - cls.model_fields.keys():
            del docs[name]
        return docs

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in cls.field_docs().items():
            alias = cls.model_fields[name].alias
            key = alias if alias in properties else name
            if key in properties:
                properties[key].setdefault("description", text)
        return schema

    @field_validator("*", mode="after")
    @classmethod
    def _bounded(cls, value: object, info: ValidationInfo) -> object:
        if type(value) is int and abs(value) > cls._most:
            stated = cls.model_fields[str(info.field_name)].metadata
            if not any(hasattr(bound, "le") or hasattr(bound, "lt") for bound in stated):
                raise ValueError(f"is more than {cls._most:,}. Give a smaller number.")
        return value


@cache
def _docs_in(config: type) -> list[tuple[str, str]]:
    """Return each field that a class itself declares, with its docstring or an empty text."""
    try:
        source = textwrap.dedent(inspect.getsource(config))
    except (OSError, TypeError):
        return []
    docs = []
    (declared,) = ast.parse(source).body
    body = declared.body if isinstance(declared, ast.ClassDef) else []
    for line, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            doc = following.value if isinstance(following, ast.Expr) else None
            text = doc.value if isinstance(doc, ast.Constant) and isinstance(doc.value, str) else ""
            docs.append((line.target.id, inspect.cleandoc(text)))
    return docs


# How pydantic names a member of a union inside an error's location: `literal['all']`, `tuple[…]`, `Model`.
_UNION_MEMBER = re.compile(r".*\[|function-|[A-Z]")
_MOST_BITS, _MOST_ERRORS = 1024, 1000
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_PLAIN = frozenset((bool, float, type(None)))
"""Types of which every value is plain data."""
_ONE_LINE = "Write one line, in characters that print."
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d{1,3}")

C = TypeVar("C", bound=Config)


def validate(config: type[C], values: Mapping[str, Any], where: str = "") -> C:
    """Build `config` from `values`; the first mistake becomes a `SpecError`, and each other one is in its `others`.

    Args:
        config: the class to build.
        values: the user's values.
        where: dotted prefix of the user's field names, for example `"protocol.params"`.

    Raises:
        SpecError: an unknown key, a wrong type, a value out of range or an impossible combination.
    """
    if not isinstance(values, Mapping):
        raise SpecError(where or "spec", values, "is not a mapping", "Write `key: value` lines.")
    try:
        _refuse_foreign(values, (where,) if where else (), config._one_line)
        text = json.dumps(values, allow_nan=True)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"is not plain data ({error})"
        raise SpecError(where or "spec", values, problem, "Use text, numbers, lists.") from None
    try:
        # Python-mode strictness would refuse a YAML list for a tuple; JSON mode accepts just that.
        return config.model_validate_json(text, strict=True)
    except ValidationError as error:
        mistakes = Mistakes()
        for mistake in _by_field(error.errors()):
            with mistakes.apart():
                raise _spec_error(config, mistake, where) from None
        mistakes.refuse()
        raise


def _refuse_foreign(value: object, path: tuple[object, ...], one_line: bool) -> None:
    """Refuse a value that JSON cannot express (YAML reads `2020-01-01` as a date) and odd text, and name its field."""
    problem = remedy = ""
    # A result has a hundred thousand values. The exact types come first: to ask for `Mapping` takes longest.
    if type(value) is dict or isinstance(value, Mapping):
        for key, below in value.items():
            if isinstance(key, str) and (odd := _odd(key, one_line)):
                raise SpecError(".".join(map(str, path)) or "spec", key, odd, _ONE_LINE)
            if not _is_plain(below):
                _refuse_foreign(below, (*path, key), one_line)
    elif isinstance(value, (list, tuple)):
        for number, below in enumerate(value):
            if not _is_plain(below):
                _refuse_foreign(below, (*path, number), one_line)
    elif isinstance(value, str):
        problem, remedy = _odd(value, one_line), _ONE_LINE
    elif isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            problem, remedy = f"is a whole number of {value.bit_length():,} bits", "Give a smaller number."
    elif not (value is None or isinstance(value, float)):
        problem = f"is a {type(value).__name__}, not plain data"
        remedy = "Write text in quotes, a number, a list or a mapping."
    if problem:
        raise SpecError(".".join(map(str, path)) or "spec", value, problem, remedy)


def _is_plain(value: Any) -> bool:
    """Return whether a value is seen at once to be plain data: no container, short if a number, ASCII if a text."""
    kind = type(value)
    return kind in _PLAIN or (kind is str and str.isascii(value) and str.isprintable(value))


def _odd(text: str, one_line: bool) -> str:
    """Return why a text is refused: it does not print, or, where several lines may be, holds half a character."""
    if one_line:
        return text_problem(text)
    return "" if text.isascii() or not _HALF_CHARACTER.search(text) else text_problem(text)


def _by_field(errors: list[ErrorDetails]) -> list[list[ErrorDetails]]:
    """Return the errors of each field; those of a union's members belong to one field.

    A field that is missing because its name was mistyped is one mistake: the unknown key.
    """
    fields: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    unknown: dict[tuple[int | str, ...], list[str]] = {}
    for error in errors[:_MOST_ERRORS]:
        if error["type"] == "extra_forbidden":
            unknown.setdefault(error["loc"][:-1], []).append(str(error["loc"][-1]))
    for error in errors[:_MOST_ERRORS]:
        beside = unknown.get(error["loc"][:-1], [])
        if error["type"] == "missing" and get_close_matches(str(error["loc"][-1]), beside, n=1, cutoff=0.5):
            continue
        *above, last = error["loc"] or ("",)
        place = tuple(takewhile(lambda part: not _UNION_MEMBER.match(str(part)), above))
        if len(place) == len(above) and (
            error["type"] == "extra_forbidden" or not _UNION_MEMBER.match(str(last))
        ):
            place = (*place, last)
        if isinstance(place[-1] if place else "", int):  # wrong items of a list are one mistake
            place = place[:-1]
        fields.setdefault(place, []).append(error)
    return list(fields.values())


def _spec_error(config: type[Config], errors: list[ErrorDetails], where: str) -> SpecError:
    first = _telling(errors)
    # An unknown key, which ends its path, is the user's own word.
    own = len(first["loc"]) - 1 if first["type"] == "extra_forbidden" else None
    parts = []
    for n, place in enumerate(first["loc"]):
        if n != own and _UNION_MEMBER.match(str(place)):
            continue
        parts.append(str(place))
    field = ".".join(([where] if where else []) + parts) or where or "spec"
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        fields = _fields_at(config, first["loc"][:-1])
        return SpecError(
            field, value, "is an unknown key", nearest(parts[-1], fields) if fields else "Remove it."
        )
    if kind == "missing":
        return SpecError(field, None, "is missing", "Add it.")
    if kind in ("literal_error", "enum"):
        allowed = []
        for choice in first["ctx"]["expected"].replace(" or ", ", ").split(","):
            bare = choice.strip().strip("'")
            allowed.append(bare)
        return SpecError(field, value, "is not a valid choice", nearest(str(value), allowed))
    if kind == "value_error":
        cause = first["ctx"]["error"]
        if isinstance(cause, SpecError):
            return cause
        problem, _, remedy = str(cause).partition(". ")
        return SpecError(field, value, problem, remedy or "Change one of them.")
    exponent = isinstance(value, str) and _EXPONENT.fullmatch(value) and math.isfinite(float(value))
    if exponent and kind in ("float_type", "int_type"):
        remedy = f"Write {float(value)!r}: YAML reads an exponent as a number only after a decimal point."
        return SpecError(field, value, "is text, not a number", remedy)
    if kind == "model_type" and isinstance(value, str) and "name" in _fields_at(config, first["loc"]):
        return SpecError(
            field, value, "is text, not a mapping", f"Write `name: {value}`, and its settings beside it."
        )
    message = first["msg"][0].lower() + first["msg"][1:]
    return SpecError(field, value, f"is refused: {message}", _remedy(kind, first.get("ctx", {})))


def _telling(errors: list[ErrorDetails]) -> ErrorDetails:
    """Return the error to show: if a field allows a word or a structure, the error about the form the user wrote."""
    for error in errors:
        if error["type"] != "literal_error" or isinstance(error["input"], str):
            return error
    return errors[0]


def _remedy(kind: str, context: Mapping[str, Any]) -> str:
    bounds = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
    for key, words in bounds.items():
        if key in context:
            return f"Give a value {words} {context[key]}."
    if kind == "string_pattern_mismatch":
        return f"Write it as {context['pattern'].strip('^$()')}."
    if kind in ("model_type", "dict_type"):
        return "Write a mapping of its settings below it."
    if "type" in kind or kind.endswith("_parsing"):
        return f"Give a {kind.split('_')[0].replace('int', 'whole number').replace('float', 'number')}."
    return "Change it."


def _fields_at(config: type[Config], loc: tuple[int | str, ...]) -> list[str]:
    """Return the field names of the model that `loc` leads to, below `config`."""
    current: type[BaseModel] | None = config
    for part in loc:
        if isinstance(part, int) or not (isinstance(current, type) and issubclass(current, BaseModel)):
            continue
        field = current.model_fields.get(part)
        if field is None:
            continue
        current = _model_in(field.annotation)
    if isinstance(current, type) and issubclass(current, BaseModel):
        return list(current.model_fields)
    return []


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the first pydantic model inside an annotation such as `tuple[Model, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        model = _model_in(argument)
        if model is not None:
            return model
    return None
