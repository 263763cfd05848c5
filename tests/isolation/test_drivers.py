"""What an attack process may touch so that CUDA starts in it, and what this does not open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fdaudit.isolation import paths
from fdaudit.isolation.landlock import offered

CHILD = """
import json, sys, threading
from fdaudit.isolation.landlock import restrict

def can(path, text):
    try:
        with open(path, "r+") as file:
            file.write(text)
    except OSError:
        return False
    return True

restrict(["/usr", "/lib", "/lib64", sys.prefix, "/proc/self"], json.loads(sys.argv[2]))
thread = f"/proc/self/task/{threading.get_native_id()}/comm"
outside = sys.argv[1]
print(json.dumps([can(thread, "named"), can(outside, "x"), can("/proc/self/root" + outside, "x"),
                  can("/proc/self/cwd/outside", "x"), can(f"/proc/{sys.argv[3]}/comm", "x")]))
"""


def tried(outside: Path, writable: list[str]) -> list[bool]:
    """Whether a confined child can name its thread, and write outside in four ways."""
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        arguments = [str(outside), json.dumps(writable), str(sleeper.pid)]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=outside.parent,
        )
    finally:
        sleeper.communicate()
    found: list[bool] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(not offered(), reason="this kernel has no Landlock")
def test_a_process_that_may_name_its_threads_can_write_nothing_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("truth")
    assert tried(outside, [])[0] is False  # which CUDA takes for a failure of the operating system
    assert tried(outside, ["/proc/self"]) == [True, False, False, False, False]
    assert outside.read_text() == "truth"


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl"])
def test_processes_may_name_their_threads_where_there_is_a_cuda_device(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "null").touch()
    monkeypatch.setattr(paths, "_DEV", tmp_path)
    assert paths.devices() == [str(tmp_path / "null")]
    (tmp_path / device).touch()
    assert paths.devices() == [str(tmp_path / "null"), str(tmp_path / device), "/proc/self"]
