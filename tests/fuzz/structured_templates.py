"""What the structured fuzzer changes: one directory for each kind of files, made once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

import fdaudit
from fdaudit.adversary.view import view_digest
from fdaudit.audit.run import Run
from fdaudit.importing.site_score import score_at_site
from fdaudit.recording.record import read_record, write_lines_only
from fdaudit.transcript.manifest import read_manifest

from ..helpers.rerecorded import card_of, rerecord, with_coins
from ..helpers.run_cases import finished
from .structured import SENTINEL

_SENTINEL = """
import os
from pathlib import Path

Path(os.environ["FDAUDIT_FUZZ_RAN"]).touch()

class Anything:
    pass

def run(*arguments, **named):
    pass
"""


def make_templates(folder: Path) -> Path:
    """Make the files of every kind in a new folder; return it."""
    folder.mkdir()
    (folder / "plugins").mkdir()
    (folder / "plugins" / f"{SENTINEL}.py").write_text(_SENTINEL)
    run = fdaudit.load(finished(folder / "source", attacks=[{"name": "label-counts"}]))
    _run(run, folder / "run")
    _record(run, folder)
    _guesses(folder)
    _statement(folder)
    return folder


def _run(run: Run, folder: Path) -> None:
    """A finished run with its report."""
    fdaudit.report(run)
    folder.mkdir()
    shutil.copytree(run.directory, folder / "run")


def _record(run: Run, folder: Path) -> None:
    """A record with its card and truth; a card; and a design's key."""
    for name in ("record", "card", "design"):
        (folder / name).mkdir()
        rerecord(run, folder / name)
        card: dict[str, Any] = card_of(run)
        if name == "design":
            card["design"] = with_coins(folder / name / "truth")
        if name == "card":
            card |= _STATED
        (folder / name / "record" / "card.yaml").write_text(yaml.safe_dump(card))
    shutil.rmtree(folder / "record" / "truth")


_STATED = {
    "claims": [{"epsilon": 3.0, "source": "a page"}],
}


def _guesses(folder: Path) -> None:
    """Guesses of class shares about an imported run, with the record's lines and card for a site."""
    base = folder / "guesses"
    source = folder / "design"
    card = source / "record" / "card.yaml"
    base.mkdir()
    audit = {"profile": "quick", "threads": 1, "victims": 2, "adversaries": ["server"]}
    record = source / "record"
    run = fdaudit.import_record(record, base / "run", card=card, truth=[source / "truth"], audit=audit)
    shutil.copytree(source / "truth", base / "truth")
    (base / "guesses").mkdir()
    value = {
        "schema": "fdaudit-guesses/1",
        "name": "mine",
        "adversary": "server",
        "view": view_digest(run.opened.view("server")),
        "head": read_manifest(run.directory)["head"],
        "source": "somebody",
        "assumes": ["nothing"],
        "label_distribution": [{"target": f"client/{k}", "distribution": [0.1] * 10} for k in (0, 1)],
    }
    (base / "guesses" / "guesses.json").write_text(json.dumps(value))
    write_lines_only(read_record(record), base / "guesses" / "record")
    shutil.copyfile(card, base / "guesses" / "record" / "card.yaml")


def _statement(folder: Path) -> None:
    """A site's statement about these guesses, and the run that takes it over."""
    base, source = folder / "statement", folder / "guesses"
    base.mkdir()
    shutil.copytree(source / "run", base / "run")
    score_at_site(source / "guesses", base / "scored.json", truth=[source / "truth"])
    shutil.copyfile(source / "guesses" / "guesses.json", base / "guesses.json")
