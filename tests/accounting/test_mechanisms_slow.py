"""Acceptance: no claim of a mechanism is refuted by a million draws, and every broken mechanism's is.

Run with `-m slow -s` to see the bounds.
"""

from __future__ import annotations

import pytest

from .mechanism_cases import FAMILY, broken, cases

pytestmark = pytest.mark.slow

DRAWS = 10**6


@pytest.mark.parametrize("name", cases())
def test_no_claim_is_refuted_and_the_bound_is_near_what_is_known(name: str) -> None:
    case = cases()[name]()
    found = case.check(DRAWS, FAMILY / len(cases()))
    print(
        f"{name}: claims {case.epsilon:.3f}, is {case.tight:.3f} by exact arithmetic, shown {found.bound:.3f}"
    )
    assert 0.5 <= case.epsilon <= 4
    assert case.tight <= case.epsilon + 1e-9
    assert not found.refuted
    assert case.tight / 2 <= found.bound <= case.tight


@pytest.mark.parametrize("name", broken())
def test_what_is_broken_on_purpose_is_caught(name: str) -> None:
    case = broken()[name]()
    found = case.check(DRAWS, FAMILY / len(cases()))
    print(f"{name}: claims {case.epsilon:.3f}, shown {found.bound:.3f}")
    assert found.refuted
