"""Batches by law, and how training runs by fixed rules."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.rng import child
from fdaudit.spec.schema import Spec
from fdaudit.training import execution as execution_module
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import draw_batches

# -- batches ------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 60), size=st.integers(1, 70), epochs=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_every_epoch_uses_every_record_once(n, size, epochs, seed):
    batches = draw_batches(n, size, epochs=epochs, generator=child(seed, "b"))
    per_epoch = -(-n // size)
    assert len(batches) == epochs * per_epoch
    for e in range(epochs):
        mine = batches[e * per_epoch : (e + 1) * per_epoch]
        assert sorted(torch.cat(mine).tolist()) == list(range(n))
        assert all(len(b) == size for b in mine[:-1])


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 60), size=st.integers(1, 70), steps=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_with_steps_every_batch_is_full_and_no_record_comes_twice_in_a_pass(n, size, steps, seed):
    batches = draw_batches(n, size, steps=steps, generator=child(seed, "b"))
    full = min(size, n)
    assert len(batches) == steps
    assert all(len(b) == full and len(set(b.tolist())) == full for b in batches)
    per_pass = n // full
    for start in range(0, steps, per_pass):
        used = torch.cat(batches[start : start + per_pass]).tolist()
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(n))


@settings(deadline=None, max_examples=20)
@given(n=st.integers(2, 60), size=st.integers(1, 9), steps=st.integers(2, 20))
def test_batches_are_a_function_of_the_generator_and_a_shorter_run_is_a_beginning(n, size, steps):
    one, two = (draw_batches(n, size, steps=s, generator=child(1, "b")) for s in (steps, steps - 1))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=False))
    again = draw_batches(n, size, steps=steps, generator=child(1, "b"))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))


def test_passes_are_reshuffled():
    batches = draw_batches(50, 50, epochs=6, generator=child(2, "b"))
    assert all(not torch.equal(a, b) for a, b in pairwise(batches))


@pytest.mark.parametrize("length", [{}, {"steps": 1, "epochs": 1}])
def test_either_steps_or_epochs_are_given(length):
    with pytest.raises(ValueError, match="exactly one"):
        draw_batches(5, 2, generator=child(0, "b"), **length)


# -- execution ----------------------------------------------------------------------------------------------------


def resolved(monkeypatch, cuda=False, cores=4, **given):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    return Execution.resolve(**{"convolutions": False, **given})


RULES = [  # (what is given, cuda?, device, strategy, memory format)
    ({}, False, "cpu", "loop", "contiguous"),
    ({"convolutions": True}, False, "cpu", "loop", "channels_last"),
    ({"convolutions": True, "contiguous_only": True}, False, "cpu", "loop", "contiguous"),
    ({}, True, "cuda", "stacked", "contiguous"),
    ({"convolutions": True}, True, "cuda", "stacked", "contiguous"),
    ({"stackable": False, "convolutions": True}, True, "cuda", "loop", "channels_last"),
    ({"work": 999_999}, True, "cpu", "loop", "contiguous"),
    ({"work": 1_000_000}, True, "cuda", "stacked", "contiguous"),
    ({"device": "cuda", "work": 1}, True, "cuda", "stacked", "contiguous"),
    ({"device": "cpu"}, True, "cpu", "loop", "contiguous"),
    ({"device": "cuda:1"}, True, "cuda:1", "stacked", "contiguous"),
    ({"strategy": "stacked"}, False, "cpu", "stacked", "contiguous"),
    ({"strategy": "stacked", "convolutions": True}, False, "cpu", "stacked", "contiguous"),
    ({"memory_format": "channels_last"}, False, "cpu", "loop", "channels_last"),
    ({"memory_format": "contiguous", "convolutions": True}, False, "cpu", "loop", "contiguous"),
]


@pytest.mark.parametrize(("given", "cuda", "device", "strategy", "memory_format"), RULES)
def test_execution_follows_fixed_rules(monkeypatch, given, cuda, device, strategy, memory_format):
    found = resolved(monkeypatch, cuda, **given)
    assert (found.device, found.strategy, found.memory_format) == (device, strategy, memory_format)


@pytest.mark.parametrize(
    ("cores", "given", "threads"), [(4, None, 4), (64, None, 8), (None, None, 1), (4, 16, 16)]
)
def test_threads_are_the_processors_at_most_eight_unless_given(monkeypatch, cores, given, threads):
    assert resolved(monkeypatch, cores=cores, threads=given).threads == threads


@pytest.mark.parametrize(
    ("work", "inside"), [(799_999, 1), (800_000, 4)], ids=["small network", "large network"]
)
def test_threads_are_inside_operations_where_a_network_is_worth_them(monkeypatch, work, inside):
    found = Execution.resolve(threads=4, device="cpu", convolutions=True, work=work)
    assert (found.threads, found.inside) == (4, inside)
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    found.begin()
    assert asked == [inside]


def test_a_spec_holds_what_was_chosen_and_nothing_that_follows_from_it(monkeypatch):
    assert set(resolved(monkeypatch).settings) <= set(Spec.model_fields)


def test_what_is_resolved_stays_as_it_is_when_resolved_again(monkeypatch):
    once = resolved(monkeypatch, convolutions=True)
    again = resolved(monkeypatch, cuda=True, cores=64, convolutions=True, **once.settings)
    assert again == once


# -- precision, and compilers -------------------------------------------------------------------------------------


def test_precision_is_float32_unless_asked_for(monkeypatch):
    assert resolved(monkeypatch, cuda=True).precision == "float32"
    assert resolved(monkeypatch, precision="bfloat16").precision == "bfloat16"
    assert resolved(monkeypatch, precision="tf32").precision == "tf32"


@pytest.fixture
def rounding():
    """Return PyTorch's switches of TF32, and restore them."""
    switches = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    yield switches
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


@pytest.mark.parametrize(
    ("device", "precision", "before", "after"),
    [
        ("cuda", "float32", True, False),
        ("cuda", "tf32", False, True),
        ("cuda:1", "bfloat16", True, False),
        ("cpu", "float32", False, False),
        ("cpu", "float32", True, True),
    ],
)
def test_cuda_rounds_to_tf32_only_where_asked_for_and_the_cpu_leaves_that_alone(
    monkeypatch, rounding, device, precision, before, after
):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    for switch in rounding:
        switch.allow_tf32 = before
    Execution.resolve(device=device, precision=precision, convolutions=False).begin()
    assert [switch.allow_tf32 for switch in rounding] == [after, after]


def test_what_cannot_be_compiled_goes_on_without_and_says_so(monkeypatch):
    def fails(function):
        raise RuntimeError("no\ncompiler")

    monkeypatch.setattr(torch, "compile", fails)
    execution_module._why_not.cache_clear()
    with pytest.warns(UserWarning, match=r"without.*RuntimeError: no compiler"):
        assert not resolved(monkeypatch, compile=True).compile
    execution_module._why_not.cache_clear()


def test_nothing_is_compiled_unless_asked_for(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: pytest.fail("compiled"))
    assert not resolved(monkeypatch).compile
