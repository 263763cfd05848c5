"""The transformer: what it computes, how training may treat it, and which networks are refused for texts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fdaudit.errors import SpecError
from fdaudit.models import Network, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import TEXT
from fdaudit.training.private_step import _taken, per_sample_gradients, unfit

pytestmark = pytest.mark.usefixtures("trusting")  # networks named by `import:`

LENGTH, WORDS, CLASSES = 6, 20, 3


class Bag(nn.Module):
    """A network of a user's own: the mean of embeddings."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.bag, self.head = nn.Embedding(words, 4), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x).mean(1))


class Mixed(Bag):
    """A network that mixes the records of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.bag(x).mean(1)
        return self.head(h - h.mean(0))


def arch(name="transformer", words=WORDS, shape=(LENGTH,), **params):
    return architecture(ModelSpec(name=name, params=params), shape, CLASSES, TEXT, words)


def built(seed=0, **params):
    return arch(**params).build(child(seed, "model"))


def drawn(n, seed=0):
    x = torch.randint(2, WORDS, (n, LENGTH), generator=child(seed, "x"))
    x[1::2, 4:] = 0
    return x


def test_its_parts_and_parameters_are_those_worked_out_by_hand() -> None:
    d, depth = 8, 2
    layer = 2 * 2 * d + (3 * d * d + 3 * d) + (d * d + d) + (2 * d * d + 2 * d) + (2 * d * d + d)
    expected = WORDS * d + LENGTH * d + depth * layer + 2 * d + d * CLASSES + CLASSES
    assert arch(width=d, depth=depth).parameters == expected
    model, x = built(), drawn(2)
    assert isinstance(model, Network)
    torch.testing.assert_close(model.head(model.features(x)), model(x))


def test_it_computes_what_its_formula_says():
    model, x = built(width=4, heads=2, depth=1), drawn(2)
    w = dict(model.named_parameters())

    def norm(h, where):
        return F.layer_norm(h, (4,), w[f"{where}.weight"], w[f"{where}.bias"])

    for text, logits in zip(x, model(x), strict=True):
        n = int((text > 0).sum())  # padding comes last, and counts for nothing
        h = w["extractor.embedding.weight"][text[:n]] + w["extractor.position.weight"][:n]
        at = "extractor.layers.0"
        mixed = norm(h, f"{at}.first") @ w[f"{at}.mixed.weight"].T + w[f"{at}.mixed.bias"]
        heads = []
        for k in (slice(0, 2), slice(2, 4)):
            q, key, v = (part[:, k] for part in mixed.split(4, 1))
            heads.append(((q @ key.T) / 2**0.5).softmax(1) @ v)
        h = h + torch.cat(heads, 1) @ w[f"{at}.joined.weight"].T + w[f"{at}.joined.bias"]
        wide = F.gelu(norm(h, f"{at}.second") @ w[f"{at}.wide.weight"].T + w[f"{at}.wide.bias"])
        h = h + wide @ w[f"{at}.narrow.weight"].T + w[f"{at}.narrow.bias"]
        feature = norm(h, "extractor.norm").mean(0)
        torch.testing.assert_close(logits, feature @ w["head.weight"].T + w["head.bias"])


def test_padding_has_no_gradient_and_alone_finite_answers() -> None:
    model, x = built(), drawn(3)
    model(x).square().sum().backward()
    rows = model.extractor.embedding.weight.grad.abs().sum(1) > 0
    assert rows.nonzero().flatten().tolist() == sorted(set(x.flatten().tolist()) - {0})
    model = built()
    model(torch.zeros(2, LENGTH, dtype=torch.int64)).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_many_transformers_advance_at_once_as_they_do_alone():
    one, two = built(0), built(1)
    x, y = drawn(4), torch.tensor([0, 1, 2, 0])

    def loss(weights, x):
        return F.cross_entropy(functional_call(one, weights, (x,)), y)

    theirs = dict(two.named_parameters())
    weights = {n: torch.stack([p.detach(), theirs[n].detach()]) for n, p in one.named_parameters()}
    together = vmap(grad(loss))(weights, torch.stack([x, drawn(4, 1)]))
    for k, (model, own) in enumerate([(one, x), (two, drawn(4, 1))]):
        wanted = torch.autograd.grad(F.cross_entropy(model(own), y), list(model.parameters()))
        for name, expected in zip(weights, wanted, strict=True):
            torch.testing.assert_close(together[name][k], expected, rtol=1e-4, atol=1e-6)


def test_gradients_of_single_texts_are_those_of_plain_differentiation():
    model, x, y = built(), drawn(3), torch.tensor([0, 1, 2])
    free = dict(model.named_parameters())
    with per_sample_gradients(model):
        F.cross_entropy(model(x), y, reduction="sum").backward()
        found = _taken(free, 3)
    for k in range(3):
        loss = F.cross_entropy(model(x[k : k + 1]), y[k : k + 1])
        for name, expected in zip(free, torch.autograd.grad(loss, list(free.values())), strict=True):
            torch.testing.assert_close(found[name][k], expected, rtol=1e-4, atol=1e-6)


def test_private_training_takes_it_and_refuses_a_network_that_mixes_texts() -> None:
    assert unfit(built(), (LENGTH,), words=WORDS) is None
    found = unfit(Mixed(WORDS, CLASSES), (LENGTH,), words=WORDS)
    assert found is not None
    assert "depends on another" in found


def test_classes_of_the_users_own_are_told_the_vocabulary_and_images_refused() -> None:
    made = arch(f"import:{Bag.__module__}:Bag")
    assert made.build(child(0, "m"))(drawn(2)).shape == (2, CLASSES)
    with pytest.raises(SpecError, match=r"^model\.name: 'transformer' .* texts"):
        architecture(ModelSpec(name="transformer"), (1, 8, 8), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "mlp"}, "is a network for images. Use 'transformer'"),
        ({"width": 6, "heads": 4}, "width 6 is no multiple of 4 heads"),
        ({"name": "transformr"}, "is not a known model"),
    ],
)
def test_what_does_not_fit_texts_is_one_clear_error(changes, message):
    with pytest.raises(SpecError, match=message):
        arch(**changes)
