"""Who may see a field of a result: nobody but the auditor, unless its class or the field says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from fdaudit.reports.judgement.judgement import judged, judgement_in

from fdaudit.result import (
    Cell,
    Check,
    Control,
    Gate,
    JudgedCell,
    Queries,
    Result,
    Target,
    part,
    public_part,
    read,
)

from ..helpers.report_cases import load


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
