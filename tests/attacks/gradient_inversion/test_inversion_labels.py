"""Label recovery against the labels that were there."""

from __future__ import annotations

import pytest
import torch
from fdaudit.attacks.gradient_inversion.labels import (
    expected_probabilities,
    label_of_one,
    last_layer,
    probe_images,
    recover_counts,
    recover_labels,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fdaudit.errors import UsageError

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
    weight, _ = last_layer(module)
    last = module.get_submodule(weight.rpartition(".")[0])
    if not bias:
        last.bias = None
    with torch.no_grad():
        last.weight.mul_(scale)
    x, y = torch.rand(1, 1, 16, 16, generator=g), torch.tensor([label])
    assert label_of_one(true_gradient(module, x, y), module) == label


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


def test_a_network_without_a_linear_end_is_refused() -> None:
    with pytest.raises(UsageError, match="does not end in a linear layer"):
        last_layer(nn.Sequential(nn.Conv2d(1, 10, 4), nn.Flatten()))
