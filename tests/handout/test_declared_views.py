"""What views may hold by declaration: which attacks count before anything is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fdaudit.handout.declared_views import declared_kinds, may_apply
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec

from ..helpers.run_cases import known


def case(protocol: str, **changes: Any) -> Case:
    spec = small_spec(protocol={"name": protocol, "params": {}}, attacks="all", **changes)
    return simulated_case(load_spec(spec), known(7))


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


def test_class_means_count_for_whoever_gets_them() -> None:
    found = counted(case("fkd"), "server")
    assert "prototype-regression" in found
    assert "update-projection" not in found


def test_an_eavesdropper_counts_only_what_it_can_read() -> None:
    assert "coin-regression" in counted(case("fedavg"), "eavesdropper")
    assert not counted(case("fedavg", transport="encrypted"), "eavesdropper")


def test_an_oracle_counts_for_whoever_may_ask() -> None:
    withheld = {"transport": "encrypted"}
    assert "gap" in counted(case("fedavg", **withheld), "eavesdropper+world")
    assert declared_kinds(case("fedavg", **withheld), ["eavesdropper"]) == frozenset()


def test_an_attack_that_states_no_need_always_counts() -> None:
    made = case("fedavg")
    attack = made.attacks[0]
    bare = replace(attack, card=replace(attack.card, needs=()))
    assert may_apply(made, bare, ["client/1"])
