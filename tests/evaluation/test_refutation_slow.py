"""The end-to-end refutation suite: no attack shows more than the ledger claims, for any protocol, defence or adversary.

Run with `-m slow -s` to see the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from .refutation_broken import BROKEN, Broken
from .refutation_cases import CASES, Case
from .refutation_cases import case as case_of
from .refutation_rows import Row, rows_of, table

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")]


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """Every row of the suite, printed as one table at the end."""
    found: list[Row] = []
    yield found
    print("\n" + table(found))
    print(
        f"{sum(math.isfinite(r.claimed) for r in found)} finite claims, {sum(r.bounds for r in found)} bounds"
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_attack_contradicts_the_ledger(case: Case, rows: list[Row], tmp_path: Path) -> None:
    found = rows_of(case, tmp_path)
    rows += found
    claimed = {r.adversary: r.claimed for r in found}
    assert all(math.isfinite(claimed[view]) for view in case.finite), [r.cause for r in found]
    assert not [r for r in found if r.verdict == "CONTRADICTED"]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_run_or_ledger_is_contradicted(
    broken: Broken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.patch(monkeypatch)
    found = {r.adversary: r for r in rows_of(case_of(broken.case), tmp_path)}
    for view in broken.adversaries:
        row = found[view]
        print(f"\n{broken.name}: {view}, claimed {row.claimed:.3g}, at least {row.bound:.3g} by {row.attack}")
        assert row.verdict == "CONTRADICTED"
