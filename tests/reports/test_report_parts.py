"""The report's parts: the schema it reads, the ledger's place, the diagram, the charts and the words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fdaudit.reports import render_report
from fdaudit.reports.drawings.diagram import arrows, diagram
from fdaudit.reports.drawings.figures import ForestRow, forest_chart, roc_chart, utility_chart
from fdaudit.reports.goals import RULES
from fdaudit.reports.goals.rule import RuleInput
from fdaudit.reports.text import amount, clip, joined, label

from fdaudit.errors import UsageError
from fdaudit.result import Cell, Confinement, CurvePoint, Exposure, Roc, read, read_cell
from fdaudit.types import Figure

from ..helpers.report_cases import FIXTURES, TIMINGS, Document, load


def render(raw: dict[str, Any]) -> str:
    return render_report(read(raw), FIXTURES, TIMINGS)


def _spoil(raw: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    place: Any = raw
    for part in path[:-1]:
        place = place[part]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("run",), ..., "result.run"),
        (("schema",), "fdaudit-result/2", "result.schema"),
        (("cells", 0, "status"), "done", "result.cells.0.status"),
        (("cells", 1, "reason"), " ", "result.cells.1"),
        (("cells", 0, "figures", 0, "value"), float("nan"), "result.cells.0.figures.0.value"),
        (("cells", 0, "figures", 0, "value"), None, "result.cells.0.figures.0"),
        (("cells", 4, "targets", 0, "roc", "tpr"), [0.0], "result.cells.4.targets.0.roc"),
        (("run", "clients"), "five", "result.run.clients"),
    ],
)
def test_a_result_off_its_schema_is_one_clear_error(path: tuple[Any, ...], value: Any, field: str) -> None:
    with pytest.raises(UsageError) as caught:
        render(_spoil(load(), *path, value=value))
    assert caught.value.field == field
    assert caught.value.exit_code == 2


def test_members_of_a_newer_result_are_passed_over() -> None:
    raw = load() | {"new": {"a": 1}}
    raw["cells"][0]["also_new"] = 3
    assert render(raw) == render(load())


def test_the_ledger_has_its_place() -> None:
    entry = {
        "adversary": "server",
        "epsilon": 3.25,
        "delta": 1e-5,
        "unit": "record",
        "relation": "replace-one",
    }
    raw = load() | {"ledger": [entry, {"adversary": "world", "epsilon": None, "cause": "bare"}]}
    text = Document(render(raw)).sections["ledger"]
    assert "3.250" in text
    assert "∞" in text
    assert "bare" in text
    assert "No ε" not in text
    assert "No ε" in Document(render(load())).sections["ledger"]


def test_the_ledger_says_from_what_and_under_which_assumptions() -> None:
    part = {"kind": "lo<gits", "sender": "client", "mechanism": "Laplace", "charges": 7, "epsilon": 1.5}
    entry = {
        "adversary": "server",
        "epsilon": 3.25,
        "victim": "client/4",
        "accountant": "RDP",
        "sampling": "assumed: Poisson; done: not on record",
        "contributions": [part],
        "assumptions": ["noise is secret"],
        "warnings": ["delta is generous"],
    }
    quiet = {"adversary": "world", "epsilon": 0.0, "assumptions": ["noise is secret"]}
    text = " ".join(Document(render(load() | {"ledger": [entry, quiet]})).sections["ledger"].split())
    for said in ("lo<gits of client: 7 times Laplace", "client/4", "Poisson", "delta is generous"):
        assert said in text
    assert text.count("noise is secret") == 1
    assert "Nothing that depends" in text


def test_the_summary_says_what_is_bounded_and_of_whom_nothing_is() -> None:
    raw = load()
    seers = list(dict.fromkeys(cell["adversary"] for cell in raw["cells"]))
    part = {
        "kind": "release",
        "sender": "client",
        "mechanism": "SampledGaussian",
        "charges": 7,
        "epsilon": 1.5,
    }
    stated = {"delta": 1e-5, "unit": "record", "relation": "add-or-remove", "contributions": [part]}
    plain = " ".join(Document(render(raw)).sections["findings"].split())
    assert "no defence on" in plain
    assert "ε is" not in plain
    ledger = [{"adversary": a, "epsilon": 2.0 + n, **stated} for n, a in enumerate(seers)]
    sections = Document(render(raw | {"ledger": ledger})).sections
    assert "No ε may" not in sections["summary"]
    assert sections["summary"].count("ε of") == len(seers)
    text = " ".join(sections["findings"].split())
    assert re.search(rf"ε is\D*{1.0 + len(seers):.3f}", text)
    assert "no defence on" not in text


def test_the_diagram_counts_what_the_exposure_counts() -> None:
    exposure = read(load()).exposure
    drawn = arrows(exposure)
    received = [r for r in exposure if r.direction == "received" and r.party != "eavesdropper"]
    assert sum(a.messages for a in drawn) == sum(r.count for r in received)
    assert sum(a.bytes for a in drawn) == sum(r.bytes for r in received)
    assert not any(a.defended or a.shared for a in drawn)
    assert diagram([], 5) == ""
    odd = Exposure(
        party="x<y", kind="k", direction="received", count=3, bytes=5, senders=("a", "b"), recorded="full"
    )
    svg = diagram([odd], 5)
    assert "to 3 received" in svg
    assert "x&lt;y" in svg
    assert "x<y" not in svg


def test_charts_take_any_name_and_any_range() -> None:
    name = "$x_{<script>\u202e漢" * 700
    curve = [CurvePoint(line=name, round=r, party=name, accuracy=0.5) for r in (1, 2)]
    rows = [ForestRow(name=name, value=1.0, low=None, high=None, role="victim")]
    flat = Roc(fpr=(0.0, 0.0, 1.0), tpr=(0.0, 0.0, 1.0))
    for svg in (
        utility_chart(curve, "u", name[:50]),
        forest_chart(rows, None, "x", "f", "t"),
        roc_chart([(name, flat)], "", "r", "t"),
    ):
        assert "<script" not in svg
        assert svg.startswith("<svg")
        assert svg.endswith("</svg>")


def test_a_forest_chart_puts_marks_intervals_and_ticks_on_one_scale() -> None:
    rows = [
        ForestRow(name="a", value=0.5, low=0.4, high=0.7, role="victim"),
        ForestRow(name="b", value=0.75, low=None, high=None, role="victim"),
        ForestRow(name="c", value=1.0, low=None, high=None, role="victim"),
    ]
    svg = forest_chart(rows, 0.5, "AUC", "f", "t")
    first, second, third = (float(x) for x in re.findall(r'<circle cx="([\d.]+)"', svg))
    assert second - first == pytest.approx(third - second, abs=0.02)

    def place(value: float) -> float:
        return first + (value - 0.5) * (third - first) / 0.5

    ticks = re.findall(r'<text x="([\d.]+)"[^>]*middle[^>]*>([\d.]+)</text>', svg)
    assert [text for _, text in ticks] == ["0.4", "0.6", "0.8", "1.0"]
    for x, text in ticks:
        assert float(x) == pytest.approx(place(float(text)), abs=0.02)
    ((dashed, _),) = re.findall(r'd="M ([\d.]+) [\d.]+ L ([\d.]+)[^>]*dasharray', svg)
    assert float(dashed) == pytest.approx(first, abs=0.02)
    ((low, high),) = re.findall(r'd="M ([\d.]+) [\d.]+ L ([\d.]+)[^>]*stroke-width="1.6"', svg)
    assert (float(low), float(high)) == pytest.approx((place(0.4), place(0.7)), abs=0.02)


@pytest.mark.parametrize("value", [-3.5, 0.0, 1e-9, 7.0, 2e16])
def test_a_forest_chart_takes_values_that_are_all_alike(value: float) -> None:
    rows = [ForestRow(name="a", value=value, low=value, high=value, role="mean")]
    assert "nan" not in forest_chart(rows, None, "x", "f", "t")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.12345, "fraction", "12.3 %"),
        (-1.26, "dB", "−1.3 dB"),
        (12345, "count", "12,345"),
        (49380, "bytes", "49.4 kB"),
        (0.5, "", "0.500"),
        (0.0324, "dB", "0.032 dB"),
        (0.00001, "", "1e−05"),
        (0.0, "", "0.000"),
        (8.6e6, "", "8,600,000.0"),
    ],
)
def test_amounts(value: float, unit: str, text: str) -> None:
    assert amount(value, unit).replace("\N{NO-BREAK SPACE}", " ") == text


def test_words() -> None:
    assert joined([]) == ""
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "c"]).split() == ["a,", "b", "and", "c"]
    assert clip("a" * 10, 4) == "aaaa… (+6 characters)"
    assert label("psnr_prior_max").startswith("PSNR, ")
    assert label("my_figure") == "my figure"


# -- a report says how attacks were confined -----------------------------------------------------------------------


ALL = Confinement(held=("network", "files"), missing={})
SOME = Confinement(held=("network",), missing={"files": "the kernel has no Landlock"})


def text_of(raw: dict[str, Any]) -> str:
    return " ".join(Document(render_report(read(raw), FIXTURES, TIMINGS)).text.split())


def confined(*by: Confinement) -> dict[str, Any]:
    raw = load()
    for number, cell in enumerate(raw["cells"]):
        cell["confinement"] = by[min(number, len(by) - 1)].plain()
    return raw


def test_confinement_is_one_line_unless_cells_or_layers_differ() -> None:
    assert "were confined" not in text_of(load())
    by_all, by_some = "by network and files", "by network; not confined here by files"
    assert text_of(confined(ALL)).count(f"were confined {by_all}.") == 1
    assert f"were confined {by_some} ({SOME.missing['files']})." in text_of(confined(SOME))
    raw = confined(SOME, ALL)
    text = text_of(raw)
    assert text.count(f"were confined {by_all}, except") == 1
    assert f"{raw['cells'][0]['id']}: confined {by_some}" in text


def test_a_cell_keeps_how_it_was_confined() -> None:
    cell = Cell(
        protocol="p",
        adversary="server",
        attack="a",
        goal="membership",
        source="s",
        status="run",
        confinement=SOME,
    )
    assert read_cell(cell.plain(), "cell") == cell
    assert "confinement" not in cell.model_copy(update={"confinement": None}).plain()


# -- the rule for recovered words ----------------------------------------------------------------------------------


RULE = RULES["text-reconstruction"]


def evidence(f1, prior, gain, p):
    figures = [
        Figure(name="token_f1", value=f1, unit="fraction"),
        Figure(name="token_f1_prior", value=prior, unit="fraction"),
        Figure(name="token_gain", value=gain, unit="fraction", p=p),
    ]
    return RuleInput(who="client/0", figures=figures)


@pytest.mark.parametrize(
    ("f1", "prior", "gain", "p", "signal", "strong", "telling"),
    [
        (1.0, 0.3, 0.7, 0.001, True, True, True),
        (1.0, 0.3, 0.7, None, True, True, False),  # too few other texts for a test: F1 alone shows it
        (1.0, 0.3, 0.7, 1.0, True, True, True),  # not significant after correction, and still read
        (0.5, 0.3, 0.2, 0.001, True, False, True),
        (0.5, 0.3, 0.2, 0.2, False, False, True),
        (0.5, 0.3, 0.2, None, False, False, False),  # nothing bounds chance: inconclusive
        (0.2, 0.3, -0.1, 0.001, False, False, True),
        (0.96, 0.9, 0.06, 0.001, True, True, True),
        (0.96, 0.9, 0.06, 0.5, False, True, True),  # words that everybody uses
    ],
)
def test_what_counts_as_recovered(f1, prior, gain, p, signal, strong, telling):
    found = evidence(f1, prior, gain, p)
    assert bool(RULE.signal(found)) == signal
    assert RULE.strong(found) == strong
    assert RULE.telling(found) == telling


def test_without_figures_there_is_no_signal():
    assert RULE.signal(RuleInput(who="client/0", figures=[])) == ""
    assert not RULE.strong(RuleInput(who="client/0", figures=[]))
