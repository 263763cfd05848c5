"""What was measured may be larger than what anybody may ask for."""

from __future__ import annotations

import json

import pytest

from fdaudit.errors import UsageError
from fdaudit.result import Result, read

from ..helpers.report_cases import load

LARGE = 5_000_000_000_000


@pytest.mark.parametrize("part", ["exposure", "wire"])
def test_more_than_a_gigabyte_on_the_wire_is_read(part: str) -> None:
    raw = load()
    raw[part][0]["bytes"] = LARGE
    row = getattr(read(raw), part)[0]
    assert row.bytes == LARGE


def test_a_number_that_no_machine_counts_is_refused() -> None:
    raw = load()
    raw["exposure"][0]["bytes"] = 2**63
    with pytest.raises(UsageError, match="is more than"):
        read(raw)
    assert Result.model_validate_json(json.dumps(load()))
