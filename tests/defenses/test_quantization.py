"""The uniform quantiser against values worked out by hand and exact fractions; what crosses the wire when it acts."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from fdaudit.defenses.quantization import uniform_quantize
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fdaudit.adversary.view import view_of
from fdaudit.errors import ProtocolError
from fdaudit.events import Gaussian, NoGuarantee
from fdaudit.rng import child
from fdaudit.transcript.transcript import read_messages

from ..helpers.defence_cases import defence, on_wire, released
from ..helpers.refusals import refused

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def quantised(**params):
    return defence("uniform-quantization", **params)


def exactly(z, levels, z_max, grid):
    """Eq. 3 or 4 of one clipped value, in exact fractions."""
    z, top = max(-Fraction(z_max), min(Fraction(z), Fraction(z_max))), Fraction(z_max)
    if grid == "eq4":
        return math.ceil(levels * z / (2 * top)) * 2 * top / levels
    q = [2 * (s - 1) * top / (levels - 1) - top for s in range(1, levels + 1)]
    return min(v for v in q if v >= z)


# -- by hand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "levels", "z_max", "z", "wanted"),
    [
        (
            "eq4",
            4,
            1.0,
            [-1.0, -0.75, -0.5, -0.1, 0.0, 0.1, 0.5, 0.6, 1.0],
            [-1, -0.5, -0.5, 0, 0, 0.5, 0.5, 1, 1],
        ),
        ("eq3", 4, 3.0, [-3.0, -2.9, -1.0, -0.9, 0.0, 1.0, 1.1, 3.0], [-3, -1, -1, 1, 1, 1, 3, 3]),
        ("eq4", 2, 8.0, [-8.0, -7.0, 0.0, 0.1, 8.0], [-8, 0, 0, 8, 8]),
        ("eq3", 2, 8.0, [-8.0, -7.0, 0.0, 8.0], [-8, 8, 8, 8]),
        # Odd S: the points lie at -1, 0, 1 and 2 steps of 2/3; the last one beyond z_max.
        ("eq4", 3, 1.0, [-1.0, -0.5, 0.5, 1.0], [-2 / 3, 0, 2 / 3, 4 / 3]),
        ("eq3", 3, 1.0, [-1.0, -0.5, 0.0, 0.5], [-1, 0, 0, 1]),
        ("eq4", 200, 86.0, [85.99, 0.01, -0.01, -86.0], [86, 0.86, 0, -86]),
        ("eq4", 4, 1.0, [-9.0, 9.0], [-1, 1]),
    ],
)
def test_values_worked_out_by_hand(grid, levels, z_max, z, wanted):
    for dtype in DTYPES.values():
        got = uniform_quantize(torch.tensor(z, dtype=dtype), levels, z_max, grid=grid)
        torch.testing.assert_close(got, torch.tensor(wanted, dtype=dtype), rtol=1e-6, atol=0)


def test_eq4_is_the_default_and_keeps_nought():
    z = torch.tensor([0.0, 0.2])
    assert torch.equal(uniform_quantize(z, 4, 1.0), uniform_quantize(z, 4, 1.0, grid="eq4"))
    assert float(uniform_quantize(z, 4, 1.0)[0]) == 0.0
    assert not torch.equal(uniform_quantize(z, 4, 1.0), uniform_quantize(z, 4, 1.0, grid="eq3"))


# -- for any value ------------------------------------------------------------------------------------------------

any_levels = st.one_of(st.integers(2, 12), st.integers(13, 2**16 - 1))
any_range = st.floats(1e-6, 1e6)


@settings(deadline=None, max_examples=150)
@given(
    levels=any_levels, z_max=any_range, grid=st.sampled_from(["eq3", "eq4"]), dtype=st.sampled_from([*DTYPES]),
    seed=st.integers(0, 999), wide=st.sampled_from([0.3, 1.0, 1.5]),
)  # fmt: skip
def test_idempotent_monotone_and_at_most_one_step_above(levels, z_max, grid, dtype, seed, wide):
    z = (torch.rand(60, generator=child(seed, "z"), dtype=torch.float64) * 2 - 1) * z_max * wide
    z = torch.cat([z, torch.tensor([0.0, z_max, -z_max])]).to(DTYPES[dtype]).sort().values
    got = uniform_quantize(z, levels, z_max, grid)
    assert (got.dtype, got.shape) == (z.dtype, z.shape)
    assert torch.equal(uniform_quantize(got, levels, z_max, grid), got)
    assert bool((got.diff() >= 0).all())
    step = 2 * z_max / (levels if grid == "eq4" else levels - 1)
    slack = 4 * torch.finfo(z.dtype).eps * z_max
    above = got.double() - z.double().clamp(-z_max, z_max)
    assert float(above.min()) >= -slack
    assert float(above.max()) <= step + slack


@settings(deadline=None, max_examples=60)
@example(levels=10, z_max=927962.1580566765, grid="eq4", seed=2)  # five steps are a rounding more than z_max
@given(
    levels=st.integers(2, 40), z_max=any_range, grid=st.sampled_from(["eq3", "eq4"]), seed=st.integers(0, 999)
)
def test_against_exact_fractions(levels, z_max, grid, seed):
    z = (torch.rand(20, generator=child(seed, "z"), dtype=torch.float64) * 2 - 1) * z_max * 1.1
    wanted = [float(exactly(v, levels, z_max, grid)) for v in z.tolist()]
    got = uniform_quantize(z, levels, z_max, grid)
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12 * z_max)


@settings(deadline=None, max_examples=60)
@given(
    levels=st.integers(2, 300),
    z_max=any_range,
    grid=st.sampled_from(["eq3", "eq4"]),
    dtype=st.sampled_from([*DTYPES]),
)
def test_every_grid_point_is_its_own_and_there_are_as_many_as_stated(levels, z_max, grid, dtype):
    dense = torch.linspace(-1, 1, 8 * levels + 1, dtype=torch.float64) * z_max
    points = uniform_quantize(dense.to(DTYPES[dtype]), levels, z_max, grid).unique()
    assert len(points) == (levels + 1 if grid == "eq4" else levels)
    assert torch.equal(uniform_quantize(points, levels, z_max, grid), points)


def test_whole_numbers_and_a_tensor_for_z_max_are_taken_as_numbers():
    got = uniform_quantize(torch.tensor([-3, 0, 2]), 4, torch.tensor(4.0))
    assert got.tolist() == [-2.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("levels", (torch.zeros(2), 1, 1.0)),
        ("levels", (torch.zeros(2), 0, 1.0)),
        ("levels", (torch.zeros(2), 2**16, 1.0)),
        ("z_max", (torch.zeros(2), 4, 0.0)),
        ("z_max", (torch.zeros(2), 4, -1.0)),
        ("z_max", (torch.zeros(2), 4, math.inf)),
        ("z_max", (torch.zeros(2), 4, math.nan)),
        ("grid", (torch.zeros(2), 4, 1.0, "eq5")),
        ("z", (torch.tensor([0.0, math.nan]), 4, 1.0)),
        ("z", (torch.tensor([math.inf]), 4, 1.0)),
    ],
)
def test_what_cannot_be_quantised_is_refused_by_name(field, arguments):
    refused(lambda: uniform_quantize(*arguments), field)


# -- the defence --------------------------------------------------------------------------------------------------


def logits(n=500, c=10):
    return {"index": torch.arange(n), "values": torch.randn(n, c, generator=child(3, "logits")) * 20}


def sent(folder, defences, tensors):
    (delivered,) = on_wire(folder, defences, tensors, "logits", ("client/0", "aggregator"))
    return delivered


BITS = [(200, "eq4", 8), (200, "eq3", 8), (3, "eq4", 2), (3, "eq3", 2), (256, "eq4", 9), (256, "eq3", 8)]


@pytest.mark.parametrize(("levels", "grid", "bits"), BITS)
def test_the_receiver_and_the_view_read_the_quantised_floats_and_bytes_count_the_bits(
    levels, grid, bits, tmp_path
):
    tensors = logits()
    z_max = tensors["values"].abs().max()
    delivered = sent(tmp_path, [quantised(levels=levels, grid=grid)], {**tensors, "z_max": z_max})
    wanted = uniform_quantize(tensors["values"], levels, z_max, grid)
    assert delivered.keys() == {"index", "values"}
    assert torch.equal(delivered["values"], wanted)
    assert torch.equal(delivered["index"], tensors["index"])
    (message,) = read_messages(tmp_path)
    assert {"values:codes", "values:grid", "values:layout", "index"} == message.tensors.keys()
    assert message.bytes_on_wire == math.ceil(5000 * bits / 8) + 500 * 8 + 16 + 12
    view = view_of(tmp_path, "aggregator", parties=("aggregator", "client/0"), hyperparameters={})
    assert torch.equal(view.tensors(message)["values"], wanted)


def test_without_a_range_from_the_protocol_the_specs_constant_clips(tmp_path):
    tensors = logits()
    got = sent(tmp_path, [quantised(levels=16, z_max=5.0)], tensors)["values"]
    assert torch.equal(got, uniform_quantize(tensors["values"].clamp(-5, 5), 16, 5.0))
    assert float(got.abs().max()) == 5.0


def test_with_neither_the_run_stops_and_says_what_to_do(tmp_path):
    with pytest.raises(ProtocolError, match="Set z_max"):
        sent(tmp_path, [quantised()], logits())


@pytest.mark.parametrize("z_max", [0.0, math.nan])
def test_a_range_that_leaves_no_grid_stops_the_run(z_max, tmp_path):
    with pytest.raises(ProtocolError, match="z_max"):
        sent(tmp_path, [quantised()], {**logits(), "z_max": torch.tensor(z_max)})


def test_values_that_are_not_finite_stop_the_run(tmp_path):
    with pytest.raises(ProtocolError, match="finite"):
        sent(
            tmp_path, [quantised(z_max=1.0)], {"index": torch.arange(1), "values": torch.tensor([[math.nan]])}
        )


def test_quantisation_claims_nothing():
    event = released(quantised(z_max=1.0), logits(), "logits").event
    assert isinstance(event, NoGuarantee)
    assert "noise" in event.reason


def test_a_defence_after_quantisation_works_on_floats_and_floats_are_sent(tmp_path):
    """Noise on the codes themselves would be noise on labels, not on logits."""
    after = defence("gaussian-noise", sigma=0.5, clip=1e6, public_index=True)
    tensors = logits()
    got = sent(tmp_path, [quantised(levels=8, z_max=60.0), after], tensors)
    residual = got["values"] - uniform_quantize(tensors["values"], 8, 60.0)
    assert float(residual.std()) == pytest.approx(0.5, rel=0.05)
    (message,) = read_messages(tmp_path)
    assert message.tensors["values"].dtype == "F32"
    assert isinstance(message.event, Gaussian)
