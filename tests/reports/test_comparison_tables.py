"""Tables of a comparison to take away: every figure is the result's, and a stranger's name is text in CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from fdaudit.reports import render_comparison, render_latex
from fdaudit.reports.comparison.compare_page import to_json
from fdaudit.reports.comparison.comparison import SHOWN, ComparedRun, compare
from fdaudit.reports.comparison.comparison_tables import comparison_csv
from fdaudit.reports.curves.sweep_rows import spread_of
from fdaudit.reports.judgement.verdict import LEVELS

from fdaudit.result import read
from fdaudit.storage.tables import html_table, latex_escaped, latex_table

from ..helpers.report_cases import Document, load, minimal
from .test_comparison import distilled, entries, final
from .test_report import HOSTILE

HELD = "the victims' models themselves are in view: there is nothing to copy"


def rows(made: list[ComparedRun]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(comparison_csv(compare(made)), newline="")))


def holding() -> dict[str, Any]:
    """A result whose server has the clients' models in view, and whose world was not asked about."""
    raw = distilled()
    cell = {
        "protocol": "distil",
        "attack": "extraction-soft",
        "goal": "model-extraction",
        "status": "not-applicable",
    }
    raw["cells"] += [
        {
            **cell,
            "id": "world/extraction-soft",
            "adversary": "world",
            "reason": "no answers of a victim in view",
        },
        {**cell, "id": "server/extraction-soft", "adversary": "server", "reason": HELD},
    ]
    return raw


# -- CSV -----------------------------------------------------------------------------------------------------------


def test_the_csv_has_a_row_for_each_run_and_goal_with_the_json_s_figures() -> None:
    made = entries(load(), distilled())
    value, table = to_json(made), rows(made)
    wanted = [(run, outcome) for run in value["runs"] for outcome in run["outcomes"]]
    assert len(table) == len(wanted) > 3
    for line, (run, outcome) in zip(table, wanted, strict=True):
        assert (line["run"], line["goal"], line["level"]) == (run["name"], outcome["goal"], outcome["level"])
        assert line["adversary"] == outcome["adversary"]
        assert int(line["bytes"]) == run["bytes"]["total"]
        assert int(line["rounds"]) == run["rounds"]
        assert float(line["seconds"]) == run["seconds"]
        if outcome["tried"] and outcome["figure"]:
            assert float(line["value"]) == outcome["figure"]["value"]
            assert line["figure"] == outcome["figure"]["name"]
        else:
            assert line["value"] == ""
        ledger = {e["adversary"]: e for e in run["ledger"]}
        entry = ledger.get(line["adversary"])
        if entry is None:
            assert line["epsilon"] == ""
        else:
            assert line["epsilon"] == ("inf" if entry["epsilon"] is None else repr(entry["epsilon"]))


def test_runs_without_attacks_or_an_auc_are_named() -> None:
    (line,) = rows(entries(minimal()))
    assert (line["run"], line["goal"], line["level"], line["value"]) == ("run-0", "", "", "")
    page = Document(render_comparison(entries(load(), distilled())))
    assert re.search(r"the chart[^.]*: run-1\.", page.text)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\t", "＝"])
def test_a_name_that_a_spreadsheet_would_compute_is_text(start: str) -> None:
    made = [ComparedRun(name=f"{start}cmd()", result=read(load())), *entries(distilled())]
    for line in rows(made)[:3]:
        assert not re.match(r"\s*[=+\-@＝]", line["run"])


# -- the model that an adversary holds -------------------------------------------------------------------------------


def test_a_model_that_an_adversary_holds_is_shown_as_held() -> None:
    made = entries(holding(), distilled())
    outcome = next(o for o in compare(made).rows[0].outcomes if o.goal == "model-extraction")
    assert (outcome.level, outcome.adversary, outcome.holders) == ("held", "server", ("server",))
    page = Document(render_comparison(made))
    assert "Already held" in page.sections["attacks"]
    assert "server has" in page.sections["attacks"]
    line = next(line for line in compare(made).headlines if line.startswith("Model extraction"))
    assert re.search("holds.*in run-0", line)
    assert not re.search(r"says nothing about.*run-0", line)
    held = [r for r in rows(made) if r["goal"] == "model-extraction"]
    assert [(r["level"], r["adversary"], r["attack"]) for r in held] == [("held", "server", "")]


def test_a_run_whose_adversaries_hold_no_model_is_not_said_to() -> None:
    raw = holding()
    raw["cells"] = [c for c in raw["cells"] if c["id"] != "server/extraction-soft"]
    outcome = next(o for o in compare(entries(raw)).rows[0].outcomes if o.goal == "model-extraction")
    assert outcome.level == "not-applicable"


def test_every_level_has_a_mark_and_words_of_its_own_besides_its_colour() -> None:
    assert SHOWN.keys() == {*LEVELS, "held"}
    assert (
        len({glyph for glyph, _ in SHOWN.values()})
        == len({words for _, words in SHOWN.values()})
        == len(SHOWN)
    )
    page = render_comparison(entries(holding(), load()))
    shown = re.findall(
        r'level-([a-z-]+)"><span class="glyph" aria-hidden="true">(.)</span> ([^<]+)</span>', page
    )
    assert {"held", "leak"} <= {level for level, _, _ in shown}
    for level, glyph, words in shown:
        assert SHOWN[level][0] == glyph
        assert words in (SHOWN[level][1], "Partial: classes")


def test_a_goal_that_was_tried_nowhere_has_no_column_and_is_named() -> None:
    made = entries(load(), holding())
    raw = load()
    raw["cells"] = [c for c in raw["cells"] if c["goal"] != "reconstruction"]
    page = Document(render_comparison(entries(raw, distilled())))
    assert re.search(r"No attack[^.]* reconstruction", page.sections["attacks"])
    assert "No attack was" not in Document(render_comparison(made)).sections["attacks"]


# -- leakage -------------------------------------------------------------------------------------------------------


def test_leakage_is_the_largest_auc_of_the_attacks_that_ran() -> None:
    raw = load()
    aucs = [
        (figure["value"], cell["adversary"], cell["attack"])
        for cell in raw["cells"]
        if cell["status"] == "run" and cell["goal"] == "membership"
        for figure in cell["figures"]
        if figure["name"] == "auc" and figure["value"] is not None
    ]
    leakage = compare(entries(raw)).rows[0].leakage
    assert leakage is not None
    assert (leakage.figure.value, leakage.cell.adversary, leakage.cell.attack) == max(aucs)
    assert leakage.among == len(aucs)


def test_reference_lines_that_differ_between_runs_are_all_in_the_key() -> None:
    other = load()
    for line in other["utility"]["final"]:
        if line["line"] == "standalone":
            line["figure"] |= {"value": 0.123, "low": 0.1, "high": 0.2}
    key = render_comparison(entries(load(), other)).split('class="run-key"')[1].split("</ul>")[0]
    assert "standalone in run-0" in key
    assert "standalone in run-1" in key
    assert "12.3" in key
    assert "centralized in" not in key


# -- several seeds -------------------------------------------------------------------------------------------------


def seeded(*accuracies: float) -> ComparedRun:
    results = []
    for number, accuracy in enumerate(accuracies):
        raw = distilled()
        raw["run"]["head"] = f"{number:064x}"
        raw["utility"]["final"] = final("distil", server=accuracy)
        results.append(read(raw))
    return ComparedRun(name="distil", result=results[0], repeats=tuple(results[1:]), seconds=2.0)


def test_figures_of_several_seeds_are_means_with_intervals_over_the_seeds() -> None:
    made = [seeded(0.7, 0.8, 0.75), *entries(load())]
    expected = spread_of([0.7, 0.8, 0.75], 1.0)
    row = to_json(made)["runs"][0]
    assert row["seeds"] == 3
    assert row["over_seeds"]["utility"]["mean"] == pytest.approx(0.75)
    assert (row["over_seeds"]["utility"]["low"], row["over_seeds"]["utility"]["high"]) == (
        expected.low,
        expected.high,
    )
    line = rows(made)[0]
    assert (float(line["utility"]), float(line["utility_low"])) == (expected.mean, expected.low)
    page = Document(render_comparison(made))
    assert "= 3 seeds" in page.sections["utility"]
    assert "Student's t" in page.text
    assert "one seed each" not in page.text


def test_of_several_seeds_the_gravest_outcome_counts() -> None:
    calm = load()
    calm["cells"] = [c for c in calm["cells"] if c["id"] != "server/dlg"]
    both = ComparedRun(name="x", result=read(calm), repeats=(read(load()),))
    outcome = next(o for o in compare([both]).rows[0].outcomes if o.goal == "reconstruction")
    assert (outcome.level, outcome.agreeing) == ("leak", 1)


def test_epsilon_over_seeds_is_the_largest_and_infinite_once_one_has_none() -> None:
    bounded, open_ = distilled(), distilled()
    charge = {"kind": "logits", "sender": "client", "mechanism": "Gaussian", "charges": 1, "epsilon": 2.0}
    entry = {"adversary": "server", "delta": 1e-5, "contributions": [charge]}
    bounded["ledger"] = [{**entry, "epsilon": 2.0}]
    open_["ledger"] = [{**entry, "epsilon": None, "cause": "raw data"}]
    both = ComparedRun(name="x", result=read(bounded), repeats=(read(open_),))
    (row,) = compare([both]).rows
    assert [e.epsilon for e in row.ledger] == [None]
    assert row.bounded == ()
    assert compare([ComparedRun(name="x", result=read(bounded))]).rows[0].bounded[0].epsilon == 2.0


# -- LaTeX and HTML ------------------------------------------------------------------------------------------------

WRITTEN = (
    r"\\(?:text\w+|ldots|varepsilon|delta|sigma|infty|times)\b(?:\{\})?",
    r"\{\\char34\}",
    r"\\[&%$#_{}]",
    r"\{-{2,3}\}",
    r"\{\}",
    r"\$",
    "~",
)
"""What the escape itself writes."""


def bare(text: str) -> str:
    """Escaped text without what the escape itself writes."""
    return re.sub("|".join(WRITTEN), "", text)


STRANGE = (
    "a & b \\\\ c",
    "\\input{/etc/passwd}",
    "%x",
    "a_b^c#~{}",
    "[x]*",
    "--ε—∞",
    "---",
    "''``,,,?`",
    "a\0b",
    "名",
)


@pytest.mark.parametrize("text", [*HOSTILE, *STRANGE])
def test_latex_reads_a_stranger_s_text_as_text(text: str) -> None:
    escaped = latex_escaped(text)
    assert escaped.isprintable()
    assert not re.search(r"[\\&%$#_{}~^]", bare(escaped))
    assert all(ord(c) <= 0xFF for c in escaped)
    assert not re.search(r"--|,,|''|``|[?!]`", re.sub(r"\{-{2,3}\}", "", escaped))


def test_the_comparison_s_latex_has_each_run_and_no_cell_ends_its_row() -> None:
    table = latex_table(["a", "b"], [["x & y", r"z \\ \end{tabular}"], ["[2pt]", "*"]], "100 %", "ll")
    assert table.count(r"\end{tabular}") == 1
    body = [line for line in table.splitlines() if line.endswith(r" \\")]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [1, 1, 1]
    assert body[-1].startswith("{}[2pt]")
    assert r"\caption{100 \%}" in table
    made = entries(holding(), load())
    made[0] = ComparedRun(name="a_b&c", result=made[0].result, seconds=61.0)
    text = render_latex(made)
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 2
    assert text.count(r"a\_b\&c & ") == 2
    assert "Already held: server" in text
    assert "none claimed" in text or "no ledger" in text


@pytest.mark.parametrize("payload", HOSTILE)
def test_a_notebook_s_table_shows_a_stranger_s_text_as_text(payload: str) -> None:
    page = Document(html_table([payload], [[payload, 0.5, None]], payload))
    assert {tag for tag, _ in page.elements} == {"table", "caption", "thead", "tr", "th", "tbody", "td"}
    assert all(not attributes for _, attributes in page.elements)
