"""Scratch directories go with their process, however it ends."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fdaudit.storage import scratch


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_held", {})  # the directories that this process has elsewhere stay
    yield tmp_path
    scratch.remove_all()


def other(place: Path, after: str) -> subprocess.Popen[bytes]:
    """Another process with scratch in the same place, that has said where."""
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from fdaudit.storage import scratch\n"
        "folder = scratch.new_folder('theirs'); (folder / 'file').write_text('x')\n"
        f"print(folder, flush=True); {after}"
    )
    made = subprocess.Popen([sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE)
    assert made.stdout is not None
    made.stdout.readline()
    return made


def test_a_directory_is_gone_with_its_block_and_nobody_else_can_read_it(place):
    with scratch.scratch("view") as folder:
        (folder / "file").write_text("x")
        root = folder.parent
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        assert root.parent == place
    assert not folder.exists()
    scratch.remove_all()
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_goes_when_the_next_begins(place):
    killed = other(place, "import time; time.sleep(600)")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert len(list(place.glob("*/theirs-*/file"))) == 1
    scratch.new_folder("ours")
    assert not list(place.glob("*/theirs-*"))


def test_a_process_that_ends_leaves_nothing(place):
    other(place, "pass").communicate()
    assert list(place.iterdir()) == []


def test_what_a_living_process_has_stays(place):
    living = other(place, "import time; time.sleep(600)")
    try:
        scratch.new_folder("ours")
        assert len(list(place.glob("*/theirs-*/file"))) == 1
    finally:
        living.kill()
        living.communicate()


def test_what_is_somebody_elses_is_left_alone(place):
    (place / "fdaudit-scratch-notours").mkdir()
    (place / "fdaudit-scratch-link").symlink_to(place)
    scratch.new_folder("ours")
    assert (place / "fdaudit-scratch-notours").is_dir()
    assert (place / "fdaudit-scratch-link").is_symlink()
