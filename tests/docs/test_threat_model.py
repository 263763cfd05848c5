"""The threat model's tables: promises name tests that there are, and departing parties those that deviations name."""

from __future__ import annotations

import re

import pytest
from fdaudit.deviations import REGISTRY as DEVIATIONS

from ..helpers.docs_pages import ROOT, table


def test_every_promise_names_a_test_that_there_is() -> None:
    rows = table("docs/threat-model.md", "### What is promised")
    named = {name for row in rows.values() for name in re.findall(r"`(tests/[\w/]+\.py)`", row[-1])}
    assert len(rows) > 10
    assert [promise for promise, row in rows.items() if "`tests/" not in row[-1]] == []
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("role", ["server", "client", "aggregator"])
def test_the_table_says_who_has_a_shipped_deviation(role: str) -> None:
    rows = table("docs/threat-model.md", "## Parties that depart")
    shipped = {who.partition(",")[0]: row[1] for who, row in rows.items()}
    able = any(role in DEVIATIONS.describe(name).roles for name in DEVIATIONS.names())
    assert shipped[role] == ("yes" if able else "no")
