"""Partitions: disjoint, covering where the rule allows, reproducible, and shaped as the rule says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from fdaudit.config import validate
from fdaudit.data import class_table, partition
from fdaudit.data.resize import fit
from fdaudit.data.stratify import apportion, stratified_draw
from fdaudit.errors import DataError, SpecError
from fdaudit.rng import child
from fdaudit.spec.schema import PartitionSpec

from ..helpers.refusals import refused
from ..helpers.run_cases import stream

CLASSES = 6

labels = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=150).map(torch.tensor)
specs = st.one_of(
    st.just(PartitionSpec()),
    st.integers(1, CLASSES).map(lambda n: PartitionSpec(name="by-class", classes_per_client=n)),
    st.floats(1e-4, 1e4).map(lambda a: PartitionSpec(name="dirichlet", alpha=a)),
)


def parts_or_refusal(y, clients, spec, seed):
    try:
        return partition(y, clients, spec, stream(seed, "partition"), CLASSES)
    except DataError as error:
        assert error.remedy  # noqa: PT017
        return None


@given(y=labels, clients=st.integers(1, 8), spec=specs, seed=st.integers(0, 2**32))
def test_parts_are_disjoint_ascending_and_reproducible(y, clients, spec, seed):
    parts = parts_or_refusal(y, clients, spec, seed)
    assume(parts is not None)
    together = torch.cat(parts)
    assert len(parts) == clients
    assert len(together.unique()) == len(together)
    assert all(len(part) and torch.equal(part, part.sort().values) for part in parts)
    again = partition(y, clients, spec, stream(seed, "partition"), CLASSES)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    table = class_table(y, parts, CLASSES)
    assert table.shape == (clients, CLASSES)
    assert table.sum() == len(together)
    for k, part in enumerate(parts):
        for label in range(CLASSES):
            assert table[k, label] == sum(int(y[i]) == label for i in part)


@given(y=labels, clients=st.integers(1, 8), spec=specs, seed=st.integers(0, 2**32))
def test_every_record_goes_to_someone_unless_classes_are_left_over(y, clients, spec, seed):
    parts = parts_or_refusal(y, clients, spec, seed)
    assume(parts is not None)
    covered = sum(len(part) for part in parts)
    if spec.name != "by-class":
        assert covered == len(y)
        return
    held = set(y[torch.cat(parts)].tolist())
    assert covered == sum(int(label) in held for label in y)
    assert len(held) == min(clients * spec.classes_per_client, len(y.unique()))


@given(clients=st.integers(1, 12), wanted=st.integers(1, CLASSES), seed=st.integers(0, 2**32))
def test_by_class_gives_exactly_n_classes_shared_evenly(clients, wanted, seed):
    y = torch.arange(CLASSES * 40) % CLASSES
    spec = PartitionSpec(name="by-class", classes_per_client=wanted)
    parts = partition(y, clients, spec, stream(seed, "partition"), CLASSES)
    table = class_table(y, parts, CLASSES)
    assert (table > 0).sum(1).tolist() == [wanted] * clients
    holders = (table > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    for label in range(CLASSES):
        shares = table[:, label][table[:, label] > 0]
        assert len(shares) == 0 or shares.max() - shares.min() <= 1


def test_iid_sizes_differ_by_at_most_one_and_classes_mix():
    y = torch.arange(1003) % CLASSES
    parts = partition(y, 4, PartitionSpec(), stream(0, "p"), CLASSES)
    assert sorted(len(p) for p in parts) == [250, 251, 251, 251]
    expected = 250 / CLASSES
    # Hypergeometric counts: five standard deviations.
    assert (class_table(y, parts, CLASSES) - expected).abs().max() < 5 * expected**0.5


def test_dirichlet_shares_are_equal_or_single_at_the_limits_of_alpha() -> None:
    y = torch.arange(6000) % CLASSES
    spec = PartitionSpec(name="dirichlet", alpha=1e8)
    table = class_table(y, partition(y, 5, spec, stream(0, "p"), CLASSES), CLASSES)
    assert (table - 200).abs().max() <= 1
    spec = PartitionSpec(name="dirichlet", alpha=1e-6)
    with pytest.raises(DataError, match="fewer than 1"):
        partition(y, 30, spec, stream(0, "p"), CLASSES)
    parts = partition(y, 30, spec, stream(0, "p"), CLASSES, minimum=0)
    assert (class_table(y, parts, CLASSES) > 0).sum(0).tolist() == [1] * CLASSES


def test_dirichlet_shares_have_the_distributions_variance():
    # A share of Dir_K(α) has mean 1/K and variance (K - 1) / (K² (K α + 1)).
    clients, alpha, n = 4, 0.7, 2000
    y = torch.arange(50 * n) % 50
    parts = partition(y, clients, PartitionSpec(name="dirichlet", alpha=alpha), stream(3, "p"), 50)
    shares = class_table(y, parts, 50).double() / n
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert shares.mean().item() == pytest.approx(1 / clients)
    assert shares.var(correction=0).item() == pytest.approx(expected, rel=0.25)


def test_only_labels_and_the_generator_decide():
    y = torch.arange(600) % CLASSES
    for spec in (PartitionSpec(), PartitionSpec(name="dirichlet", alpha=1.0)):
        one = partition(y, 3, spec, stream(0, "p"), CLASSES)
        other = partition(y, 3, spec, stream(1, "p"), CLASSES)
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def by_class(classes: int) -> PartitionSpec:
    return PartitionSpec(name="by-class", classes_per_client=classes)


@pytest.mark.parametrize(
    ("y", "clients", "spec", "words"),
    [
        (torch.zeros(3, dtype=torch.int64), 4, PartitionSpec(), "leaves client/3 with 0 of 3"),
        (torch.zeros(3, dtype=torch.int64), 0, PartitionSpec(), "not a number of clients"),
        (torch.tensor([0, 0, 1, 1]), 2, by_class(3), "exceeds the 2 classes"),
        (torch.tensor([0, 0, 0, 1]), 4, by_class(2), "share the 3 records of class 0"),
    ],
)
def test_impossible_partitions(y, clients, spec, words):
    with pytest.raises(DataError, match=words) as caught:
        partition(y, clients, spec, stream(0, "p"), CLASSES)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("fields", "offender"),
    [
        ({"alpha": 0.5}, "partition.alpha"),
        ({"classes_per_client": 1}, "partition.classes_per_client"),
        ({"name": "by-class"}, "partition.classes_per_client"),
        ({"name": "dirichlet"}, "partition.alpha"),
        ({"name": "by-class", "classes_per_client": 1, "alpha": 1.0}, "partition.alpha"),
        ({"name": "dirichlet", "alpha": 0.0}, "partition.alpha"),
        ({"name": "by-class", "classes_per_client": 0}, "partition.classes_per_client"),
        ({"name": "byclass"}, "partition.name"),
    ],
)
def test_impossible_combinations_are_spec_errors(fields, offender):
    with pytest.raises(SpecError) as caught:
        validate(PartitionSpec, fields, "partition")
    assert caught.value.field == offender


def test_a_capped_draw_gives_nothing_more_to_who_has_an_even_share() -> None:
    """The last class goes to those below an even share alone."""
    y, spec = torch.arange(600) % 3, PartitionSpec(name="dirichlet", alpha=0.1, capped=True)
    refused = 0
    for seed in range(20):
        parts = partition(y, 4, spec, stream(seed, "partition"), 3, 0)
        assert len(torch.cat(parts).unique()) == 600
        before = [int((y[part] < 2).sum()) for part in parts]
        for part, held in zip(parts, before, strict=True):
            if held >= 150:
                assert not (y[part] == 2).any()
                refused += 1
    assert refused > 10


def test_shares_are_drawn_until_everybody_has_enough_or_refused() -> None:
    y = torch.arange(600) % 3
    spec = PartitionSpec(name="dirichlet", alpha=0.1, least=60)
    assert min(map(len, partition(y, 4, spec, stream(1, "partition"), 3))) >= 60
    with pytest.raises(DataError, match=r"^partition\.least: 200 .*`partition\.alpha`"):
        partition(y, 4, spec.model_copy(update={"least": 200}), stream(1, "partition"), 3)
    y = torch.arange(12) % CLASSES
    partition(y, 4, PartitionSpec(), stream(0, "p"), CLASSES, minimum=3)
    with pytest.raises(DataError, match="fewer than 4"):
        partition(y, 4, PartitionSpec(), stream(0, "p"), CLASSES, minimum=4)


@pytest.mark.parametrize(("field", "value"), [("capped", True), ("least", 5)])
def test_settings_of_a_draw_belong_to_a_draw(field: str, value: object) -> None:
    stray = {"name": "iid", field: value}
    refused(lambda: validate(PartitionSpec, stray, "partition"), f"partition.{field}", value, ["'dirichlet'"])


# -- shares in proportion, and images brought to one size ----------------------------------------------------------


@given(
    h=st.integers(1, 12),
    w=st.integers(1, 12),
    size=st.integers(1, 16),
    level=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_fit_gives_the_size_and_keeps_flat_grey_flat(h, w, size, level):
    out = fit(torch.full((2, 3, h, w), level), size)
    assert out.shape == (2, 3, size, size)
    inside = out[out > 0] if level else out
    assert torch.allclose(inside, torch.full_like(inside, level), atol=1e-6)
    if max(h, w) <= size:
        assert out.sum() == pytest.approx(2 * 3 * h * w * level)


def test_fit_shrinks_as_averaging_does():
    x = torch.rand(1, 1, 8, 8, generator=child(0, "x"))
    # Antialiased bilinear shrinking preserves the mean up to the borders; a checkerboard turns grey.
    board = (torch.arange(16)[:, None] + torch.arange(16)[None, :]).remainder(2).float()[None, None]
    assert fit(board, 4)[..., 1:3, 1:3].sub(0.5).abs().max() < 0.01
    assert torch.equal(fit(x, 8), x)
    assert torch.equal(fit(x, 10), F.pad(x, (1, 1, 1, 1)))


@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=8), share=st.floats(0, 1))
def test_apportion_sums_up_and_stays_within_one_of_the_quota(weights, share):
    total = int(share * sum(weights))
    shares = apportion(total, weights)
    assert sum(shares) == total
    for got, weight in zip(shares, weights, strict=True):
        assert got <= weight
        assert abs(got - total * weight / max(sum(weights), 1)) < 1


@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=8), share=st.floats(0, 1))
def test_apportion_respects_caps(weights, share):
    caps = [w // 2 for w in weights]
    total = int(share * sum(caps))
    shares = apportion(total, weights, caps)
    assert sum(shares) == total
    assert all(got <= cap for got, cap in zip(shares, caps, strict=True))
    with pytest.raises(ValueError, match=f"total = {sum(caps) + 1}"):
        apportion(sum(caps) + 1, weights, caps)


@given(y=st.lists(st.integers(0, 4), min_size=1, max_size=60), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_stratified_draw_splits_into_two(y, share, seed):
    labels = torch.tensor(y)
    total = int(share * len(y))
    drawn, rest = stratified_draw(labels, total, 5, stream(seed, "draw"))
    assert len(drawn) == total
    assert sorted([*drawn.tolist(), *rest.tolist()]) == list(range(len(y)))
