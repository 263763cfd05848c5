"""Which directories a run may be written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import verify

from ..helpers.run_cases import cli, finished, tree, write_spec


def test_an_occupied_directory_is_refused_and_left_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "spec.yaml", small_spec())
    letters = tmp_path / "letters"
    letters.mkdir()
    (letters / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "dead").symlink_to("nowhere")
    occupied = finished(tmp_path / "run")
    before = tree(occupied, without=())
    for out, *more in (
        (occupied,),
        (letters,),
        (letters, "--resume"),
        (tmp_path / "file",),
        (tmp_path / "file", "--resume"),
        (tmp_path / "file" / "below",),
        (tmp_path / "dead",),
    ):
        code, _, err = cli(monkeypatch, capsys, "run", spec, "--out", out, "--no-report", *more)
        assert code == 2, (out, err)
        assert len(err.splitlines()) == 1, (out, err)
        assert repr(str(out)) in err
    assert tree(occupied, without=()) == before
    assert tree(letters, without=()) == {"letter.txt": b"dear"}
    assert (tmp_path / "file").read_text() == "a file"
    assert not (tmp_path / "nowhere").exists()


def test_an_empty_directory_and_a_link_to_one_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert verify(finished(tmp_path / "link")) == []
    assert (tmp_path / "empty" / "manifest.json").is_file()
