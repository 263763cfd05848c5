"""Multi-label data: what loads, how it is shared out and paired, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from fdaudit.data import Dataset, class_table, load_dataset, make_splits, partition
from fdaudit.data.stratify import stratified_draw
from fdaudit.errors import DataError
from fdaudit.rng import child
from fdaudit.spec.schema import DatasetSpec, PartitionSpec, SplitSpec
from fdaudit.tasks import MULTI_LABEL

from ..helpers.refusals import refused
from ..helpers.run_cases import stream

BY_CLASS = PartitionSpec(name="by-class", classes_per_client=1)


def load(**fields):
    return load_dataset(DatasetSpec(**fields), stream(0, "dataset"))


COMPOSED = load(name="digits-multilabel")


def made(y, own_test=False):
    y = torch.as_tensor(y)
    x = torch.rand(len(y), 1, 2, 2, generator=child(0, "x"))
    test = {"test_x": x[:9], "test_y": y[:9]} if own_test else {}
    return Dataset(name="made", x=x, y=y, classes=y.shape[1], provenance="made here", **test)


# -- digits-multilabel ----------------------------------------------------------------------------------------


def test_composed_images_hold_each_digit_once_and_labels_say_which():
    digits = load()
    cells = COMPOSED.x.unfold(2, 8, 8).unfold(3, 8, 8).reshape(-1, 64)
    cells = cells[cells.sum(1) > 0]
    assert COMPOSED.input_shape == (1, 16, 16)
    assert COMPOSED.task == MULTI_LABEL
    # The multiset of filled quarters is the multiset of scikit-learn's digits: nothing used twice, nothing lost.
    one, other = (sorted(map(tuple, t.tolist())) for t in (cells, digits.x.flatten(1)))
    assert one == other
    label_of = {tuple(p): c for p, c in zip(digits.x.flatten(1).tolist(), digits.y.tolist(), strict=True)}
    for x, y in zip(COMPOSED.x[:60], COMPOSED.y[:60], strict=True):
        quarters = [q for q in x[0].unfold(0, 8, 8).unfold(1, 8, 8).reshape(4, 64) if q.sum() > 0]
        assert 1 <= len(quarters) <= 3
        assert set(y.nonzero().flatten().tolist()) == {label_of[tuple(q.tolist())] for q in quarters}


def test_the_composition_has_no_seed_and_unknown_labels_are_kept(tmp_path):
    other = load_dataset(DatasetSpec(name="digits-multilabel"), stream(1, "dataset"))
    assert other.sha256() == COMPOSED.sha256()
    assert len(load(name="digits-multilabel", limit=100).y) == 100
    assert load(name="digits-multilabel", image_size=20).input_shape == (1, 20, 20)
    labels = np.random.default_rng(0).integers(-1, 2, (20, 3))
    assert load(name=write(tmp_path / "d.npz", labels)).y.tolist() == labels.tolist()


# -- npz:FILE -------------------------------------------------------------------------------------------------


def write(path, labels, test_labels=None):
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(0, 256, (len(labels), 8, 8), dtype=np.uint8),
        "train_labels": labels,
    }
    if test_labels is not None:
        arrays["test_images"] = rng.integers(0, 256, (len(test_labels), 8, 8), dtype=np.uint8)
        arrays["test_labels"] = test_labels
    np.savez(path, **arrays)
    return f"npz:{path}"


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_chestmnist_layout(tmp_path, dtype):
    labels = np.random.default_rng(0).integers(0, 2, (20, 14)).astype(dtype)
    data = load(name=write(tmp_path / "d.npz", labels, labels[:5]))
    assert (data.task, data.classes) == (MULTI_LABEL, 14)
    assert torch.equal(data.y, torch.from_numpy(labels.astype(np.int64)))
    assert torch.equal(data.test_y, data.y[:5])
    # A class that occurs nowhere keeps its column: C is the layout's, not the data's.
    labels[:, 13] = 0
    assert load(name=write(tmp_path / "d.npz", labels)).classes == 14


@pytest.mark.parametrize(
    ("labels", "test_labels", "words"),
    [
        (np.full((20, 3), 2), None, "holds 2"),
        (np.full((20, 3), -2), None, "holds -2"),
        (np.zeros((20, 3), np.int64), None, "no class as present"),
        (np.ones((20, 3)), None, "dtype float64"),
        (np.ones((20, 3, 1), np.int64), None, "shape (20, 3, 1)"),
        (np.ones((20, 3), np.int64), np.ones((5, 4), np.int64), "3 and of 4 columns"),
        (np.ones((20, 3), np.int64), np.ones((5, 1), np.int64), "1 and of 3 columns"),
    ],
)
def test_defective_multi_hot_labels(tmp_path, labels, test_labels, words):
    with pytest.raises(DataError) as caught:
        load(name=write(tmp_path / "d.npz", labels, test_labels))
    assert words in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"y": torch.full((899, 10), 2)},
        {"y": torch.full((899, 10), -2)},
        {"y": COMPOSED.y[:, :9]},
        {"y": COMPOSED.y.float()},
        {"test_x": COMPOSED.x, "test_y": COMPOSED.y[:, 0]},
    ],
)
def test_a_dataset_refuses_labels_that_break_its_guarantees(changes):
    with pytest.raises(DataError):
        replace(COMPOSED, **changes)


# -- sharing out ----------------------------------------------------------------------------------------------

tables = st.integers(2, 4).flatmap(
    lambda c: st.lists(st.lists(st.integers(-1, 1), min_size=c, max_size=c), min_size=20, max_size=80)
)


@settings(max_examples=60, deadline=None)
@given(y=tables, total=st.integers(0, 20), seed=st.integers(0, 2**32))
def test_a_draw_of_multi_label_records_is_a_plain_one(y, total, seed):
    labels = torch.tensor(y)
    drawn, rest = stratified_draw(labels, total, labels.shape[1], stream(seed, "draw"))
    assert len(drawn) == total
    assert sorted([*drawn.tolist(), *rest.tolist()]) == list(range(len(y)))
    # Only the number of records decides, not what they show.
    other, _ = stratified_draw(torch.zeros_like(labels), total, labels.shape[1], stream(seed, "draw"))
    assert torch.equal(drawn, other)


@settings(max_examples=60, deadline=None)
@given(
    y=tables, clients=st.integers(1, 4), alpha=st.sampled_from([None, 0.5, 100.0]), seed=st.integers(0, 99)
)
def test_parts_are_disjoint_and_cover_and_the_table_counts_positives(y, clients, alpha, seed):
    spec = PartitionSpec() if alpha is None else PartitionSpec(name="dirichlet", alpha=alpha)
    labels = torch.tensor(y)
    try:
        parts = partition(labels, clients, spec, stream(seed, "partition"), labels.shape[1])
    except DataError as error:
        assert error.remedy  # noqa: PT017
        return
    assert sorted(torch.cat(parts).tolist()) == list(range(len(y)))
    table = class_table(labels, parts, labels.shape[1])
    for k, part in enumerate(parts):
        for c in range(labels.shape[1]):
            assert table[k, c] == sum(y[i][c] == 1 for i in part.tolist())


def test_dirichlet_makes_clients_uneven_in_every_class():
    """At α = 0.05 nearly all records drawn under a class lie with one client; at α = 1000 each client has its share."""
    y = COMPOSED.y
    share = {}
    for alpha in (0.05, 1000.0):
        spec = PartitionSpec(name="dirichlet", alpha=alpha)
        table = class_table(y, partition(y, 4, spec, stream(0, "partition"), 10), 10).double()
        share[alpha] = (table.max(0).values / table.sum(0)).mean()
    assert share[1000.0] < 0.32
    assert share[0.05] > 0.45  # not near 1: a record goes where one of its classes goes


def test_records_of_one_class_are_shared_out_under_that_class():
    """At α = 0.1 the larger of two shares is 94 % on average; 50 % where classes play no part."""
    y = torch.nn.functional.one_hot(torch.arange(400) % 8)
    larger = []
    for seed in range(20):
        parts = partition(y, 2, PartitionSpec(name="dirichlet", alpha=0.1), stream(seed, "partition"), 8)
        larger += (class_table(y, parts, 8).max(0).values / 50).tolist()
    assert sum(larger) / len(larger) == pytest.approx(0.941, abs=0.03)


def test_what_several_labels_do_not_allow_is_refused() -> None:
    for act in (
        lambda: partition(COMPOSED.y, 4, BY_CLASS, stream(0, "partition"), 10),
        lambda: make_splits(COMPOSED, 4, BY_CLASS, SplitSpec(), stream(0, "splits")),
    ):
        refused(act, "partition.name", "by-class", ["'iid'", "'dirichlet'"])
    y = torch.zeros(60, 2, dtype=torch.int64)
    y[0] = 1
    with pytest.raises(DataError, match=r"^splits\.test: 0\.2 .* 12 test"):
        make_splits(made(y), 2, PartitionSpec(), SplitSpec(), stream(1, "splits"))


# -- splits ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    y=tables,
    clients=st.integers(1, 3),
    candidates=st.integers(0, 30),
    own_test=st.booleans(),
    seed=st.integers(0, 99),
)
def test_splits_are_disjoint_and_pairs_are_of_one_label_set_as_far_as_there_are_any(
    y, clients, candidates, own_test, seed
):
    dataset = made(y, own_test)
    try:
        splits = make_splits(
            dataset, clients, PartitionSpec(), SplitSpec(candidates=candidates), stream(seed, "s")
        )
    except DataError as error:
        assert error.remedy  # noqa: PT017
        return
    sets = [splits.proxy, splits.auxiliary, *([] if own_test else [splits.test])]
    for client in splits.clients:
        sets += [client.train, client.non_members]
        assert torch.isin(client.members, client.train).all()
        assert len(client.members.unique()) == len(client.members) == len(client.non_members)
        held = torch.cat([client.train, client.non_members])
        assert len(client.members) == min(candidates, len(held) // 2)
        _, counts = dataset.y[held].unique(dim=0, return_counts=True)
        alike = (dataset.y[client.members] == dataset.y[client.non_members]).all(1).sum()
        assert alike >= min(candidates, int((counts // 2).sum()))
    together = torch.cat(sets)
    assert len(together.unique()) == len(together) == len(y)
    table = torch.stack([(dataset.y[c.train] == 1).sum(0) for c in splits.clients])
    assert torch.equal(splits.class_table, table)


def test_coins_are_fair_for_pairs_of_one_label_set_and_for_the_others():
    dataset = made([[k % 2, k % 3 == 0, k % 5 == 0, k % 7 == 0] for k in range(60)])
    heads = {True: [], False: []}
    for seed in range(200):
        splits = make_splits(dataset, 1, PartitionSpec(), SplitSpec(candidates=20), stream(seed, "splits"))
        (client,) = splits.clients
        alike = (dataset.y[client.members] == dataset.y[client.non_members]).all(1)
        for kind in heads:
            heads[kind] += (client.members < client.non_members)[alike == kind].tolist()
    for tosses in heads.values():
        assert len(tosses) > 200
        assert binomtest(sum(tosses), len(tosses)).pvalue > 0.001


def test_a_classifier_on_raw_inputs_cannot_tell_members_from_non_members():
    """Fitted to half of the pairs, judged on the other half: there each pair is won by a fair coin, exactly."""
    spec = SplitSpec(test=0.05, proxy=0.05, auxiliary=0.05, candidates=200)
    splits = make_splits(COMPOSED, 2, PartitionSpec(), spec, stream(0, "splits"))
    members = torch.cat([c.members for c in splits.clients])
    others = torch.cat([c.non_members for c in splits.clients])
    n, half = len(members), len(members) // 2
    order = torch.randperm(n, generator=child(0, "halves"))
    for brightness, told in ((1.0, False), (0.6, True)):  # darker members, which it must tell
        pair = (
            torch.stack([COMPOSED.x[members] * brightness, COMPOSED.x[others]], 1)[order].flatten(2).numpy()
        )
        model = LogisticRegression(C=0.01, max_iter=2000)
        model.fit(pair[:half].reshape(2 * half, -1), np.tile([1, 0], half))
        scores = model.decision_function(pair[half:].reshape(2 * (n - half), -1)).reshape(-1, 2)
        won = int((scores[:, 0] > scores[:, 1]).sum())
        low, high = binomtest(won, n - half).proportion_ci(0.99)
        assert (low > 0.6) if told else (low < 0.5 < high)
    assert n > 350
