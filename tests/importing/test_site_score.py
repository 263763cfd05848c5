"""Guesses travel to the site that holds the truth, and figures come back: two directories that never share truth."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit
from fdaudit.audit.run import Run
from fdaudit.errors import IntegrityError, RunError, UsageError
from fdaudit.importing.site_score import score_at_site, take_scores
from fdaudit.importing.written_guesses import write_guesses
from fdaudit.storage.digests import canonical

from ..helpers.cli_cases import Shell
from ..helpers.evidence_cases import keypair
from .site_cases import QUICK, Asker, Two, predicate

pytestmark = pytest.mark.thorough


def scored(made: Two, out: Path, **changes: Any) -> Path:
    score_at_site(made.guesses, out, **{"truth": [made.site / "truth"], **changes})
    return out


def test_figures_come_back_and_no_record(made: Two, tmp_path: Path) -> None:
    private, public = keypair(tmp_path)
    own = {k: made.uploads(k)[:1] for k in ("client/0", "client/1")}
    images = [
        {"target": k, "messages": seq, "images": made.opened.behind(k, seq)[0]} for k, seq in own.items()
    ]
    guesses = Asker(made, tmp_path / "asks", [made.truth]).sends(reconstruction=images)
    out = tmp_path / "scored.json"
    assert score_at_site(guesses, out, truth=[made.truth], sign=private).asked == 1
    (target, *_) = predicate(out)["targets"]
    assert target.keys() == {"target", "figures"}  # no image, no label, no share
    run = Run(shutil.copytree(made.run.directory, tmp_path / "run"))
    cell = take_scores(run, out, guesses, public)
    figures = {f.name: f.value for f in cell.figures}
    assert figures == {"psnr_gain": 20.0, "psnr": 30.0}
    assert cell.params["scored_by"] != "unsigned"
    assert (cell.params["asked"], cell.params["asked_elsewhere"]) == (1, 0)
    assert "external-inverting-gradients" in {c["attack"] for c in run.result.plain()["cells"]}
    assert "could reconstruct" in fdaudit.report(run).read_text("utf-8")


def test_the_auditor_holds_no_truth(made: Two) -> None:
    assert set(made.run.case.not_brought) >= {"records", "uses", "candidates"}
    assert not (made.run.directory / "vault" / "truth" / "uses.safetensors").exists()


def test_a_site_scores_only_guesses_about_its_own_records(made: Two, tmp_path: Path) -> None:
    truth = Path(shutil.copytree(made.site / "truth", tmp_path / "one"))
    value = json.loads((truth / "records.json").read_bytes())
    value["clients"].pop("client/0")
    (truth / "records.json").write_bytes(canonical(value) + b"\n")
    uses = [json.loads(line) for line in (truth / "uses.jsonl").read_bytes().splitlines()]
    log = (made.site / "record" / "transcript" / "messages.jsonl").read_bytes()
    senders = [json.loads(line)["sender"] for line in log.splitlines()]
    mine = [canonical(u) + b"\n" for u in uses if senders[u["seq"]] == "client/1"]
    (truth / "uses.jsonl").write_bytes(b"".join(mine))
    out = scored(made, tmp_path / "scored.json", truth=[truth])
    assert [t["target"] for t in predicate(out)["targets"]] == ["client/1"]


def test_guesses_of_another_record_are_refused(made: Two, tmp_path: Path) -> None:
    value = json.loads(made.guesses.read_bytes())
    folder = Path(shutil.copytree(made.guesses.parent, tmp_path / "guesses"))
    (folder / "guesses.json").write_text(json.dumps({**value, "head": "0" * 64}))
    with pytest.raises(UsageError, match="another record"):
        score_at_site(folder, tmp_path / "out.json", truth=[made.site / "truth"])
    assert not (tmp_path / "out.json").exists()


def test_what_travels_holds_no_payload(made: Two) -> None:
    """Another site's uploads must not reach the site that scores."""
    files = {
        p.relative_to(made.guesses.parent).as_posix() for p in made.guesses.parent.rglob("*") if p.is_file()
    }
    lines = {"record/record.json", "record/card.yaml", "record/transcript/messages.jsonl"}
    assert files == {"guesses.json", *lines, *(f"client-{k}.safetensors" for k in range(2))}


@pytest.mark.parametrize("change", ["a line", "the end", "a missing line"])
def test_changed_lines_are_refused(change: str, made: Two, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made.guesses.parent, tmp_path / "guesses"))
    log = folder / "record" / "transcript" / "messages.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    if change == "a line":
        lines[1] = lines[1].replace(b'"round":0', b'"round":1')
    elif change == "the end":
        lines[-1] = lines[-1].replace(b'"step":', b'"step":1')
    else:
        lines.pop()
    log.write_bytes(b"".join(lines))
    with pytest.raises(IntegrityError, match=r"does not (chain|end)"):
        score_at_site(folder, tmp_path / "out.json", truth=[made.site / "truth"])
    assert not (tmp_path / "out.json").exists()


def test_a_whole_record_may_be_given(made: Two, tmp_path: Path) -> None:
    lone = tmp_path / "lone"
    lone.mkdir()
    for file in made.guesses.parent.glob("*.*"):
        shutil.copy(file, lone)
    with pytest.raises(RunError, match=r"record.json"):
        score_at_site(lone, tmp_path / "out.json", truth=[made.site / "truth"])
    given = {"record": made.site / "record", "card": made.site / "card.yaml"}
    score_at_site(lone, tmp_path / "out.json", truth=[made.site / "truth"], **given)
    again = predicate(scored(made, tmp_path / "again.json"))
    assert (again.pop("asked"), predicate(tmp_path / "out.json").pop("asked")) == (2, 1)
    assert again == {k: v for k, v in predicate(tmp_path / "out.json").items() if k != "asked"}


def test_figures_made_with_another_card_are_not_taken(made: Two, tmp_path: Path) -> None:
    card = yaml.safe_load((made.site / "card.yaml").read_text())
    card["protocol"]["params"]["batch_size"] = 9
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
    out = scored(made, tmp_path / "out.json", card=tmp_path / "card.yaml")
    with pytest.raises(UsageError, match="another card"):
        take_scores(made.run, out, made.guesses)


def test_a_statement_is_taken_only_for_its_guesses_its_record_and_its_key(made: Two, tmp_path: Path) -> None:
    private, public = keypair(tmp_path)
    (tmp_path / "other").mkdir()
    _, stranger = keypair(tmp_path / "other")
    out = scored(made, tmp_path / "scored.json", sign=private)
    run = Run(shutil.copytree(made.run.directory, tmp_path / "run"))
    with pytest.raises(IntegrityError, match="not signed"):
        take_scores(run, out, made.guesses, stranger)
    folder = Path(shutil.copytree(made.guesses.parent, tmp_path / "guesses"))
    value = json.loads(made.guesses.read_bytes())
    (folder / "guesses.json").write_text(json.dumps({**value, "source": "another"}))
    with pytest.raises(UsageError, match="not those"):
        take_scores(run, out, folder / "guesses.json", public)
    envelope = json.loads(out.read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["card"] = "0" * 64
    forged = {**envelope, "payload": base64.b64encode(canonical(statement)).decode()}
    (tmp_path / "forged.json").write_bytes(canonical(forged) + b"\n")
    with pytest.raises(IntegrityError, match="not signed"):
        take_scores(run, tmp_path / "forged.json", made.guesses, public)
    with pytest.raises(UsageError, match="another card"):
        take_scores(run, tmp_path / "forged.json", made.guesses)


def test_membership_is_not_for_a_site(made: Two, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="key"):
        write_guesses(made.run, "gap", "server", tmp_path / "guesses")
    assert not (tmp_path / "guesses").exists()


def test_the_commands(made: Two, tmp_path: Path, shell: Shell) -> None:
    run = shutil.copytree(made.run.directory, tmp_path / "run")
    private, public = keypair(tmp_path)
    settings = [f"--set={k}={v}" for k, v in QUICK.items()]
    shell.told("attack", run, "inverting-gradients", "--guesses", "sent", *settings)
    site = ("--truth", made.site / "truth")
    out, _ = shell.told("score", "sent", *site, "--out", "back.json", "--sign", private)
    assert "signed" in out
    assert "1 of 10" in out
    out, _ = shell.told("score", run, "sent/guesses.json", "--scored", "back.json", "--key", public)
    assert "psnr_gain" in out
    shell.refused("score", "sent/guesses.json")
    shell.refused("score", "sent/guesses.json", *site)
    shell.refused("score", "sent/guesses.json", "--record", made.site / "record", "--out", "again.json")
    shell.refused("score", run, "sent/guesses.json", *site)
    shell.refused("attack", run, "--all", "--guesses", "more")
