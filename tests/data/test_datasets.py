"""Datasets: what loads has the promised form, and every defect is one clear `DataError`."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import subprocess
import sys
from urllib.error import URLError

import numpy as np
import pytest
import torch

from fdaudit.data import DATASETS, Dataset, load_dataset
from fdaudit.data.raw import image_origins
from fdaudit.errors import DataError
from fdaudit.rng import SecretStream, child
from fdaudit.spec.schema import DatasetSpec

from ..helpers.run_cases import stream
from .loading import Bomb, load, refusal


def idx(array):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(root, folder="MNIST", prefixes=("train", "t10k"), n=12, labels=None):
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 28, 28))
    labels = np.arange(n) % 10 if labels is None else labels
    for prefix in prefixes:
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
    return images, labels


# What loads


def test_digits_are_scikit_learns_scaled_padded_and_thresholded() -> None:
    data = load()
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == torch.float32
    assert data.y.dtype == torch.int64
    assert data.classes == 10
    assert data.test_x is None
    assert data.x.max() == 1.0
    # First row of the first image, as published by UCI: 0 0 5 13 9 1 0 0 of 16.
    assert (data.x[0, 0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    small, large = load(), load(image_size=16)
    assert large.input_shape == (1, 16, 16)
    assert torch.equal(large.x[:, :, 4:12, 4:12], small.x)
    assert large.x.sum(dtype=torch.float64) == small.x.sum(dtype=torch.float64)
    plain = load_dataset(DatasetSpec(name="digits"), SecretStream(b"x" * 16, "d"))
    bare = load_dataset(DatasetSpec(name="digits", threshold=0.0), SecretStream(b"x" * 16, "d"))
    assert torch.equal(bare.x, (plain.x > 0).float())
    assert bare.x.mean() > plain.x.mean()


@pytest.mark.thorough
def test_loading_needs_no_heavy_import():
    code = "import sys, fdaudit.data; sys.exit(bool({'torchvision', 'sklearn', 'PIL'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_idx_files_in_torchvisions_layout(tmp_path, name):
    folder = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "kmnist": "KMNIST"}[name]
    images, labels = write_mnist(tmp_path, folder)
    data = load(name=name, root=str(tmp_path))
    assert torch.equal((data.x[:, 0] * 255).round().long(), torch.from_numpy(images))
    assert data.y.tolist() == labels.tolist()
    assert len(data.test_y) == len(labels)
    assert data.classes == 10


def test_emnist_is_turned_upright(tmp_path):
    images, _ = write_mnist(tmp_path, "EMNIST", ("emnist-balanced-train", "emnist-balanced-test"))
    data = load(name="emnist", root=str(tmp_path))
    assert data.classes == 47
    assert torch.equal((data.x[0, 0] * 255).round().long(), torch.from_numpy(images[0].T.copy()))


def test_root_falls_back_to_the_environment_then_to_a_cache(tmp_path, monkeypatch):
    write_mnist(tmp_path / "env")
    monkeypatch.setenv("FDAUDIT_DATA", str(tmp_path / "env"))
    assert len(load(name="mnist").y) == 12
    monkeypatch.delenv("FDAUDIT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert str(tmp_path / "cache" / "fdaudit" / "MNIST" / "raw") in str(refusal(name="mnist"))


def test_limit_keeps_the_classes_in_proportion_and_depends_on_the_generator_alone():
    whole, few = load(), load(limit=200)
    assert len(few.y) == 200
    quota = torch.bincount(whole.y) * 200 / 1797
    assert (torch.bincount(few.y) - quota).abs().max() < 1
    assert few.sha256() == load(limit=200).sha256()
    other = load_dataset(DatasetSpec(limit=200), stream(1, "dataset"))
    assert few.sha256() != other.sha256()
    assert load(limit=5000).sha256() == whole.sha256()


# Digest


def test_digest_is_of_names_dtypes_shapes_and_bytes():
    x, y = torch.tensor([[[[0.0, 0.5]]], [[[1.0, 0.25]]]]), torch.tensor([0, 1])
    data = Dataset(name="d", x=x, y=y, classes=2, provenance="made here")
    expected = hashlib.sha256()
    expected.update(b"x:float32:(2, 1, 1, 2);" + struct.pack("<4f", 0.0, 0.5, 1.0, 0.25))
    expected.update(b"y:int64:(2,);" + struct.pack("<2q", 0, 1) + b"test_x:none;test_y:none;")
    assert data.sha256() == expected.hexdigest()


def test_digest_ignores_memory_layout_and_notices_every_tensor():
    data = load(limit=30)
    strided = data.x.to(memory_format=torch.channels_last)

    def digest(**changes):
        fields = {"x": data.x, "y": data.y, "test_x": data.x[:2], "test_y": data.y[:2]} | changes
        return Dataset(name="d", classes=10, provenance="made here", **fields).sha256()

    assert digest() == digest(x=strided)
    pixel, label = data.x.clone(), data.y.clone()
    pixel[3, 0, 4, 4] = 0.123
    label[3] = (label[3] + 1) % 10
    variants = [
        digest(), digest(x=pixel), digest(y=label), digest(test_x=pixel[2:4]), digest(test_y=data.y[1:3])
    ]  # fmt: skip
    assert len(set(variants)) == 5


# Defects


def test_an_unknown_name_is_met_with_the_nearest():
    error = refusal(name="fashon-mnist")
    assert error.field == "dataset.name"
    assert "'fashion-mnist'" in error.remedy
    assert "'mnist'" not in error.remedy
    assert all(name in refusal(name="zzz").remedy for name in DATASETS)


@pytest.mark.parametrize(
    "name", ["mnist", "fashion-mnist", "emnist", "kmnist", "svhn", "cifar10", "cifar100"]
)
def test_absent_files_are_one_error_that_names_the_path_and_the_remedy(tmp_path, name):
    error = refusal(name=name, root=str(tmp_path))
    assert error.field == "dataset.root"
    assert str(tmp_path) in str(error)
    assert "dataset.download: true" in error.remedy
    assert not list(tmp_path.iterdir())


def test_a_failed_download_is_a_data_error(tmp_path, monkeypatch):
    import torchvision.datasets

    def fail(self):
        raise URLError("no route")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", fail)
    assert "no route" in str(refusal(name="mnist", root=str(tmp_path), download=True))


@pytest.mark.parametrize("keep", [0, 3, 10, 16, 200, -1])
@pytest.mark.parametrize("part", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_truncated_idx_files(tmp_path, part, keep):
    write_mnist(tmp_path)
    file = tmp_path / "MNIST" / "raw" / part
    whole = file.read_bytes()
    file.write_bytes(whole[: min(keep, len(whole) - 1)])
    assert "MNIST" in str(refusal(name="mnist", root=str(tmp_path)))


def test_idx_labels_that_do_not_match(tmp_path):
    write_mnist(tmp_path)
    labels = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(5)))
    assert "5 labels" in str(refusal(name="mnist", root=str(tmp_path)))
    labels.write_bytes(idx(np.full(12, 11)))
    assert "10 classes" in str(refusal(name="mnist", root=str(tmp_path)))


def test_files_beside_the_expected_ones_are_never_loaded(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST" / "processed").mkdir()
    for name in ("training.pt", "test.pt"):
        (tmp_path / "MNIST" / "processed" / name).write_bytes(b"not for torch.load")
    assert len(load(name="mnist", root=str(tmp_path)).y) == 12
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    refusal(name="svhn", root=str(tmp_path))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_strangers_pickle_is_never_opened(tmp_path, name):
    marker = tmp_path / "was_here"
    payload = pickle.dumps(Bomb(marker))
    folder = tmp_path / ("cifar-10-batches-py" if name == "cifar10" else "cifar-100-python")
    folder.mkdir()
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", "train", "test", "meta"]
    for file in names:
        (folder / file).write_bytes(payload)
    assert "unaltered" in str(refusal(name=name, root=str(tmp_path)))
    assert not marker.exists()
    pickle.loads(payload)  # the bomb is live: it is the integrity check that kept it from going off
    assert marker.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.zeros(4, 8, 8)},
        {"x": torch.zeros(4, 1, 8, 8, dtype=torch.float64)},
        {"x": torch.full((4, 1, 8, 8), float("nan"))},
        {"x": torch.full((4, 1, 8, 8), 1.5)},
        {"y": torch.zeros(3, dtype=torch.int64)},
        {"y": torch.zeros(4, dtype=torch.int32)},
        {"y": torch.tensor([0, 1, 2, 1])},
        {"y": torch.tensor([0, 1, -1, 1])},
        {"test_x": torch.zeros(2, 1, 8, 8)},
        {"test_x": torch.zeros(2, 1, 9, 9), "test_y": torch.zeros(2, dtype=torch.int64)},
    ],
)
def test_a_dataset_built_by_hand_is_held_to_the_same_rules(changes):
    fields = {"x": torch.zeros(4, 1, 8, 8), "y": torch.tensor([0, 1, 0, 1])}
    Dataset(name="d", classes=2, provenance="made here", **fields)
    with pytest.raises(DataError):
        Dataset(name="d", classes=2, provenance="made here", **(fields | changes))


# Real files

_needs_data = pytest.mark.skipif(not os.environ.get("FDAUDIT_DATA"), reason="FDAUDIT_DATA is unset")


@pytest.mark.data
@_needs_data
def test_mnist_has_its_published_sizes():
    data = load(name="mnist")
    assert data.x.shape == (60000, 1, 28, 28)
    assert data.test_x.shape == (10000, 1, 28, 28)
    assert torch.bincount(data.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.x.mean().item() == pytest.approx(0.1307, abs=1e-4)


def test_origins_do_not_depend_on_size_type_or_copies_of_grey():
    grey = torch.randint(256, (5, 1, 6, 7), dtype=torch.uint8, generator=child(0, "grey"))
    origins = image_origins(grey)
    assert origins.shape == (5, 2)
    assert len({tuple(row) for row in origins.tolist()}) == 5
    for same in (grey / 255.0, grey.expand(5, 3, 6, 7), (grey.double() / 255).float()):
        assert torch.equal(image_origins(same), origins)
    other = grey.clone()
    other[0, 0, 0, 0] ^= 1
    assert not torch.equal(image_origins(other)[0], origins[0])
    assert not torch.equal(image_origins(grey.transpose(2, 3)), origins)
    sizes = [
        load_dataset(DatasetSpec(name="digits", image_size=size), SecretStream(b"x" * 16, "d"))
        for size in (None, 6, 20)
    ]
    assert all(torch.equal(d.origins, sizes[0].origins) for d in sizes)
