"""Members that no message used are counted, and what is said of members says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fdaudit.reports.judgement.judgement import findings_of

import fdaudit
from fdaudit.cli.verdicts import verdicts
from fdaudit.goals.membership import GOAL
from fdaudit.importing.records import check
from fdaudit.result import Cell, Control, Controls, Result, Target, UnusedMembers
from fdaudit.testing import RecordedFederation
from fdaudit.types import Figure


def unused(run: fdaudit.Run) -> tuple[UnusedMembers, ...]:
    assert run.result.run.recording is not None
    return run.result.run.recording.unused


def test_a_federation_that_uses_all_has_none(tmp_path: Path) -> None:
    run = RecordedFederation().run(tmp_path)
    assert unused(run) == ()


def test_they_are_counted_on_the_console_and_in_the_report(tmp_path: Path) -> None:
    run = RecordedFederation(idle=5).run(tmp_path)
    first, second = unused(run)
    assert (first.party, second.party) == ("client/0", "client/1")
    assert first.unused == 5
    assert first.of == 12
    assert 0 <= first.unused_candidates <= first.candidates == 4
    said = "5 of 12 members of client/0 were used by no message"
    assert first.words.startswith(said)
    assert said in fdaudit.report(run, tmp_path / "page.html").read_text("utf-8")
    _, listed = check(
        tmp_path / "record",
        card=run.directory / "card.yaml",
        truth=[tmp_path / "truth", tmp_path / "records"],
    )
    assert any(said in note for note in listed)
    public = fdaudit.report(run, tmp_path / "public.html", public=True).read_text("utf-8")
    assert "by no message" not in public


def test_a_client_whose_messages_do_not_all_name_their_records_is_not_judged(tmp_path: Path) -> None:
    assert unused(RecordedFederation(idle=5, named=False).run(tmp_path)) == ()


def finding_of(run: fdaudit.Run, *counts: UnusedMembers, auc: float = 0.5):
    """Return the finding of a membership cell about two clients, with these counts on record."""
    low, high = auc - 0.1, auc + 0.1
    figure = Figure(name="auc", value=auc, unit="fraction", low=low, high=high, n=8)
    targets = tuple(Target(target=party, figures=(figure,)) for party in ("client/0", "client/1"))
    passed = Control(what="c", passed=True)
    cell = Cell(
        protocol="p",
        adversary="server",
        attack="loss-threshold",
        goal=GOAL.name,
        source="s",
        status="run",
        figures=(figure,),
        targets=targets,
        controls=Controls(positive=passed, negative=passed),
    )
    result = run.result
    recording = result.run.recording.model_copy(update={"unused": counts})
    run_card = result.run.model_copy(update={"recording": recording})
    changed: Result = result.model_copy(update={"cells": (cell,), "run": run_card, "judgement": None})
    (finding,) = findings_of(changed)
    return finding, "\n".join(verdicts(changed))


def counts(party: str, candidates: int) -> UnusedMembers:
    return UnusedMembers(party=party, unused=9, of=12, unused_candidates=candidates, candidates=4)


def test_statements_about_members_say_how_many_were_held_out(tmp_path: Path) -> None:
    run = RecordedFederation(kind="class_counts").run(tmp_path)
    bare, _ = finding_of(run)
    assert bare.level == "none-seen"
    some, _ = finding_of(run, counts("client/0", 3))
    assert some.level == "none-seen"
    assert any("3 of 4 candidates" in c for c in some.cautions)
    nobody, said = finding_of(run, counts("client/0", 4), counts("client/1", 4))
    assert nobody.level == "inconclusive"
    assert "8 of 8 candidates" in said
    found, _ = finding_of(run, counts("client/0", 4), counts("client/1", 4), auc=0.9)
    assert found.level == "leak"
    assert any("hides leaks" in c for c in found.cautions)
    other, _ = finding_of(run, counts("client/0", 0))
    assert other == dataclasses.replace(bare)
