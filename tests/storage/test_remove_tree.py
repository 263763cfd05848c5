"""A directory that a stranger filled is removed, and nothing outside of it is touched."""

from __future__ import annotations

import os
from pathlib import Path

from fdaudit.storage.scratch import remove_tree


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
