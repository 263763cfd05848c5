"""Masks: what loads, how pictures and sites are shared out, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from fdaudit.data import insert_canaries, load_dataset, make_splits
from fdaudit.data.resize import fit, fit_masks
from fdaudit.errors import DataError, SpecError
from fdaudit.spec.privacy import CanarySpec
from fdaudit.spec.schema import DatasetSpec, PartitionSpec, SplitSpec
from fdaudit.tasks import SEGMENTATION

from ..helpers.mask_cases import discs, made, write_masks
from ..helpers.refusals import refused
from ..helpers.run_cases import stream

BY_SITE = PartitionSpec(name="by-site")
SPLITS = SplitSpec(test=0.2, proxy=0.1, auxiliary=0.1, candidates=3)


def load(path, **fields):
    return load_dataset(DatasetSpec(name=f"masks:{path}", **fields), stream(0, "dataset"))


def split(dataset, clients=2, rule=BY_SITE, seed=0, shares=SPLITS):
    return make_splits(dataset, clients, rule, shares, stream(seed, "splits"))


# -- the file ---------------------------------------------------------------------------------------------------


def test_a_file_of_masks_loads_as_segmentation_with_objects_sites_and_pictures(tmp_path):
    images, objects = discs(40)
    data = load(write_masks(tmp_path / "m.npz"))
    assert data.task == SEGMENTATION
    assert data.classes == 2
    assert torch.equal(data.x[:, 0], torch.from_numpy(images))
    assert torch.equal(data.objects, torch.from_numpy(objects))
    assert torch.equal(data.y, (torch.from_numpy(objects) > 0).long())
    assert torch.equal(data.pictures, torch.arange(40) // 2)


def test_sites_are_numbered_by_their_images_and_may_be_absent(tmp_path):
    # Twenty pictures in turn: b and a have seven each, c has six.
    data = load(write_masks(tmp_path / "m.npz"))
    assert data.sites[:6].tolist() == [1, 1, 0, 0, 2, 2]
    assert "a, b, c" in data.provenance
    images, objects = discs(12)
    np.savez(tmp_path / "m.npz", images=images, instances=objects)
    data = load(tmp_path / "m.npz")
    assert data.sites is None
    assert data.pictures is None


def test_a_limit_keeps_the_rows_of_one_record_together(tmp_path):
    path = write_masks(tmp_path / "m.npz")
    whole, part = load(path), load(path, limit=15)
    rows = [next(i for i in range(40) if torch.equal(whole.x[i], x)) for x in part.x]
    assert len(part.y) == 15
    for name in ("y", "objects", "sites", "pictures"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[rows])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"instances": None}, "lacks instances"),
        ({"instances": np.zeros((6, 16, 16), np.uint8)}, "holds no object"),
        ({"instances": np.ones((6, 16, 15), np.uint8)}, r"has shape \(6, 16, 15\) for 6 images of 16x16"),
        ({"instances": np.ones((6, 16, 16))}, "has dtype float64"),
        ({"instances": np.full((6, 16, 16), -1)}, "holds the number -1"),
        ({"source": np.array(["a"] * 5)}, r"has shape \(5,\)"),
        ({"source": np.arange(6) / 2}, "has dtype float64"),
        ({"picture": np.array(["a"] * 6)}, "has dtype <U1"),
    ],
)
def test_a_file_of_another_layout_is_refused(tmp_path, changed, message):
    images, objects = discs(6)
    arrays = {"images": images, "instances": objects} | changed
    np.savez(tmp_path / "m.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(DataError, match=message):
        load(tmp_path / "m.npz")


def test_files_of_masks_that_are_none_are_refused(tmp_path):
    images, _ = discs(6)
    np.savez(tmp_path / "m.npz", images=images, instances=np.array([object()] * 6))
    with pytest.raises(DataError, match=r"m\.npz' .*allow_pickle"):
        load(tmp_path / "m.npz")
    with pytest.raises(DataError, match="names no file"):
        load(tmp_path / "none.npz")


# -- size -------------------------------------------------------------------------------------------------------


def test_fitted_masks_stay_on_their_objects_and_hold_no_new_number() -> None:
    for side, size in ((16, 24), (48, 16)):
        images, objects = discs(8, side=side, noise=0)
        x = fit(torch.from_numpy(images)[:, None], size)[:, 0]
        masks = fit_masks(torch.from_numpy(objects > 0).long(), size)
        # An object's pixels are 0.8, the background's 0.2, padding 0: only edges of shrunk objects are between.
        assert ((x > 0.5).long() == masks).double().mean() > 0.97
        assert masks.shape == x.shape
    numbers = torch.tensor([0, 7])[torch.from_numpy(discs(4, side=50)[1] > 0).long()]
    assert set(fit_masks(numbers, 17).unique().tolist()) == {0, 7}


# -- shares -----------------------------------------------------------------------------------------------------


def parts_of(splits):
    train = {f"train {k}": c.train for k, c in enumerate(splits.clients)}
    held_out = {f"held out {k}": c.non_members for k, c in enumerate(splits.clients)}
    return {"test": splits.test, "proxy": splits.proxy, "auxiliary": splits.auxiliary, **train, **held_out}


@pytest.mark.parametrize("rule", [BY_SITE, PartitionSpec()])
@pytest.mark.parametrize("seed", range(5))
def test_no_picture_lies_in_two_parts(rule, seed):
    data = made(90, each=3)
    pictures = [
        set(data.pictures[rows].tolist()) for rows in parts_of(split(data, rule=rule, seed=seed)).values()
    ]
    assert all(pictures)
    assert sum(map(len, pictures)) == len(set().union(*pictures))


def test_by_site_each_client_holds_one_site_and_no_other_site_is_used():
    data = made(90, sites=3)
    found = split(data)
    for k, client in enumerate(found.clients):
        assert set(data.sites[torch.cat([client.train, client.non_members])].tolist()) == {k}
    for rows in (found.test, found.proxy, found.auxiliary):
        assert set(data.sites[rows].tolist()) == {0, 1}


def test_pairs_of_pictures_are_decided_by_a_fair_coin_of_their_own() -> None:
    data = made(90, each=3)
    for client in split(data).clients:
        for rows in (client.members, client.non_members):
            assert len(rows) == 3
            shared = torch.isin(data.pictures[client.train], data.pictures[rows])
            assert set(client.train[shared].tolist()) <= set(client.members.tolist())
        assert set(client.members.tolist()) <= set(client.train.tolist())
    data = made(40)
    firsts = [
        bool(c.members[0] < c.non_members[0]) for seed in range(100) for c in split(data, seed=seed).clients
    ]
    assert binomtest(sum(firsts), len(firsts)).pvalue > 1e-3


def test_only_masks_sites_and_pictures_decide_the_splits():
    data = made(40)
    other = made(40, noise=0.2)
    a, b = (split(d).to_dict() for d in (data, other))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_class_table_counts_pixels():
    data = made(40)
    found = split(data)
    for row, client in zip(found.class_table, found.clients, strict=True):
        inside = int(data.y[client.train].sum())
        assert row.tolist() == [len(client.train) * 256 - inside, inside]


@pytest.mark.parametrize(
    "rule", [{"name": "by-class", "classes_per_client": 1}, {"name": "dirichlet", "alpha": 1.0}]
)
def test_rules_by_class_are_refused_for_masks(rule):
    refused(lambda: split(made(40), rule=PartitionSpec(**rule)), "partition.name", rule["name"], ["by-site"])


def test_splits_that_masks_do_not_allow_are_refused() -> None:
    refused(lambda: split(made(40), clients=3), "clients", 3, ["2 clients"], kind=DataError)
    digits = load_dataset(DatasetSpec(), stream(0, "dataset"))
    refused(lambda: split(digits), "partition.name", "by-site", ["masks:FILE"])
    data = made(40)
    with pytest.raises(SpecError, match=r"^canaries\.kind: 'mislabelled' "):
        insert_canaries(data, split(data), CanarySpec(clients=(0,)), lambda _: stream(0, "canaries"))
    shares = SplitSpec(test=0.2, proxy=0, auxiliary=0)
    refused(lambda: split(made(12, each=3), shares=shares), "splits.candidates", kind=DataError)
