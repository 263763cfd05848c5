"""The U-Net: its layers, what it computes, and how training may treat it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import SEGMENTATION, SINGLE_LABEL
from fdaudit.training.private_step import unfit

from ..helpers.refusals import refused

pytestmark = pytest.mark.usefixtures("trusting")  # networks named by `import:`

SHAPE = (1, 16, 16)


def arch(shape=SHAPE, task=SEGMENTATION, name="unet", **params):
    return architecture(ModelSpec(name=name, params=params), shape, 2, task)


def built(shape=SHAPE, seed=0, **params):
    return arch(shape, **params).build(child(seed, "model"))


def images(n, shape=SHAPE):
    return torch.rand(n, *shape, generator=child(0, "x"))


def test_the_parameter_count_is_the_one_worked_out_by_hand():
    # A level of a -> b channels: 9ab + 9bb weights, and two numbers a channel for each norm.
    def level(a, b):
        return 9 * a * b + 9 * b * b + 4 * b

    encoder = level(3, 8) + level(8, 16) + level(16, 32)
    decoder = (32 * 16 + 16) + level(32, 16) + (16 * 8 + 8) + level(16, 8)
    model = built((3, 8, 8), width=8, depth=2)
    assert sum(p.numel() for p in model.parameters()) == encoder + decoder + (8 * 2 + 2)


def test_it_computes_what_its_formula_says():
    model, x = built(width=8, depth=1), images(3)
    w = dict(model.named_parameters())

    def level(x, where, groups):
        for conv, norm in ((0, 1), (3, 4)):
            x = F.conv2d(x, w[f"{where}.{conv}.weight"], padding=1)
            x = F.group_norm(x, groups, w[f"{where}.{norm}.weight"], w[f"{where}.{norm}.bias"]).clamp(min=0)
        return x

    top = level(x, "encoder.0", 2)
    below = level(F.max_pool2d(top, 2), "encoder.1", 4)
    up = below.repeat_interleave(2, 2).repeat_interleave(2, 3)
    up = F.conv2d(up, w["narrow.0.weight"], w["narrow.0.bias"])
    joined = level(torch.cat([top, up], 1), "decoder.0", 2)
    expected = F.conv2d(joined, w["head.weight"], w["head.bias"])
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(("shape", "depth"), [((1, 16, 16), 3), ((3, 24, 40), 2), ((3, 64, 64), 4)])
def test_every_pixel_has_an_answer(shape, depth):
    model = built(shape, width=8, depth=depth)
    assert model.training
    assert model(images(2, shape)).shape == (2, 2, *shape[1:])


def test_skip_connections_carry_detail_that_the_bottom_cannot():
    model, x = built(width=8, depth=3).eval(), images(1)
    with torch.no_grad():
        whole = model(x)
        model.narrow[-1].weight.zero_()  # nothing from below reaches the top level
        top = model(x)
    assert not torch.allclose(whole, top)
    assert float(top.var()) > 0


def test_per_sample_gradients_by_vmap_add_up_to_the_batchs():
    model, x = built(width=8, depth=2), images(3)
    y = (x[:, 0] > 0.5).long()
    parameters = {k: p.detach() for k, p in model.named_parameters()}

    def loss(params, image, mask):
        return F.cross_entropy(functional_call(model, params, image[None]), mask[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    whole = torch.autograd.grad(3 * F.cross_entropy(model(x), y), list(model.parameters()))
    largest = max(float(g.abs().max()) for g in whole)
    for (key, single), batch in zip(per_sample.items(), whole, strict=True):
        assert (single.sum(0) - batch).abs().max() < 1e-4 * largest, key


def test_records_and_models_side_by_side_do_not_mix() -> None:
    models, x = [built(width=8, depth=2, seed=s) for s in range(3)], images(2)
    parameters, buffers = torch.func.stack_module_state(models)
    together = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([m(x) for m in models]), atol=1e-4, rtol=1e-4)
    assert unfit(built(width=8, depth=1), SHAPE) is None
    assert not arch().has_batchnorm


def test_shapes_that_do_not_fit_are_refused() -> None:
    refused(lambda: arch((1, 20, 20)), "model.name", "unet", ["image_size: 32"], said="multiples of 8")
    refused(lambda: arch(name="cnn-strided"), "model.name", "cnn-strided", ["'unet'"], said="(3, 2, 16, 16)")
    refused(lambda: arch(task=SINGLE_LABEL), "model.name", "unet", ["for masks"], said="logits (3, 2)")
    flat = "import:torch.nn:Flatten"
    refused(lambda: arch(name=flat), "model.name", flat, ["(n, classes, h, w)"])
