"""PLG-MI and BREP-MI: their parts against references, and what they show of classes that they never saw."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from fdaudit.attacks.model_inversion.brep_mi import BREPMI, BREPMIConfig
from fdaudit.attacks.model_inversion.brep_mi import _BoundarySearch as Repulsion
from fdaudit.attacks.model_inversion.gan import GanPrior
from fdaudit.attacks.model_inversion.plg_mi import PLGMI, PLGMIConfig, max_margin
from fdaudit.attacks.model_inversion.plg_mi import _PseudoLabelSearch as Pseudolabels
from fdaudit.attacks.model_inversion.priors import augmented
from torch import Tensor, nn

from fdaudit.data.named import read_digits
from fdaudit.errors import SpecError
from fdaudit.models.generative import build_projection_discriminator
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.trainer import parameters_of
from fdaudit.types import AttackTask

from .inversion_cases import SHAPE, Withheld, g, known, run_asking, view, weights

CPU = torch.device("cpu")
PLG = PLGMI(
    PLGMIConfig(
        composites=20, top=4, gan_steps=2, latent=4, width=4, batch=4, restarts=2, iterations=2, copies=1
    )
)
BREP = BREPMI(
    BREPMIConfig(
        gan_steps=1, latent=4, width=4, batch=4, queries=200, least_queries=60, points=4, largest=1e6
    )
)


@pytest.fixture(scope="module")
def digits() -> Withheld:
    raw = read_digits()
    model = ModelSpec(name="cnn-strided", params={"channels": [16, 32], "kernel": 3})
    return Withheld(raw.x, raw.y, (600, 300, 800), model, 400)


# -- parts ----------------------------------------------------------------------------------------------------------


def test_max_margin_is_the_best_other_logit_minus_the_own() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0], [1.0, 4.0, 2.0], [-1.0, -3.0, -2.0]])
    assert max_margin(logits, torch.tensor([0, 1, 2])).tolist() == [3.0, -2.0, 1.0]


def test_augmentation_keeps_a_constant_image_and_moves_others() -> None:
    flat = torch.full((3, *SHAPE), 0.4)
    torch.testing.assert_close(augmented(flat, 0.0, g()), flat)
    x = torch.rand(5, *SHAPE, generator=g())
    one, same, other = (augmented(x, 0.1, g(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert all(not torch.allclose(a, b, atol=1e-2) for a, b in zip(augmented(x, 0.0, g(3)), x, strict=True))


def test_the_projection_discriminator_judges_each_image_by_itself_with_its_class() -> None:
    D = build_projection_discriminator(g(), 4, SHAPE, 3).eval()
    x, y = torch.rand(6, *SHAPE, generator=g(1)), torch.arange(6) % 3
    whole = D(x, y)
    assert whole.shape == (6,)
    torch.testing.assert_close(torch.cat([D(x[i : i + 1], y[i : i + 1]) for i in range(6)]), whole)
    phi = D.features(x)
    expected = [D.real(phi)[i, 0] + phi[i] @ D.of_class.weight[y[i]] for i in range(6)]
    torch.testing.assert_close(torch.stack(expected), whole)
    with pytest.raises(SpecError, match="too small"):
        build_projection_discriminator(g(), 4, (1, 7, 8), 3)


def test_the_projection_discriminators_layers_have_spectral_norm_one() -> None:
    D = build_projection_discriminator(g(), 4, SHAPE, 3)
    x, y = torch.rand(4, *SHAPE, generator=g(1)), torch.arange(4) % 3
    for _ in range(200):  # each is a step of power iteration
        D(x, y)
    for layer in (*D.features, D.real, D.of_class):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            largest = torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)
            assert float(largest) == pytest.approx(1, abs=0.02)


class _Bright(nn.Module):
    """Three classes by brightness: dark, bright, and one that nothing is."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([-8 * mean, 8 * mean, torch.full_like(mean, -4.0)], 1)


def test_pseudo_labels_choose_the_images_of_highest_confidence() -> None:
    x = torch.rand(40, 1, 1, 1, generator=g()).expand(40, *SHAPE)
    attack = Pseudolabels(_Bright(), torch.arange(3), PLGMIConfig(composites=0, top=5), CPU)
    chosen, spread = attack.choose(x, g())
    assert chosen.shape == (3, 5, *SHAPE)
    levels, order = chosen[:, :, 0, 0, 0], x[:, 0, 0, 0].sort().values
    torch.testing.assert_close(levels[0], order[:5])
    torch.testing.assert_close(levels[1], order.flip(0)[:5])
    assert float(spread) == pytest.approx(float(_Bright()(x).std()))


class _Louder(_Bright):
    def forward(self, x: Tensor) -> Tensor:
        return 4 * super().forward(x)


def test_the_guidance_does_not_depend_on_the_scale_of_logits() -> None:
    config = PLGMIConfig(gan_steps=3, latent=4, width=4, batch=8, alpha=1.0)
    chosen, z = torch.rand(3, 4, *SHAPE, generator=g()), torch.randn(5, 7, generator=g())
    made = [
        Pseudolabels(model, torch.arange(3), config, CPU).teach(chosen, torch.tensor(spread), g(1))(z)
        for model, spread in ((_Bright(), 1.0), (_Louder(), 4.0), (_Bright(), 4.0))
    ]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def _plane(classify, classes: int, **settings: object) -> Repulsion:
    """Boundary repulsion in a plane: a latent vector is an image of two pixels."""

    class Pixels(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z.view(-1, 1, 1, 2)

    prior = GanPrior(Pixels(), Pixels(), 2)
    config = BREPMIConfig(**{"points": 128, "radius": 0.05, "growth": 1.1, "largest": 4.0, **settings})
    return Repulsion(
        prior, lambda x: classify(x.flatten(1)), torch.zeros(classes, 1, 1, 2), torch.arange(classes), config
    )


@pytest.mark.parametrize("seed", range(3))
def test_repulsion_ends_in_the_middle_of_a_band(seed: int) -> None:
    """The largest circle between two parallel lines has its centre halfway between them."""

    def band(z: Tensor) -> Tensor:
        return ((z[:, 0] > -0.2) & (z[:, 0] < 1.0)).long()

    attack = _plane(band, 2)
    found = attack.repel(torch.tensor([1]), torch.tensor([[-0.1, 0.0]]), 20_000, g(seed))
    assert float(found[0, 0]) == pytest.approx(0.4, abs=0.15)


def test_a_class_starts_at_the_mean_of_what_was_answered_so() -> None:
    c, z = _plane(lambda z: (z[:, 0] > 0).long() + 1, 3).start(500, g())
    assert c.tolist() == [1, 2]
    assert float(z[0, 0]) < -0.5
    assert float(z[1, 0]) > 0.5


def test_a_class_that_is_never_answered_is_guessed_as_expected() -> None:
    asked = []

    def always_one(z: Tensor) -> Tensor:
        asked.append(z)
        return torch.ones(len(z), dtype=torch.int64)

    attack = _plane(always_one, 3, largest=1.0)
    attack.expected[:] = 0.25
    images = attack.invert(5000, g())["images"]
    assert images[0].eq(0.25).all()
    assert images[2].eq(0.25).all()
    assert torch.isfinite(images).all()
    assert sum(map(len, asked)) < 5000  # done once its sphere is larger than `largest`


# -- runs -----------------------------------------------------------------------------------------------------------


def test_plg_mi_guesses_every_class_of_each_victims_own_model_and_repeats_itself() -> None:
    seen = view(
        ("client/0", ("server",), "model_parameters", weights(1)),
        ("client/1", ("server",), "model_parameters", weights(2)),
    )
    task = AttackTask(targets=("client/0", "client/1"))
    assert PLG.applicable(seen, known(), task)
    one, other = PLG.run(seen, known(), task, g())
    assert (one.target, other.target) == task.targets
    assert not torch.equal(one.images, other.images)
    for guess in (one, other):
        assert guess.by_class
        assert guess.labels.tolist() == [0, 1, 2]
        assert guess.images.shape == (3, *SHAPE)
        assert 0 <= guess.images.min() <= guess.images.max() <= 1
    assert torch.equal(PLG.run(seen, known(), task, g(7))[0].images, one.images)


def test_plg_mi_does_not_read_auxiliary_labels() -> None:
    seen = view(("server", ("client/0",), "model_parameters", weights()))
    task = AttackTask(targets=("client/0",))
    x, y = known().auxiliary
    first, second = (PLG.run(seen, known(auxiliary=(x, labels)), task, g())[0] for labels in (y, (y + 1) % 3))
    assert torch.equal(first.images, second.images)


def test_plg_mi_reasons_for_not_applying() -> None:
    seen = view(("server", ("client/0",), "model_parameters", weights()))
    task = AttackTask(targets=("client/0",))
    small = torch.rand(4, 1, 7, 7, generator=g()), torch.zeros(4, dtype=torch.int64)
    assert "no model parameters" in PLG.applicable(view(), known(), task).reason
    assert "not known" in PLG.applicable(seen, known(architecture=None), task).reason
    assert "bring auxiliary records" in PLG.applicable(seen, known(auxiliary=None), task).reason
    assert "8 pixels" in PLG.applicable(seen, known(auxiliary=small), task).reason
    with pytest.raises(ValueError, match="does not apply"):
        PLG.run(view(), known(), task, g())


def test_brep_mi_asks_a_released_model_once_for_all_victims() -> None:
    guesses, spent = run_asking(BREP, "hard", 1000)
    assert 200 - 3 * 4 < spent[None] <= 200  # `queries`, less than one step short of it
    assert [guess.target for guess in guesses] == ["client/0", "client/1"]
    assert torch.equal(guesses[0].images, guesses[1].images)
    for guess in guesses:
        assert guess.by_class
        assert guess.labels.tolist() == [0, 1, 2]
        assert guess.images.shape == (3, *SHAPE)
        assert 0 <= guess.images.min() <= guess.images.max() <= 1


def test_brep_mi_spreads_its_budget_and_refuses_one_that_is_too_small() -> None:
    _, spent = run_asking(BREP, "hard", 150, ("client/0", "client/1"))
    assert set(spent) == {"client/0", "client/1"}
    assert all(60 <= n <= 75 for n in spent.values())
    reason, spent = run_asking(BREP, "hard", 119, ("client/0", "client/1"))
    assert re.findall(r"\d+", reason) == ["60", "2", "59"]  # needed for each model, models, and allowed
    assert spent == {}


def test_brep_mi_reasons_for_not_applying() -> None:
    seen = view(("server", ("client/0",), "model_parameters", weights()))
    task = AttackTask(targets=("client/0",))
    assert BREP.applicable(seen, known(), task)
    assert "hard-label oracle" in BREP.applicable(view(), known(), task).reason
    assert "bring auxiliary records" in BREP.applicable(seen, known(auxiliary=None), task).reason
    with pytest.raises(ValueError, match="does not apply"):
        BREP.run(view(), known(), task, g())


# -- classes that only the model has seen -----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("cls", "oracle", "least"), [(PLGMI, (), 0.8), (BREPMI, ("hard", 20_000), 0.6)])
def test_digits_that_only_the_model_has_seen_are_shown(
    digits: Withheld, cls: Any, oracle: tuple[Any, ...], least: float
) -> None:
    attack = cls(cls.Config(**cls.card.profiles["quick"]))
    assert digits.accuracy(attack, *oracle) >= least
    untrained = parameters_of(digits.network(digits.model).build(g(3)))
    assert digits.accuracy(attack, *oracle, weights=untrained) <= 0.4
