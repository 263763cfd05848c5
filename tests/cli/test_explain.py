"""What is explained of a protocol is what it does: who sees what is derived, and holds in every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fdaudit.protocols import REGISTRY

from fdaudit.cli.explain import Explanation, explained, sections, sights, text, when
from fdaudit.kinds import KINDS
from fdaudit.registry import ProtocolCard
from fdaudit.transcript.messages import role

from ..helpers.protocol_cases import every_case, run, thorough_beyond_defaults


def sees(card: ProtocolCard) -> dict[str, tuple[set[str], set[str], set[str]]]:
    return {s.position: (set(s.receives), set(s.sends), set(s.asks)) for s in sights(card)}


AGGREGATED = ProtocolCard(
    name="aggregated",
    source="none",
    roles=("server", "aggregator", "client"),
    messages=(
        {"kind": "class_counts", "from": "client", "to": "aggregator", "what": "once"},
        {"kind": "logits", "from": "client", "to": "aggregator", "what": "z", "when": {"share": "logits"}},
        {"kind": "ensemble_labels", "from": "aggregator", "to": "server, client", "what": "their mean"},
        {"kind": "ensemble_labels", "from": "aggregator", "to": "server", "what": "again"},
    ),
    trust=("The aggregator does not tell.",),
    oracles=({"name": "crafted", "available_to": ("server",), "answers": ("soft",)},),
    differences=(),
    withholdable=("class_counts",),
    heterogeneous=True,
    needs_public=True,
    pools_data=False,
)


def test_who_sees_what_is_read_off_the_messages() -> None:
    assert sees(AGGREGATED) == {
        "server": ({"ensemble_labels"}, set(), {"crafted"}),
        "aggregator": ({"class_counts", "logits"}, {"ensemble_labels"}, set()),
        "each client": ({"ensemble_labels"}, {"class_counts", "logits"}, set()),
        "eavesdropper": ({"class_counts", "logits", "ensemble_labels"}, set(), set()),
        "world": (set(), set(), set()),
    }


def test_who_sees_what_of_fedavg() -> None:
    uploads = {"sample_count", "gradient", "model_update", "model_parameters", "optimizer_state"}
    assert sees(REGISTRY.describe("fedavg")) == {
        "server": (uploads, {"model_parameters"}, set()),
        "aggregator": ({"sample_count", "model_update"}, {"model_update"}, set()),
        "each client": ({"sample_count", "model_parameters"}, uploads, set()),
        "eavesdropper": (uploads, set(), set()),
        "world": ({"sample_count", "model_parameters"}, set(), {"released-model"}),
    }


@pytest.mark.parametrize("case", thorough_beyond_defaults(every_case()))
def test_nobody_sees_more_than_is_explained(case: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    said = sees(REGISTRY.describe(case[0]))
    for message in run(tmp_path / "run", *case).messages:
        sender = role(message.sender)
        assert message.kind in said["each client" if sender == "client" else sender][1]
        for receiver in {role(r) for r in message.receivers}:
            assert message.kind in said["each client" if receiver == "client" else receiver][0]
        assert message.kind in said["eavesdropper"][0]


@pytest.mark.parametrize("name", REGISTRY.names())
def test_a_protocol_s_text_holds_everything_it_declares(name: str) -> None:
    found = explained(name)
    card, shown = REGISTRY.describe(name), text(found)
    titles = [line for line in shown.splitlines() if line and not line.startswith(" ")]
    assert {"Messages", "Roles", "Needs", "Who sees what", "Trust assumptions", "Source"} <= set(titles)
    for message in card.declared_messages:
        assert KINDS[message["kind"]].text in shown
        assert when(message) in shown
    for key in ("roles", "trust", "differences", "withholdable"):
        assert all(item in shown for item in getattr(card, key))
    assert all(o["name"] in shown for o in card.oracles)
    assert found.plain()["sees"].keys() == sees(card).keys()


def test_conditions_and_needs_are_said() -> None:
    shown = text(Explanation(room="protocol", card=AGGREGATED, doc="A double."))
    assert 'only with share: "logits"' in shown
    assert "A network for each client; they may differ." in shown
    assert "Public, unlabelled samples that every party holds." in shown
    assert "Deviations" not in shown
    marked = {s.title: s.items for s in sections(AGGREGATED, "`")}
    assert marked["Can do without"] == ("`class_counts`",)
    assert "aggregator: receives `class_counts`, `logits`; sends `ensemble_labels`" in marked["Who sees what"]
