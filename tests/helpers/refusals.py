"""A check of refusals, for tables of wrong inputs: what is named, not how the sentence is worded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from fdaudit.errors import SpecError, UsageError
from fdaudit.recording.recorder import RecordError


def refused(
    act: Callable[[], object],
    field: str,
    value: object = ...,
    remedy: Iterable[str] = (),
    *,
    said: str = "",
    kind: type[UsageError] | type[RecordError] = SpecError,
) -> UsageError | RecordError:
    """Check that an act is refused in one line that names the field, and return the error.

    Args:
        act: what is refused.
        field: the field that the error names.
        value: the value that it names; any, if it is not given.
        remedy: words of its remedy.
        said: words of its line.
        kind: the type of the error.
    """
    with pytest.raises(kind) as caught:
        act()
    error = caught.value
    assert isinstance(error, kind)
    assert error.field == field
    assert value is ... or error.value == value
    assert error.remedy
    assert [word for word in remedy if word not in error.remedy] == []
    assert said in str(error)
    assert "\n" not in str(error)
    return error
