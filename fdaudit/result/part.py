"""The base of every part of a result, and the audience of its fields.

Guarantees:
  * a field is public only if its class or the field itself says so: a new part is shown to auditors alone;
  * `public_part` leaves no other field in place, at any depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fdaudit.config import Config

__all__ = ["AUDITOR", "PUBLIC", "Audience", "Part", "Shown", "is_empty", "public_part", "shown"]

Audience = Literal["auditor", "public"]


@dataclass(frozen=True)
class Shown:
    """A mark on the type of one field, whose audience is another than that of its class.

    Attributes:
        to: who may see it.
        instead: the value that others see; by default the field's own default.
    """

    to: Audience
    instead: Any = PydanticUndefined


AUDITOR, PUBLIC = Shown("auditor"), Shown("public")


class Part(Config):
    """A part of a result: frozen, and checked when it is made.

    Unknown members of a file are ignored, so that the result of a newer version can be read.
    """

    model_config = ConfigDict(extra="ignore")
    _most: ClassVar[int] = 2**63 - 1  # what was measured, such as bytes, has no limit of our own
    _one_line: ClassVar[bool] = (
        False  # an attack's own reason may have several lines; pages and terminals escape them
    )
    _audience: ClassVar[Audience] = "auditor"

    def plain(self) -> dict[str, Any]:
        """Return the part as a JSON object. `fdaudit.config.validate` makes an equal part from it."""
        return self.model_dump(mode="json", by_alias=True)


P = TypeVar("P", bound=Part)


def shown(part: type[Part], field: FieldInfo) -> Shown:
    """Return who may see a field of a class: what the mark on its type says, or else its class."""
    for mark in field.metadata:
        if isinstance(mark, Shown):
            return mark
    return Shown(part._audience)


def public_part(part: P) -> P:
    """Return a part without what only auditors may see, and likewise every part in it."""
    values: dict[str, Any] = {}
    for name, field in type(part).model_fields.items():
        mark = shown(type(part), field)
        if mark.to == "public":
            values[name] = _public_value(getattr(part, name))
        elif mark.instead is not PydanticUndefined:
            values[name] = mark.instead
        else:
            values[name] = field.get_default(call_default_factory=True)
    return part.model_copy(update=values)


def _public_value(value: object) -> object:
    if isinstance(value, Part):
        return public_part(value)
    if isinstance(value, tuple):
        return tuple(map(_public_value, value))
    return value


def is_empty(value: object) -> bool:
    """Return whether a member is None, or a text, a tuple or a mapping without items.

    A field with `exclude_if=is_empty` is left out of the file if it is empty.
    """
    return value is None or value in ((), "", {})
