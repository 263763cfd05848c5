"""What is computed once: equal inputs, equal result, wherever it was kept and whoever computed it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.errors import UsageError
from fdaudit.evaluation import attack_pool
from fdaudit.storage import cache
from fdaudit.storage.cache import computed_once, digest_of, remembered
from fdaudit.storage.files import encode


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.DIRECTORY, raising=False)
    monkeypatch.delenv(cache.BYTES, raising=False)
    monkeypatch.delenv(cache.KEY, raising=False)
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
    (file,) = tmp_path.glob("*.kept")
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
    return sorted(path.stem for path in folder.glob("*.kept"))


def test_a_bounded_directory_forgets_the_oldest(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(cache.BYTES, "1100")
    for n in range(4):
        remembered(f"{n}", lambda: {"x": torch.zeros(100)})
        os.utime(tmp_path / f"{n}.kept", (n, n))
    assert kept_in(tmp_path) == ["2", "3"]
    assert sum(path.stat().st_size for path in tmp_path.glob("*.kept")) <= 1100


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


@pytest.mark.thorough
def test_processes_that_need_the_same_at_once_compute_it_once(monkeypatch, tmp_path):
    code = f"""
import time, torch
from pathlib import Path
from fdaudit.storage.cache import remembered
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


@pytest.mark.thorough
def test_processes_that_need_the_same_pieces_share_them_out(monkeypatch, tmp_path):
    code = f"""
import sys, time, torch
from pathlib import Path
from fdaudit.storage.cache import remembered_parts
calls = Path({str(tmp_path / "calls")!r})
def work(name):
    def make():
        with calls.open("a") as file:
            file.write(sys.argv[1] + name + " ")
        while len(set(word[0] for word in calls.read_text().split())) < 2:
            time.sleep(0.05)  # nobody ends a piece before both have begun one
        return {{"x": torch.tensor([float(ord(name))])}}
    return make
found = remembered_parts({{name: work(name) for name in "abcd"}})
assert [chr(int(part["x"])) for part in found] == list("abcd")
"""
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    both = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "12"]
    assert [p.wait(100) for p in both] == [0, 0]
    calls = (tmp_path / "calls").read_text().split()
    assert {word[0] for word in calls} == {"1", "2"}
    assert sorted(word[1] for word in calls) == list("abcd")


def test_a_directory_that_cannot_be_used_says_so(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "file"))
    with pytest.raises(UsageError, match="FDAUDIT_CACHE"):
        computed_once({}, [], Maker())


def zeros() -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(1)}


def ones() -> dict[str, torch.Tensor]:
    return {"x": torch.ones(1)}


def is_computed(name: str = "d") -> bool:
    return torch.equal(remembered(name, ones)["x"], torch.ones(1))


def test_what_nobody_vouches_for_is_computed(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    payload = encode(zeros())
    stated = hashlib.sha256(payload).hexdigest()
    (tmp_path / "d.safetensors").write_bytes(payload)
    (tmp_path / "d.sha256").write_text(stated + "\n")
    (tmp_path / "d.kept").write_bytes(bytes.fromhex(stated) + payload)
    assert is_computed()


def test_what_another_key_vouches_for_is_computed(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(cache.KEY, "0" * 64)
    remembered("d", zeros)
    assert not is_computed()
    monkeypatch.setenv(cache.KEY, "1" * 64)
    assert is_computed()


def test_what_was_kept_under_another_name_is_computed(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    remembered("other", zeros)
    (tmp_path / "other.kept").rename(tmp_path / "d.kept")
    assert is_computed()


@pytest.mark.parametrize("name", [".d.kept.tmp", "d.kept", ".d.safetensors.tmp", ".d.sha256.tmp"])
def test_no_link_leads_a_result_into_another_file(monkeypatch, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / name).symlink_to(victim)
    assert is_computed()
    assert victim.read_text() == "precious"
    remembered("d", zeros)
    assert is_computed(), "kept after all, in a file of its own"


def test_a_lock_that_is_a_link_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    (tmp_path / "d.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="FDAUDIT_CACHE"):
        is_computed()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["d.kept", "d.lock", ".d.kept.tmp"])
def test_a_folder_in_the_way_says_so(monkeypatch, tmp_path, name):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="FDAUDIT_CACHE"):
        is_computed()


@pytest.mark.parametrize("name", ["d.kept", "d.lock", ".d.kept.tmp"])
def test_a_pipe_makes_nobody_wait(monkeypatch, tmp_path, name):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    os.mkfifo(tmp_path / name)
    assert is_computed()


def test_a_sparse_file_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    with (tmp_path / "d.kept").open("wb") as file:
        file.truncate(8 << 30)
    assert is_computed()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o755, 0o777])
def test_a_directory_that_others_enter_is_refused(monkeypatch, tmp_path, mode):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    with pytest.raises(UsageError, match=f"FDAUDIT_CACHE.*mode {mode:04o}.*chmod 700"):
        is_computed()
    assert not list((tmp_path / "cache").iterdir())


def test_a_directory_of_somebody_else_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(UsageError, match=f"^{cache.DIRECTORY}: .* another user"):
        is_computed()


def test_a_directory_that_is_a_link_is_refused(monkeypatch, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    with pytest.raises(UsageError, match="is a link"):
        is_computed()


def test_the_key_of_a_user_is_made_once_and_private(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        remembered("d", zeros)
    finally:
        os.umask(before)
    (key,) = (tmp_path / "state" / "fdaudit").iterdir()
    assert (key.name, key.stat().st_size, key.stat().st_mode & 0o777) == ("cache.key", 32, 0o600)
    assert all(p.stat().st_mode & 0o077 == 0 for p in (tmp_path / "cache").iterdir())
    cache._own_key.cache_clear()
    assert not is_computed(), "another process finds the same key"


@pytest.mark.parametrize("planted", ["short", "link", "folder"])
def test_a_key_that_is_none_says_so(monkeypatch, tmp_path, planted):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    (tmp_path / "fdaudit").mkdir(mode=0o700)
    place = tmp_path / "fdaudit" / "cache.key"
    if planted == "short":
        place.write_bytes(b"short")
    elif planted == "link":
        (tmp_path / "known").write_bytes(bytes(32))
        place.symlink_to(tmp_path / "known")
    else:
        place.mkdir()
    with pytest.raises(UsageError, match=r"cache\.key"):
        is_computed()


def test_a_key_from_the_surroundings_is_not_shown(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(cache.KEY, "5ecret")
    with pytest.raises(UsageError, match="FDAUDIT_CACHE_KEY") as refused:
        is_computed()
    assert "5ecret" not in str(refused.value)


def test_processes_of_a_pool_share_a_key_that_nobody_else_has(monkeypatch):
    attack_pool._in_common.cache_clear()
    variables = attack_pool._in_common()
    assert set(variables) == set(cache.VARIABLES)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    remembered("d", zeros)
    assert not is_computed()
    monkeypatch.setenv(cache.KEY, hashlib.sha256(b"guess").hexdigest())
    assert is_computed()
    assert Path(variables[cache.DIRECTORY]).stat().st_mode & 0o777 == 0o700


def test_what_somebody_changes_in_memory_is_not_what_the_next_one_gets():
    remembered("d", zeros)["x"].fill_(5.0)
    assert torch.equal(remembered("d", ones)["x"], torch.zeros(1))
