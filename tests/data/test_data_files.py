"""Datasets from the user's files: what loads is as stored, and every defect is one clear `DataError`."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdaudit.data import make_splits
from fdaudit.data.raw import as_images, as_labels
from fdaudit.errors import DataError
from fdaudit.spec.schema import PartitionSpec, SplitSpec

from ..helpers.refusals import refused
from ..helpers.run_cases import stream
from .loading import Bomb, load, refusal


def write_npz(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(0, 256, (20, 8, 8), dtype=np.uint8),
        "train_labels": (np.arange(20) % 4).astype(np.uint8)[:, None],
        "val_images": np.zeros((3, 8, 8), np.uint8),
        "val_labels": np.zeros((3, 1), np.uint8),
        "test_images": rng.integers(0, 256, (6, 8, 8), dtype=np.uint8),
        "test_labels": (np.arange(6) % 4).astype(np.uint8)[:, None],
    }
    arrays |= changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return arrays


def write_folder(root, sizes=((8, 8),), modes=("L",)):
    for k, name in enumerate(("cats", "dogs")):
        (root / name).mkdir(parents=True)
        for i, (size, mode) in enumerate(zip(sizes, modes, strict=True)):
            Image.new(mode, size, color=0 if mode in ("1", "L", "P") else (10 * k, 20, 30)).save(
                root / name / f"{i}.png"
            )
    return root


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("as_float", [False, True])
def test_npz_in_medmnist_layout(tmp_path, channels_last, as_float):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (20, 8, 6, 3) if channels_last else (20, 8, 6), dtype=np.uint8)
    stored = (images / 255).astype(">f8") if as_float else images
    write_npz(tmp_path / "d.npz", train_images=stored, test_images=None, test_labels=None)
    data = load(name="npz:d.npz", root=str(tmp_path))
    nchw = images.transpose(0, 3, 1, 2) if channels_last else images[:, None]
    assert torch.equal((data.x * 255).round().to(torch.uint8), torch.from_numpy(nchw.copy()))
    assert data.y.shape == (20,)
    assert data.classes == 4
    assert data.test_x is None


def test_npz_by_absolute_path_keeps_the_official_test_split_and_leaves_validation_out(tmp_path):
    write_npz(tmp_path / "d.npz")
    data = load(name=f"npz:{tmp_path / 'd.npz'}", root="/nonexistent")
    assert len(data.y) == 20
    assert len(data.test_y) == 6
    assert "val_*" in data.provenance


def test_folders_are_read_and_what_systems_leave_is_ignored(tmp_path):
    write_folder(tmp_path / "pets", sizes=((8, 6), (8, 6)), modes=("RGB", "L"))
    (tmp_path / "pets" / "LICENSE").write_text("beside the classes: not read")
    (tmp_path / "pets" / "cats" / ".DS_Store").write_bytes(b"hidden: not read")
    data = load(name="folder:pets", root=str(tmp_path))
    assert data.input_shape == (3, 6, 8)
    assert data.y.tolist() == [0, 0, 1, 1]
    assert (data.x[2, :, 0, 0] * 255).round().tolist() == [10, 20, 30]
    root = write_folder(tmp_path / "images")
    (root / "cats").rename(root / "big\ncats")
    assert load(name=f"folder:{root}").class_names == ("big?cats", "dogs")
    assert load(name="digits").class_names == ()


def test_a_folder_of_grey_images_stays_grey_and_unlike_sizes_are_fitted(tmp_path):
    write_folder(tmp_path, sizes=((8, 8), (20, 10)), modes=("L", "1"))
    assert load(name=f"folder:{tmp_path}", image_size=12).input_shape == (1, 12, 12)
    assert refusal(name=f"folder:{tmp_path}").field == "dataset.image_size"


_IMAGES = np.random.default_rng(0).random((20, 8, 8))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_images": None}, "lacks train_images"),
        ({"test_labels": None}, "lacks test_labels"),
        ({"train_labels": np.zeros((19, 1), np.uint8)}, "20 images but 19 labels"),
        ({"test_labels": np.zeros(5, np.uint8)}, "6 images but 5 labels"),
        ({"train_images": np.where(_IMAGES > 0.9, np.nan, _IMAGES)}, "NaN or infinite"),
        ({"train_images": np.where(_IMAGES > 0.9, np.inf, _IMAGES)}, "NaN or infinite"),
        ({"train_images": _IMAGES * 255}, "values in"),
        ({"train_images": _IMAGES - 0.5}, "values in"),
        ({"train_images": (_IMAGES * 255).astype(np.int64)}, "dtype int64"),
        ({"train_images": _IMAGES.astype(object)}, "pickled objects are refused"),
        ({"train_labels": np.array([{}] * 20)}, "pickled objects are refused"),
        ({"train_images": np.zeros((20, 64), np.uint8)}, "shape (20, 64)"),
        ({"train_images": np.zeros((0, 8, 8), np.uint8)}, "shape (0, 8, 8)"),
        ({"train_images": np.zeros((20, 3, 8, 8), np.uint8)}, "channels last"),
        ({"test_images": np.zeros((6, 9, 9), np.uint8)}, "unlike shape"),
        ({"train_labels": np.arange(20) % 4 - 1}, "class -1"),
        ({"train_labels": np.arange(20) % 4 + 0.0}, "dtype float64"),
        ({"train_labels": np.zeros((20, 14), np.uint8)}, "marks no class as present"),
        ({"train_labels": np.ones((20, 2, 2), np.uint8)}, "shape (20, 2, 2)"),
        ({"train_labels": np.full(20, 2**63 + 1, np.uint64)}, "holds the class"),
        ({"train_labels": np.full(20, 10**6)}, "past its record count"),
        ({"train_labels": np.zeros(20, np.uint8), "test_labels": np.zeros(6, np.uint8)}, "one class only"),
    ],
)
def test_defective_npz_files(tmp_path, changes, words):
    write_npz(tmp_path / "d.npz", **changes)
    assert words in str(refusal(name="npz:d.npz", root=str(tmp_path)))


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.7, 0.99])
def test_truncated_npz_files(tmp_path, fraction):
    write_npz(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: int(fraction * len(whole))])
    refusal(name="npz:cut.npz", root=str(tmp_path))


def test_npz_members_cut_short_inside_a_whole_archive(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((20, 8, 8), np.uint8))
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("train_images.npy", buffer.getvalue()[:-100])
        archive.writestr("train_labels.npy", b"no array at all")
    refusal(name="npz:d.npz", root=str(tmp_path))


def test_things_that_are_no_npz_archive(tmp_path):
    with (tmp_path / "bare.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    marker = tmp_path / "was_here"
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Bomb(marker)))
    for name in ("bare", "pickle"):
        assert "npz" in str(refusal(name=f"npz:{name}.npz", root=str(tmp_path)))
    assert not marker.exists()
    assert "names no file" in str(refusal(name="npz:absent.npz", root=str(tmp_path)))


def test_a_relative_path_cannot_leave_the_root(tmp_path):
    write_npz(tmp_path / "outside.npz")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link.npz").symlink_to(tmp_path / "outside.npz")
    for name in ("npz:../outside.npz", "npz:link.npz", "folder:.."):
        assert f"data folder {root}" in str(refusal(name=name, root=str(root)))


@pytest.mark.parametrize("kind", ["file", "class"])
def test_links_that_leave_the_folder(tmp_path, kind):
    write_folder(tmp_path / "in")
    write_folder(tmp_path / "out")
    if kind == "file":
        (tmp_path / "in" / "cats" / "x.png").symlink_to(tmp_path / "out" / "cats" / "0.png")
    else:
        (tmp_path / "in" / "eels").symlink_to(tmp_path / "out" / "cats")
    assert "link that leaves" in str(refusal(name=f"folder:{tmp_path / 'in'}"))


def test_links_inside_the_folder_are_followed(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "cats" / "x.png").symlink_to(tmp_path / "cats" / "0.png")
    assert load(name=f"folder:{tmp_path}").y.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.png", b"\x89PNG\r\n\x1a\n and no more"),
        ("x.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"),
        ("x.txt", b"text"),
        ("sub", None),
    ],
)
def test_things_that_are_no_images(tmp_path, name, content):
    write_folder(tmp_path)
    target = tmp_path / "cats" / name
    if content is None:
        target.mkdir()
    else:
        target.write_bytes(content)
    assert name in str(refusal(name=f"folder:{tmp_path}"))


def test_formats_outside_the_closed_list_and_empty_folders_are_refused(tmp_path):
    write_folder(tmp_path)
    file = tmp_path / "cats" / "x.tga"
    Image.new("L", (8, 8)).save(file)
    Image.open(file).close()
    assert "no readable image" in str(refusal(name=f"folder:{tmp_path}"))
    file.unlink()
    (tmp_path / "eels").mkdir()
    assert "empty class folder" in str(refusal(name=f"folder:{tmp_path}"))


def test_images_cut_short_deep_or_palettised(tmp_path):
    write_folder(tmp_path, sizes=((64, 64),), modes=("RGB",))
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = tmp_path / "cats" / "x.png"
    Image.fromarray(noise).convert("P").save(file, transparency=bytes([0, 128, 255]))
    assert load(name=f"folder:{tmp_path}").input_shape == (3, 64, 64)
    file.write_bytes(file.read_bytes()[:1500])
    assert "no readable image" in str(refusal(name=f"folder:{tmp_path}"))
    Image.fromarray(np.zeros((64, 64), np.uint16)).save(file)
    assert "8 bits" in str(refusal(name=f"folder:{tmp_path}"))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_one_hot_labels_are_refused(tmp_path, dtype):
    one_hot = np.eye(4, dtype=dtype)[np.arange(20) % 4]
    write_npz(tmp_path / "d.npz", train_labels=one_hot, test_images=None, test_labels=None)
    assert "labels.argmax(axis=1)" in refusal(name="npz:d.npz", root=str(tmp_path)).remedy


def test_labels_that_begin_at_one_are_refused_but_other_gaps_are_not(tmp_path):
    changes = {"train_labels": np.arange(20) % 4 + 1, "test_labels": np.arange(6) % 4 + 1}
    write_npz(tmp_path / "d.npz", **changes)
    error = refusal(name="npz:d.npz", root=str(tmp_path))
    assert "class 0 never" in error.problem
    assert "labels - 1" in error.remedy
    write_npz(tmp_path / "gap.npz", train_labels=np.array([0, 2] * 10))
    assert load(name="npz:gap.npz", root=str(tmp_path)).classes == 4


def test_files_that_systems_leave_are_ignored(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "__MACOSX").mkdir()
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._0.png"):
        (tmp_path / "cats" / name).write_bytes(b"no image")
    assert load(name=f"folder:{tmp_path}").y.tolist() == [0, 1]


def test_all_unreadable_images_are_named_at_once(tmp_path):
    write_folder(tmp_path)
    for number in range(12):
        (tmp_path / "dogs" / f"x{number:02}.png").write_bytes(b"no image")
    error = refusal(name=f"folder:{tmp_path}")
    named = ", ".join(f"dogs/x{n:02}.png" for n in range(10))
    assert "12 files" in error.problem
    assert f"({named}, …)" in error.problem


def test_images_that_are_cut_short_are_named_at_once(tmp_path):
    write_folder(tmp_path, sizes=((64, 64),), modes=("RGB",))
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(noise).save(tmp_path / "cats" / name)
        whole = (tmp_path / "cats" / name).read_bytes()
        (tmp_path / "cats" / name).write_bytes(whole[: len(whole) // 2])
    assert "(cats/a.png, cats/b.png)" in refusal(name=f"folder:{tmp_path}").problem


@pytest.mark.parametrize("coloured", [False, True])
def test_images_of_16_bits_are_refused_with_the_way_out(tmp_path, coloured):
    write_folder(tmp_path)
    file = tmp_path / "cats" / "deep.png"
    if coloured:
        file.write_bytes(_deep_rgb(8))
    else:
        Image.fromarray(np.zeros((8, 8), np.uint16)).save(file)
    error = refusal(name=f"folder:{tmp_path}")
    assert error.value == str(file)
    assert "8 bits" in error.remedy


def _deep_rgb(side):
    """A PNG of 16 bits a channel in three colours, which Pillow cannot write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 16, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(6 * side)) * side)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_too_few_images_say_how_many_are_enough(tmp_path):
    def made(each):
        folder = tmp_path / str(each)
        for name in "abc":
            (folder / name).mkdir(parents=True)
            for number in range(each):
                Image.new("L", (8, 8)).save(folder / name / f"{number}.png")
        return load(name=f"folder:{folder}")

    def split(data):
        return make_splits(data, 3, PartitionSpec(), SplitSpec(), stream(0, "splits"))

    refused(lambda: split(made(2)), "partition.name", "iid", ["There are 6; 24"], kind=DataError)
    assert len(split(made(8)).clients) == 3


def test_folders_that_are_no_dataset(tmp_path):
    assert "names no folder" in str(refusal(name=f"folder:{tmp_path / 'absent'}"))
    (tmp_path / "only").mkdir()
    assert "1 class folders" in str(refusal(name=f"folder:{tmp_path}"))


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("FDAUDIT_DATA"), reason="FDAUDIT_DATA is unset")
@pytest.mark.parametrize(
    ("file", "shape", "classes"),
    [("pneumoniamnist.npz", (1, 28, 28), 2), ("cifar10_jpeg.npz", (3, 32, 32), 10)],
)
def test_medmnist_files(file, shape, classes):
    if not (Path(os.environ["FDAUDIT_DATA"]) / file).exists():
        pytest.skip(f"FDAUDIT_DATA holds no {file}")
    data = load(name=f"npz:{file}")
    assert data.input_shape == shape
    assert data.classes == classes
    assert data.test_x is not None


@pytest.mark.parametrize("beyond", [np.float32(1.0000001), np.float64(1 + 5e-7), np.float32(-2e-7)])
def test_rounding_may_leave_the_unit_interval(beyond):
    x = np.full((5, 8, 8), 0.5, type(beyond))
    x[0, 0, 0] = beyond
    found = as_images(x, "dataset.name", "train_images")
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


@pytest.mark.parametrize(("value", "shown"), [(1.00001, "1.00001"), (1.5, "1.5"), (-0.001, "-0.001")])
def test_what_leaves_the_unit_interval_is_shown_to_its_last_digit(value, shown):
    x = np.full((5, 8, 8), 0.5)
    x[0, 0, 0] = value
    with pytest.raises(DataError, match=shown):
        as_images(x, "dataset.name", "train_images")


@pytest.mark.parametrize("shape", [(20, 5), (20,), (20, 1)])
def test_truth_values_are_labels_of_zero_and_one(shape):
    found = as_labels(np.random.default_rng(0).random(shape) > 0.5, "dataset.name", "train_labels")
    assert found.dtype == torch.int64
    assert set(found.unique().tolist()) == {0, 1}


def test_fractions_for_labels_name_both_remedies():
    with pytest.raises(DataError, match=r"argmax.*astype\(numpy.int8\)"):
        as_labels(np.random.default_rng(0).random((20, 5)), "dataset.name", "train_labels")
