"""The refutation suite leaves nothing out: every protocol and defence has a case, or a reason why it has none."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from fdaudit.defenses import REGISTRY as DEFENSES
from fdaudit.protocols import REGISTRY as PROTOCOLS

import fdaudit
from fdaudit.config import validate
from fdaudit.events import NoGuarantee
from fdaudit.rng import SecretStream

from ..helpers.docs_pages import ROOT
from .refutation_attacks import Attacker
from .refutation_cases import CASES, NEVER_FINITE, NOT_A_CLAIM, case
from .refutation_rows import Row, rows_of, sizes_differ, table

pytestmark = pytest.mark.thorough

SETTINGS = {
    "temperature": {"temperature": 2.0},
    "top-k": {"k": 2},
    "rounding": {"decimals": 1},
    "uniform-quantization": {"levels": 4, "z_max": 1.0},
}


def test_every_protocol_has_a_case_of_its_private_preset() -> None:
    declared = {name for name in PROTOCOLS.names() if "private" in PROTOCOLS.load(name).card.privacy}
    shown = {c.protocol for c in CASES if "preset" in c.spec}
    assert shown | set(NOT_A_CLAIM) == declared
    assert not shown & set(NOT_A_CLAIM)


def test_a_protocol_without_a_case_trains_nothing_and_sends_nothing() -> None:
    for name in NOT_A_CLAIM:
        assert PROTOCOLS.load(name).card.messages == ()


def test_every_defence_has_a_case_or_never_gives_a_guarantee() -> None:
    shown = {name for c in CASES for name in c.defences}
    releasing = {name for name in DEFENSES.names() if DEFENSES.describe(name).at != "receipt"}
    assert shown | set(NEVER_FINITE) == releasing
    assert not shown & set(NEVER_FINITE)


@pytest.mark.parametrize("name", sorted(NEVER_FINITE))
def test_a_defence_without_a_case_gives_no_guarantee(name: str) -> None:
    cls = DEFENSES.load(name)
    defence = cls(validate(cls.Config, SETTINGS.get(name, {})))
    sent = {"index": torch.arange(3), "values": torch.rand(3, 4)}
    kind = "soft_labels" if name == "temperature" else "logits"
    released = defence.release(kind, sent, SecretStream(bytes(32), "test"))
    assert isinstance(released.event, NoGuarantee)


def test_names_of_cases_differ() -> None:
    assert len({c.name for c in CASES}) == len(CASES)


def test_a_bound_above_its_claim_is_a_contradiction() -> None:
    row = Row(case="a", adversary="server", claimed=1.0, relation="replace-one", bound=1.1, power=3.0)
    assert row.verdict == "CONTRADICTED"
    recorded = (ROOT / "docs" / "results" / "ledger-under-attack.csv").read_text(encoding="utf-8")
    head, line = table([row]).splitlines()
    assert head == recorded.splitlines()[0]
    assert line == "a,server,1,1.1,3,none,CONTRADICTED"


def test_a_bound_below_its_claim_needs_power_to_be_consistent() -> None:
    row = Row(
        case="a", adversary="server", claimed=1.0, relation="replace-one", bound=0.5, power=3.0, bounds=1
    )
    assert row.verdict == "consistent"
    weak = Row(
        case="a", adversary="server", claimed=1.0, relation="replace-one", bound=0.5, power=0.9, bounds=1
    )
    assert weak.verdict == "inconclusive"


def test_a_view_that_no_attack_fits_is_not_called_consistent() -> None:
    row = Row(case="a", adversary="world", claimed=1.0, relation="replace-one", power=3.0)
    assert row.verdict == "not attacked"


def test_sizes_of_a_run_are_its_own() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = fdaudit.run(dict(case("fedavg, preset, ε 1").spec), Path(folder) / "run")
        assert sizes_differ(run, run) == []


def test_rows_name_every_view_of_a_run(tmp_path: Path) -> None:
    found = rows_of(case("fedavg, preset, ε 1"), tmp_path)
    views = [r.adversary for r in found]
    assert views == [
        "server",
        "world",
        "client/1",
        "eavesdropper",
        "server+client/1",
        "eavesdropper, encrypted",
    ]
    assert all(r.bound <= r.claimed for r in found)


@pytest.mark.parametrize("name", [c.name for c in CASES if "dp-sgd on updates" in c.name])
def test_no_attack_contradicts_a_credited_draw_of_clients(name: str, tmp_path: Path) -> None:
    found = {r.adversary: r for r in rows_of(case(name), tmp_path)}
    assert found["world"].verdict == "consistent"
    assert found["world"].claimed < found["client/1"].claimed
    assert not [r for r in found.values() if r.verdict == "CONTRADICTED"]


def test_own_attacks_of_a_case_count_among_the_bounds(tmp_path: Path) -> None:
    spec = dict(case("fedavg, preset, own attacks").spec)
    spec |= {"canaries": {"count": 20, "kind": "noise"}, "attacks": [{"name": "loss-threshold"}]}
    found = Attacker(fdaudit.run(spec, tmp_path / "run")).scores("server")
    assert "loss-threshold" in found.of
    assert len(found.of["loss-threshold"]) == len(found.member) == 20
