"""Packed codes: the bytes they take, the floats they give back, and what damage does to them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.errors import IntegrityError
from fdaudit.rng import child
from fdaudit.storage.files import decode, encode
from fdaudit.transcript.encoding import EvenGrid, packed, readable, weights_of

from ..helpers.docs_pages import blocks


def drawn(points, *shape, seed=0):
    return torch.randint(points, shape, generator=child(seed, "codes"))


@settings(deadline=None, max_examples=80)
@given(points=st.integers(2, 2**16), n=st.integers(0, 40), c=st.integers(1, 7), seed=st.integers(0, 99))
def test_what_is_packed_can_be_read_again_bit_for_bit(points, n, c, seed):
    grid, codes = EvenGrid(-3.25, 0.37, points), drawn(points, n, c, seed=seed)
    made = decode(encode(packed("values", codes, grid)))
    got = readable({**made, "index": torch.arange(n)})
    assert list(got) == ["index", "values"]
    assert got["values"].dtype == torch.float32
    assert torch.equal(got["values"], (-3.25 + codes.double() * 0.37).float())
    assert torch.equal(got["index"], torch.arange(n))


@pytest.mark.parametrize(
    ("points", "bits"),
    [(2, 1), (3, 2), (4, 2), (5, 3), (200, 8), (201, 8), (256, 8), (257, 9), (1025, 11), (65_536, 16)],
)
def test_a_value_takes_just_the_bits_that_tell_the_points_apart(points, bits):
    assert bits == math.ceil(math.log2(points))
    made = packed("values", drawn(points, 1000, 10), EvenGrid(0.0, 1.0, points))
    assert made["values:codes"].nbytes == math.ceil(10_000 * bits / 8)
    assert sum(t.nbytes for n, t in made.items() if n != "values:codes") == 16 + 12


def test_bits_come_most_significant_first_and_codes_one_after_the_other():
    made = packed("z", torch.tensor([0b101, 0b010, 0b111]), EvenGrid(0.0, 1.0, 8))
    assert made["z:codes"].tolist() == [0b10101011, 0b10000000]


@pytest.mark.parametrize("points", [2, 7, 201, 60_000])
def test_the_reader_on_the_documentation_page_reads_the_same_floats(points):
    (source,) = [b for b in blocks("docs/transcript.md", "python") if "def values" in b]
    scope = {}
    exec(source, scope)
    made = packed("values", drawn(points, 31, 10), EvenGrid(-86.2, 0.0431, points))
    read = scope["values"]({n: t.numpy() for n, t in made.items()})
    assert (readable(made)["values"].numpy() == read).all()


def test_a_single_number_and_nothing_at_all_keep_their_shapes():
    for shape in ((), (0,), (0, 4), (3, 0)):
        codes = torch.zeros(shape, dtype=torch.int64)
        assert readable(packed("z", codes, EvenGrid(1.5, 1.0, 2)))["z"].shape == shape


def test_more_points_than_codes_can_name_are_refused():
    with pytest.raises(ValueError, match="17 bits"):
        packed("z", torch.zeros(3), EvenGrid(0.0, 1.0, 2**16 + 1))


def test_tensors_that_are_not_quantised_pass_by_identity():
    tensors = {"fc.weight": torch.ones(2), "odd:name": torch.zeros(1)}
    got = readable(tensors)
    assert all(got[n] is tensors[n] for n in tensors)


@pytest.mark.parametrize(
    "change",
    [
        {"z:layout": torch.tensor([3, 5, 3], dtype=torch.int32)},
        {"z:layout": torch.tensor([3, -4, -3], dtype=torch.int32)},
        {"z:layout": torch.tensor([0, 4, 3], dtype=torch.int32)},
        {"z:layout": torch.tensor([64, 4, 3], dtype=torch.int32)},
        {"z:layout": torch.zeros(0, dtype=torch.int32)},
        {"z:grid": torch.tensor([0.0])},
        {"z:grid": torch.tensor([0.0, math.nan])},
        {"z:grid": torch.tensor([0.0, 0.0])},
        {"z:codes": torch.zeros(4, dtype=torch.uint8)},
        {"z:codes": torch.zeros(5, dtype=torch.int64)},
        {"z:grid": None},
        {"z:layout": None},
    ],
)
def test_damaged_codes_are_found(change):
    sound = packed("z", drawn(7, 4, 3), EvenGrid(0.0, 1.0, 7))
    assert readable(sound)["z"].shape == (4, 3)
    with pytest.raises(IntegrityError, match="'z'"):
        readable({n: t for n, t in {**sound, **change}.items() if t is not None})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_are_handed_out_in_single_precision(dtype):
    sent = {
        "w": torch.tensor([0.5, -2.0], dtype=dtype),
        "y": torch.tensor([3]),
        "n.num_batches_tracked": torch.tensor(7),
    }
    found = weights_of(sent)
    assert {name: t.dtype for name, t in found.items()} == {"w": torch.float32, "y": torch.int64}
    assert found["w"].tolist() == [0.5, -2.0]
