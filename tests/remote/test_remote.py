"""Directories behind URLs: what is sent arrives, once; what is hostile is refused; what dies can go on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.errors import IntegrityError, RunError, UsageError
from fdaudit.remote.mirror import Mirror, rank
from fdaudit.remote.selection import everything, for_curves, for_verification, seed_and_controls, whole_runs
from fdaudit.remote.store import Store
from fdaudit.storage.paths import is_url, local_path

from ..helpers.run_cases import tree
from .far_cases import Killed, dying, empty_store, held


@pytest.fixture(autouse=True)
def _empty_store() -> Iterator[None]:
    with empty_store():
        yield


def plant(name: str, data: bytes = b"x") -> None:
    """Puts an object under any key, as a stranger could."""
    MemoryFileSystem.store[name] = MemoryFile(MemoryFileSystem(), name, data)


def written(directory: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


# -- URLs and paths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", ["s3://b/r", "memory://r", "file:///r", "gs://b", "simplecache::s3://b", "abfs+x://c"]
)
def test_a_url_is_a_url(where: str) -> None:
    assert is_url(where)
    with pytest.raises(UsageError, match="mirrored"):
        local_path(where, "out")


@pytest.mark.parametrize(
    "where",
    ["C:/runs", "C:\\runs", "C://runs", "c://", "runs", "./s3://b", "s3:/b", "a::b", "", Path("s3://b")],
)
def test_a_path_is_none(where: Any) -> None:
    assert not is_url(where)
    assert local_path(where, "out") == Path(where)


# -- laws ---------------------------------------------------------------------------------------------------------

folders = st.lists(st.sampled_from(["a", "b", "vault", "ä", ".git"]), max_size=2)
files = st.sampled_from(["x", "y.json", ".gitignore", "ü"])
names = st.builds(lambda above, last: "/".join((*above, last)), folders, files)
trees = st.dictionaries(names, st.binary(max_size=30), max_size=6)


@pytest.mark.parametrize("scheme", ["memory", "file"])
@settings(max_examples=30, deadline=None)
@given(before=trees, after=trees)
def test_what_is_pushed_is_fetched_and_nothing_is_sent_twice(
    scheme: str, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        url = f"file://{home}/far" if scheme == "file" else f"memory://{home}/far"
        for number, files in enumerate((before, after)):
            here = home / f"here-{number}"
            mirror = Mirror(Store(url, "run"), here)
            mirror.fetch()
            if number:
                assert tree(here) == before, "what was pushed is what is fetched"
            for name in tree(here).keys() - after.keys():
                (here / name).unlink()
            for path in sorted(here.rglob("*"), reverse=True):
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            new = {n for n, d in files.items() if not number or before.get(n) != d}
            written(here, files)
            assert mirror.push() == len(new), "new and changed files, and no other"
            assert mirror.push() == 0
        again = Mirror(Store(url, "run"), home / "again")
        assert again.fetch() == len(after)
        assert tree(home / "again") == after
        assert again.push() == 0


def test_files_are_sent_after_what_they_rely_on(tmp_path: Path) -> None:
    order = [
        "vault/secrets.json",
        "spec.yaml",
        "transcript/payloads/round-000001.shard",
        "transcript/messages.jsonl",
        "vault/state/round-000001.safetensors",
        "vault/round.json",
        "manifest.json",
        "attacks/server-dlg/queries.jsonl",
        "attacks/server-dlg.json",
        "result.json",
        "report/index.html",
    ]
    runs = [f"{prefix}{name}" for name in order for prefix in ("", "fedavg/", "runs/0123/")]
    written(tmp_path / "here", dict.fromkeys([*reversed(runs), "runs/0123/run.json", "sweep.json"], b"1"))
    (tmp_path / "here" / ".spec.yaml.tmp").write_text("half")
    with dying(None) as calls:
        Mirror(Store("memory://far", "run"), tmp_path / "here").push()
    assert sorted(calls) == sorted([*runs, "runs/0123/run.json", "sweep.json"])
    assert [rank(name) for name in calls] == sorted(rank(name) for name in calls)
    assert [name for name in calls if name in order] == order
    assert calls[-2:] == ["runs/0123/run.json", "sweep.json"]


def test_what_is_gone_is_removed_last_and_what_was_never_fetched_stays(tmp_path: Path) -> None:
    written(tmp_path / "a", {"vault/state/1": b"1", "vault/round.json": b"1", "report/index.html": b"page"})
    Mirror(Store("memory://far", "run"), tmp_path / "a").push()
    mirror = Mirror(Store("memory://far", "run"), tmp_path / "b")
    mirror.fetch(lambda names: [n for n in names if n.startswith("vault")])
    (tmp_path / "b" / "vault" / "state" / "1").rename(tmp_path / "b" / "vault" / "state" / "2")
    (tmp_path / "b" / "vault" / "round.json").write_bytes(b"2")
    with dying(None) as calls:
        mirror.push()
    assert calls == ["vault/state/2", "vault/round.json", "-vault/state/1"]
    assert held() == {"report/index.html": b"page", "vault/state/2": b"1", "vault/round.json": b"2"}


def test_a_push_that_died_is_completed_by_the_next(tmp_path: Path) -> None:
    files = {f"transcript/payloads/{n}": bytes([n]) for n in range(4)}
    mirror = Mirror(Store("memory://far", "run"), written(tmp_path / "a", files))
    with dying(2), pytest.raises(Killed):
        mirror.push()
    assert len(held()) == 2
    assert mirror.push() == 2
    assert held() == files


def test_a_vault_that_is_fetched_or_put_on_a_disk_is_private(tmp_path: Path) -> None:
    source = written(tmp_path / "a", {"vault/models/server": b"1", "spec.yaml": b"2"})
    Mirror(Store(f"file://{tmp_path}/far", "run"), source).push()
    assert (tmp_path / "far" / "vault").stat().st_mode & 0o777 == 0o700
    Mirror(Store(f"file://{tmp_path}/far", "run"), tmp_path / "b").fetch()
    assert (tmp_path / "b" / "vault").stat().st_mode & 0o777 == 0o700


def test_a_file_is_replaced_whole_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(Store(f"file://{tmp_path}/far", "run"), written(tmp_path / "a", {"log": b"old"}))
    mirror.push()

    def half(self: LocalFileSystem, source: str, target: str, **kwargs: Any) -> None:
        Path(target).write_bytes(b"ne")
        raise Killed

    (tmp_path / "a" / "log").write_bytes(b"newer")
    monkeypatch.setattr(LocalFileSystem, "put_file", half)
    with pytest.raises(Killed):
        mirror.push()
    assert (tmp_path / "far" / "log").read_bytes() == b"old"
    monkeypatch.undo()
    assert mirror.push() == 1
    assert tree(tmp_path / "far") == {"log": b"newer"}


def test_several_at_a_time_come_whole_and_in_order_of_rank(tmp_path: Path) -> None:
    """What stores on a network do, with the memory store behind it."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    files = {f"transcript/payloads/{n:03}": bytes([n]) for n in range(60)} | {"manifest.json": b"{}"}
    store = Store("memory://far", "run")
    with dying(None) as calls:
        store._fs = AsyncFileSystemWrapper(fsspec.filesystem("memory"))
        assert Mirror(store, written(tmp_path / "a", files)).push() == 61
    assert calls[-1] == "manifest.json"
    mirror = Mirror(store, tmp_path / "b")
    assert mirror.fetch() == 61
    assert tree(tmp_path / "b") == files
    assert mirror.push() == 0


# -- strangers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["../x", "a/../../x", "/etc/x", "a//b", "./a", "a/./b", "a\0b", "..", "a/..", "vault/../../../x"]
)
def test_a_name_that_leads_elsewhere_is_refused(key: str, tmp_path: Path) -> None:
    plant(f"/far/{key}")
    with pytest.raises(IntegrityError):
        Mirror(Store("memory://far", "run"), tmp_path / "in" / "copy").fetch()
    with pytest.raises(IntegrityError):
        Store("memory://far", "run").fetch({"../x": 1}, tmp_path / "in" / "copy", lambda n: None)
    assert list(tmp_path.rglob("*")) == []


def test_a_file_with_files_below_it_is_refused(tmp_path: Path) -> None:
    plant("/far/a/b/c")
    plant("/far/a")
    with pytest.raises(IntegrityError, match="a is a file, and a/b/c lies below it"):
        Mirror(Store("memory://far", "run"), tmp_path / "copy").fetch()


@pytest.mark.parametrize("target", ["outside", "outside/secret", "nowhere"])
def test_links_are_refused_on_either_side(target: str, tmp_path: Path) -> None:
    written(tmp_path / "outside", {"secret": b"s"})
    written(tmp_path / "far", {"spec.yaml": b"1"})
    (tmp_path / "far" / "link").symlink_to(tmp_path / target)
    with pytest.raises(IntegrityError, match="link is a link, no regular file"):
        Mirror(Store(f"file://{tmp_path}/far", "run"), tmp_path / "copy").fetch()
    assert not (tmp_path / "copy").exists()
    with pytest.raises(IntegrityError, match="link is neither"):
        Mirror(Store("memory://far", "run"), tmp_path / "far").push()
    assert held() == {}


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    os.mkfifo(tmp_path / "far" / "pipe")
    with pytest.raises(IntegrityError, match="pipe is no regular file"):
        Mirror(Store(f"file://{tmp_path}/far", "run"), tmp_path / "copy").fetch()


def test_a_file_that_comes_with_another_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("/far/log", b"four")
    monkeypatch.setattr(
        MemoryFileSystem, "get_file", lambda self, source, target, **k: Path(target).write_bytes(b"thr")
    )
    with pytest.raises(RunError, match="gave 3 bytes of log, though it lists 4"):
        Mirror(Store("memory://far", "run"), tmp_path / "copy").fetch()


def test_what_consoles_make_for_empty_folders_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"/far/": {"size": 0, "type": "file"}, "/far/vault/": {"size": 0, "type": "file"}}
    monkeypatch.setattr(MemoryFileSystem, "find", lambda self, *args, **kwargs: listed)
    assert Store("memory://far", "run").names() == {}
    listed["/far/vault/"]["size"] = 3
    with pytest.raises(IntegrityError):
        Store("memory://far", "run").names()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    plant("/far")
    with pytest.raises(RunError, match="is a file"):
        Store("memory://far", "run").names()


# -- what cannot be reached ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nowhere://b/r", "has the scheme 'nowhere', which is not known"),
        ("simplecache::memory://r", "chains file systems"),
    ],
)
def test_a_scheme_that_cannot_be_used_is_one_clear_error(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        Store(url, "seed-from")
    assert (refused.value.field, refused.value.value) == ("seed-from", url)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", absent)
    with pytest.raises(UsageError, match="needs the package s3fs") as refused:
        Store("s3://b/r", "run")
    assert refused.value.remedy == "Install it: python -m pip install s3fs."
    with pytest.raises(UsageError, match="Install s3fs to access S3"):
        Store("sftp://b/r", "run")  # whose package its scheme does not name


class DeniedError(Exception):
    """What a store's own library raises; it knows nothing of OSError."""


@pytest.mark.parametrize(
    "raised", [PermissionError(13, "Permission denied"), DeniedError("403\nForbidden"), DeniedError()]
)
def test_whatever_a_store_raises_is_one_error_of_one_line(
    raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MemoryFileSystem, *args: Any, **kwargs: Any) -> None:
        raise raised

    store = Store("memory://far", "out")
    mirror = Mirror(store, written(tmp_path / "a", {"spec.yaml": b"1"}))
    mirror.push()
    for name, what, call in (
        ("find", "listed", store.names),
        ("get_file", "read", lambda: Mirror(store, tmp_path / "b").fetch()),
        ("rm_file", "changed", lambda: store.remove("spec.yaml")),
        ("put_file", "written", Mirror(store, tmp_path / "a").push),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, name, refuse)
            with pytest.raises(RunError, match=f"cannot be {what}") as refused:
                call()
        assert refused.value.exit_code == 2
        assert "\n" not in str(refused.value)
        assert type(raised).__name__ in str(refused.value)


def test_a_password_is_not_repeated() -> None:
    assert Store("memory://me:secret@host/far", "run").url == "memory://me:***@host/far"


# -- what commands need -------------------------------------------------------------------------------------------


def test_each_command_fetches_what_it_needs() -> None:
    run = {"manifest.json", "transcript/messages.jsonl", "vault/secrets.json", "vault/round.json", "report/x",
           "attacks/a.json", "attacks/controls/a.json", "sweep.json", "extra"}  # fmt: skip
    assert everything(run) == run
    assert set(for_verification(run)) == {"manifest.json", "transcript/messages.jsonl", "sweep.json", "extra"}
    bundle = {*run, "files.json"}
    assert for_verification(bundle) == bundle, "whatever lies beside evidence is a finding"
    assert set(seed_and_controls(run)) == {"vault/secrets.json", "attacks/controls/a.json"}
    cells = {"sweep.json", ".lock", "locks/a", "scratch/1/x", "shared/a/vault/secrets.json",
             "runs/a/run.json", "runs/a/result.json", "runs/b/result.json"}  # fmt: skip
    assert set(whole_runs(cells)) == {
        "sweep.json", "shared/a/vault/secrets.json", "runs/a/run.json", "runs/a/result.json"
    }  # fmt: skip
    assert set(for_curves(cells)) == {"sweep.json", "runs/a/result.json", "runs/b/result.json"}
