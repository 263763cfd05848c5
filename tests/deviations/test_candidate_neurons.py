"""Candidate neurons: active for one candidate each, and read exactly from one upload of all records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.deviations.candidate_neurons import CandidateNeurons, CandidateNeuronsConfig

from fdaudit.adversary.hidden_layer import HiddenLayer, hidden_layer
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.models import Architecture, architecture
from fdaudit.spec.schema import ModelSpec

from ..helpers.refusals import refused
from ..helpers.run_cases import finished
from .deviation_cases import attacked, draft, received

CRAFTED = {"party": "server", "name": "candidate-neurons"}
NETWORKS: dict[str, ModelSpec] = {
    "mlp": ModelSpec(name="mlp", params={"widths": [64, 32]}),
    "cnn-3-3": ModelSpec(name="cnn-3-3"),
    "cnn-strided": ModelSpec(name="cnn-strided"),
}
CANDIDATES, RECORDS = slice(0, 24), slice(24, 300)


def network(name: str) -> Architecture:
    return architecture(NETWORKS[name], (1, 8, 8), 10)


def crafted(network: Architecture, digits: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    x, y = digits
    knows = Knowledge(
        architecture=network,
        auxiliary=(x[RECORDS], y[RECORDS]),
        candidates={"client/0": (x[CANDIDATES], y[CANDIDATES])},
        classes=10,
    )
    return received(CandidateNeurons(CandidateNeuronsConfig(), knows), network)


def layer_of(network: Architecture) -> HiddenLayer:
    layer = hidden_layer(network)
    assert isinstance(layer, HiddenLayer)
    return layer


@pytest.mark.parametrize("name", NETWORKS)
def test_a_neuron_is_active_for_its_candidate_alone(
    name: str, digits: tuple[torch.Tensor, torch.Tensor]
) -> None:
    layer = layer_of(network(name))
    active = layer.outputs(crafted(network(name), digits), digits[0][:300]) > 0
    assert torch.equal(active[CANDIDATES, :24], torch.eye(24, dtype=torch.bool))
    assert not active[RECORDS].any()
    assert not active[:, 24:].any()


def test_candidates_among_the_servers_records_have_neurons_and_equal_ones_have_none(
    digits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Rounding would decide which of two equal records responds more, with weights beyond any number."""
    x, y = digits[0].clone(), digits[1]
    x[5] = x[4]
    x[30:34] = x[:4]
    model, layer = crafted(network("mlp"), (x, y)), layer_of(network("mlp"))
    assert all(bool(tensor.isfinite().all()) for tensor in model.values())
    active = (layer.outputs(model, x[CANDIDATES]) > 0).diagonal()
    assert active.tolist() == [number not in (4, 5) for number in range(24)]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_neuron_of_no_member_has_no_gradient(name: str, digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    layer, model = layer_of(network(name)), crafted(network(name), digits)
    module = network(name).build(torch.Generator().manual_seed(4))
    module.load_state_dict(model)
    batch = torch.cat([torch.arange(0, 24, 2), torch.arange(24, 60)])
    loss = torch.nn.functional.cross_entropy(module(digits[0][batch]), digits[1][batch])
    (gradient,) = torch.autograd.grad(loss, [module.get_parameter(layer.bias)])
    changed = gradient[:24] != 0
    assert changed.tolist() == [number % 2 == 0 for number in range(24)]


@pytest.mark.thorough
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_one_step_on_all_records_gives_away_every_member(aggregation: str, tmp_path: Path) -> None:
    """An honest run has no such neurons."""

    params = {"rounds": 2, "batch_size": 2000, "local_epochs": 1, "weighting": "uniform"}
    settings: dict[str, Any] = {
        "dataset__limit": None,
        "splits__candidates": 20,
        "model__params__widths": [128],
        "protocol__params": {**params, "aggregation": aggregation},
    }
    active = attacked(tmp_path / "active", "neuron-updates", deviations=[CRAFTED], **settings)
    assert attacked(tmp_path / "honest", "neuron-updates", **settings).status == "not-applicable"
    for target in active.targets:
        (auc,) = [f for f in target.figures if f.name == "auc"]
        assert auc.value is not None
        assert auc.value > 0.85


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"name": "mlp", "params": {"widths": []}}, "before the one that answers"),
        ({"name": "lenet-dlg"}, "no ReLU alone"),
        ({"name": "resnet8"}, "before the one that answers"),
    ],
)
def test_networks_without_such_a_layer_are_refused(
    model: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    error = refused(lambda: finished(tmp_path / "run", model=model, deviations=[CRAFTED]), "model.name")
    assert problem in error.problem


def test_every_candidate_has_its_turn(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    """In as many of the first rounds as that takes."""
    x, y = digits
    narrow = architecture(ModelSpec(name="mlp", params={"widths": [10]}), (1, 8, 8), 10)
    knows = Knowledge(architecture=narrow, candidates={"client/0": (x[:24], y[:24])}, classes=10)
    deviation = CandidateNeurons(CandidateNeuronsConfig(), knows)
    seen = set[int]()
    for round in range(3):
        active = layer_of(narrow).outputs(received(deviation, narrow, round), x[:24]) > 0
        seen |= set(active.any(1).nonzero().flatten().tolist())
    assert seen == set(range(24))
    honest = draft("model_parameters", {}, round=3)
    assert deviation.sends(honest, torch.Generator()) == (honest,)
