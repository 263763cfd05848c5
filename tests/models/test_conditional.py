"""The conditional generator and the discriminator's layer on a shared extractor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fdaudit.models import architecture
from fdaudit.models.conditional import build_conditional, build_domain_head, shared_network
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec

from ..helpers.refusals import refused

CLASSES = 3


def gen(shape=(1, 8, 8), seed=0):
    return build_conditional(child(seed, "g"), 5, 4, shape, CLASSES)


def noise(n=6):
    return torch.randn(n, 5, generator=child(0, "z")), torch.arange(n) % CLASSES


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 8), (3, 28, 20), (2, 9, 31)])
def test_images_have_the_shape_and_lie_in_the_unit_interval(shape):
    x = gen(shape)(*noise())
    assert x.shape == (6, *shape)
    assert float(x.detach().min()) >= 0
    assert float(x.detach().max()) <= 1


def test_each_image_depends_on_its_own_noise_and_class_only():
    g, (z, y) = gen(), noise()
    whole = g(z, y)
    torch.testing.assert_close(torch.cat([g(z[i : i + 1], y[i : i + 1]) for i in range(6)]), whole)
    other = g(z, (y + 1) % CLASSES)
    assert ((other - whole).abs().flatten(1).amax(1) > 1e-4).all()
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in g.modules())


def test_parameters_are_counted_by_hand_and_an_extractor_is_needed() -> None:
    # Noise and class into 4 each; norms of 8; 8 -> 8; norm; 8 -> 64 pixels.
    assert sum(p.numel() for p in gen().parameters()) == (5 + 1) * 4 + 3 * 4 + 16 + 9 * 8 + 16 + 9 * 64
    refused(lambda: build_domain_head(child(0, "d"), nn.Linear(4, 2), (1, 2, 2)), "model.name", "Linear")


def test_initial_weights_are_the_generators_and_nobody_elses():
    before = torch.get_rng_state()
    one, same, other = gen(), gen(), gen(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    for (name, p), q, r in zip(one.named_parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        if p.dim() == 2:
            assert not torch.equal(p, r), name


@pytest.mark.parametrize(
    ("model", "features"),
    [("cnn-5-5", 20 * 4 * 4), ("mlp", 128), ("resnet8", 64)],
)
def test_the_discriminators_own_layer_reads_the_classifiers_features(model, features):
    shape = (1, 28, 28)
    network = architecture(ModelSpec(name=model), shape, CLASSES).build(child(0, "w"))
    head = build_domain_head(child(0, "d"), network, shape)
    assert head.weight.shape == (1, features)
    x = torch.rand(2, *shape, generator=child(0, "x"))
    assert head(shared_network(network).features(x)).shape == (2, 1)


@pytest.mark.parametrize("name", ["cnn-strided", "resnet8"])
def test_a_last_layer_can_be_made_for_a_network_on_another_device(name):
    network = architecture(ModelSpec(name=name), (1, 16, 16), CLASSES).build(child(0, "w"))
    here = build_domain_head(child(0, "d"), network, (1, 16, 16))
    there = build_domain_head(child(0, "d"), network.to("meta"), (1, 16, 16))
    assert torch.equal(there.weight, here.weight)
