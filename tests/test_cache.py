"""What is computed once: equal inputs, equal result, wherever it was kept and whoever computed it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fdaudit import cache
from fdaudit.cache import computed_once, digest_of, remembered
from fdaudit.errors import UsageError


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.DIRECTORY, raising=False)
    monkeypatch.delenv(cache.BYTES, raising=False)
    monkeypatch.setattr(cache, "_kept", type(cache._kept)())


@pytest.fixture(params=["memory", "directory"])
def place(request, monkeypatch, tmp_path):
    if request.param == "directory":
        monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "new" / "cache"))
    return request.param


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, draws: torch.Generator) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"b": torch.rand(3, generator=draws), "a": torch.arange(4)}


def test_the_same_is_computed_once(place):
    make, x = Maker(), torch.rand(5)
    first = computed_once({"n": 1}, [x], make)
    assert list(first) == ["a", "b"]
    again = computed_once({"n": 1}, [x.clone()], make)
    assert make.calls == 1
    assert all(torch.equal(first[n], again[n]) for n in first)
    other = computed_once({"n": 2}, [x], make)
    assert make.calls == 2
    assert not torch.equal(first["b"], other["b"])


def test_it_is_the_same_whether_it_was_kept_or_not(place, monkeypatch, tmp_path):
    x = torch.rand(5)
    first = computed_once({"n": 1}, [x], Maker())
    monkeypatch.setattr(cache, "_kept", type(cache._kept)())
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "elsewhere"))
    make = Maker()
    again = computed_once({"n": 1}, [x], make)
    assert make.calls == 1
    assert all(torch.equal(first[n], again[n]) for n in first)


@pytest.mark.parametrize(
    "other",
    [
        ({"n": 2}, [torch.zeros(4)]),
        ({"n": 1}, [torch.zeros(5)]),
        ({"n": 1}, [torch.zeros(2, 2)]),
        ({"n": 1}, [torch.zeros(4, dtype=torch.float64)]),
        ({"n": 1}, [torch.zeros(4, dtype=torch.int32)]),
        ({"n": 1}, [{"w": torch.zeros(4)}]),
        ({"n": 1}, [torch.zeros(2), torch.zeros(2)]),
        ({"n": 1}, [torch.tensor([0.0, 0.0, 0.0, -0.0])]),
    ],
)
def test_whatever_differs_has_another_digest(other):
    card, tensors = other
    assert digest_of({"n": 1}, torch.zeros(4)) != digest_of(card, *tensors)


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=8), st.booleans())
def test_a_digest_knows_neither_strides_nor_the_order_of_names(values, turned):
    x = torch.tensor(values).expand(2, -1)
    named = {"a": x, "b": x.t()}
    same = dict(reversed(named.items())) if turned else {n: t.contiguous() for n, t in named.items()}
    assert digest_of({"k": [1, None]}, named) == digest_of({"k": [1, None]}, same)


@pytest.mark.parametrize("package", ["fdaudit", "torch"])
def test_another_version_has_another_digest(monkeypatch, package):
    before = digest_of({}, torch.zeros(1))
    if package == "torch":
        monkeypatch.setattr(torch, "__version__", "0")
    else:
        monkeypatch.setattr(cache, "version", lambda name: "0")
    assert digest_of({}, torch.zeros(1)) != before


def test_a_damaged_file_is_computed_anew(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    make = Maker()
    first = computed_once({}, [], make)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert torch.equal(first["b"], computed_once({}, [], make)["b"])
    assert make.calls == 2


def test_what_fails_is_not_kept(place):
    def fails(_: torch.Generator) -> dict[str, torch.Tensor]:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        computed_once({}, [], fails)
    make = Maker()
    computed_once({}, [], make)
    assert make.calls == 1


def test_memory_keeps_a_bounded_amount(monkeypatch):
    monkeypatch.setattr(cache, "_MOST_KEPT", 100)
    for n in range(5):
        remembered(f"{n}", lambda: {"x": torch.zeros(20)})
    assert list(cache._kept) == ["4"]


def kept_in(folder):
    return sorted(path.stem for path in folder.glob("*.safetensors"))


def test_a_bounded_directory_forgets_the_oldest(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(cache.BYTES, "1100")
    for n in range(4):
        remembered(f"{n}", lambda: {"x": torch.zeros(100)})
        os.utime(tmp_path / f"{n}.safetensors", (n, n))
    assert kept_in(tmp_path) == ["2", "3"]
    assert sorted(path.stem for path in tmp_path.glob("*.sha256")) == ["2", "3"]
    assert sum(path.stat().st_size for path in tmp_path.glob("*.safetensors")) <= 1100


def test_what_no_bounded_directory_can_hold_forgets_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(cache.BYTES, "1000")
    remembered("small", lambda: {"x": torch.zeros(10)})
    found = remembered("large", lambda: {"x": torch.ones(1000)})
    assert torch.equal(found["x"], torch.ones(1000))
    assert kept_in(tmp_path) == ["small"]


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1 GB", "\u0661"])
def test_a_bound_that_is_no_number_says_so(monkeypatch, tmp_path, text):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(cache.BYTES, text)
    with pytest.raises(UsageError, match="FDAUDIT_CACHE_BYTES"):
        computed_once({}, [], Maker())


def test_what_is_taken_out_can_be_changed(place):
    def make():
        return {"x": torch.zeros(2)}

    taken = remembered("d", make)
    taken["y"] = torch.ones(1)
    assert list(remembered("d", make)) == ["x"]


def test_processes_that_need_the_same_at_once_compute_it_once(monkeypatch, tmp_path):
    code = f"""
import time, torch
from pathlib import Path
from fdaudit.cache import remembered
def make():
    with Path({str(tmp_path / "calls")!r}).open("a") as file:
        file.write("x")
    time.sleep(1)
    return {{"x": torch.zeros(1)}}
remembered("d", make)
"""
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [p.wait(100) for p in both] == [0, 0]
    assert (tmp_path / "calls").read_text() == "x"


def test_a_directory_that_cannot_be_used_says_so(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "file"))
    with pytest.raises(UsageError, match="FDAUDIT_CACHE"):
        computed_once({}, [], Maker())
