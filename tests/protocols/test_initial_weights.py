"""Clients start from their own weights, which no adversary knows, or from a model that the server broadcasts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fdaudit.protocols import REGISTRY

from fdaudit.config import validate
from fdaudit.federation.kit import SimpleProtocol
from fdaudit.federation.protocol import broadcasts
from fdaudit.handout.auxiliary import Assumption
from fdaudit.handout.auxiliary import known as knowledge_of
from fdaudit.planning.simulated import simulated_case
from fdaudit.registry import ProtocolCard, SimpleProtocolCard
from fdaudit.spec.schema import Spec
from fdaudit.storage.files import encode
from fdaudit.testing.federation import initial, records
from fdaudit.testing.specs import small_spec

from ..helpers.protocol_cases import run
from ..helpers.run_cases import known

BROADCAST = {"dafkd", "fedavg", "feddf", "feded", "fedftg", "fedgen"}
UNTRAINED = {"lr": 1e-30, "distill_lr": 1e-30, "local_steps": 1}


def test_every_shipped_protocol_says_where_its_clients_start_and_why() -> None:
    declared = {name: REGISTRY.load(name).card.starts for name in REGISTRY.names()}
    assert all(d.keys() == {"weights", "source"} and d["source"] for d in declared.values())
    assert {d["weights"] for d in declared.values()} == {"own", "broadcast"}
    assert {name for name, d in declared.items() if d["weights"] == "broadcast"} == BROADCAST


def test_a_protocol_that_says_nothing_has_clients_with_weights_of_their_own() -> None:
    class Silent:
        card = replace(REGISTRY.describe("fedavg"), starts={})

    assert ProtocolCard.__dataclass_fields__["starts"].default_factory() == {}
    assert not broadcasts(Silent)  # type: ignore[arg-type]


def test_a_simple_protocol_starts_from_what_its_server_sends() -> None:
    class Simple(SimpleProtocol):
        card = SimpleProtocolCard(name="simple")

    assert broadcasts(Simple)  # type: ignore[arg-type,type-abstract]


@pytest.mark.parametrize("name", sorted(BROADCAST))
def test_what_is_broadcast_first_are_the_servers_initial_weights(name: str, tmp_path) -> None:
    ran = run(tmp_path / "a", name, {}, rounds=1)
    first = next(m for m in ran.messages if m.kind == "model_parameters")
    assert first.sender == "server"
    assert encode(ran.tensors(first)) == encode(initial())


@pytest.mark.parametrize(
    "name", sorted(set(REGISTRY.names()) - BROADCAST - {"asyndgan", "centralized", "dafkd"})
)
def test_clients_of_one_network_start_apart(name: str, tmp_path) -> None:
    """At a learning rate of nearly nothing their models stay what they began with."""
    config = REGISTRY.load(name).Config.model_fields
    params = {k: v for k, v in UNTRAINED.items() if k in config}
    ran = run(tmp_path / "a", name, params, rounds=2)
    models = ran.rounds[0].models
    for k in records():
        assert encode(models[k]) == encode(initial(k))
    assert len({encode(models[k]) for k in ("client/0", "client/1", "client/2")}) == 3


@pytest.mark.parametrize("name", REGISTRY.names())
def test_only_a_broadcast_models_seed_is_known(name: str) -> None:
    spec = small_spec(protocol={"name": name}, splits__proxy=0.3, adversaries=["client/1"])
    case = simulated_case(validate(Spec, spec), known(7))
    told = knowledge_of(case, Assumption(case.auxiliary, ()), None)
    assert (told.initial is not None) == (name in BROADCAST)
