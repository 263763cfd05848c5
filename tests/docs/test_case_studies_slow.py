"""The worked pages as their reader would follow them: every fenced block is written, run or executed, in order.

The examples that the pages name are beside them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers.docs_pages import PAGES, ROOT, steps

STUDIES = ("docs/own-data.md", *(name for name in PAGES if name.startswith("docs/case-studies/")))
NEEDS_DATA = {"docs/case-studies/hospital.md": "pneumoniamnist.npz"}
_NAME = re.compile(r"# ([\w.-]+\.(?:yaml|py))\n")
_EXIT = re.compile(r"^(?P<command>.*?)(?:\s+# exit code (?P<code>\d))?$")

pytestmark = pytest.mark.slow


def _call(command: list[str], home: Path, code: int = 0) -> None:
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == code, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_does_what_it_says_and_has_its_picture(name: str, tmp_path: Path) -> None:
    data = Path(os.environ.get("FDAUDIT_DATA", "/nonexistent"))
    if name in NEEDS_DATA and not (data / NEEDS_DATA[name]).is_file():
        pytest.skip(f"FDAUDIT_DATA holds no {NEEDS_DATA[name]}")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    ran = 0
    for language, body in steps(name):
        if language in ("yaml", "python"):
            named = _NAME.match(body)
            assert named, f"{name}: a {language} block begins with the name of its file"
            (tmp_path / named[1]).write_text(body, encoding="utf-8")
        if language == "python":
            _call([sys.executable, body.split("\n")[0].removeprefix("# ")], tmp_path)
        elif language == "bash":
            for line in body.splitlines():
                found = _EXIT.match(line)
                assert found
                program, *words = found["command"].split()
                assert program in ("fdaudit", "python"), f"{name}: {line}"
                module = ["-m", "fdaudit"] if program == "fdaudit" else []
                _call([sys.executable, *module, *words], tmp_path, int(found["code"] or 0))
                ran += 1
    assert ran
    for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        assert 1_000 < ((ROOT / name).parent / path).stat().st_size < 150_000, path
