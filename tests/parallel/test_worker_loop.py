"""The loop of a worker process: what its end does when the process that gave it work has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import os, sys, time
from pathlib import Path
from fdaudit.parallel.worker_loop import serve

def work(task, say):
    while True:
        say({"step": 1})

def end():
    time.sleep(0.5)
    Path(sys.argv[1]).touch()
    os._exit(0)

serve(work, end)
"""


def test_a_worker_that_speaks_while_its_parent_ends_is_still_cleaned_up(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(ended)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("{}\n")
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    process.stdin.close()
    assert process.wait() == 0
    assert ended.exists()
