"""A check of refusals, for tables of wrong inputs: what is named, not how the sentence is worded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from fdaudit.errors import SpecError


def refused(
    act: Callable[[], object], field: str, value: object = ..., remedy: Iterable[str] = ()
) -> SpecError:
    """Check that an act is refused in one line with a SpecError, and return it.

    Args:
        act: what is refused.
        field: the field that the error names.
        value: the value that it names; any, if it is not given.
        remedy: words of its remedy.
    """
    with pytest.raises(SpecError) as caught:
        act()
    error = caught.value
    assert error.field == field
    assert value is ... or error.value == value
    assert error.remedy
    assert [word for word in remedy if word not in error.remedy] == []
    assert "\n" not in str(error)
    return error
