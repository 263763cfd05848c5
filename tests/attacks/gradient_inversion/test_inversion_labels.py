"""Label recovery against the labels that were there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from fdaudit.attacks.gradient_inversion.labels import (
    expected_probabilities,
    label_of_one,
    probe_images,
    recover_counts,
    recover_labels,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.errors import UsageError
from fdaudit.models.network import last_layer

from ...helpers.refusals import refused
from .gradient_inversion_cases import (
    digits,
    dlg_lenet,
    init_uniform,
    mlp,
    one_thread,  # noqa: F401
    pooling_cnn,
    strided_cnn,
    tensors,
    true_gradient,
)

NETWORKS = {"lenet": dlg_lenet, "strided": strided_cnn, "pooling": pooling_cnn, "mlp": mlp}


@given(
    seed=st.integers(0, 2**31),
    label=st.integers(0, 9),
    network=st.sampled_from(sorted(NETWORKS)),
    bias=st.booleans(),
    scale=st.floats(0.1, 3.0),
)
@settings(max_examples=60, deadline=None)
def test_the_label_of_one_image_is_exact_for_any_weights(
    seed: int, label: int, network: str, bias: bool, scale: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    module = NETWORKS[network](16, g)
    weight, bias_name = last_layer(module, torch.rand(2, 1, 16, 16, generator=g))
    last = module.get_submodule(weight.rpartition(".")[0])
    if not bias:
        last.bias = None
    with torch.no_grad():
        last.weight.mul_(scale)
    x, y = torch.rand(1, 1, 16, 16, generator=g), torch.tensor([label])
    found = label_of_one(true_gradient(module, x, y), weight, bias_name if bias else None)
    assert found == label


@given(labels=st.lists(st.integers(0, 9), min_size=1, max_size=12), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_counts_are_exact_where_probabilities_do_not_depend_on_the_image(
    labels: list[int], seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    module = init_uniform(nn.Sequential(nn.Flatten(), nn.Linear(9, 10)), g)
    with torch.no_grad():
        module[1].weight.zero_()  # the network answers by its biases alone
    y = torch.tensor(labels)
    gradient = true_gradient(module, torch.rand(len(y), 1, 3, 3, generator=g), y)
    counts = recover_counts(gradient, module, tensors(module), len(y), torch.rand(5, 1, 3, 3, generator=g))
    assert counts.tolist() == torch.bincount(y, minlength=10).tolist()


@pytest.mark.parametrize("records", [1, 4, 20_000])
@pytest.mark.parametrize("value", [1e3, -1e12, 1e30, float("inf"), float("nan")])
def test_a_gradient_of_any_size_gives_counts_of_all_records(value: float, records: int) -> None:
    """As an update that diverged gives, or one from a hostile client: it may not keep the auditor counting."""
    g = torch.Generator().manual_seed(0)
    module = init_uniform(nn.Sequential(nn.Flatten(), nn.Linear(9, 10)), g)
    gradient = true_gradient(module, torch.rand(4, 1, 3, 3, generator=g), torch.arange(4))
    for bias in (gradient["1.bias"], torch.zeros(10)):
        hostile = {**gradient, "1.bias": bias.clone()}
        hostile["1.bias"][2] = value
        probes = torch.rand(5, 1, 3, 3, generator=g)
        counts = recover_counts(hostile, module, tensors(module), records, probes)
        assert int(counts.sum()) == records
        assert bool((counts >= 0).all())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("network", "probes", "least"),
    [
        ("strided", "auxiliary", 1.0),
        ("strided", "noise", 1.0),
        ("mlp", "auxiliary", 1.0),
        ("pooling", "noise", 1.0),
        ("lenet", "auxiliary", 1.0),
        ("lenet", "noise", 0.9),
    ],
)
def test_batches_of_untrained_networks(network: str, probes: str, least: float) -> None:
    """Exact multisets of 8 labels, drawn with repeats, in at least this share of 20 networks and batches."""
    x, y = digits()
    exact = []
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        module = NETWORKS[network](16, g)
        rows = torch.randint(0, 1000, (8,), generator=g)
        known = x[1000:] if probes == "auxiliary" else probe_images((1, 16, 16), 256, g)
        gradient = true_gradient(module, x[rows], y[rows])
        found = recover_labels(gradient, module, tensors(module), 8, known)
        exact.append(found.tolist() == y[rows].sort().values.tolist())
    rate = sum(exact) / len(exact)
    print(f"label multisets of 8, {network}, {probes}: {rate:.0%} exact")
    assert rate >= least


def test_weights_alone_give_most_labels_of_a_batch() -> None:
    x, y = digits()
    right = 0
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        module = strided_cnn(16, g)
        module[-1].bias = None
        rows = torch.randint(0, 1000, (8,), generator=g)
        gradient = true_gradient(module, x[rows], y[rows])
        counts = recover_counts(gradient, module, tensors(module), 8, x[1000:])
        right += int(torch.minimum(counts, torch.bincount(y[rows], minlength=10)).sum())
    print(f"labels from weights alone: {right} of 160")
    assert right >= 128


@pytest.mark.thorough
def test_labels_drown_in_noise() -> None:
    x, y = digits()
    right = 0
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        module = strided_cnn(16, g)
        gradient = {k: torch.randn(v.shape, generator=g) for k, v in tensors(module).items()}
        right += recover_labels(gradient, module, tensors(module), 1, x[1000:])[0] == y[seed]
    assert right <= 12  # 4 expected by chance; more than 12 of 40 has probability below 1e-4


def test_counts_always_sum_to_the_batch_and_name_certain_classes() -> None:
    g = torch.Generator().manual_seed(0)
    module = mlp(4, g)
    for n in (2, 5, 30):
        gradient = {k: torch.randn(v.shape, generator=g) for k, v in tensors(module).items()}
        counts = recover_counts(gradient, module, tensors(module), n, torch.rand(4, 1, 4, 4, generator=g))
        assert counts.sum() == n
        assert (counts >= 0).all()


def test_expected_probabilities_are_means_of_softmax() -> None:
    g = torch.Generator().manual_seed(0)
    module = mlp(4, g)
    x = torch.rand(300, 1, 4, 4, generator=g)
    torch.testing.assert_close(
        expected_probabilities(module, tensors(module), x), module(x).softmax(1).mean(0).detach()
    )


class Tempered(nn.Module):
    """A linear layer that does not answer by itself, beside one that is defined last and never used."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.temperature = nn.Linear(256, 10), nn.Parameter(torch.tensor([2.0]))
        self.spare = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.head(x.flatten(1)) * self.temperature
        return answers


class HeadFirst(nn.Module):
    """A network whose last layer is defined first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(32, 10), nn.Linear(256, 32)

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.head(self.body(x.flatten(1)).relu())
        return answers


OTHER_ENDS: dict[str, Callable[[], nn.Module]] = {
    "convolution and pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "convolution, rectified": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 5, 2),
        nn.ReLU(),
        nn.Conv2d(16, 10, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
    "a temperature": Tempered,
    "a normalized answer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 10), nn.LayerNorm(10)),
    "a channel's scale": lambda: nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
}


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("end", OTHER_ENDS)
def test_labels_behind_other_ends(end: str, n: int) -> None:
    """At least 80 % of labels, which guessing would hit with 10 %."""
    x, y = digits()
    right = 0
    for seed in range(10):
        torch.manual_seed(seed)
        module = OTHER_ENDS[end]()
        refused(partial(last_layer, module, x), "module", type(module).__name__, kind=UsageError)
        g = torch.Generator().manual_seed(seed)
        rows = torch.randint(0, 1000, (n,), generator=g)
        loss = F.cross_entropy(module(x[rows]), y[rows])
        sent = torch.autograd.grad(loss, list(module.parameters()), materialize_grads=True)
        gradient = dict(zip(tensors(module), sent, strict=True))
        counts = recover_counts(gradient, module, tensors(module), n, x[1000:1256])
        right += int(torch.minimum(counts, torch.bincount(y[rows], minlength=10)).sum())
    assert right >= 0.8 * 10 * n


def test_the_layer_that_answers_is_found_wherever_it_is_defined() -> None:
    assert last_layer(HeadFirst(), torch.rand(2, 1, 16, 16)) == ("head.weight", "head.bias")
