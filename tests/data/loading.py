"""How tests of datasets load them, and what they try to make them do."""

from __future__ import annotations

import os

import pytest

from fdaudit.data import load_dataset
from fdaudit.errors import DataError
from fdaudit.spec.schema import DatasetSpec

from ..helpers.run_cases import stream


def load(**fields):
    return load_dataset(DatasetSpec(**fields), stream(0, "dataset"))


def refusal(**fields):
    """Return the error that a dataset is refused with; it names a field, a problem and a remedy."""
    with pytest.raises(DataError) as caught:
        load(**fields)
    error = caught.value
    assert error.field.startswith("dataset")
    assert error.problem
    assert error.remedy
    return error


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def written(folder, content, name="a.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
