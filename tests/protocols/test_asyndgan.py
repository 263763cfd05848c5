"""AsynDGAN: labels in clear, gradients against true records, and a generator that the record alone gives back."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fdaudit
from fdaudit.models.generative import PatchDiscriminator
from fdaudit.models.unet import UNet
from fdaudit.rng import child
from fdaudit.tasks import TASKS
from fdaudit.testing.federation import CLASSES, SHAPE, masked, records
from fdaudit.testing.specs import small_spec

from ..helpers.by_hand import equal, sent
from ..helpers.mask_cases import write_masks
from ..helpers.protocol_cases import run
from ..helpers.results import figures_of

STEPS = {"steps_per_round": 3, "samples": 4, "l1": 5.0}


@pytest.fixture(scope="module", params=["single-label", "segmentation"])
def made(request, tmp_path_factory):
    clients = masked(records()) if request.param == "segmentation" else records()
    folder = tmp_path_factory.mktemp("asyndgan") / "a"
    return run(folder, "asyndgan", STEPS, clients=clients, task=TASKS[request.param], rounds=2)


def sent_to(made, kind, sender=None, to=None):
    return [m for m in sent(made, kind, sender) if to is None or m.receivers == (to,)]


def one_hot(y):
    maps = y if y.ndim == 3 else y[:, None, None].expand(-1, *SHAPE[1:])
    return torch.stack([(maps == c).float() for c in range(CLASSES)], 1)


def batches(made):
    return {seq: rows for done in made.rounds for seq, rows in done.batches.items()}


def test_labels_of_the_step_s_records_are_sent_in_clear(made):
    for k, data in made.clients.items():
        messages = sent(made, "private_labels", k)
        assert len(messages) == 6
        for message in messages:
            assert torch.equal(made.tensors(message)["values"].long(), data.y[batches(made)[message.seq]])


def test_each_client_gets_images_of_its_own_labels_only(made):
    for message in sent(made, "generated_samples"):
        assert len(message.receivers) == 1
        x = made.tensors(message)["samples"]
        assert x.shape == (4, *SHAPE)
        assert 0 <= x.min() <= x.max() <= 1


def test_the_first_gradient_is_that_of_the_discriminator_and_of_the_difference_from_the_record(made):
    """Written out with autograd, from the client's first discriminator and its true records."""
    k = "client/1"
    data = made.clients[k]
    back, x = (
        sent_to(made, kind, **who)[0]
        for kind, who in (("sample_gradients", {"sender": k}), ("generated_samples", {"to": k}))
    )
    rows = batches(made)[back.seq]
    with torch.random.fork_rng():
        seed = int(torch.randint(2**63 - 1, (), generator=child(5, "asyndgan", "discriminator", k)))
        torch.manual_seed(seed)
        D = PatchDiscriminator(2, (SHAPE[0] + CLASSES, *SHAPE[1:]))
    images = made.tensors(x)["samples"].clone().requires_grad_()
    real, maps = data.x[rows], one_hot(data.y[rows])
    loss = F.softplus(-D(torch.cat([images, maps], 1))).mean() + 5.0 * (images - real).abs().mean()
    (expected,) = torch.autograd.grad(loss, images)
    torch.testing.assert_close(made.tensors(back)["values"], expected, rtol=1e-4, atol=1e-6)


def test_the_sign_of_a_gradient_says_where_the_record_is_brighter(made):
    """Why its records are not safe because they stay: an L1 loss compares them with the image, pixel by pixel."""
    k = "client/0"
    agree = []
    for back, x in zip(
        sent(made, "sample_gradients", k), sent_to(made, "generated_samples", to=k), strict=True
    ):
        real = made.clients[k].x[batches(made)[back.seq]]
        agree.append(
            (made.tensors(back)["values"].sign() == (made.tensors(x)["samples"] - real).sign()).float()
        )
    assert torch.cat(agree).mean() > 0.9


def test_the_record_gives_back_every_image_of_the_generator(made):
    """The server's part, step by step, from counts, labels and gradients of the record, by torch alone."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**63 - 1, (), generator=child(5, "asyndgan", "generator"))))
        G = nn.Sequential(UNet(CLASSES + 3, SHAPE[0], 2, 2), nn.Sigmoid())
    adam = torch.optim.Adam(G.parameters(), lr=0.0002, betas=(0.5, 0.999))
    clients = list(made.clients)
    counts = {m.sender: float(made.tensors(m)["n"]) for m in sent(made, "sample_count")}
    share = {k: counts[k] / sum(counts.values()) for k in clients}
    assert len({round(v, 6) for v in share.values()}) > 1
    for t in range(6):
        total = 0
        for number, k in enumerate(clients):
            y = made.tensors(sent(made, "private_labels", k)[t])["values"].long()
            noise = torch.randn(4, 3, *SHAPE[1:], generator=child(5, "asyndgan", "latent", t, number))
            images = G(torch.cat([one_hot(y), noise], 1))
            stated = made.tensors(sent_to(made, "generated_samples", to=k)[t])["samples"]
            torch.testing.assert_close(stated, images.detach(), rtol=1e-3, atol=1e-5)
            at = made.tensors(sent(made, "sample_gradients", k)[t])["values"]
            total = total + share[k] * (images * at).sum()
        adam.zero_grad()
        total.backward()
        adam.step()


def test_the_task_model_is_fitted_in_the_last_round_alone(made):
    first, last = (done.models["server"] for done in made.rounds)
    start = made.setting.initial["server"]
    assert equal(first, start)
    assert not equal(last, start)
    (released,) = sent(made, "model_parameters")
    assert set(released.receivers) == {*made.clients, "world"}
    assert equal(made.tensors(released), last)


@pytest.mark.thorough
def test_masks_sent_in_clear_are_found_by_the_audit(tmp_path):
    spec = small_spec(
        dataset={"name": f"masks:{write_masks(tmp_path / 'discs.npz', 120)}"},
        partition={"name": "by-site"},
        splits={"test": 0.2, "proxy": 0.1, "auxiliary": 0.2, "candidates": 8},
        model={"name": "unet", "params": {"width": 8, "depth": 1}},
        protocol={"name": "asyndgan", "params": {"rounds": 3, "steps_per_round": 10, "task_steps": 60}},
        attacks=[{"name": "label-counts"}, {"name": "pixel-comparison"}],
        adversaries=["server", "world"],
    )
    made = fdaudit.run(spec, tmp_path / "run")
    cells = {c["adversary"]: c for c in made.result.plain()["cells"] if c["attack"] == "label-counts"}
    assert cells["server"]["status"] == "run", cells["server"]["reason"]
    distance = figures_of(cells["server"])["label_tv_mean"]
    assert distance["value"] < 0.05
    assert cells["world"]["status"] == "not-applicable"
    compared = {c["adversary"]: c for c in made.result.plain()["cells"] if c["attack"] == "pixel-comparison"}
    assert compared["world"]["status"] == "not-applicable"
    assert compared["server"]["status"] == "run", compared["server"]["reason"]
    figures = figures_of(compared["server"])
    assert figures["psnr_gain"]["low"] > 1
    assert figures["identification"]["p"] < 0.001
    ledger = {e["adversary"]: e for e in json.loads(json.dumps(made.result.plain()["ledger"]))}
    assert ledger["server"]["epsilon"] is None or ledger["server"]["epsilon"] == float("inf")
