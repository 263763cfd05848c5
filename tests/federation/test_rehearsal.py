"""Rehearsals: a federation on an adversary's own data, seen as the adversary would have seen it."""

from __future__ import annotations

import torch
from fdaudit.protocols import REGISTRY

from fdaudit.adversary.view import EAVESDROPPER
from fdaudit.events import NoGuarantee
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common
from fdaudit.federation.rehearsal import rehearse
from fdaudit.models import architecture
from fdaudit.registry import DefenseCard
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.testing.federation import execution as plainest
from fdaudit.transcript.wire import Released


class Quiet:
    """A defence that changes nothing and promises nothing."""

    card = DefenseCard(name="quiet")

    def describe(self):
        return {"name": self.card.name}

    def release(self, kind, tensors, noise):
        return Released(kind=kind, tensors=tensors, event=NoGuarantee(reason="none"))


def rehearsed(tmp_path, protocol="fedavg", clients=2, params=None, **more):
    network = architecture(ModelSpec(name="mlp", params={"widths": [4]}), (1, 4, 4), 3)
    cls = REGISTRY.load(protocol)
    execution = plainest()
    x = torch.rand(12, 1, 4, 4, generator=child(0, "x"))
    y = torch.arange(12) % 3
    size = 12 // clients
    folder = tmp_path / f"shadow-{len(list(tmp_path.iterdir()))}"
    return rehearse(
        folder,
        protocol=cls,
        config=cls.Config(rounds=2, batch_size=4, **(params or {})),
        common=Common(networks=Networks(network), execution=execution, public=x[:0]),
        data=[(x[k * size : (k + 1) * size], y[k * size : (k + 1) * size]) for k in range(clients)],
        seed=more.pop("seed", 1),
        **more,
    )


def test_a_rehearsal_gives_the_view_that_the_adversary_would_have_had(tmp_path):
    made = rehearsed(tmp_path)
    assert made.name == "server"
    assert made.parties == ("server", "client/0", "client/1", "world")
    assert [(m.kind, m.sender) for m in made.messages if m.round == 0] == [
        ("sample_count", "client/0"),
        ("sample_count", "client/1"),
        ("model_parameters", "server"),
        ("model_update", "client/0"),
        ("model_update", "client/1"),
    ]
    assert not made.own_data
    assert made.hyperparameters["rounds"] == 2
    assert set(made.tensors(made.messages[2])) == set(made.tensors(made.messages[3]))


def test_a_rehearsal_is_a_function_of_its_seed_and_leaves_the_global_one_alone(tmp_path):
    before = torch.get_rng_state()
    heads = [rehearsed(tmp_path, seed=seed).messages[-1].to_line() for seed in (1, 1, 2)]
    assert heads[0] == heads[1] != heads[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_client_rehearses_with_its_own_records_in_view(tmp_path):
    made = rehearsed(tmp_path, adversary="client/1")
    assert set(made.own_data) == {"client/1"}
    assert made.own_data["client/1"][1].tolist() == [0, 1, 2, 0, 1, 2]
    assert all("client/1" in m.parties() for m in made.messages)


def test_a_rehearsal_keeps_what_is_withheld_encrypted_and_defended(tmp_path):
    assert not rehearsed(tmp_path, withheld=("sample_count",)).select(kind="sample_count")
    overheard = rehearsed(tmp_path, adversary=EAVESDROPPER, transport="encrypted")
    assert not overheard.messages
    assert overheard.sizes
    defended = rehearsed(tmp_path, defenses={("model_update", "client"): [Quiet()]})
    assert all(m.defenses == ({"name": "quiet"},) for m in defended.select(kind="model_update"))


def test_a_protocol_that_pools_data_is_rehearsed_on_the_union(tmp_path):
    made = rehearsed(tmp_path, "centralized", 2, adversary="world", params={"momentum": 0.5})
    alone = rehearsed(tmp_path, "centralized", 1, adversary="world", params={"momentum": 0.5})
    (one,), (two,) = made.messages, alone.messages
    assert all(
        torch.equal(a, b)
        for a, b in zip(made.tensors(one).values(), alone.tensors(two).values(), strict=True)
    )
