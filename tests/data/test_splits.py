"""Splits: disjoint, fair, reproducible, and telling members from non-members is impossible from the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from scipy.stats import binomtest, chisquare
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

import fdaudit
from fdaudit.config import validate
from fdaudit.data import Dataset, load_dataset, make_splits
from fdaudit.data import test_xy as xy_of_test
from fdaudit.data.public import shifted_copies
from fdaudit.errors import DataError, SpecError
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.spec.schema import DatasetSpec, PartitionSpec, SplitSpec, load_spec
from fdaudit.storage.files import decode
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.log import read_log
from fdaudit.transcript.payloads import read_payload

from ..helpers.refusals import refused
from ..helpers.run_cases import known, stream

DIGITS = load_dataset(DatasetSpec(), stream(0, "dataset"))
SPECS = [
    PartitionSpec(),
    PartitionSpec(name="by-class", classes_per_client=2),
    PartitionSpec(name="dirichlet", alpha=0.5),
]


def made(y, classes, own_test=False):
    y = torch.as_tensor(y)
    x = torch.rand(len(y), 1, 2, 2, generator=child(0, "x"))
    test = {"test_x": x[:7], "test_y": y[:7]} if own_test else {}
    return Dataset(name="made", x=x, y=y, classes=classes, provenance="made here", **test)


def digits_splits(seed=0, clients=4, partition=SPECS[0], **fields):
    return make_splits(DIGITS, clients, partition, SplitSpec(**fields), stream(seed, "splits"))


def check_structure(dataset, splits, own_test=False):
    sets = [splits.proxy, splits.auxiliary, *([] if own_test else [splits.test])]
    for k, client in enumerate(splits.clients):
        sets += [client.train, client.non_members]
        assert torch.isin(client.members, client.train).all()
        assert len(client.members.unique()) == len(client.members) == len(client.non_members)
        assert torch.equal(dataset.y[client.members], dataset.y[client.non_members])
        table = torch.bincount(dataset.y[client.train], minlength=dataset.classes)
        assert torch.equal(splits.class_table[k], table)
    together = torch.cat(sets)
    assert len(together.unique()) == len(together)
    return together


@pytest.mark.parametrize("partition", SPECS, ids=lambda s: s.name)
def test_sets_are_disjoint_cover_the_data_and_do_not_depend_on_images(partition) -> None:
    splits = digits_splits(partition=partition)
    together = check_structure(DIGITS, splits)
    # By class 4 clients hold 8 of 10 classes; the other two are left over.
    assert (len(together) == len(DIGITS.y)) == (partition.name != "by-class")
    assert len(splits.test) == round(0.2 * 1797)
    assert len(splits.proxy) == len(splits.auxiliary) == round(0.1 * 1797)
    altered = replace(DIGITS, x=1.0 - DIGITS.x)
    one = digits_splits(partition=partition).to_dict()
    other = make_splits(altered, 4, partition, SplitSpec(), stream(0, "splits")).to_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


@settings(max_examples=60, deadline=None)
@given(
    y=st.lists(st.integers(0, 3), min_size=20, max_size=120),
    clients=st.integers(1, 4),
    candidates=st.integers(0, 30),
    own_test=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_structure_holds_for_any_labels(y, clients, candidates, own_test, seed):
    dataset = made(y, 4, own_test)
    try:
        splits = make_splits(
            dataset, clients, SPECS[0], SplitSpec(candidates=candidates), stream(seed, "splits")
        )
    except DataError as error:
        assert error.remedy  # noqa: PT017
        return
    check_structure(dataset, splits, own_test)
    assert len(xy_of_test(dataset, splits)[0]) == (7 if own_test else round(0.2 * len(y)))
    for client in splits.clients:
        records = torch.bincount(dataset.y[torch.cat([client.train, client.non_members])], minlength=4)
        pairs = torch.bincount(dataset.y[client.members], minlength=4)
        assert pairs.sum() == min(candidates, int((records // 2).sum()))
        assert (pairs <= records // 2).all()


def test_held_out_sets_and_pairs_keep_the_classes_in_proportion():
    splits = digits_splits(clients=2, candidates=100)
    share = torch.bincount(DIGITS.y) / 1797
    for index in (splits.test, splits.proxy, splits.auxiliary):
        assert (torch.bincount(DIGITS.y[index]) - len(index) * share).abs().max() < 2
    for client in splits.clients:
        own = torch.bincount(DIGITS.y[torch.cat([client.train, client.non_members])])
        quota = 100 * own / own.sum()
        assert (torch.bincount(DIGITS.y[client.members]) - quota).abs().max() < 1


def test_splits_are_the_generators_and_survive_safetensors() -> None:
    one, same, other = (digits_splits(seed).to_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(
        torch.equal(one[name], other[name]) for name in one if one[name].shape == other[name].shape
    )
    splits = digits_splits(clients=11)
    back = load(save(splits.to_dict()))
    assert back.keys() == splits.to_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in splits.to_dict().items())


def test_coins_are_fair_and_independent():
    dataset = made(torch.arange(80) % 2, 2)
    spec = SplitSpec(candidates=10)
    lower = []
    membership = torch.zeros(80)
    for seed in range(300):
        for client in make_splits(dataset, 2, SPECS[0], spec, stream(seed, "splits")).clients:
            lower.append(client.members < client.non_members)
            membership[client.members] += 1
            membership[client.non_members] -= 1
    first = torch.stack(lower)  # (600, 10): whether the record of lower index is the member
    assert binomtest(int(first.sum()), first.numel()).pvalue > 0.001
    # Independent coins: the number of heads in ten is binomial.
    heads = torch.bincount(first.sum(1), minlength=11).numpy()
    law = np.array([1, 10, 45, 120, 210, 252, 210, 120, 45, 10, 1]) / 1024 * len(first)
    pooled = [np.array([v[:3].sum(), *v[3:8], v[8:].sum()]) for v in (heads, law)]
    assert chisquare(*pooled).pvalue > 0.001
    # No record leans to either side: about 150 tosses each, five standard deviations.
    assert membership.abs().max() < 5 * 150**0.5


def pair_order_won(x, splits):
    """In how many pairs, of how many, cross-validated logistic regression scores the member higher."""
    members = torch.cat([c.members for c in splits.clients])
    others = torch.cat([c.non_members for c in splits.clients])
    n = len(members)
    features = torch.cat([x[members], x[others]]).flatten(1).numpy()
    truth, pair = np.repeat([1, 0], n), np.tile(np.arange(n), 2)
    model = LogisticRegression(C=0.01, max_iter=2000)
    scores = cross_val_predict(
        model, features, truth, groups=pair, cv=GroupKFold(5), method="decision_function"
    )
    return int((scores[:n] > scores[n:]).sum()), n


def test_a_classifier_on_raw_inputs_tells_only_halves_that_differ() -> None:
    won, n = pair_order_won(DIGITS.x, digits_splits(clients=2, candidates=250))
    interval = binomtest(won, n).proportion_ci(confidence_level=0.99, method="exact")
    assert n == 500
    assert interval.low < 0.5 < interval.high
    splits = digits_splits(clients=2, candidates=250)
    x = DIGITS.x.clone()
    x[torch.cat([c.members for c in splits.clients])] *= 0.8
    won, n = pair_order_won(x, splits)
    assert binomtest(won, n).proportion_ci(confidence_level=0.99, method="exact").low > 0.6


def test_an_official_test_split_is_used_whole():
    dataset = made(torch.arange(100) % 4, 4, own_test=True)
    splits = make_splits(dataset, 2, SPECS[0], SplitSpec(test=0.9 - 0.2), stream(0, "splits"))
    x, y = xy_of_test(dataset, splits)
    assert torch.equal(x, dataset.test_x)
    assert torch.equal(y, dataset.test_y)
    assert sum(len(c.train) + len(c.non_members) for c in splits.clients) == 80


def test_too_few_records_and_impossible_fractions_are_errors() -> None:
    splits = make_splits(made(torch.arange(60) % 2, 2), 2, SPECS[0], SplitSpec(), stream(0, "splits"))
    assert all(0 < len(c.members) <= 18 // 2 for c in splits.clients)
    singles, seed = made(torch.arange(20), 20), stream(0, "splits")
    refused(lambda: make_splits(singles, 1, SPECS[0], SplitSpec(), seed), "splits.candidates", kind=DataError)
    none = make_splits(singles, 1, SPECS[0], SplitSpec(candidates=0), stream(0, "splits"))
    assert len(none.clients[0].members) == 0
    with pytest.raises(DataError, match="no test record"):
        make_splits(made([0, 1, 0, 1], 2), 1, SPECS[0], SplitSpec(test=0.0), stream(0, "splits"))
    whole = {"test": 0.5, "proxy": 0.3, "auxiliary": 0.2}
    refused(lambda: validate(SplitSpec, whole, "splits"), "splits", 1.0)
    refused(lambda: validate(SplitSpec, {"candidates": -1}, "splits"), "splits.candidates")


# -- copies of the public samples ----------------------------------------------------------------------------------


def test_the_first_copies_are_the_images_and_the_others_are_shifted_by_up_to_an_eighth():
    x = torch.rand(40, 2, 16, 24, generator=child(0, "x")) + 0.1
    made = shifted_copies(x, 3)
    assert torch.equal(made[:40], x)
    seen = set()
    for number, image in enumerate(made[40:]):
        filled = (image[0] > 0).nonzero()
        (top, left), (bottom, right) = filled.min(0).values, filled.max(0).values
        rows, columns = int(bottom - top) + 1, int(right - left) + 1
        down = int(top) if top > 0 else rows - 16
        along = int(left) if left > 0 else columns - 24
        assert abs(down) <= 2
        assert abs(along) <= 3
        seen.add((down, along))
        whole = x[number % 40]
        kept = whole[:, max(-down, 0) : 16 - max(down, 0), max(-along, 0) : 24 - max(along, 0)]
        assert torch.equal(image[:, top : bottom + 1, left : right + 1], kept)
    assert len(seen) > 10
    assert torch.equal(made, shifted_copies(x, 3))


def test_one_copy_is_the_public_samples_as_they_are():
    x = torch.rand(5, 1, 8, 8, generator=child(0, "x"))
    assert torch.equal(shifted_copies(x, 1), x)


def test_every_copy_is_answered(tmp_path):
    kd = {
        "name": "fedkd",
        "params": {"local_steps": 2, "distill_rounds": 1, "distill_steps": 1, "levels": None},
    }
    spec = small_spec(
        protocol=kd, public_copies=4, splits={"proxy": 0.2, "candidates": 4}, adversaries=["aggregator"]
    )
    made = fdaudit.run(spec, tmp_path / "run")
    case = simulated_case(load_spec(spec), known(0))
    assert len(made.case.public) == len(case.public) == 4 * len(made.case.splits.proxy)
    folder = tmp_path / "run" / "transcript"
    sent = [m for m in read_log(folder).messages if m.kind == "logits"]
    assert sent
    assert {len(decode(read_payload(folder, m))["values"]) for m in sent} == {len(made.case.public)}


def test_texts_are_not_shifted(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(
        "text,label\n" + "".join(f"some words {i},{i % 2}\n" for i in range(60)), encoding="utf-8"
    )
    spec = small_spec(
        dataset={"name": f"text:{table}", "length": 4},
        model={"name": "transformer", "params": {"width": 8}},
        protocol={"name": "fedkd", "params": {}},
        splits={"proxy": 0.3, "candidates": 2},
        public_copies=2,
    )
    with pytest.raises(SpecError, match="shifts images"):
        simulated_case(load_spec(spec), known(0))
