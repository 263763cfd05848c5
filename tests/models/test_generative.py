"""Generators and patch discriminators: shapes at every size, samples on their own, reproducible weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fdaudit.errors import SpecError
from fdaudit.models.generative import Generator, build_discriminator, build_generator
from fdaudit.rng import child

SHAPES = [(1, 8, 8), (1, 16, 16), (3, 28, 28), (1, 28, 20), (3, 31, 33), (3, 32, 32), (1, 64, 64), (2, 9, 70)]


def gen(shape=(1, 28, 28), latent=5, width=4, seed=0) -> Generator:
    return build_generator(child(seed, "g"), latent, width, shape)


def disc(shape=(1, 28, 28), width=4, seed=0):
    return build_discriminator(child(seed, "d"), width, shape)


def latent(n=3, size=5):
    return torch.randn(n, size, generator=child(0, "w"))


@pytest.mark.parametrize("shape", SHAPES)
def test_images_have_the_shape_and_patches_of_four_pixels(shape) -> None:
    x = gen(shape)(latent())
    assert x.shape == (3, *shape)
    assert float(x.detach().min()) >= 0
    assert float(x.detach().max()) <= 1
    x = torch.rand(3, *shape, generator=child(0, "x"))
    assert disc(shape)(x).shape == (3, shape[1] // 4, shape[2] // 4)


def test_the_discriminator_has_the_papers_patches_and_counts() -> None:
    assert disc((3, 32, 32))(torch.zeros(1, 3, 32, 32)).shape == (1, 8, 8)

    def count(m):
        return sum(p.numel() for p in m.parameters())

    # 28 <- 14 <- 7; channels 4 <- 8 <- 16; two numbers a channel for each norm
    project = 6 * 16 * 49
    stages = (9 * 16 + 1) * 8 + (9 * 8 + 1) * 4
    assert count(gen()) == project + 2 * (16 + 8 + 4) + stages + 9 * 4 + 1
    assert count(disc()) == 17 * 4 + (16 * 4 + 1) * 8 + 9 * 8 + 1


def test_images_and_scores_stand_by_themselves() -> None:
    for module in (gen(), disc()):
        assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
        assert not list(module.buffers())
    w, g, d = latent(6).double(), gen().double(), disc().double()
    x = g(w)
    for i in range(6):
        torch.testing.assert_close(g(w[i : i + 1]), x[i : i + 1], rtol=0, atol=1e-12)
        torch.testing.assert_close(d(x[i : i + 1]), d(x)[i : i + 1], rtol=0, atol=1e-12)


def test_every_latent_coordinate_and_every_pixel_counts():
    w = latent().requires_grad_()
    x = gen()(w)
    (g,) = torch.autograd.grad(x.square().sum(), w)
    assert (g != 0).all()
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(disc()(x).square().sum(), x)
    assert (g != 0).all()


def test_weights_come_from_the_generator_alone_and_global_randomness_stays():
    for make in (gen, disc):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        one = make(seed=3).state_dict()
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        two, other = make(seed=3).state_dict(), make(seed=4).state_dict()
        assert all(torch.equal(t, two[n]) for n, t in one.items())
        assert not all(torch.equal(t, other[n]) for n, t in one.items())


@pytest.mark.parametrize("shape", [(1, 7, 28), (1, 28, 7), (1, 3, 3)])
def test_too_small_images_are_refused(shape):
    for make in (gen, disc):
        with pytest.raises(SpecError, match=f"image_size.*{shape[1]}x{shape[2]}.*8 or more"):
            make(shape)
