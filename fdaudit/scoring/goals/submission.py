"""The form in which an external red team hands in a guess of one goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals import Guess

__all__ = ["FileName", "Reader", "Submission", "Text"]

Reader = Callable[[str, str, str], Mapping[str, Tensor]]
"""Maps a file's name, the field that names it and a remedy to the file's tensors."""

Text = Annotated[str, Field(max_length=400)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.safetensors$")]


class Submission(Config):
    """A guess as an external red team writes it: JSON values, and at most one file of tensors beside them."""

    explained: ClassVar[str] = "One for each victim, or for some."
    """How many of them a file of guesses holds."""
    file: ClassVar[str] = ""
    """The field that names a file of tensors, if there is one."""

    target: Text
    """The victim."""

    def guess(self, read: Reader, field: str, shape: tuple[int, ...]) -> Guess:
        """Return the guess as an attack would return it.

        Args:
            read: reads a file of tensors.
            field: the place of this entry, for errors.
            shape: (c, h, w) of an image.

        Raises:
            UsageError: the file is missing, damaged or a link, or holds other content.
        """
        raise NotImplementedError

    @classmethod
    def entry(cls, guess: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return a guess as a file of guesses holds it, and the tensors that belong into a file beside it.

        Only goals that sites score need this.
        """
        raise NotImplementedError
