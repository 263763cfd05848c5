"""Every protocol, attack and defence of fdaudit keeps the guarantees that `fdaudit.testing` checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fdaudit.attacks import REGISTRY as ATTACKS
from fdaudit.defenses import REGISTRY as DEFENSES
from fdaudit.protocols import REGISTRY as PROTOCOLS

from fdaudit.config import validate
from fdaudit.events import NoGuarantee
from fdaudit.rng import SecretStream
from fdaudit.tasks import TEXT
from fdaudit.testing import check_attack, check_defense, check_protocol, example_message, small_spec

from ..helpers.protocol_cases import configured, every_case, thorough_beyond_defaults

DEFENCE_PARAMS: dict[str, dict[str, Any]] = {
    "confident-gnmax": {
        "threshold": 5.0,
        "sigma_threshold": 1.0,
        "sigma": 1.0,
        "cap": 2,
        "public_index": True,
    },
    "discrete-gaussian": {"sigma": 1.0, "clip": 4.0, "public_index": True},
    "discrete-laplace": {"gamma": 1.0, "clip": 4.0, "public_index": True},
    "dp-fedavg": {"sigma": 1.0, "clip": 1.0},
    "dp-sgd": {"noise_multiplier": 1.0, "clip": 1.0, "sample_rate": 0.5},
    "gaussian-noise": {"sigma": 1.0, "clip": 1.0, "public_index": True},
    "gnmax": {"sigma": 1.0, "public_index": True},
    "hard-label": {},
    "laplace-noise": {"gamma": 1.0, "clip": 1.0, "public_index": True},
    "lnmax": {"gamma": 1.0, "public_index": True},
    "rounding": {"decimals": 1},
    "sanitized-gradients": {"sigma": 1.0, "clip": 1.0},
    "temperature": {"temperature": 2.0},
    "top-k": {"k": 1},
    "uniform-quantization": {"z_max": 4.0},
}
IDENTITY = {"temperature": {"temperature": 1.0}, "top-k": {"k": 3}}
"""Settings under which a defence states that it changes nothing."""
FOUR = small_spec(
    clients=4,
    dataset__limit=400,
    splits={"test": 0.1, "proxy": 0.3, "auxiliary": 0.2, "candidates": 4},
    protocol={"name": "fedmd", "params": {"rounds": 2, "local_steps": 2, "warm_up_steps": 4}},
)
"""Clients enough to set one beside several others."""
SPECS: dict[str, dict[str, Any]] = {
    "candidate-answers": small_spec(
        dataset__limit=400,
        splits={"test": 0.1, "proxy": 0.3, "auxiliary": 0.2, "candidates": 4},
        protocol={"name": "fedmd", "params": {"rounds": 2, "local_steps": 2, "warm_up_steps": 4}},
        deviations=[{"party": "server", "name": "planted-candidates"}],
        adversaries=["server"],
    ),
    "co-op-lira": FOUR,
    "paired-logits": FOUR,
    "learned-inversion": small_spec(
        dataset__limit=400,
        splits={"test": 0.1, "proxy": 0.0, "auxiliary": 0.4, "candidates": 4},
        protocol__params__batch_size=1,
    ),
    "neuron-updates": small_spec(
        model__params__widths=[64],
        deviations=[{"party": "server", "name": "candidate-neurons"}],
        adversaries=["server"],
    ),
}
"""The federations of attacks that read what a party sends against its protocol, or need more clients or records."""
WITHOUT_CHANCE = {"hard-label", "rounding", "temperature", "top-k", "uniform-quantization"}
FEW = {"iterations": 3, "tune": False, "steps": 5, "shadows": 8, "matched": 8, "students": 2, "restarts": 1}
"""Settings that make an attack short, where it has them."""


@pytest.mark.parametrize("case", thorough_beyond_defaults(every_case()))
def test_protocols_keep_their_guarantees(case: tuple[str, dict[str, Any]]) -> None:
    name, params = case
    check_protocol(name, configured(name, params).model_dump(mode="json"))


def on_texts() -> list[tuple[str, dict[str, Any]]]:
    cases = []
    for name, params in every_case():
        if TEXT.name in PROTOCOLS.describe(name).tasks:
            slower = {"lr": 0.1} if params.get("lr") == 1.0 else {}  # a transformer diverges at 1
            cases.append((name, {**params, **slower}))
    return cases


@pytest.mark.parametrize("case", thorough_beyond_defaults(on_texts()))
def test_protocols_keep_their_guarantees_on_texts(case: tuple[str, dict[str, Any]]) -> None:
    name, params = case
    check_protocol(name, configured(name, params).model_dump(mode="json"), task=TEXT)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTACKS.names())
def test_attacks_keep_their_guarantees(name: str) -> None:
    fields = ATTACKS.load(name).Config.model_fields
    params = {field: value for field, value in FEW.items() if field in fields}
    check_attack(name, params, spec=SPECS.get(name))


@pytest.mark.parametrize("name", DEFENSES.names())
def test_defences_keep_their_guarantees(name: str) -> None:
    check_defense(name, DEFENCE_PARAMS.get(name, {}), identity=IDENTITY.get(name))


@pytest.mark.parametrize("name", DEFENCE_PARAMS)
def test_a_defence_without_chance_gives_no_guarantee(name: str) -> None:
    cls: Any = DEFENSES.load(name)
    if cls.card.at == "training":
        return
    made = cls(validate(cls.Config, DEFENCE_PARAMS[name]))
    accepted = made.card.accepts
    kind = "logits" if not accepted or "logits" in accepted else accepted[0]
    one, other = (
        made.release(kind, example_message(kind), SecretStream(b"a secret of the tests", path))
        for path in ("m", "another")
    )
    assert isinstance(one.event, NoGuarantee) == (name in WITHOUT_CHANCE)
    if name in WITHOUT_CHANCE:
        assert all(torch.equal(t, other.tensors[n]) for n, t in one.tensors.items())


@pytest.mark.parametrize("name", DEFENSES.names())
def test_a_defence_says_where_it_is_from_and_what_it_protects(name: str) -> None:
    card = DEFENSES.describe(name)
    assert card.source
    assert card.protects
