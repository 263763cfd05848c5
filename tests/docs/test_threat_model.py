"""The threat model's table of promises: each names tests that there are."""

from __future__ import annotations

import re

from ..helpers.docs_pages import ROOT, table


def test_every_promise_names_a_test_that_there_is() -> None:
    rows = table("docs/threat-model.md", "### What is promised")
    named = {name for row in rows.values() for name in re.findall(r"`(tests/[\w/]+\.py)`", row[-1])}
    assert len(rows) > 10
    assert [promise for promise, row in rows.items() if "`tests/" not in row[-1]] == []
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
