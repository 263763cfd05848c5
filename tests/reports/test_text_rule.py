"""The rule for recovered words: a leak by test or by F1 alone, and never a clean result without a test."""

from __future__ import annotations

import pytest
from fdaudit.reports.goals import RULES
from fdaudit.reports.goals.rule import RuleInput

from fdaudit.types import Figure

RULE = RULES["text-reconstruction"]


def evidence(f1, prior, gain, p):
    figures = [
        Figure(name="token_f1", value=f1, unit="fraction"),
        Figure(name="token_f1_prior", value=prior, unit="fraction"),
        Figure(name="token_gain", value=gain, unit="fraction", p=p),
    ]
    return RuleInput(who="client/0", figures=figures)


@pytest.mark.parametrize(
    ("f1", "prior", "gain", "p", "signal", "strong", "telling"),
    [
        (1.0, 0.3, 0.7, 0.001, True, True, True),
        (1.0, 0.3, 0.7, None, True, True, False),  # too few other texts for a test: F1 alone shows it
        (1.0, 0.3, 0.7, 1.0, True, True, True),  # not significant after correction, and still read
        (0.5, 0.3, 0.2, 0.001, True, False, True),
        (0.5, 0.3, 0.2, 0.2, False, False, True),
        (0.5, 0.3, 0.2, None, False, False, False),  # nothing bounds chance: inconclusive
        (0.2, 0.3, -0.1, 0.001, False, False, True),
        (0.96, 0.9, 0.06, 0.001, True, True, True),
        (0.96, 0.9, 0.06, 0.5, False, True, True),  # words that everybody uses
    ],
)
def test_what_counts_as_recovered(f1, prior, gain, p, signal, strong, telling):
    found = evidence(f1, prior, gain, p)
    assert bool(RULE.signal(found)) == signal
    assert RULE.strong(found) == strong
    assert RULE.telling(found) == telling


def test_without_figures_there_is_no_signal():
    assert RULE.signal(RuleInput(who="client/0", figures=[])) == ""
    assert not RULE.strong(RuleInput(who="client/0", figures=[]))
