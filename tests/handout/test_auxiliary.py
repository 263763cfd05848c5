"""What adversaries are assumed to hold: variants, halves of the classes, and guesses that are put together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit import attacks
from fdaudit.adversary.oracle import Oracle
from fdaudit.errors import SpecError
from fdaudit.goals.membership import Membership
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.handout.auxiliary import assumptions, by_classes, known, merged, others, shared, shifted
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec
from fdaudit.types import AttackTask

from ..helpers.run_cases import known as secrets

CLASSWISE = ("gmi", "ideal-hard", "ideal-soft", "inversion-network", "paired-logits")


def case_of(variant: str = "class-disjoint", **changes):
    asked = {"dataset__limit": 300, "splits__auxiliary": 0.2, "auxiliary__inversion": variant, **changes}
    return simulated_case(load_spec(small_spec(**asked)), secrets(7))


def card(name: str):
    return attacks.REGISTRY.describe(name)


def test_these_attacks_show_classes() -> None:
    found = {name for name in attacks.REGISTRY.names() if by_classes(card(name))}
    assert found >= set(CLASSWISE)
    assert {card(name).goal for name in found} == {"reconstruction"}


def test_every_class_is_lacked_once_and_never_held_by_who_lacks_it() -> None:
    case = case_of()
    assumed = assumptions(case, card("gmi"))
    assert sorted(c for one in assumed for c in one.lacks) == list(range(10))
    for one in assumed:
        assert not set(one.records[1].tolist()) & set(one.lacks)
    assert sum(len(one.records[1]) for one in assumed) == len(case.auxiliary[1])


def test_halves_do_not_depend_on_who_holds_which_class() -> None:
    halves = [[one.lacks for one in assumptions(case_of(clients=n), card("gmi"))] for n in (2, 3)]
    assert halves[0] == halves[1]


@pytest.mark.parametrize("name", ["gmi", "ideal-hard", "lira-online"])
def test_no_withheld_record_is_in_what_an_attack_is_given(name: str) -> None:
    case = case_of()
    for one in assumptions(case, card(name)):
        given = known(case, one, card(name), None)
        assert given.auxiliary is one.records
        assert given.encode.auxiliary is one.records
        assert given.rehearse is None


def test_variants() -> None:
    (same,) = assumptions(case_of("same"), card("gmi"))
    assert same.lacks == ()
    (none,) = assumptions(case_of("none"), card("gmi"))
    assert none.records is None
    assert none.lacks == tuple(range(10))
    case = case_of("shifted")
    (moved,) = assumptions(case, card("gmi"))
    assert torch.equal(moved.records[1], case.auxiliary[1])
    assert not torch.allclose(moved.records[0], case.auxiliary[0], atol=0.05)
    # Other attacks have a field of their own.
    assert others(case).records is case.auxiliary
    assert others(case_of(auxiliary__others="none")).records is None
    assert assumptions(case_of(auxiliary__others="none"), card("lira-online"))[0].records is None


def test_nothing_is_withheld_from_an_attack_that_reads_public_samples() -> None:
    (held,) = assumptions(case_of(splits__proxy=0.2), card("paired-logits"))
    assert held.lacks == ()
    assert len(held.public) == 60
    assert held.prior == (held.public, None)
    assert known(case_of(splits__proxy=0.2), held, card("gmi")).public is None


def test_only_known_variants_are_accepted() -> None:
    with pytest.raises(SpecError, match=r"auxiliary\.others"):
        case_of(auxiliary__others="class-disjoint")


@given(n=st.integers(1, 4), side=st.integers(4, 12), seed=st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_shifted_images_are_images(n: int, side: int, seed: int) -> None:
    x = torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(seed))
    made = shifted(x)
    assert made.shape == x.shape
    assert 0 <= made.min() <= made.max() <= 1
    assert torch.allclose(shifted(torch.full_like(x, 0.5)), torch.full_like(x, 0.5), atol=1e-6)


def guess(target: str, *labels: int) -> Reconstruction:
    y = torch.tensor(labels)
    return Reconstruction(
        target=target, messages=(), images=y[:, None, None, None].float() / 10, labels=y, objective=1.0
    )


def test_of_each_adversary_the_classes_count_that_it_lacks() -> None:
    halves = [SimpleNamespace(lacks=(0, 1)), SimpleNamespace(lacks=(2, 3))]
    found = merged([(guess("a", 0, 1, 2, 3), guess("b", 2)), (guess("a", 3, 0), guess("b", 0, 1))], halves)
    assert [(g.target, g.labels.tolist()) for g in found] == [("a", [0, 1, 3])]
    assert found[0].images.flatten().tolist() == pytest.approx([0.0, 0.1, 0.3])


def test_a_guess_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="about classes"):
        merged([(Membership(target="a", scores=torch.zeros(2)),)], [SimpleNamespace(lacks=(0,))])


def test_adversaries_share_the_budget_and_are_asked_for_what_they_lack() -> None:
    task = AttackTask(targets=("client/0",), oracle=Oracle("soft", 101, ("client/0",)))
    held, lacking = SimpleNamespace(lacks=()), SimpleNamespace(lacks=(2, 5))
    assert shared(task, held, 1).oracle is task.oracle
    half = shared(task, lacking, 2)
    assert half.classes == (2, 5)
    assert (half.oracle.answers, half.oracle.budget, half.oracle.models) == ("soft", 50, ("client/0",))
    assert shared(AttackTask(targets=()), held, 2).oracle is None
