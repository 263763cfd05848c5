"""Acceptance: a hostile string in any text of a spec, a transcript, an exported view or guesses is text, or is refused.

Refused means one line that cannot reorder, hide or colour anything on a terminal. Shown means that the page has no
element, attribute or script that it would not have had.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.adversary.view import open_view
from fdaudit.errors import FdauditError
from fdaudit.spec.schema import Spec
from fdaudit.storage.digests import canonical
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import read_manifest, write_manifest

from ..audit.test_red_team import SPEC, guesses
from ..helpers.command import Cli
from ..helpers.hostile_names import text_places
from ..helpers.report_cases import Document
from ..helpers.run_cases import write_spec

MARKUP = "<script>document.title='owned'</script>\"'><img src=x onerror=alert(1)>"
TEMPLATE = "{{ 7 * 7 }}{% raw %}{{ cycler.__init__.__globals__ }}"
OVERRIDES = "\u202egnp.exe\u2066\u200b\x1b[31m\u2028"
PAYLOADS = (MARKUP + TEMPLATE + OVERRIDES, "w" * 10_000, "../../../../etc/passwd")
IDS = ("markup, template and overrides", "long", "traversal")

pytestmark = pytest.mark.parametrize("payload", PAYLOADS, ids=IDS)


def inert(page: str) -> Document:
    """The page as parsed, after checking that nothing but its own script could run and nothing is hidden."""
    document = Document(page)
    assert [a for t, a in document.elements if t == "script"] == [{}]
    assert not {t for t, _ in document.elements} & {"iframe", "object", "embed", "base", "form"}
    for tag, attributes in document.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert str(attributes.get("src") or "data:").startswith("data:"), (tag, attributes)
    assert not {c for c in page if not c.isprintable()} - {"\n", "\t", "\N{NO-BREAK SPACE}"}
    assert len(page) < 5_000_000
    return document


def quiet(out: str, err: str) -> None:
    """Nothing on a terminal that is not printable, and no traceback."""
    assert not {c for c in out + err if not c.isprintable()} - {"\n"}
    assert "Traceback" not in err


# -- the spec -----------------------------------------------------------------------------------------------------


def text_fields() -> list[tuple[str, ...]]:
    """Where a spec may hold free text; `0` stands for a list's item."""
    return [place for place in text_places(Spec, closed=False) if "*" not in place]


def with_text(path: tuple[str, ...], text: str) -> dict[str, Any]:
    """The small spec with a text at one place."""
    spec = small_spec()
    value: Any = text
    for name in reversed(path[1:]):
        value = [value] if name == "0" else {name: value}
    old = spec.get(path[0])
    spec[path[0]] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return spec


@pytest.mark.thorough
def test_in_every_text_of_a_spec(payload: str, tmp_path: Path, cli: Cli) -> None:
    places = text_fields()
    assert len(places) >= 15
    refused = 0
    for number, place in enumerate(places):
        spec = write_spec(tmp_path / f"{number}.yaml", with_text(place, payload))
        out = tmp_path / f"run{number}"
        code, said, error = cli("run", spec, "--out", out)
        quiet(said, error)
        if code == 0:
            inert((out / "report" / "index.html").read_text("utf-8"))
            continue
        refused += 1
        assert code == 2, (place, error)
        assert error.count("\n") == 1, (place, error)
        assert len(error) < 2_000, place
        assert not out.exists(), place
    if payload.isprintable():
        assert 0 < refused < len(places)  # the run's name, at least, is free
    else:
        assert refused == len(places)


# -- the transcript -----------------------------------------------------------------------------------------------

EDITS: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "sender": lambda v, s: {"sender": s},
    "a sender's number": lambda v, s: {"sender": f"client/{s}"},
    "receivers": lambda v, s: {"receivers": [s]},
    "kind": lambda v, s: {"kind": s},
    "a tensor's name": lambda v, s: {"tensors": dict.fromkeys([s], next(iter(v["tensors"].values())))},
    "dtype": lambda v, s: {"tensors": {k: {**t, "dtype": s} for k, t in v["tensors"].items()}},
    "a field's name": lambda v, s: {"fields": {s: 1}},
    "a field": lambda v, s: {"fields": {"note": s}},
    "inputs": lambda v, s: {"inputs": [s]},
    "a defence": lambda v, s: {"defenses": [{"name": s}]},
    "a defence's setting": lambda v, s: {"defenses": [{"name": "x", s: s}]},
    "event": lambda v, s: {"event": {"type": s}},
    "payload": lambda v, s: {"payload": {"file": s, "length": 4}},
    "salt": lambda v, s: {"salt": s},
    "sha256": lambda v, s: {"sha256": s},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hostile")
    run = fdaudit.run({**SPEC, "attacks": [{"name": "analytic"}]}, made / "run")
    fdaudit.report(run)
    fdaudit.export_view(run, "server", made / "server", challenges=True)
    return made


def chained(lines: list[bytes], edit: Callable[[dict[str, Any]], dict[str, Any]], at: int) -> list[bytes]:
    """The lines with one edited, and the whole chain made anew: what a stranger with all the time there is makes."""
    made: list[bytes] = []
    previous = "0" * 64
    for number, line in enumerate(lines):
        value = json.loads(line)
        value |= {"previous": previous, **(edit(value) if number == at else {})}
        made.append(canonical(value))
        previous = hashlib.sha256(made[-1]).hexdigest()
    return made


def spoil(run: Path, name: str, payload: str) -> None:
    """Edits the last upload of a run's transcript and makes the manifest fit."""
    log = run / "transcript" / "messages.jsonl"
    lines = log.read_bytes().splitlines()
    uploads = [n for n, line in enumerate(lines) if json.loads(line)["sender"].startswith("client/")]
    made = chained(lines, lambda v: EDITS[name](v, payload), uploads[-1])
    log.write_bytes(b"\n".join(made) + b"\n")
    stated = {k: v for k, v in read_manifest(run).items() if k not in ("schema", "status", "files")}
    write_manifest(run, {**stated, "head": hashlib.sha256(made[-1]).hexdigest()})


@pytest.mark.thorough
@pytest.mark.parametrize("place", EDITS)
def test_in_every_text_of_a_transcript(
    payload: str, place: str, home: Path, tmp_path: Path, cli: Cli
) -> None:
    run = Path(shutil.copytree(home / "run", tmp_path / "run"))
    spoil(run, place, payload)
    for command in (("verify", run), ("ledger", run), ("attack", run, "analytic"), ("report", run)):
        code, out, err = cli(*command)
        quiet(out, err)
        assert code in (0, 1, 2, 3), command
        assert len(out + err) < 100_000, command
    inert((run / "report" / "index.html").read_text("utf-8"))


# -- an exported view, and what comes back for it -----------------------------------------------------------------


@pytest.mark.parametrize("place", EDITS)
def test_in_every_text_of_an_exported_view(payload: str, place: str, home: Path, tmp_path: Path) -> None:
    view = Path(shutil.copytree(home / "server" / "view", tmp_path / "view"))
    log = view / "messages.jsonl"
    log.write_bytes(
        b"\n".join(chained(log.read_bytes().splitlines(), lambda v: EDITS[place](v, payload), 1)) + b"\n"
    )
    before = sorted(p.name for p in tmp_path.iterdir())
    said = ""
    try:
        opened = open_view(view)
        for message in opened.messages:
            opened.tensors(message)
    except FdauditError as error:
        said = str(error)
    assert len(said) < 25_000
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.thorough
@pytest.mark.parametrize("field", ["name", "adversary", "view", "source", "assumes", "target"])
def test_in_every_text_of_guesses(payload: str, field: str, home: Path, tmp_path: Path, cli: Cli) -> None:
    copied = Path(shutil.copytree(home, tmp_path / "home"))
    changes: dict[str, Any] = {field: [payload] if field == "assumes" else payload}
    if field == "target":
        changes = {"label_distribution": [{"target": payload, "distribution": [0.1] * 10}]}
    code, out, err = cli("score", copied / "run", guesses(copied, **changes))
    quiet(out, err)
    if code == 0:
        assert field in ("source", "assumes")
        inert(fdaudit.report(fdaudit.load(copied / "run")).read_text("utf-8"))
        return
    assert code == 2
    assert err.count("\n") == 1
    assert [p.name for p in (copied / "run" / "attacks").glob("*external*")] == []
