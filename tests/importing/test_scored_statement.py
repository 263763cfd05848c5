"""A site's statement: an edited one is refused whole, in one line, and leaves the run as it was."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.attestation.dsse import seal
from fdaudit.attestation.keys import private_key
from fdaudit.audit import red_team
from fdaudit.audit.run import Run
from fdaudit.errors import IntegrityError, UsageError
from fdaudit.importing.scored_statement import ScoredStatement, schema
from fdaudit.importing.site_score import score_at_site, take_scores
from fdaudit.storage.digests import canonical

from ..helpers.command import Cli
from ..helpers.docs_pages import page
from ..helpers.evidence_cases import keypair
from ..helpers.run_cases import tree
from .site_cases import Asker, Two

pytestmark = pytest.mark.thorough

Value = dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """Guesses, the site's statement about them, the site's keys, and the run that they are for."""

    guesses: Path
    statement: Value
    private: Path
    public: Path
    run: Path


@pytest.fixture(scope="module")
def sent(two_directories: Two, tmp_path_factory: pytest.TempPathFactory) -> Sent:
    made, base = two_directories, tmp_path_factory.mktemp("sent")
    images = []
    for client in ("client/0", "client/1"):
        messages = made.uploads(client)[:1]
        x = made.opened.behind(client, messages)[0].clone()
        x[:5] = x[:5] * 0.9 + 0.05  # a leak that is not exact: figures below their largest values
        images.append({"target": client, "messages": messages, "images": x})
    private, public = keypair(base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        truth = Path(shutil.copytree(made.truth, base / "truth"))
        asker = Asker(made, base / "asks", [truth])
        guesses = asker.sends(reconstruction=images, source="a paper", assumes=["luck", "skill"])
        out = base / "scored.json"
        score_at_site(guesses, out, truth=[truth], sign=private)
    statement = json.loads(base64.b64decode(json.loads(out.read_bytes())["payload"]))
    assert statement["predicate"]["figures"][1]["name"] == "psnr"
    run = Path(shutil.copytree(made.run.directory, base / "run"))
    return Sent(guesses, statement, private, public, run)


def written(folder: Path, sent: Sent, statement: Value, *, signed: bool) -> Path:
    path = folder / "scored.json"
    key = private_key(sent.private, lambda: None) if signed else None
    path.write_bytes(seal(canonical(statement), key))
    return path


def _set(*path: str | int, to: Any) -> Callable[[Value], Value | None]:
    """Return an edit that sets a value; `to` may be a function of the old value."""

    def edit(statement: Value) -> None:
        node: Any = statement
        for key in path[:-1]:
            node = node[key]
        old = node.get(path[-1]) if isinstance(node, dict) else node[path[-1]]
        node[path[-1]] = to(old) if callable(to) else to

    return edit


def _drop(*path: str | int) -> Callable[[Value], None]:
    def edit(statement: Value) -> None:
        node: Any = statement
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return edit


P, FIRST = ("predicate",), ("predicate", "targets", 0)
GAIN, PSNR = (*FIRST, "figures", 0), (*FIRST, "figures", 1)
WHOLE = ("predicate", "figures", 0)


def _both(key: str, to: Any) -> Callable[[Value], None]:
    """Return an edit of the gain of all parties and of each, so that only its own rule is broken."""

    def edit(statement: Value) -> None:
        predicate = statement["predicate"]
        for figure in (predicate["figures"][0], *(t["figures"][0] for t in predicate["targets"])):
            figure[key] = to

    return edit


EDITS: dict[str, Callable[[Value], Value | None]] = {
    "another name": _set(*P, "name", to="others"),
    "another adversary": _set(*P, "adversary", to="world"),
    "another goal": _set(*P, "goal", to="label-distribution"),
    "a goal that no site scores": _set(*P, "goal", to="membership"),
    "another source": _set(*P, "source", to="another paper"),
    "an assumption less": _set(*P, "assumes", to=["luck"]),
    "assumptions turned": _set(*P, "assumes", to=["skill", "luck"]),
    "another view": _set(*P, "view", to="0" * 64),
    "another record": _set(*P, "head", to="0" * 64),
    "another card": _set(*P, "card", to="0" * 64),
    "no card": _drop(*P, "card"),
    "no head": _set(*P, "head", to=None),
    "capital digits": _set(*P, "card", to=lambda old: old.upper() if old.upper() != old else "A" * 64),
    "never asked": _set(*P, "asked", to=0),
    "asked too often": _set(*P, "asked", to=11),
    "asked half a time": _set(*P, "asked", to=1.5),
    "asked as text": _set(*P, "asked", to="1"),
    "asked as truth": _set(*P, "asked", to=True),
    "more elsewhere than at all": _set(*P, "asked_elsewhere", to=1),
    "less than nothing elsewhere": _set(*P, "asked_elsewhere", to=-1),
    "a field more": _set(*P, "luck", to=1),
    "a field more of a figure": _set(*GAIN, "unit", to="dB"),
    "a field more of a party": _set(*FIRST, "images", to=[]),
    "a field more of the statement": _set("extra", to=1),
    "another kind of statement": _set("_type", to="https://in-toto.io/Statement/v2"),
    "another predicate": _set("predicateType", to="https://fdaudit.dev/scored/v1"),
    "other guesses": _set("subject", 0, "digest", "sha256", to="0" * 64),
    "no guesses": _set("subject", to=[]),
    "guesses twice": _set("subject", to=lambda old: old * 2),
    "guesses by another name": _set("subject", 0, "name", to="other.json"),
    "another digest": _set("subject", 0, "digest", to={"sha512": "0" * 128}),
    "no figures": _set(*P, "figures", to=[]),
    "no parties": _set(*P, "targets", to=[]),
    "a party twice": _set(*P, "targets", to=lambda old: [old[0], old[0]]),
    "parties turned": _set(*P, "targets", to=lambda old: old[::-1]),
    "a party less": _set(*P, "targets", to=lambda old: old[:1]),
    "another party": _set(*FIRST, "target", to="client/7"),
    "a party that is nobody": _set(*FIRST, "target", to="mallory"),
    "a party without figures": _set(*FIRST, "figures", to=[]),
    "a value as text": _set(*GAIN, "value", to="0.1"),
    "a value that is truth": _set(*GAIN, "value", to=True),
    "a value that is nothing": _set(*GAIN, "value", to=None),
    "a value of a list": _set(*GAIN, "value", to=[1.0]),
    "a value off the step": _both("value", 3.3),
    "a value above the ceiling": _both("value", 20.5),
    "a value that is huge": _both("value", 1e300),
    "a negative value": _both("value", -0.5),
    "low above the value": _both("low", 20.0),
    "low off the step": _both("low", 0.1),
    "low below zero": _both("low", -1.0),
    "no low": _both("low", None),
    "a low of PSNR": _set(*PSNR, "low", to=1.0),
    "half a record": _set(*GAIN, "n", to=8.5),
    "too few records": _set(*GAIN, "n", to=4),
    "different numbers of records": _set(*GAIN, "n", to=9),
    "no number of records": _drop(*GAIN, "n"),
    "a figure twice": _set(*FIRST, "figures", to=lambda old: [old[0], old[0]]),
    "figures turned": _set(*FIRST, "figures", to=lambda old: old[::-1]),
    "a figure less": _set(*FIRST, "figures", to=lambda old: old[:1]),
    "a figure that leads nowhere": _set(*PSNR, "name", to="psnr_max"),
    "a figure of class shares": _set(*PSNR, "name", to="label_tv"),
    "a PSNR beside no gain": _set(*GAIN, "value", to=0.0),
    "a higher gain of all parties": _set(*WHOLE, "value", to=lambda old: old + 0.5),
    "a higher gain of one party": _set(*GAIN, "value", to=20.0),
    "all parties' figures turned": _set(*P, "figures", to=lambda old: old[::-1]),
    "a figure of all parties twice": _set(*P, "figures", to=lambda old: [*old, old[0]]),
    "a version that is no text": _set(*P, "versions", to={"python": 3}),
    "a list for the predicate": _set("predicate", to=[]),
    "a number for the statement": lambda statement: 1,  # type: ignore[dict-item, return-value]
}
SAME: dict[str, Callable[[Value], Value | None]] = {
    "whole numbers for floats": _set(*WHOLE, "n", to=lambda old: old),
    "another version of Python": _set(*P, "versions", "python", to="3.13.1"),
}


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("case", EDITS)
def test_an_edited_statement_is_one_line_and_changes_nothing(
    case: str, signed: bool, sent: Sent, tmp_path: Path, cli: Cli
) -> None:
    value = copy.deepcopy(sent.statement)
    edited = EDITS[case](value)
    path = written(tmp_path, sent, value if edited is None else edited, signed=signed)
    before = tree(sent.run)
    key = ("--key", sent.public) if signed else ()
    code, out, err = cli("score", sent.run, sent.guesses, "--scored", path, *key)
    assert code in (2, 3), err
    assert (out, len(err.splitlines())) == ("", 1), err
    assert tree(sent.run) == before


def test_no_edit_is_taken_under_the_old_signature(sent: Sent, tmp_path: Path) -> None:
    envelope = json.loads(written(tmp_path, sent, sent.statement, signed=True).read_bytes())
    before = tree(sent.run)
    for edit in (*EDITS.values(), SAME["another version of Python"]):
        value = copy.deepcopy(sent.statement)
        edited = edit(value)
        payload = canonical(value if edited is None else edited)
        envelope["payload"] = base64.b64encode(payload).decode()
        (tmp_path / "forged.json").write_bytes(canonical(envelope) + b"\n")
        with pytest.raises(IntegrityError, match="not signed"):
            take_scores(Run(sent.run), tmp_path / "forged.json", sent.guesses, sent.public)
    assert tree(sent.run) == before


@pytest.mark.parametrize("case", SAME)
def test_what_means_the_same_is_taken_alike(case: str, sent: Sent, tmp_path: Path) -> None:
    value = copy.deepcopy(sent.statement)
    SAME[case](value)
    cells = []
    for number, statement in enumerate((sent.statement, value)):
        run = Run(Path(shutil.copytree(sent.run, tmp_path / f"run-{number}")))
        path = written(tmp_path, sent, statement, signed=True)
        cells.append(take_scores(run, path, sent.guesses, sent.public))
    assert cells[0] == cells[1]


def test_bytes_that_are_no_statement_are_refused(sent: Sent, tmp_path: Path) -> None:
    spaced = json.dumps(sent.statement, indent=1).encode()
    for payload in (b"", b"{", b"null", spaced, canonical(sent.statement) + b"\n", b'{"a":1,"a":2}'):
        (tmp_path / "odd.json").write_bytes(seal(payload, None))
        with pytest.raises(IntegrityError, match="malformed"):
            take_scores(Run(sent.run), tmp_path / "odd.json", sent.guesses)


def test_a_cell_that_cannot_be_concluded_is_not_left_behind(
    sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(Path(shutil.copytree(sent.run, tmp_path / "run")))
    path = written(tmp_path, sent, sent.statement, signed=True)

    def refuse(_: object) -> None:
        raise IntegrityError(["no conclusion"])

    before = tree(run.directory)
    with monkeypatch.context() as patch:
        patch.setattr(red_team, "conclude", refuse)
        with pytest.raises(IntegrityError, match="no conclusion"):
            take_scores(run, path, sent.guesses, sent.public)
    assert tree(run.directory) == before
    take_scores(run, path, sent.guesses, sent.public)
    kept = tree(run.directory)
    with monkeypatch.context() as patch:
        patch.setattr(red_team, "conclude", refuse)
        with pytest.raises(IntegrityError, match="no conclusion"):
            take_scores(run, path, sent.guesses, sent.public)
    assert tree(run.directory) == kept


def test_a_name_is_for_one_scorer(sent: Sent, made: Two, tmp_path: Path) -> None:
    """A site's outcome has other fields than the auditor's own, and neither replaces the other."""
    whole = fdaudit.import_record(
        made.site / "record",
        tmp_path / "whole",
        card=made.site / "card.yaml",
        truth=[made.truth],
        audit={"profile": "quick", "threads": 1, "victims": 2},
    )
    other = Run(Path(shutil.copytree(whole.directory, tmp_path / "other")))
    path = written(tmp_path, sent, sent.statement, signed=True)
    first = take_scores(whole, path, sent.guesses, sent.public)
    with pytest.raises(UsageError, match="at a site"):
        red_team.score(whole, sent.guesses)
    again = take_scores(whole, path, sent.guesses, sent.public)
    assert (first.params["submission"], again.params["submission"]) == (1, 2)
    red_team.score(other, sent.guesses)
    with pytest.raises(UsageError, match="scored here"):
        take_scores(other, path, sent.guesses, sent.public)


@pytest.mark.parametrize("damage", [b"{", b"[]", b"{}", None])
def test_a_damaged_outcome_is_one_line(damage: bytes | None, sent: Sent, tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(sent.run, tmp_path / "run")))
    path = written(tmp_path, sent, sent.statement, signed=True)
    take_scores(run, path, sent.guesses, sent.public)
    kept = run.directory / "attacks" / "external-inverting-gradients.json"
    value = json.loads(kept.read_bytes())
    value["params"].pop("submission")
    kept.write_bytes(canonical(value) if damage is None else damage)
    with pytest.raises(IntegrityError, match=r"external-inverting-gradients\.json"):
        take_scores(run, path, sent.guesses, sent.public)


def test_figures_about_victims_whose_candidates_are_out_are_not_taken(sent: Sent, tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(sent.run, tmp_path / "run")))
    run.opened.vault.note_handed_out(["client/1"])
    path = written(tmp_path, sent, sent.statement, signed=True)
    with pytest.raises(UsageError, match="handed out"):
        take_scores(run, path, sent.guesses, sent.public)


def test_the_published_schema_takes_what_a_site_writes(sent: Sent) -> None:
    published = json.loads(page("docs/scored.schema.json"))
    assert published == json.loads(json.dumps(schema()))
    assert ScoredStatement.model_validate_json(json.dumps(sent.statement))
    for owner in (published, *published["$defs"].values()):
        for name, field in owner["properties"].items():
            assert field.get("description"), name
