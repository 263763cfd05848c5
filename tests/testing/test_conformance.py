"""Every protocol, attack and defence of fdaudit keeps the guarantees that `fdaudit.testing` checks."""

from __future__ import annotations

from typing import Any

import pytest
from fdaudit.attacks import REGISTRY as ATTACKS
from fdaudit.defenses import REGISTRY as DEFENSES

from fdaudit.testing import check_attack, check_defense, check_protocol

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
FEW = {"iterations": 3, "tune": False, "steps": 5, "shadows": 8, "matched": 8, "students": 2, "restarts": 1}
"""Settings that make an attack short, where it has them."""


@pytest.mark.parametrize("case", thorough_beyond_defaults(every_case()))
def test_protocols_keep_their_guarantees(case: tuple[str, dict[str, Any]]) -> None:
    name, params = case
    check_protocol(name, configured(name, params).model_dump(mode="json"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTACKS.names())
def test_attacks_keep_their_guarantees(name: str) -> None:
    fields = ATTACKS.load(name).Config.model_fields
    check_attack(name, {field: value for field, value in FEW.items() if field in fields})


@pytest.mark.parametrize("name", DEFENSES.names())
def test_defences_keep_their_guarantees(name: str) -> None:
    check_defense(name, DEFENCE_PARAMS.get(name, {}), identity=IDENTITY.get(name))
