"""One model for writer and readers: it comes back from its file, refuses what it cannot hold, and loads quickly."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from fdaudit.reports.judgement.judgement import judged, judgement_in
from pydantic import ValidationError

from fdaudit.accounting.ledger import Ledger
from fdaudit.audit.run import Run
from fdaudit.errors import IntegrityError, UsageError
from fdaudit.result import (
    Cell,
    Check,
    Control,
    Gate,
    Image,
    JudgedCell,
    Queries,
    Result,
    Target,
    derived_from_data,
    exposed_rows,
    part,
    public_part,
    read,
    read_cell,
    told_anew,
)
from fdaudit.result.frames import COLUMNS, figure_rows
from fdaudit.testing.running import ProtocolRun
from fdaudit.types import Figure

from ..helpers.protocol_cases import run
from ..helpers.report_cases import Document, load
from ..helpers.run_cases import finished


def cell(**changes: Any) -> Cell:
    named = {"protocol": "fedavg", "adversary": "server", "attack": "dlg", "goal": "reconstruction"}
    return Cell(**{**named, "status": "run", **changes})


def test_a_result_comes_back_from_its_file_without_empty_members() -> None:
    result = read(load())
    assert read(json.loads(json.dumps(result.plain()))) == result
    target = Target(target="client/0", images=(Image(truth="a.png", guess="b.png"),))
    plain = cell(targets=(target,)).plain()
    assert not {"reads", "canaries", "confinement"} & plain.keys()
    assert not {"rank", "gallery"} & plain["targets"][0]["images"][0].keys()
    assert plain["targets"][0]["images"][0]["prior"] is None
    plain = cell(figures=(Figure(name="psnr", value=20),)).plain()
    assert json.dumps(plain) == json.dumps(read_cell(json.loads(json.dumps(plain)), "a.json").plain())


@pytest.mark.parametrize(
    "change", [{"new": 1}, {"figures": ...}, {"id": "server/another"}, {"status": "done"}]
)
def test_a_file_that_no_attack_stage_wrote_is_no_cell(change: dict[str, Any]) -> None:
    value = copy.deepcopy(cell(figures=(Figure(name="psnr", value=20.0),)).plain())
    assert read_cell(value, "a.json").plain() == value
    for name, member in change.items():
        value[name] = member
        if member is ...:
            del value[name]
    with pytest.raises(IntegrityError, match=r"a\.json is no"):
        read_cell(value, "a.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "20"])
def test_a_figure_that_is_no_finite_number_makes_no_cell(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"figures\.0\.value"):
        cell(figures=(Figure(name="psnr", value=value),))


def test_the_model_loads_no_pytorch() -> None:
    code = "import sys, fdaudit.result; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_a_result_names_its_failures() -> None:
    value = load()
    value["cells"] = [cell(status="failed", reason="ValueError: no").plain(), cell(adversary="world").plain()]
    gates = (
        {"name": "psnr", "threshold": 20.0, "value": 25.0, "passed": False},
        {"name": "psnr", "threshold": 20.0, "value": 15.0, "passed": False, "inconclusive_for": ["world"]},
        {"name": "utility", "threshold": 0.8, "value": 0.9, "passed": True, "at_least": True},
        {"name": "utility", "threshold": 0.8, "value": None, "passed": False, "at_least": True},
    )
    value["gates"] = list(gates)
    claim = {"claimed": 1.0, "gdp": None, "delta": 1e-5, "unit": "record", "relation": "add-or-remove"}
    value["checks"] = [
        {**claim, "adversary": adversary, "verdict": verdict, "confidence": 0.95, "reason": "no"}
        for adversary, verdict in (("server", "contradicted"), ("world", "consistent"))
    ]
    result = read(value)
    assert [c.id for c in result.failed_cells] == ["server/dlg"]
    assert [g.exceeded for g in result.failed_gates] == [True, False, False]
    assert [c.adversary for c in result.contradicted] == ["server"]


# -- what was measured may be larger than what anybody may ask for -------------------------------------------------


LARGE = 5_000_000_000_000


@pytest.mark.parametrize("part", ["exposure", "wire"])
def test_more_than_a_gigabyte_on_the_wire_is_read(part: str) -> None:
    raw = load()
    raw[part][0]["bytes"] = LARGE
    row = getattr(read(raw), part)[0]
    assert row.bytes == LARGE


def test_a_number_that_no_machine_counts_is_refused() -> None:
    raw = load()
    raw["exposure"][0]["bytes"] = 2**63
    with pytest.raises(UsageError, match="is more than"):
        read(raw)
    assert Result.model_validate_json(json.dumps(load()))


# -- what the result says of messages ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    return run(tmp_path_factory.mktemp("fkd") / "run", "fkd", rounds=2)


def anew(ran: ProtocolRun, *parties: str) -> tuple[set[int], set[int]]:
    """Return the messages of a view that tell something new, and all that a client sent."""
    view = [m.seq for m in ran.messages if set(parties) & {m.sender, *m.receivers}]
    sent = {m.seq for m in ran.messages if m.sender.startswith("client/")}
    return set(told_anew(ran.messages, view, derived_from_data(ran.messages))), sent


def test_a_mean_is_derived_only_where_every_term_is_in_view(ran: ProtocolRun) -> None:
    found, sent = anew(ran, "server")
    assert found == sent
    found, _ = anew(ran, "client/0")
    received = {m.seq for m in ran.messages if "client/0" in m.receivers}
    assert received <= found
    seen, private = ran.messages, derived_from_data(ran.messages)
    rows = exposed_rows(seen, "eavesdropper", private, anew=told_anew(seen, [m.seq for m in seen], private))
    assert {r.senders: r.derived for r in rows} == {("client",): False, ("server",): True}
    assert not any(r.derived for r in exposed_rows(seen, "eavesdropper", private))


# -- the figures of a result as a table of data, and runs, cells and ledgers in a notebook -------------------------


def test_every_figure_of_a_result_is_a_row_of_its_frame() -> None:
    result = read(load())
    frame = result.to_frame()
    assert tuple(frame.columns) == COLUMNS
    figures = 0
    for cell in result.cells:
        own = frame[(frame["adversary"] == cell.adversary) & (frame["attack"] == cell.attack)]
        expected = [("", f) for f in cell.figures] + [(t.target, f) for t in cell.targets for f in t.figures]
        assert len(own) == max(1, len(expected))
        for (victim, figure), (_, row) in zip(expected, own.iterrows(), strict=False):
            assert (row["victim"], row["figure"], row["n"]) == (victim, figure.name, figure.n) or math.isnan(
                row["n"]
            )
            if figure.value is None:
                assert math.isnan(row["value"])
                assert row["unavailable"] == figure.unavailable
            else:
                assert row["value"] == figure.value
        figures += len(expected)
    assert figures > 10


def test_a_cell_s_table_has_its_figures_or_its_reason() -> None:
    rows = list(figure_rows(read(load()).cells))
    silent = [row for row in rows if row["figure"] is None]
    assert silent
    assert all(row["reason"] for row in silent)
    assert all(row.keys() == set(COLUMNS) for row in rows)
    cell = next(c for c in read(load()).cells if c.figures)
    text = Document(cell._repr_html_()).text
    assert cell.id in text
    assert all(figure.name in text for figure in cell.figures)


@pytest.mark.parametrize("payload", ["<script>alert(1)</script>", "'\"><img src=x>", "\u202egnp.exe"])
def test_a_cell_and_a_ledger_show_a_stranger_s_text_as_text(payload: str) -> None:
    raw = load()
    raw["cells"][0] |= {"adversary": payload, "reason": payload}
    raw["cells"][0]["id"] = f"{payload}/{raw['cells'][0]['attack']}"
    ledger = Ledger(
        view=payload, epsilon=math.inf, delta=1e-5, unit="record", relation="replace-one", cause=payload
    )
    for page in (read(raw).cells[0]._repr_html_(), ledger._repr_html_()):
        shown = Document(page)
        assert {tag for tag, _ in shown.elements} <= {"table", "caption", "thead", "tr", "th", "tbody", "td"}
        assert all(not attributes for _, attributes in shown.elements)
        assert "\u202e" not in page


def test_a_run_shows_who_can_learn_what(tmp_path: Path) -> None:
    run = Run(finished(tmp_path / "run", attacks=[{"name": "loss-threshold"}]))
    text = Document(run._repr_html_()).text
    assert "server" in text
    assert "membership" in text
    assert len(run.to_frame()) == len(list(figure_rows(run.result.cells)))
    (run.directory / "result.json").unlink()
    assert "no result" in Document(run._repr_html_()).text


# -- who may see a field of a result -------------------------------------------------------------------------------


class New(part.Part):
    """A part whose author did not think of readers."""

    secret: str = ""
    name: Annotated[str, part.PUBLIC] = ""


class Holder(part.Part):
    _audience: ClassVar[part.Audience] = "public"

    parts: tuple[New, ...] = ()


def every_part(value: Any) -> Iterator[part.Part]:
    """Yield a part and all parts in it."""
    if isinstance(value, part.Part):
        yield value
        for name in type(value).model_fields:
            yield from every_part(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from every_part(item)


def test_a_field_without_a_word_is_hidden_at_any_depth() -> None:
    holder = Holder(parts=(New(secret="a coin", name="client/0"),))
    assert public_part(holder).parts == (New(name="client/0"),)


def test_no_field_for_auditors_is_left_in_a_public_result() -> None:
    whole = judged(read(load()))
    public = public_part(whole)
    hidden = set()
    for one in every_part(public):
        for name, field in type(one).model_fields.items():
            mark = part.shown(type(one), field)
            if mark.to == "auditor":
                assert not getattr(one, name), (type(one).__name__, name)
                hidden.add((type(one), name))
    assert {(Cell, "figures"), (Target, "roc"), (Result, "class_table"), (Control, "figures")} <= hidden
    assert {(JudgedCell, "measured"), (JudgedCell, "affected"), (JudgedCell, "worst")} <= hidden
    assert {c.id for c in public.cells} == {c.id for c in whole.cells}
    assert public.exposure == whole.exposure
    assert public.judgement is not None
    assert public.judgement.views == judgement_in(whole).views


def test_what_stands_for_a_hidden_field_that_must_be_there() -> None:
    gate = Gate(name="membership_auc", threshold=0.6, value=0.7, passed=False)
    check = Check(
        adversary="server", claimed=1.0, verdict="consistent", reason="ε of 0.4", confidence=0.9, bound=0.4
    )
    assert public_part(gate) == gate.model_copy(update={"value": None})
    assert (public_part(check).reason, public_part(check).bound, public_part(check).claimed) == (
        "",
        None,
        1.0,
    )
    queries = Queries(budget=9, spent=5, asked=("oracle",), messages=10, head="ab")
    assert public_part(queries) == Queries(budget=9, spent=5)
