"""A network that normalises images itself is the network without it, on normalised images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fdaudit.attacks.gradient_inversion.gradients import GradientMap
from torch import nn

from fdaudit.models import Architecture, Network, architecture
from fdaudit.models.normalization import Normalization, normalization_of, normalized
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.private_step import unfit
from fdaudit.training.trainer import Fit, Job, Trainer, parameters_of

SHAPE, CLASSES = (3, 8, 8), 4
EXECUTION = Execution(device="cpu", threads=1, strategy="loop", memory_format="contiguous")
NORMALIZATION = Normalization(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


def both(name: str, params: dict[str, object]) -> tuple[Architecture, Architecture]:
    plain = architecture(ModelSpec(name=name, params=params), SHAPE, CLASSES)
    return plain, replace(plain, normalization=NORMALIZATION)


NAMED = [
    ("mlp", {"widths": []}),
    ("mlp", {"widths": [16]}),
    ("cnn-strided", {}),
    ("resnet8", {}),
]


@pytest.mark.parametrize(("name", "params"), NAMED)
def test_answers_features_and_training_are_those_of_normalised_images(
    name: str, params: dict[str, object]
) -> None:
    plain, itself = both(name, params)
    x, y = torch.rand(6, *SHAPE, generator=child(1, "x")), torch.tensor([0, 1, 2, 3, 0, 1])
    one, two = (made.build(child(1, "weights")) for made in (plain, itself))
    assert one.state_dict().keys() == two.state_dict().keys()
    assert isinstance(one, Network)
    assert isinstance(two, Network)
    torch.testing.assert_close(two.features(x), one.features(NORMALIZATION(x)))
    fitted = []
    for made, images in ((plain, NORMALIZATION(x)), (itself, x)):
        start = parameters_of(made.build(child(1, "weights")))
        job = Job(party="client/0", parameters=start, x=images, targets=y, batches=[torch.arange(6)] * 2)
        (result,) = Trainer(made, EXECUTION).fit([job], Fit(lr=0.1))
        fitted.append(result.parameters)
    for tensor in fitted[0]:
        torch.testing.assert_close(fitted[0][tensor], fitted[1][tensor], rtol=1e-4, atol=1e-6)
    assert plain.described != itself.described


@pytest.mark.parametrize(("name", "params"), NAMED[:3])
def test_every_strategy_differentiates_through_it(name: str, params: dict[str, object]) -> None:
    module = both(name, params)[1].build(child(1, "weights"))
    start = {n: t.detach() for n, t in module.state_dict().items()}
    y = torch.randint(CLASSES, (4, 2), generator=child(1, "y"))
    found = []
    for strategy in ("loop", "vmap", "folded"):
        x = torch.rand(4, 2, *SHAPE, generator=child(1, "x")).requires_grad_()
        v = GradientMap(module, start, strategy)(x, y)
        (moved,) = torch.autograd.grad(v.square().sum(), x)
        found.append((v.detach(), moved))
    for v, moved in found[1:]:
        torch.testing.assert_close(v, found[0][0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(moved, found[0][1], rtol=1e-3, atol=1e-5)


def test_a_network_with_a_hook_on_a_layer_with_weights_is_not_folded() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    module[1].register_forward_pre_hook(lambda _, inputs: (inputs[0] * 3,))
    start = {n: t.detach() for n, t in module.state_dict().items()}
    x, y = torch.rand(2, 1, 1, 2, 2, generator=child(1, "x")), torch.tensor([[0], [1]])
    torch.testing.assert_close(GradientMap(module, start)(x, y), GradientMap(module, start, "loop")(x, y))


def test_dp_sgd_trains_a_network_that_tells_its_normalisation() -> None:
    assert unfit(normalized(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), NORMALIZATION), SHAPE) is None
    assert normalization_of(nn.Linear(2, 2)) is None
    for made in both("mlp", {"widths": []}):
        assert normalization_of(made.build(child(1, "weights"))) == made.normalization


@pytest.mark.parametrize("span", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_it_is_undone(span: tuple[float, float]) -> None:
    made = Normalization.of((0.3, 0.5, 0.7), (0.2, 1.0, 3.0), span)
    x = torch.rand(2, *SHAPE, generator=child(1, "x"))
    torch.testing.assert_close(made.undone(made(x)), x)
    seen = (span[0] + x * (span[1] - span[0]) - torch.tensor([0.3, 0.5, 0.7])[:, None, None]) / torch.tensor(
        [0.2, 1.0, 3.0]
    )[:, None, None]
    torch.testing.assert_close(made(x), seen, rtol=1e-4, atol=1e-4)
