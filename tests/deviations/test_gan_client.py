"""The GAN client: its generator learns a class from a model, and its upload teaches that class wrongly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.deviations.gan_client import GanClient, GanClientConfig

from fdaudit.adversary.class_generator import ClassGenerator
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.audit.run import Run
from fdaudit.data import load_dataset
from fdaudit.models import Architecture, architecture
from fdaudit.models.network import call_with
from fdaudit.spec.schema import DatasetSpec, ModelSpec
from fdaudit.transcript.messages import DEVIATION
from fdaudit.transcript.transcript import read_messages
from fdaudit.transcript.wire import Outgoing

from ..helpers.refusals import refused
from ..helpers.run_cases import finished, known
from .deviation_cases import draft

ENTRY = {"party": "client/1", "name": "gan-client", "params": {"generator_steps": 5, "steps": 2}}
FAST = GanClientConfig(target=3, generator_steps=150, steps=5)


@pytest.fixture(scope="module")
def network() -> Architecture:
    return architecture(ModelSpec(name="cnn-strided"), (1, 8, 8), 10)


@pytest.fixture(scope="module")
def trained(network: Architecture) -> dict[str, torch.Tensor]:
    """Parameters of a network that knows digits."""
    data = load_dataset(DatasetSpec(name="digits"), known(3).truth("dataset"))
    module = network.build(torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(2)
    for _ in range(150):
        rows = torch.randint(len(data.y), (64,), generator=draws)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(data.x[rows]), data.y[rows]).backward()
        optimizer.step()
    return {name: p.detach() for name, p in module.named_parameters()}


def drafts(model: dict[str, torch.Tensor]) -> dict[str, Outgoing]:
    """Honest uploads of a client that changed nothing, of each kind."""
    received = replace(draft("model_parameters", model), receivers=("client/1",))
    zero = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    made = {"model_parameters": model, "model_update": zero, "gradient": zero}
    sent = {"sender": "client/1", "receivers": ("server",), "received": (received,)}
    return {kind: replace(received, kind=kind, tensors=tensors, **sent) for kind, tensors in made.items()}


def test_a_generator_learns_a_class_from_a_model(
    network: Architecture, trained: dict[str, torch.Tensor]
) -> None:
    module, y = network.build(torch.Generator().manual_seed(0)).eval(), torch.full((64,), 3)
    made = ClassGenerator(network, torch.tensor([3, 5]), torch.Generator().manual_seed(4))
    before = (call_with(module, trained, made.images(y)).argmax(1) == y).double().mean()
    made.learn(module, trained, 150)
    images = made.images(y)
    after = (call_with(module, trained, images).argmax(1) == y).double().mean()
    assert after > max(0.9, before)
    assert images.shape == (64, 1, 8, 8)
    assert 0 <= images.min() <= images.max() <= 1


def test_each_kind_of_upload_teaches_the_class_wrongly(
    network: Architecture, trained: dict[str, torch.Tensor]
) -> None:
    """The same training in other words; a generated image of the class is less certain of it."""
    deviation = GanClient(FAST, Knowledge(architecture=network, classes=10))
    sent = {}
    for kind, upload in drafts(trained).items():
        (message,) = deviation.sends(upload, torch.Generator().manual_seed(5))
        sent[kind] = message.tensors
    for name, start in trained.items():
        torch.testing.assert_close(sent["model_parameters"][name], start + sent["model_update"][name])
    stepped = {name: start - 0.1 * sent["gradient"][name] for name, start in trained.items()}
    module, y = network.build(torch.Generator().manual_seed(0)).eval(), torch.full((64,), 3)
    made = ClassGenerator(network, torch.tensor([3]), torch.Generator().manual_seed(5))
    made.learn(module, trained, 150)
    images = made.images(y)
    sure = [
        float(call_with(module, model, images).softmax(1)[:, 3].mean())
        for model in (trained, stepped, sent["model_parameters"])
    ]
    assert sure[0] > 0.9
    assert max(sure[1:]) < 0.1


def test_a_weighted_update_stays_weighted(network: Architecture, trained: dict[str, torch.Tensor]) -> None:
    """As in a secure sum."""
    deviation = GanClient(FAST, Knowledge(architecture=network, classes=10))
    draft = drafts(trained)["model_update"]
    (plain,) = deviation.sends(draft, torch.Generator().manual_seed(5))
    (weighted,) = deviation.sends(replace(draft, fields={"weight": 0.25}), torch.Generator().manual_seed(5))
    for name, tensor in plain.tensors.items():
        torch.testing.assert_close(weighted.tensors[name], 0.25 * tensor)


def test_without_a_received_model_a_client_is_honest(
    network: Architecture, trained: dict[str, torch.Tensor]
) -> None:
    deviation = GanClient(FAST, Knowledge(architecture=network, classes=10))
    draft = replace(drafts(trained)["model_update"], received=())
    assert deviation.sends(draft, torch.Generator()) == (draft,)


@pytest.mark.thorough
def test_a_run_marks_its_uploads_and_the_attack_reads_all_models(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "clients": 3,
        "victims": 3,
        "adversaries": ["client/1"],
        "attacks": [{"name": "class-gan", "params": {"steps": 5}}],
    }
    out = finished(tmp_path / "run", **settings, deviations=[ENTRY])
    marked = [m for m in read_messages(out / "transcript") if DEVIATION in m.fields]
    assert [(m.sender, m.kind, m.round) for m in marked] == [
        ("client/1", "model_update", 0),
        ("client/1", "model_update", 1),
    ]
    (cell,) = [c for c in Run(out).result.cells if c.attack == "class-gan"]
    assert cell.status in ("run", "inconclusive")  # five steps fail the control
    assert {target.target for target in cell.targets} == {"client/0", "client/2"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"deviations": [{**ENTRY, "params": {"target": 10}}]}, "deviations.params.target"),
        ({"deviations": [{**ENTRY, "party": "server"}]}, "deviations.0.party"),
        (
            {"deviations": [ENTRY], "dataset": {"name": "digits-multilabel", "limit": 100}},
            "dataset.name",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    refused(lambda: finished(tmp_path / "run", **changes), field)
