"""The report as JSON, its public variant, the attack matrix and the annex: all say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fdaudit.reports import render_report, report_json, write_report
from fdaudit.reports.judgement.verdict import LEVELS, judge_all
from fdaudit.reports.run.annex import DOCUMENTS, annex
from fdaudit.reports.run.document import json_schema
from fdaudit.reports.run.matrix import attack_matrix

from fdaudit.result import Result, read
from fdaudit.result.run_card import Departure

from ..helpers.docs_pages import page
from ..helpers.report_cases import FIXTURES, TIMINGS, Document, load, minimal, numbers
from ..helpers.results import values_of


def as_json(raw: dict[str, Any], *, public: bool = False) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(report_json(read(raw), TIMINGS, public=public))
    return value


def matrix_of(result: Result) -> Any:
    return attack_matrix(judge_all(result))


@pytest.mark.parametrize("raw", [load(), minimal()], ids=["fixture", "least"])
@pytest.mark.parametrize("public", [False, True])
def test_the_json_follows_the_published_schema(raw: dict[str, Any], public: bool) -> None:
    published = json.loads(page("docs/report.schema.json"))
    assert published == json_schema()
    jsonschema.Draft202012Validator(published).validate(as_json(raw, public=public))


def test_the_schema_refuses_what_is_no_report() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    value = as_json(load())
    for broken in (
        {**value, "schema": "fdaudit-report/2"},
        {**value, "verdict": {**value["verdict"], "level": "safe"}},
        {k: v for k, v in value.items() if k != "result"},
    ):
        assert not validator.is_valid(broken)


def test_the_json_says_what_the_page_says() -> None:
    text = " ".join(Document(render_report(read(load()), FIXTURES, TIMINGS)).text.split())
    value = as_json(load())
    verdict = value["verdict"]
    said = [verdict["headline"], verdict["standing"]]
    said += [s["text"].replace("`", "") for s in (*verdict["reasons"], *verdict["actions"])]
    front = value["front"]
    said += [
        t.replace("`", "") for f in front["findings"] for t in (f["what"], f["evidence"], f["remedy"]["text"])
    ]
    said += [*front["claims"], *front["untested"]]
    said += [f["because"] for f in value["findings"]] + [
        item["what"].replace("`", "") for item in value["annex"]
    ]
    assert len(said) > 40
    for sentence in said:
        assert " ".join(sentence.split()) in text, sentence


def test_the_json_holds_the_whole_result_and_is_written_beside_the_page(tmp_path: Path) -> None:
    held = set(numbers(as_json(load())["result"]))
    assert set(numbers(load())) <= held
    write_report(read(load()), FIXTURES, tmp_path / "page.html", TIMINGS)
    assert json.loads((tmp_path / "page.json").read_text("utf-8")) == as_json(load())


# -- the attack matrix --------------------------------------------------------------------------------------------


def test_the_matrix_has_every_attack_that_ran_the_gravest_first() -> None:
    result = read(load())
    lines = matrix_of(result)
    assert {line.finding.cell.id for line in lines} == {c.id for c in result.cells if c.status == "run"}
    order = [list(LEVELS).index(line.finding.level) for line in lines]
    assert order == sorted(order)
    assert len(set(order)) > 1


def test_a_line_s_figures_are_the_cell_s_own() -> None:
    raw = load()
    for line in matrix_of(read(raw)):
        (cell,) = [c for c in raw["cells"] if c["id"] == line.finding.cell.id]
        by_name = values_of(cell)
        assert line.mean is not None
        assert line.mean.value == by_name[line.figure]
        (worst,) = [t for t in cell["targets"] if t["target"] == line.finding.worst.target]
        assert line.worst.value == values_of(worst)[line.figure]
        if cell["goal"] == "membership":
            assert (line.figure, line.baseline) == ("auc", 0.5)
        else:
            assert line.baseline == by_name["psnr_prior"]


def test_the_worst_record_of_a_membership_attack_is_read_off_the_roc() -> None:
    raw = load()
    (cell,) = [c for c in raw["cells"] if c["goal"] == "membership" and c["status"] == "run"][:1]
    cell["targets"][0]["roc"] = {"fpr": [0.0, 0.0, 0.5, 1.0], "tpr": [0.0, 0.3, 0.6, 1.0]}
    cell["targets"][1]["roc"] = {"fpr": [0.0, 0.1, 1.0], "tpr": [0.0, 0.9, 1.0]}
    for target in cell["targets"][2:]:
        target["roc"] = None
    (line,) = [x for x in matrix_of(read(raw)) if x.finding.cell.id == cell["id"]]
    assert line.record.value == 0.3


# -- the public variant -------------------------------------------------------------------------------------------


def test_the_public_variant_shows_no_record_and_no_class_count() -> None:
    raw = load()
    raw["run"]["dataset"] = "npz:/home/auditor/secret/patients.npz"
    raw["run"]["dataset_provenance"] = "read from /home/auditor/secret/patients.npz"
    raw["run"]["spec"]["dataset"] = {"name": "npz:/home/auditor/secret/patients.npz", "root": "/home/auditor"}
    page = render_report(read(raw), FIXTURES, TIMINGS, public=True)
    document, value = Document(page), as_json(raw, public=True)
    assert "Auditor-only" not in page
    assert "Public variant." in page
    assert [tag for tag, _ in document.elements if tag == "img"] == []
    assert "data:image/png" not in page
    for text in (page, json.dumps(value)):
        assert "/home/auditor" not in text
        assert "patients" not in text
    result = value["result"]
    assert result["auditor_only"] is False
    assert result["class_table"] is None
    assert all(t["images"] == [] and t["shares"] is None for c in result["cells"] for t in c["targets"])
    assert len(result["withheld"]) > 0
    assert all(line in document.sections["system"] for line in result["withheld"])


def test_the_public_variant_keeps_every_finding_and_the_annex_names_who_departs() -> None:
    whole, part = as_json(load()), as_json(load(), public=True)
    assert part["verdict"]["level"] == whole["verdict"]["level"]
    told = " (all 2 attacked clients)"
    assert told in whole["verdict"]["headline"]
    assert part["verdict"]["headline"] == whole["verdict"]["headline"].replace(told, "")
    assert [(f["cell"], f["level"]) for f in part["findings"]] == [
        (f["cell"], f["level"]) for f in whole["findings"]
    ]
    assert [line["cell"] for line in part["matrix"]] == [line["cell"] for line in whole["matrix"]]
    assert all(f["worst_target"] is None for f in part["findings"])

    def said(result: Result) -> str:
        (item,) = [one for one in annex(result) if one.asked == "Attacker's capabilities"]
        return item.what

    honest = read(load())
    assert said(honest).endswith("Adversaries are passive.")
    departure = Departure(party="server", name="imprint", messages=3)
    active = honest.model_copy(update={"run": honest.run.model_copy(update={"departures": (departure,)})})
    assert "server by imprint" in said(active)


# -- the annex ----------------------------------------------------------------------------------------------------


def test_the_annex_names_sections_and_certifies_nothing() -> None:
    text = Document(render_report(read(load()), FIXTURES, TIMINGS)).sections["annex"]
    assert "no certification" in text
    for document in DOCUMENTS:
        assert document.title in text
    wanted = (
        "Attribute inference", "Membership inference", "Exfiltration", "Regurgitation", "Model inversion",
        "Context in which the model is released", "Unit of privacy", "relation", "Sampling", "Composition", "tuning",
        "Trust model", "randomness", "goals", "capabilities", "knowledge", "Threat modelling", "Adversarial testing",
        "Maximum or average risk"
    )  # fmt: skip
    assert [item for item in wanted if item not in text] == []
    from ..helpers.report_cases import SECTIONS

    assert {place for raw in (load(), minimal()) for i in annex(read(raw)) for place in i.where} <= set(
        SECTIONS
    )


def provided(raw: dict[str, Any], document: str) -> dict[str, str]:
    return {i.asked: i.provided for i in annex(read(raw)) if i.document.name.startswith(document)}


def test_an_item_is_provided_only_where_the_result_provides_it() -> None:
    raw = load()
    inference, context = "Membership inference", "Context in which the model is released"
    before = provided(raw, "EDPB")
    assert (before[inference], before[context]) == ("yes", "no")
    raw["cells"] = [c for c in raw["cells"] if c["goal"] != "membership"]
    raw["run"]["release"] = "api"
    after = provided(raw, "EDPB")
    assert (after[inference], after[context]) == ("no", "yes")
    ledger = {
        "adversary": "server", "epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "add-or-remove",
        "accountant": "RDP", "sampling": "Poisson", "assumptions": ["Noise is drawn from a secure source."],
        "contributions": [
            {"kind": "logits", "sender": "client", "mechanism": "Gaussian", "charges": 1, "epsilon": 4.0}
        ],
    }  # fmt: skip
    asked_by = {
        "NIST": ("Privacy parameters ε and δ", "Unit of privacy", "Composition", "Sampling",
                 "Source of randomness and arithmetic"),
        "How to DP-fy": ("Data accesses that are covered", "Final mechanism output", "Unit of privacy",
                         "Adjacency definition", "Type of accounting", "Accounting assumptions",
                         "Formal DP statement"),
    }  # fmt: skip
    for document, items in asked_by.items():
        none, some = (provided(raw | {"ledger": rows}, document) for rows in ([], [ledger]))
        assert [asked for asked in items if (none[asked], some[asked]) != ("no", "yes")] == []
    assert some["Cost of tuning"] == "in part"
    ledger["assumptions"].append("The setting was chosen from 5 runs (fixed), none of which costs more.")
    assert provided(raw | {"ledger": [ledger]}, "How to DP-fy")["Cost of tuning"] == "yes"


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("internal", "the trained models stay with the parties"),
        ("api", "others may ask a trained model"),
        ("public-weights", "anyone may hold the trained model"),
        (None, "Not stated in the spec."),
    ],
)
def test_the_system_card_states_the_release(release: str | None, said: str) -> None:
    raw = load()
    raw["run"]["release"] = release
    card = Document(render_report(read(raw), FIXTURES, TIMINGS)).sections["system"]
    assert said in card
    raw["cells"] = [c for c in raw["cells"] if c["adversary"] != "world"]
    unseen = Document(render_report(read(raw), FIXTURES, TIMINGS)).sections["system"]
    assert ("No attack ran" in unseen) == (release in ("api", "public-weights"))
