"""Remedies: every kind of message, adversary and goal of the protocols has one that speaks of what was sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fdaudit.attacks
import pytest
from fdaudit.protocols import REGISTRY
from fdaudit.reports.goals import RULES
from fdaudit.reports.judgement.remedies import ENCRYPT, REMEDIES, carried, remedy, way, without_epsilon
from fdaudit.reports.judgement.verdict import Finding, judge

import fdaudit
from fdaudit.kinds import WAYS
from fdaudit.result import Exposure, Result, read

from ..helpers.report_cases import minimal
from ..planning.test_presets import PROTOCOLS, WITHOUT, spec

ATTACKS = fdaudit.attacks.REGISTRY


def exposed(kind: str, sender: str, receiver: str) -> dict[str, Any]:
    row = Exposure(
        party=receiver,
        kind=kind,
        direction="received",
        count=1,
        bytes=1,
        senders=(sender,),
        recorded="full",
    )
    return row.model_dump(mode="json")


def finding(goal: str, adversary: str, needs: tuple[str, ...] = (), attack: str = "a") -> Finding:
    raw = minimal()
    raw["cells"] = [
        {
            "id": f"{adversary}/a",
            "protocol": "p",
            "adversary": adversary,
            "attack": attack,
            "goal": goal,
            "status": "run",
            "needs": list(needs),
        }
    ]
    return judge(read(raw).cells[0])


KINDS = [kind for kinds in WAYS.values() for kind in kinds]


@pytest.mark.parametrize("goal", RULES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sender", "receiver"), [("client/1", "server"), ("server", "client/0"), ("server", "world")]
)
def test_a_remedy_speaks_only_of_what_was_received(goal: str, kind: str, sender: str, receiver: str) -> None:
    result = read(minimal() | {"exposure": [exposed(kind, sender, receiver)]})
    found = remedy(result, finding(goal, receiver, (kind,)))
    assert found.do
    assert found.why
    assert "{" not in found.do
    assert not {k for k in KINDS if f"`{k}`" in found.do} - {kind}


@pytest.mark.parametrize("goal", RULES)
def test_a_message_that_the_attack_does_not_start_from_is_not_named(goal: str) -> None:
    rows = [exposed("class_counts", "client/1", "server"), exposed("logits", "client/1", "server")]
    result = read(minimal() | {"exposure": rows})
    told = remedy(result, finding(goal, "server", ("logits",))).do.partition(" Withhold")[0]
    assert "class_counts" not in told
    assert carried(result, finding(goal, "server", ("logits",))).kinds == ("logits",)


def test_counts_and_kinds_of_a_systems_own_have_their_remedy() -> None:
    updates = read(minimal() | {"exposure": [exposed("model_update", "client/1", "server")]})
    assert "count" not in remedy(updates, finding("label-distribution", "server")).do
    assert "`model_update`" in remedy(updates, finding("label-distribution", "server")).do
    counts = read(minimal() | {"exposure": [exposed("class_counts", "client/1", "server")]})
    assert "`class_counts`" in remedy(counts, finding("label-distribution", "server")).do
    result = read(minimal() | {"exposure": [exposed("acme/bank", "client/1", "server")]})
    assert "`acme/bank`" in remedy(result, finding("reconstruction", "server")).do
    kinds = ("discriminator_scores", "sample_gradients", "logits")
    raw = minimal() | {"exposure": [exposed(kind, "client/1", "server") for kind in kinds]}
    made = finding("membership", "server", kinds[:2])
    assert "sanitized-gradients" in remedy(read(raw), made).do
    besides = replace(made, cell=made.cell.model_copy(update={"reads": ("logits",)}))
    assert remedy(read(raw), besides).do.startswith("Train with `dp-sgd`")


@pytest.mark.parametrize("goal", RULES)
@pytest.mark.parametrize("adversary", ["eavesdropper", "client/0+eavesdropper"])
def test_an_eavesdropper_is_ended_by_encryption(goal: str, adversary: str) -> None:
    assert remedy(read(minimal()), finding(goal, adversary)) == ENCRYPT


def test_nobody_who_must_receive_the_model_is_told_to_be_refused_it() -> None:
    rows = [exposed("model_parameters", "server", to) for to in ("client/0", "client/0+client/1", "world")]
    for row in rows:
        told = remedy(
            read(minimal() | {"exposure": [{**row, "party": row["party"].split("+")[0]}]}),
            finding("reconstruction", row["party"], ("model_parameters",)),
        ).do
        assert ("Limit who gets" in told) == (row["party"] == "world")


@pytest.mark.parametrize("name", ATTACKS.names())
def test_every_attack_has_a_remedy_for_each_of_its_messages(name: str) -> None:
    """The table knows every pair of a goal and a message that an attack starts from; none falls to the general one."""
    card = ATTACKS.describe(name)
    for need in card.needs:
        ways = {"oracle"} if need.startswith("oracle") else {way(need, "client/0"), way(need, "server")}
        known = {w for w in ways if (card.goal, w) in REMEDIES}
        assert known, (need, ways)


@pytest.mark.parametrize(
    ("goal", "attack"), [("membership", "accept-set"), ("label-distribution", "label-declined")]
)
def test_what_reads_only_which_samples_were_declined_is_not_stopped_by_other_answers(
    goal: str, attack: str
) -> None:
    result = read(minimal() | {"exposure": [exposed("soft_labels", "client/1", "server")]})
    found = remedy(result, finding(goal, "server", ("soft_labels",), attack))
    assert found == REMEDIES[goal, "declined"]
    assert remedy(result, finding(goal, "server", ("soft_labels",))) != found


@pytest.mark.parametrize("goal", ["membership", "label-distribution", "model-extraction"])
def test_noise_of_the_receiver_is_no_remedy_against_the_receiver(goal: str) -> None:
    result = read(minimal() | {"exposure": [exposed("logits", "client/1", "aggregator")]})
    told = remedy(result, finding(goal, "aggregator", ("logits",))).do
    assert "gnmax" not in told or "secure aggregation" in told


def test_class_counts_in_clear_are_named_beside_every_epsilon() -> None:
    rows = [
        exposed("class_counts", "client/1", "aggregator"),
        exposed("ensemble_labels", "aggregator", "server"),
    ]
    shown = remedy(
        read(minimal() | {"exposure": rows}), finding("membership", "server", ("ensemble_labels",))
    )
    assert "Withhold `class_counts` too" in shown.do
    hidden = [{**rows[0], "defenses": ["gaussian-noise"]}, rows[1]]
    shown = remedy(
        read(minimal() | {"exposure": hidden}), finding("membership", "server", ("ensemble_labels",))
    )
    assert "class_counts" not in shown.do


def test_only_the_scores_that_a_protocol_computes_from_records_are_to_be_withheld() -> None:
    rows = [
        exposed("discriminator_scores", "client/1", "server"),
        exposed("sample_count", "client/1", "server"),
    ]
    run = minimal()["run"]
    for protocol, kinds in (
        ("fediod", "`sample_count` and `discriminator_scores`"),
        ("dafkd", "`sample_count`"),
    ):
        made = read(minimal() | {"exposure": rows, "run": run | {"protocol": protocol}})
        assert f" Withhold {kinds} too: no ε" in remedy(made, finding("membership", "server")).do


def test_declined_samples_are_spoken_of_wherever_an_epsilon_is_advised() -> None:
    raw = minimal() | {"exposure": [exposed("soft_labels", "client/1", "server")]}
    plain = remedy(read(raw), finding("membership", "server", ("soft_labels",)))
    assert "declined" not in plain.do
    told = {"id": "server/accept-set", "protocol": "p", "adversary": "server", "attack": "accept-set"}
    raw["cells"] = [told | {"goal": "membership", "status": "run"}]
    also = remedy(read(raw), finding("membership", "server", ("soft_labels",)))
    assert also.do.startswith(plain.do)
    assert "declined" in also.do


def test_noise_that_trains_a_generator_is_no_remedy_for_what_answers_tell() -> None:
    """FedIOD's cotangents follow from the clients' answers; their gradients at samples do not matter to them."""
    rows = [exposed(kind, "server", "client/0") for kind in ("generated_samples", "logit_cotangents")]
    found = remedy(
        read(minimal() | {"exposure": rows}), finding("membership", "client/0", ("logit_cotangents",))
    )
    assert "`dp-sgd`" in found.do
    assert "sanitized-gradients" not in found.do
    assert found.why.startswith("`logit_cotangents` follow")


# -- the remedy "train with dp-sgd at a stated ε" ends in an ε -----------------------------------------------------


OTHERWISE = {
    "fkd": "class_prototypes of client/0",  # membership by prototypes has a remedy of its own: noisy sums
    "pls": "class_prototypes of client/0",
    "selective-fd": "its index says which samples the selectors",  # "Answer every public sample"
}
"""What else stands in the way, where a remedy names it or is another one."""


def dp_sgd(of: str) -> dict[str, Any]:
    params = {"clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1}
    return {"at": "training", "name": "dp-sgd", "of": of, "params": params}


def result_of(run: Path) -> Result:
    return read(json.loads((run / "result.json").read_text(encoding="utf-8")))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [p for p in PROTOCOLS if p not in WITHOUT])
def test_what_is_to_be_withheld_is_all_that_stands_between_dp_sgd_and_an_epsilon(
    name: str, tmp_path: Path
) -> None:
    aside = without_epsilon(result_of(fdaudit.run(spec(name), tmp_path / "bare").directory))
    trained = [dp_sgd(of) for of in REGISTRY.load(name).card.trains]

    def causes(run: str, withhold: list[str]) -> list[str]:
        made = fdaudit.run(spec(name, defenses=trained, withhold=withhold), tmp_path / run)
        entries = result_of(made.directory).ledger or ()
        assert entries
        return [entry.cause or "" for entry in entries if entry.epsilon is None]

    left = causes("kept", aside)
    assert bool(left) == (name in OTHERWISE)
    assert all(OTHERWISE[name] in cause for cause in left)
    for kind in aside:  # none of them is to be withheld for nothing
        assert any(kind in cause for cause in causes(f"with-{kind}", [k for k in aside if k != kind]))


@pytest.mark.parametrize("name", WITHOUT)
def test_labels_in_clear_are_named_where_no_training_defence_covers_them(name: str, tmp_path: Path) -> None:
    aside = without_epsilon(result_of(fdaudit.run(spec(name), tmp_path / "bare").directory))
    assert "private_labels" in aside
