"""FedGEN: losses against plain loops, a client's training against another writing, and what its settings change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fdaudit.protocols.fedgen.client import FedGenClient
from fdaudit.protocols.fedgen.generator import FeatureGenerator, class_shares, ensemble_loss, likeness
from torch import Tensor, nn
from torch.nn import functional as F

import fdaudit
from fdaudit.errors import SpecError
from fdaudit.federation.protocol import PartyData
from fdaudit.models.network import seeded
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.spec.schema import load_spec
from fdaudit.testing.federation import CLASSES, records
from fdaudit.testing.running import ProtocolRun
from fdaudit.testing.specs import small_spec
from fdaudit.training.trainer import draw_batches

from ..helpers.by_hand import close, equal, sent, tensors
from ..helpers.protocol_cases import configured, run
from ..helpers.refusals import refused
from ..helpers.run_cases import known

BASE = {"local_steps": 2, "lr": 0.1, "alpha": 1.0, "beta": 1.0}


def generator(width: int = 4) -> FeatureGenerator:
    return seeded(0, lambda: FeatureGenerator(3, width, 5, CLASSES))


# -- losses ---------------------------------------------------------------------------------------------------------


def test_the_generator_s_loss_is_what_loops_over_clients_and_samples_give() -> None:
    g = torch.Generator().manual_seed(0)
    logits, share = torch.randn(3, 4, 5, generator=g), torch.rand(3, 4, generator=g)
    y = torch.tensor([0, 4, 2, 2])
    wrong = [
        [float(share[k, i]) * -float(logits[k, i].log_softmax(0)[y[i]]) for i in range(4)] for k in range(3)
    ]
    assert float(ensemble_loss(logits, y, share)) == pytest.approx(sum(map(sum, wrong)) / 4, rel=1e-5)
    mean = [-float((logits[:, i].sum(0) / 3).log_softmax(0)[y[i]]) for i in range(4)]
    assert float(ensemble_loss(logits, y, None)) == pytest.approx(sum(mean) / 4, rel=1e-5)


def test_with_one_client_both_teachers_are_the_same() -> None:
    logits, y = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    alone = ensemble_loss(logits, y, torch.ones(1, 6))
    assert float(alone) == pytest.approx(float(ensemble_loss(logits, y, None)), rel=1e-6)


def test_a_feature_depends_on_its_own_noise_and_class_only() -> None:
    G, noise, y = (
        generator(),
        torch.randn(4, 3, generator=torch.Generator().manual_seed(2)),
        torch.arange(4) % 3,
    )
    for i in range(4):
        assert torch.allclose(G(noise, y)[i], G(noise[i : i + 1], y[i : i + 1])[0], atol=1e-6)


# -- a client -------------------------------------------------------------------------------------------------------


def logits_of(w: dict[str, Tensor], x: Tensor) -> Tensor:
    hidden = torch.relu(x.flatten(1) @ w["extractor.1.weight"].T + w["extractor.1.bias"])
    return hidden @ w["head.0.weight"].T + w["head.0.bias"]


def by_hand(ran: ProtocolRun, params: dict[str, Any], t: int, k: str) -> dict[str, Tensor]:
    """Client k's upload of round t, from what it received and its records, by torch.optim alone."""
    cfg = configured("fedgen", params)
    received = [m for m in ran.messages if m.round == t and m.sender == "server" and k in m.receivers]
    theta, w = (
        next(ran.tensors(m) for m in received if m.kind == kind)
        for kind in ("model_parameters", "generator_parameters")
    )
    G = generator(cfg.generator_width)
    G.load_state_dict(w)
    own, data = {n: nn.Parameter(p) for n, p in theta.items()}, ran.clients[k]
    sgd = torch.optim.SGD(own.values(), lr=cfg.lr, momentum=cfg.momentum)
    order = child(ran.setting.seed, "fedgen", "batches", t, k)
    noise = child(ran.setting.seed, "fedgen", "noise", t, k)

    def head(z: Tensor) -> Tensor:
        return z @ own["head.0.weight"].T + own["head.0.bias"]

    for batch in draw_batches(len(data), cfg.batch_size, steps=cfg.local_steps, epochs=None, generator=order):
        logits, y = logits_of(own, data.x[batch]), data.y[batch]
        loss = F.cross_entropy(logits, y)
        if t:
            y_g = torch.multinomial(torch.ones(CLASSES), cfg.generated, replacement=True, generator=noise)
            z = G(torch.randn(len(y_g), cfg.latent, generator=noise), y_g).detach()
            share = cfg.alpha * 0.98**t * cfg.generated / cfg.batch_size
            loss = loss + share * F.cross_entropy(head(z), y_g)
            z = G(torch.randn(CLASSES, cfg.latent, generator=noise), torch.arange(CLASSES)).detach()
            target = head(z).softmax(1).detach()[y]
            apart = (target * (target.log() - logits.log_softmax(1))).sum(1).mean()
            loss = loss + cfg.beta * 0.98**t * apart
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return {n: p.detach() for n, p in own.items()}


def test_a_client_s_upload_is_what_another_writing_of_eq_5_gives(tmp_path: Any) -> None:
    params = {**BASE, "local_steps": 3, "momentum": 0.5, "alpha": 2.0, "beta": 3.0}
    ran = run(tmp_path / "a", "fedgen", params)
    uploads = sent(ran, "model_parameters", "client")
    assert len(uploads) == 9
    for message in uploads:
        close(ran.tensors(message), by_hand(ran, params, message.round, message.sender))


def test_a_record_s_loss_depends_on_no_other_record(tmp_path: Any) -> None:
    """As DP-SGD needs: the loss of a batch is the sum of the losses of its records, in any order."""
    ran = run(tmp_path / "a", "fedgen", BASE, rounds=2)
    client = FedGenClient("client/0", configured("fedgen", BASE), ran.setting)
    _, target = client._on_generated(1, child(0, "noise"))
    with torch.no_grad():
        whole = client._on_records(1, torch.arange(9), target)
        alone = [float(client._on_records(1, torch.tensor([i]), target)) for i in reversed(range(9))]
    assert float(whole) == pytest.approx(sum(alone), rel=1e-5)


# -- settings -------------------------------------------------------------------------------------------------------


def test_without_its_two_losses_the_generator_changes_nothing(tmp_path: Any) -> None:
    none = {**BASE, "alpha": 0.0, "beta": 0.0}
    one, other = (
        run(tmp_path / str(n), "fedgen", {**none, "generator_steps": n}).protocol.released() for n in (0, 3)
    )
    assert equal(one, other)


def test_the_generator_learns_features_that_the_heads_recognise(tmp_path: Any) -> None:
    """With many steps the generator's features are of the asked class for a client that trained well."""
    params = {
        "local_steps": 40,
        "lr": 0.5,
        "alpha": 0.0,
        "beta": 0.0,
        "generator_steps": 300,
        "generator_lr": 0.01,
        "generator_width": 16,
        "diversity": 0.0,
    }
    ran = run(tmp_path / "a", "fedgen", params, rounds=2)
    last = tensors(ran, "generator_parameters")[-1]
    w = tensors(ran, "model_parameters", round=1)[0]
    G = generator(16)
    G.load_state_dict(last)
    y = torch.arange(300) % CLASSES
    z = G(torch.randn(300, 3, generator=torch.Generator().manual_seed(3)), y)
    assert float(((z @ w["head.0.weight"].T + w["head.0.bias"]).argmax(1) == y).float().mean()) > 0.9


# -- partial sharing ------------------------------------------------------------------------------------------------


def test_with_heads_alone_extractors_stay_with_their_clients(tmp_path: Any) -> None:
    ran = run(tmp_path / "a", "fedgen", {**BASE, "share": "head", "fraction": 0.67})
    heads = {"head.0.weight", "head.0.bias"}
    assert all(set(m.tensors) == heads for m in sent(ran, "model_parameters"))
    assert ran.protocol.released() is None
    assert not any("world" in m.receivers for m in ran.messages)
    last = ran.rounds[-1].models
    assert "server" not in last
    own = [w["extractor.1.weight"] for w in last.values()]
    assert not torch.equal(own[0], own[1])


def test_a_client_with_an_extractor_of_its_own_declares_all_that_it_ever_received(tmp_path: Any) -> None:
    ran = run(tmp_path / "a", "fedgen", {**BASE, "share": "head"})
    for message in sent(ran, "model_parameters", "client/1"):
        held = {m.seq for m in ran.messages if m.seq < message.seq and "client/1" in m.receivers}
        unused = {m.seq for m in sent(ran, "generator_parameters", round=0)}
        assert set(message.inputs) == {"data", *(held - unused)}


# -- what does not arrive, what does not fit ------------------------------------------------------------------------


def test_classes_that_no_client_has_are_not_generated_at_the_server(tmp_path: Any) -> None:
    """All gradients of the class's column in the first layer are weight decay's."""
    clients = {k: PartyData(d.x, d.y.clamp_min(1)) for k, d in records().items()}
    ran = run(tmp_path / "a", "fedgen", {**BASE, "generator_weight_decay": 0.0}, rounds=3, clients=clients)
    weights = [t["hidden.weight"] for t in tensors(ran, "generator_parameters")]
    assert torch.equal(weights[0][:, 3], weights[2][:, 3])
    assert not torch.equal(weights[0][:, 4], weights[2][:, 4])


def test_a_network_without_an_extractor_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fdaudit_bare.py").write_text(
        "from torch import nn\n\n\n"
        "class Bare(nn.Sequential):\n"
        "    def __init__(self, input_shape, classes):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = small_spec(protocol={"name": "fedgen"}, model={"name": "import:fdaudit_bare:Bare"})
    refused(lambda: fdaudit.run(spec, tmp_path / "run"), "model.name", "Bare", ["Network"])


def test_a_head_of_several_layers_is_read(tmp_path: Any) -> None:
    """The head of this network is not linear: the server asks it as a whole."""
    made = fdaudit.run(
        small_spec(
            protocol={"name": "fedgen", "params": {"rounds": 2, "local_steps": 1, "generator_steps": 2}},
            model={"name": "cnn-5-5"},
            dataset={"name": "digits", "limit": 100, "image_size": 16},
        ),
        tmp_path / "run",
    )
    assert made.verify() == []


def test_other_tasks_are_refused() -> None:
    spec = small_spec(protocol={"name": "fedgen"}, dataset={"name": "digits-multilabel", "limit": 100})
    with pytest.raises(SpecError, match="does not run"):
        simulated_case(load_spec(spec), known(7))


def test_class_shares_sum_to_one_and_share_unknown_classes_equally() -> None:
    shares = class_shares(torch.tensor([[3, 0, 0], [1, 2, 0]]))
    assert torch.allclose(shares, torch.tensor([[0.75, 0.0, 0.5], [0.25, 1.0, 0.5]]))
    assert torch.allclose(class_shares(torch.tensor([[-5, 1], [2, 1]])).sum(0), torch.ones(2)), "noised"


def test_likeness_of_equal_features_is_one_and_falls_with_their_distance() -> None:
    noise = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    assert float(likeness(noise, z[:1].expand(6, -1))) == pytest.approx(1.0)
    pairs = [
        float((noise[i] - noise[j]).square().mean() * (z[i] - z[j]).abs().mean())
        for i in range(6)
        for j in range(6)
    ]
    assert float(likeness(noise, z)) == pytest.approx(math.exp(-sum(pairs) / 36), rel=1e-5)
