"""What adversaries are assumed to hold: variants, halves of the classes, and guesses that are put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit import api, attacks
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle
from fdaudit.adversary.view import View
from fdaudit.audit.run import Run
from fdaudit.errors import SpecError
from fdaudit.evaluation.controls.rehearsed import Rehearsed
from fdaudit.goals.membership import Membership
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.handout.auxiliary import assumptions, by_classes, known, merged, others, shared, shifted
from fdaudit.handout.declared_views import declared_kinds, may_apply
from fdaudit.handout.rehearsals import rehearsal_of
from fdaudit.isolation.frames import Tensors
from fdaudit.isolation.schema import Trial, packed, unpacked
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import DEVIATION
from fdaudit.types import AttackTask

from ..helpers.run_cases import known as secrets

CLASSWISE = ("gmi", "ideal-hard", "ideal-soft", "inversion-network", "paired-logits")


def case_of(variant: str = "class-disjoint", **changes):
    asked = {"dataset__limit": 300, "splits__auxiliary": 0.2, "auxiliary__inversion": variant, **changes}
    return simulated_case(load_spec(small_spec(**asked)), secrets(7))


def card(name: str):
    return attacks.REGISTRY.describe(name)


def test_these_attacks_show_classes_or_read_public_samples() -> None:
    found = {name for name in attacks.REGISTRY.names() if by_classes(card(name))}
    assert found >= set(CLASSWISE)
    assert {card(name).goal for name in found} == {"reconstruction"}
    (held,) = assumptions(case_of(splits__proxy=0.2), card("paired-logits"))
    assert held.lacks == ()
    assert len(held.public) == 60
    assert held.prior == (held.public, None)
    assert known(case_of(splits__proxy=0.2), held, card("gmi")).public is None


def test_every_class_is_lacked_once_whoever_holds_it() -> None:
    case = case_of()
    assumed = assumptions(case, card("gmi"))
    assert sorted(c for one in assumed for c in one.lacks) == list(range(10))
    for one in assumed:
        assert not set(one.records[1].tolist()) & set(one.lacks)
    assert sum(len(one.records[1]) for one in assumed) == len(case.auxiliary[1])
    halves = [[one.lacks for one in assumptions(case_of(clients=n), card("gmi"))] for n in (2, 3)]
    assert halves[0] == halves[1]
    halves = [SimpleNamespace(lacks=(0, 1)), SimpleNamespace(lacks=(2, 3))]
    found = merged([(guess("a", 0, 1, 2, 3), guess("b", 2)), (guess("a", 3, 0), guess("b", 0, 1))], halves)
    assert [(g.target, g.labels.tolist()) for g in found] == [("a", [0, 1, 3])]
    assert found[0].images.flatten().tolist() == pytest.approx([0.0, 0.1, 0.3])


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


def test_unknown_variants_and_guesses_of_another_kind_are_refused() -> None:
    with pytest.raises(SpecError, match=r"auxiliary\.others"):
        case_of(auxiliary__others="class-disjoint")
    with pytest.raises(ValueError, match="about classes"):
        merged([(Membership(target="a", scores=torch.zeros(2)),)], [SimpleNamespace(lacks=(0,))])


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


def test_adversaries_share_the_budget_and_are_asked_for_what_they_lack() -> None:
    task = AttackTask(targets=("client/0",), oracle=Oracle("soft", 101, ("client/0",)))
    held, lacking = SimpleNamespace(lacks=()), SimpleNamespace(lacks=(2, 5))
    assert shared(task, held, 1).oracle is task.oracle
    half = shared(task, lacking, 2)
    assert half.classes == (2, 5)
    assert (half.oracle.answers, half.oracle.budget, half.oracle.models) == ("soft", 50, ("client/0",))
    assert shared(AttackTask(targets=()), held, 2).oracle is None


# -- what views may hold by declaration ----------------------------------------------------------------------------


def case(protocol: str, **changes: Any) -> Case:
    spec = small_spec(protocol={"name": protocol, "params": {}}, attacks="all", **changes)
    return simulated_case(load_spec(spec), secrets(7))


def counted(made: Case, view: str) -> set[str]:
    members = view.split("+")
    return {a.name for a in made.attacks if a.card.goal == "membership" and may_apply(made, a, members)}


@pytest.mark.parametrize(
    ("view", "counts", "absent"),
    [
        ("server", {"loss-threshold", "coin-regression"}, {"prototype-regression", "generator-leakage"}),
        ("world", {"loss-threshold"}, {"prototype-regression", "accept-set"}),
        ("server+client/0", {"coin-regression"}, {"distillation-lira"}),
    ],
)
def test_attacks_on_messages_that_are_never_sent_do_not_count(
    view: str, counts: set[str], absent: set[str]
) -> None:
    found = counted(case("fedavg"), view)
    assert counts <= found
    assert not absent & found


def test_what_counts_is_what_an_adversary_gets_reads_or_may_ask() -> None:
    found = counted(case("fkd"), "server")
    assert "prototype-regression" in found
    assert "update-projection" not in found
    assert "coin-regression" in counted(case("fedavg"), "eavesdropper")
    assert not counted(case("fedavg", transport="encrypted"), "eavesdropper")
    withheld = {"transport": "encrypted"}
    assert "gap" in counted(case("fedavg", **withheld), "eavesdropper+world")
    assert declared_kinds(case("fedavg", **withheld), ["eavesdropper"]) == frozenset()
    made = case("fedavg")
    attack = made.attacks[0]
    bare = replace(attack, card=replace(attack.card, needs=()))
    assert may_apply(made, bare, ["client/1"])


# -- rehearsals of a run in which parties deviate ------------------------------------------------------------------


SPEC = small_spec(
    protocol={"name": "fedmd", "params": {"rounds": 2, "batch_size": 4, "warm_up_steps": 1}},
    splits={"test": 0.2, "proxy": 0.3, "auxiliary": 0.2, "candidates": 4},
    deviations=[{"party": "server", "name": "crafted-consensus"}],
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return api.run(SPEC, tmp_path_factory.mktemp("rehearsals") / "run")


def rehearsed(run: Run, adversary: str, folder: Path, *, defended: bool = True) -> View:
    case = run.case
    data = [case.records(k) for k in case.clients]
    rehearsal = rehearsal_of(case, adversary, defended=defended, own=folder)
    return rehearsal(data, 5)


def marked(view: View) -> list[tuple[str, object, list[int]]]:
    """Kind and mark of each message of the server about public samples, and which samples."""
    about = [m for m in view.messages if m.sender == "server" and m.kind in ("proxy_indices", "logits")]
    return [(m.kind, m.fields.get(DEVIATION), view.tensors(m)["index"].tolist()) for m in about]


def test_an_adversary_rehearses_what_its_own_party_sent_by_the_same_draws(run: Run, tmp_path: Path) -> None:
    sent = marked(run.view("server"))
    assert any(mark for _, mark, _ in sent)
    assert marked(rehearsed(run, "server", tmp_path)) == sent


@pytest.mark.parametrize(("adversary", "defended"), [("client/0", True), ("server", False)])
def test_others_and_controls_rehearse_the_honest_protocol(
    run: Run, tmp_path: Path, adversary: str, defended: bool
) -> None:
    view = rehearsed(run, adversary, tmp_path, defended=defended)
    assert view.messages
    assert not any(m.fields.get(DEVIATION) for m in view.messages)


def test_coalitions_and_the_power_control_rehearse_the_runs_deviations(run: Run, tmp_path: Path) -> None:
    view = rehearsed(run, "server+client/0", tmp_path)
    assert any(m.fields.get(DEVIATION) for m in view.messages)
    view = Rehearsed(run.opened).view("server")
    assert any(m.fields.get(DEVIATION) for m in view.messages)


def test_a_deviating_rehearsal_can_be_sent_to_an_attack(run: Run, tmp_path: Path) -> None:
    case = run.case
    rehearsal = rehearsal_of(case, "server", own=tmp_path)
    trial = Trial(knowledge=Knowledge(rehearse=rehearsal), task=AttackTask(targets=("client/0",)), seed=1)
    tensors = Tensors()
    received = unpacked(packed(trial, tensors), tensors.named).knowledge.rehearse
    assert received is not None
    data = [case.records(k) for k in case.clients]
    assert marked(received(data, 5)) == marked(rehearsal(data, 5))
    assert case.seed not in rehearsal.setting.values()
