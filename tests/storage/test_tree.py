"""Directories that a stranger filled: a link in them is refused, and none is followed by what writes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fdaudit.errors import IntegrityError
from fdaudit.storage.files import save_json, save_json_together, write_atomically
from fdaudit.storage.scratch import remove_tree
from fdaudit.storage.tree import irregular, make_folder, open_appending, open_new, refuse_links
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.transcript.transcript import Transcript


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    path = tmp_path / "outside" / "private.txt"
    path.write_bytes(b"private")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    (tmp_path / "run" / "a" / "b" / "file").write_bytes(b"own")
    return tmp_path / "run"


def _plug(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


ODD: dict[str, Callable[[Path, Path], object]] = {
    "a link to a file": lambda path, outside: path.symlink_to(outside),
    "a link to a directory": lambda path, outside: path.symlink_to(outside.parent),
    "a link into the run": lambda path, outside: path.symlink_to("b/file"),
    "a dead link": lambda path, outside: path.symlink_to("nowhere"),
    "a link to itself": lambda path, outside: path.symlink_to(path.name),
    "a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "a hard link": lambda path, outside: path.hardlink_to(outside),
    "a pipe": lambda path, outside: os.mkfifo(path),
    "a socket": lambda path, outside: _plug(path),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("place", ["odd", "a/odd", "a/b/.file.tmp"])
def test_what_is_no_file_of_the_directory_is_refused(kind: str, place: str, run: Path, outside: Path) -> None:
    assert irregular(run) == []
    ODD[kind](run / place, outside)
    (finding,) = irregular(run)
    assert finding.startswith(place)
    with pytest.raises(IntegrityError, match=r"^\S.* .*\.$") as error:
        refuse_links(run)
    assert "\n" not in str(error.value)


def test_the_directory_itself_may_be_a_link_or_absent(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    refuse_links(tmp_path / "link")
    refuse_links(tmp_path / "nowhere")
    (run / "odd").symlink_to("nowhere")
    with pytest.raises(IntegrityError, match=r"^odd .* link"):
        refuse_links(tmp_path / "link")


def test_only_the_named_entries_are_looked_at(run: Path) -> None:
    (run / "latest").symlink_to("a")
    (run / "a" / "odd").symlink_to("b")
    assert irregular(run, ("elsewhere",)) == []
    (odd,) = irregular(run, ("a",))
    assert odd.startswith("a/odd is a link")
    assert len(irregular(run)) == 2


def test_a_name_of_any_bytes_is_said(run: Path) -> None:
    (run / "a\nb\udcff").symlink_to("a")
    (odd,) = irregular(run)
    assert odd.startswith("a\nb\udcff is ")


def test_a_directory_too_deep_to_be_searched_is_refused(tmp_path: Path) -> None:
    here, levels = Path.cwd(), 3000
    (tmp_path / "deep").mkdir()
    os.chdir(tmp_path / "deep")
    try:
        for _ in range(levels):
            Path("d").mkdir()
            os.chdir("d")
        (finding,) = irregular(tmp_path / "deep")
    finally:
        for _ in range(levels):
            os.chdir("..")
            Path("d").rmdir()
        os.chdir(here)
    assert "cannot be searched" in finding


@pytest.mark.parametrize("kind", ODD)
def test_a_planted_temporary_name_is_replaced_and_not_followed(kind: str, run: Path, outside: Path) -> None:
    for name in ("x.json", "y.json"):
        ODD[kind](run / "a" / f".{name}.tmp", outside)
    before = outside.stat().st_mtime_ns
    save_json(run / "a" / "x.json", {"a": 1})
    save_json_together({run / "a" / "y.json": {"a": 1}})
    write_atomically(run / "a" / "y.json", b"{}")
    assert (outside.read_bytes(), outside.stat().st_mtime_ns) == (b"private", before)
    assert {p.name for p in (run / "a").iterdir()} == {"b", "x.json", "y.json"}
    assert irregular(run) == []


@pytest.mark.parametrize("kind", [k for k in ODD if k != "a link to itself"])
def test_nothing_is_appended_through_a_link(kind: str, run: Path, outside: Path) -> None:
    ODD[kind](run / "a" / "log", outside)
    for end in (None, 0):
        with pytest.raises(IntegrityError, match=r"^log is no "):
            open_appending(run / "a" / "log", end)
    assert outside.read_bytes() == b"private"


@pytest.mark.parametrize("name", ["x.json", ".x.json.tmp"])
def test_a_folder_in_the_place_of_a_file_is_one_error_and_leaves_nothing(name: str, run: Path) -> None:
    (run / "a" / name).mkdir()
    before = sorted(run.rglob("*"))
    with pytest.raises(IntegrityError, match=f"{name} is a folder"):
        save_json(run / "a" / "x.json", {})
    with pytest.raises(IntegrityError, match=f"{name} is a folder"):
        save_json_together({run / "a" / "x.json": {}})
    assert sorted(run.rglob("*")) == before


def test_a_file_is_cut_and_continued(run: Path) -> None:
    for end, text in ((None, b"abc"), (None, b"de"), (4, b"f")):
        with open_appending(run / "log", end) as file:
            file.write(text)
    assert (run / "log").read_bytes() == b"abcdf"
    with open_new(run / "log", 0o600) as file:
        file.write(b"x")
    assert (run / "log").read_bytes() == b"x"
    assert (run / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ODD)
def test_a_folder_is_made_through_no_link(kind: str, run: Path, outside: Path) -> None:
    make_folder(run / "a")
    make_folder(run / "new")
    ODD[kind](run / "a" / "odd", outside)
    with pytest.raises(IntegrityError, match=r"^odd .* folder"):
        make_folder(run / "a" / "odd")
    assert [p.name for p in outside.parent.iterdir()] == [outside.name]


def test_a_vault_and_a_transcript_write_into_no_linked_folder(run: Path, outside: Path) -> None:
    """As a link that appears after the check would be met."""
    vault = Vault(run / "vault")
    vault.create(Secrets(7, bytes(32)))
    (run / "vault" / "scores").symlink_to(outside.parent)
    with pytest.raises(IntegrityError, match=r"^scores .* folder"):
        vault.save("scores/server-lira/0", {})
    (run / "vault" / "handed_out").symlink_to(outside.parent)
    (run / "transcript").symlink_to(outside.parent)
    with pytest.raises(IntegrityError, match=r"^transcript .* folder"):
        Transcript(run / "transcript", secret=bytes(32))
    assert [p.name for p in outside.parent.iterdir()] == [outside.name]


# -- a directory that a stranger filled is removed, and nothing outside of it is touched ---------------------------


def test_what_is_deeper_than_a_recursion_is_removed(tmp_path: Path) -> None:
    folder, here = tmp_path / "filled", Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        for _ in range(1500):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(here)
    remove_tree(folder)
    assert not folder.exists()


def test_closed_directories_are_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("truth")
    secret.chmod(0o600)
    folder = tmp_path / "filled"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed" / "link").symlink_to(secret)
    (folder / "closed" / "inner" / "link").symlink_to(tmp_path)
    for place in ("closed/inner", "closed"):
        (folder / place).chmod(0)
    remove_tree(folder)
    assert not folder.exists()
    assert secret.read_text() == "truth"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_removed_as_a_directory(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "kept").is_dir()
