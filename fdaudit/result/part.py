"""The base of every part of a result."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict

from fdaudit.config import Config

__all__ = ["Part", "is_empty"]


class Part(Config):
    """A part of a result: frozen, and checked when it is made.

    Unknown members of a file are ignored, so that the result of a newer version can be read.
    """

    model_config = ConfigDict(extra="ignore")
    _most: ClassVar[int] = 2**63 - 1  # what was measured, such as bytes, has no limit of our own
    _one_line: ClassVar[bool] = (
        False  # an attack's own reason may have several lines; pages and terminals escape them
    )

    def plain(self) -> dict[str, Any]:
        """Return the part as a JSON object. `fdaudit.config.validate` makes an equal part from it."""
        return self.model_dump(mode="json", by_alias=True)


def is_empty(value: object) -> bool:
    """Return whether a member is None, or a text or a tuple without items.

    A field with `exclude_if=is_empty` is left out of the file if it is empty.
    """
    return value is None or value in ((), "")
