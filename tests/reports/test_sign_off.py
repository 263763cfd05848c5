"""The sign-off of a report, its glossary, and the data protection impact assessment."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports.run.context import build
from fdaudit.reports.run.dpia import render_dpia
from fdaudit.reports.run.security import render_report, report_json
from fdaudit.reports.run.sign_off import NOT_STATED, Provenance, glossary, sign_off

import fdaudit
from fdaudit.errors import SpecError
from fdaudit.result import read
from fdaudit.spec.audit import AuditSpec
from fdaudit.spec.schema import load_spec
from fdaudit.storage.timings import note_ended, note_time, read_ended, read_timings
from fdaudit.testing.specs import small_spec

from ..helpers.report_cases import FIXTURES, TIMINGS, load, minimal
from ..helpers.run_cases import finished

DAY = Provenance(ended="2026-11-29")
GIVEN = {
    "requested_by": "Dr. <b>Who</b> & Sons",
    "system": "X-ray classifier 2.1",
    "scope": "training, not inference",
    "authors": "A. Uditor",
    "owner": "O. Wner",
    "retest": "May 2027",
}


def stated(**audit: Any) -> dict[str, Any]:
    raw = load()
    raw["run"]["spec"] = {**raw["run"]["spec"], "audit": audit}
    return raw


def page_of(raw: dict[str, Any], provenance: Provenance = DAY) -> str:
    return render_report(read(raw), FIXTURES, TIMINGS, provenance=provenance)


def test_the_front_page_says_what_was_audited_for_whom_when_and_with_what() -> None:
    page = page_of(stated(**GIVEN))
    block = page.split('aria-label="Sign-off"')[1].split("</section>")[0]
    run = load()["run"]
    due = [
        *list(GIVEN.values())[1:],
        "2026-11-29",
        run["spec_sha256"][:16],
        run["head"][:16],
        run["protocol"],
    ]
    assert [text for text in due if text not in block] == []
    assert escape(GIVEN["requested_by"]) in block
    assert "<b>Who" not in page
    assert "not signed" in block
    assert block.count('class="signature"') == 2
    assert "I accept" in block
    top = page.split("<header")[1].split("</header>")[0]
    assert [
        text for text in ("2026-11-29", run["versions"]["fdaudit"], run["head"][:16]) if text not in top
    ] == []
    assert "Head of the" not in page


def test_what_nobody_stated_is_said_so_or_left_to_be_filled_in() -> None:
    block = sign_off(read(minimal()), Provenance())
    assert dict(block.stated) == {
        "Audited for": NOT_STATED,
        "System": NOT_STATED,
        "Scope": NOT_STATED,
        "Authors": "",
        "Owner": "",
        "Retest": "",
    }
    record = dict(block.record)
    assert "not on record" in record["Date of the result"]
    assert "be filled in" in page_of(load())


@pytest.mark.parametrize("audit", [7, [], {"system": 7, "scope": None, "owner": {"a": 1}}, {"other": "x"}])
def test_a_foreign_result_with_an_odd_block_is_read(audit: Any) -> None:
    raw = load()
    raw["run"]["spec"] = {"audit": audit}
    assert dict(sign_off(read(raw), DAY).stated)["System"] == NOT_STATED
    render_report(read(raw), FIXTURES, TIMINGS, public=True, provenance=DAY)


def test_the_public_page_has_the_block_without_paths() -> None:
    raw = stated(system="server 7/8", scope="see /home/auditor/notes.txt")
    page = render_report(read(raw), FIXTURES, {}, public=True, provenance=DAY)
    assert "server 7/8" in page
    assert "/home/auditor" not in page


def test_the_same_result_gives_the_same_bytes_whenever_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = read(stated(**GIVEN))
    first = render_report(result, FIXTURES, TIMINGS, provenance=DAY), render_dpia(result, DAY)
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert first == (render_report(result, FIXTURES, TIMINGS, provenance=DAY), render_dpia(result, DAY))
    other = replace(DAY, ended="2026-11-30")
    assert render_report(result, FIXTURES, TIMINGS, provenance=other) != first[0]
    assert json.loads(report_json(result, TIMINGS, provenance=DAY))["ended"] == "2026-11-29"


def test_words_of_the_trade_are_explained_and_the_sign_off_takes_room() -> None:
    def above(raw: dict[str, Any]) -> int:
        result = read(raw)
        context = build(result, FIXTURES, TIMINGS, DAY)
        value = context["summary"].front.above
        assert isinstance(value, int)
        return value

    assert above(stated(scope="w" * 400)) > above(load())
    words = [word.word for word in glossary(["AUC 0.9 by `dp-sgd` shadow models at 12 dB, and ε = 3"])]
    assert words == ["ε", "AUC", "PSNR", "dp-sgd", "shadow model"]
    assert glossary(["Nothing."]) == ()
    unexplained = glossary(["AUC 0.9, p = 0.03"], explained="An AUC of 0.5 is guessing.")
    assert [one.word for one in unexplained] == ["p"]
    front = page_of(load()).split('<section id="findings"')[0]
    assert front.count("0.5 is guessing") == 1
    assert "0 is nothing" in front.split('class="small glossary"')[1].split("</p>")[0]


# -- the spec -----------------------------------------------------------------------------------------------------


def test_the_block_is_bounded_text_and_no_part_of_the_digest() -> None:
    plain = load_spec(small_spec())
    assert load_spec(small_spec(audit=GIVEN)).digest() == plain.digest()
    assert "audit" not in plain.public("0" * 64)
    for wrong in ({"system": "x" * 161}, {"scope": ""}, {"system": "a\nb"}, {"when": "now"}, {"owner": 7}):
        with pytest.raises(SpecError):
            load_spec(small_spec(audit=wrong))
    assert set(AuditSpec.model_fields) == set(GIVEN)


def test_a_run_carries_the_block_and_the_day_on_which_its_result_changed(tmp_path: Path) -> None:
    run = fdaudit.load(finished(tmp_path / "run", audit=GIVEN))
    assert run.result.run.spec["audit"] == GIVEN
    assert run.ended
    page = fdaudit.report(run).read_text("utf-8")
    assert run.ended in page
    assert "X-ray classifier 2.1" in page
    assert "ended" not in run.timings


def test_the_day_is_kept_apart_from_the_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_ended(tmp_path) == ""
    note_time(tmp_path, "federation", 2.0)
    monkeypatch.setattr("time.time", lambda: 1_795_000_000.4)
    note_ended(tmp_path)
    note_time(tmp_path, "federation", 1.0)
    assert read_timings(tmp_path) == {"federation": 3.0}
    assert read_ended(tmp_path) == "2026-11-18"


# -- the assessment -----------------------------------------------------------------------------------------------


def test_the_assessment_has_every_part_and_states_what_the_report_states() -> None:
    page = render_dpia(read(stated(**GIVEN)), DAY)
    for words in ("Art. 35(7)(a)", "Art. 35(7)(b)", "Art. 35(7)(c)", "Art. 35(7)(d)", "Art. 35(2)", "Art. 35(9)",
                  "Art. 35(11)", "Art. 36", "Residual risk", "Signature", "X-ray classifier 2.1", "2026-11-29",
                  "to be filled in", "Dr. &lt;b&gt;Who"):  # fmt: skip
        assert words in page, words
    assert "<b>Who" not in page
    raw = load()
    result = read(raw)
    page, public = render_dpia(result, DAY), render_report(result, FIXTURES, {}, public=True, provenance=DAY)
    severities = [
        public.count(f'class="severity {word}"') > 0 for word in ("critical", "high", "medium", "low")
    ]
    assert [
        page.count(f'class="severity {word}"') > 0 for word in ("critical", "high", "medium", "low")
    ] == severities
    assert any(severities)
    assert "<img" not in page
    assert "[" not in page.split("<main>")[1].split("</main>")[0].replace("[]", "")  # no interval
    page = render_dpia(read(minimal()), Provenance())
    assert "not evidence of" in page
    assert "No message" in page
