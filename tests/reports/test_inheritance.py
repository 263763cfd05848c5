"""Adversaries inherit the leaks of those whose views they contain; headlines name who is affected."""

from __future__ import annotations

import json
import re

import pytest
from fdaudit.reports.comparison.comparison import ComparedRun, compare
from fdaudit.reports.goals import RULES
from fdaudit.reports.judgement.inheritance import standings
from fdaudit.reports.judgement.verdict import LEVELS, judge_all
from fdaudit.reports.public import public
from fdaudit.reports.run.document import document
from fdaudit.reports.run.front import front
from fdaudit.reports.run.summary import summarise
from hypothesis import example, given
from hypothesis import strategies as st

from fdaudit.cli.verdicts import verdicts
from fdaudit.result import Cell, Control, Controls, Exposure, Result, Target, Unfinished, ViewRow
from fdaudit.types import Figure

from ..helpers.report_cases import figures_in, minimal
from .test_verdict import PASSED, figure

ORDER = [level for level in LEVELS if level not in ("possible", "not-tested")]
LEAKING: dict[str, tuple[Figure, ...]] = {
    "leak": (figure("auc", 0.9, 0.8, 1.0),),
    "partial": (figure("auc", 0.6, 0.55, 0.65),),
    "none-seen": (figure("auc", 0.5, 0.4, 0.6),),
}
ADVERSARIES = ("server", "client/0", "server+client/0", "aggregator", "eavesdropper", "world")


def cell(adversary: str, level: str, attack: str = "a", affected: tuple[str, ...] = ()) -> Cell:
    """A membership cell that is judged to be of a level; the leak is that of single victims if they are named."""
    ran = level in LEAKING or level == "inconclusive"
    victims = ("client/0", "client/1", "client/2")
    quiet = LEAKING["none-seen"]
    targets = tuple(Target(target=v, figures=LEAKING[level] if v in affected else quiet) for v in victims)
    failed = Controls(positive=PASSED.positive, negative=Control(what="noise", passed=False))
    return Cell(
        id=f"{adversary}/{attack}",
        protocol="fedavg",
        adversary=adversary,
        attack=attack,
        goal="membership",
        status="run" if ran else level,
        reason="" if ran else "Because.",
        figures=(quiet if affected else LEAKING.get(level, quiet)) if ran else (),
        targets=targets if ran else (),
        controls=failed if level == "inconclusive" else PASSED,
    )


def result(cells: list[Cell], views: dict[str, tuple[str, ...]] | None = None) -> Result:
    rows = tuple(ViewRow(adversary=a, contains=b) for a, b in (views or {}).items())
    read = Result.model_validate_json(json.dumps(minimal()))
    return read.model_copy(update={"cells": tuple(cells), "views": rows})


def levels(made: Result) -> dict[str, str]:
    return {s.adversary: s.level for s in standings(made, judge_all(made))}


@given(
    st.lists(st.tuples(st.sampled_from(ADVERSARIES), st.sampled_from(ORDER)), min_size=1, max_size=9),
    st.dictionaries(st.sampled_from(ADVERSARIES), st.lists(st.sampled_from(ADVERSARIES)).map(tuple)),
)
@example(
    cells=[("server", "leak"), ("client/0", "partial"), ("world", "partial")],
    views={"client/0": ("world",), "world": ("server",)},
)
def test_no_adversary_reads_weaker_than_one_whose_view_it_contains(
    cells: list[tuple[str, str]], views: dict[str, tuple[str, ...]]
) -> None:
    made = result([cell(a, level, f"attack-{i}") for i, (a, level) in enumerate(cells)], views)
    held = levels(made)
    members = {(a, b) for a in held for b in held if set(b.split("+")) <= set(a.split("+"))}
    for larger, smaller in {(a, b) for a, inside in views.items() for b in inside} | members:
        if larger in held and held.get(smaller) in ("leak", "partial"):
            assert ORDER.index(held[larger]) <= ORDER.index(held[smaller])
    for adversary, level in held.items():
        own = min(ORDER.index(judged) for a, judged in cells if a == adversary)
        assert ORDER.index(level) <= own
        if level not in ("leak", "partial"):
            # only leaks are inherited; what was tested on a part of a view alone is open for the whole
            assert ORDER.index(level) == own or (level == "inconclusive" and own > ORDER.index("failed"))
    page = summarise(made)
    shown = {row.adversary: e.level for row in page.matrix for e in row.entries if e.finding}
    assert shown == held


@pytest.mark.parametrize("own", ["partial", "none-seen", "inconclusive", "failed", "not-applicable"])
def test_a_coalition_inherits_its_member_s_leak_and_says_so(own: str) -> None:
    made = result([cell("server", "leak"), cell("server+client/0", own)])
    assert levels(made) == {"server": "leak", "server+client/0": "leak"}
    (_, coalition), page = standings(made, judge_all(made)), summarise(made)
    assert coalition.source == "server"
    said = coalition.inherited
    assert "finding of server:" in said
    assert [row.entries[0].note for row in page.matrix] == ["", said]
    (finding,) = page.front.findings
    assert page.headline == f"{finding.clause}."
    assert finding.adversaries == ("server", "server+client/0")
    parts = document(made, {}).adversaries
    assert [(p.adversary, p.level, p.cell, p.inherited) for p in parts] == [
        ("server", "leak", "server/a", ""),
        ("server+client/0", "leak", "server/a", said),
    ]


def test_coalitions_put_their_own_finding_first_and_name_its_member() -> None:
    made = result([cell("server", "partial"), cell("server+client/0", "partial")])
    assert [s.inherited for s in standings(made, judge_all(made))] == ["", ""]
    made = result([cell("server", "leak", affected=("client/0",)), cell("server+client/0", "none-seen")])
    coalition = standings(made, judge_all(made))[1]
    assert coalition.level == "leak"
    assert "about client/0" in coalition.inherited


@pytest.mark.parametrize(
    ("affected", "named"),
    [
        (("client/2",), "(client/2; 2 others not cleared)"),
        (("client/0", "client/2"), "(client/0 and client/2; 1 other not cleared)"),
        (("client/0", "client/1", "client/2"), "(all 3 attacked clients)"),
    ],
)
def test_the_headline_names_who_is_affected_and_of_how_many(affected: tuple[str, ...], named: str) -> None:
    made = result([cell("server", "leak", affected=affected)])
    (finding,) = judge_all(made)
    assert finding.affected == affected
    assert summarise(made).headline == f"The server {RULES['membership'].likely} {named}."


def test_what_stands_out_alone_is_possible_whoever_inherits_it() -> None:
    near = cell("server", "none-seen").model_copy(update={"figures": (figure("auc", 0.6, 0.5, 0.7, p=0.03),)})
    made = result([near, near.model_copy(update={"id": "server/b"})])
    assert "possible" in summarise(made).headline
    assert levels(made) == {"server": "possible"}
    near = cell("world", "none-seen").model_copy(update={"figures": (figure("auc", 0.6, 0.5, 0.7, p=0.03),)})
    quiet = cell("server", "none-seen").model_copy(update={"figures": (figure("auc", 0.5, 0.4, 0.6, p=0.5),)})
    made = result([near, quiet], {"server": ("world",)})
    assert levels(made) == {"world": "possible", "server": "possible"}
    assert "candidates" in summarise(made).actions[0].do
    quiet = [figure("tpr_at_10fpr", 0.1, 0.0, 0.3, p=0.5), figure("auc", 0.6, 0.5, 0.7, p=0.03)]
    made = result([cell("server", "none-seen").model_copy(update={"figures": tuple(quiet)})])
    (found,) = judge_all(made)
    assert found.level == "none-seen"
    assert found.because.startswith("Not significant")


REHEARSED = Controls(power=Control(what="rehearsal", passed=True, figures=(figure("auc", 0.71, 0.6, 0.8),)))
TOLD = figure("pair_accuracy_rehearsed", 0.65)


@pytest.mark.parametrize(
    ("figures", "power", "said"),
    [
        ((TOLD,), None, "it told 65%"),
        ((TOLD,), REHEARSED.power, "it reached AUC 0.710"),
        ((), None, "not tried on a rehearsal"),
    ],
)
@pytest.mark.parametrize("level", ["none-seen", "possible"])
def test_beside_no_leak_stands_what_the_attack_reached_on_known_coins(
    level: str, figures: tuple[Figure, ...], power: Control | None, said: str
) -> None:
    key = figure("auc", 0.5, 0.4, 0.6) if level == "none-seen" else figure("auc", 0.6, 0.5, 0.7, p=0.03)
    controls = PASSED.model_copy(update={"power": power})
    asked = cell("server", "none-seen").model_copy(update={"figures": (key, *figures), "controls": controls})
    made = result([asked, asked.model_copy(update={"id": "server/b"})])
    for found in judge_all(made):
        assert found.level == level
        assert said in " ".join(found.cautions)
    if level == "none-seen":
        assert said in found.rehearsed


@pytest.mark.parametrize("first", ["none-seen", "inconclusive", "failed", "not-applicable"])
def test_a_provisional_result_claims_nothing_where_attacks_are_to_come(first: str) -> None:
    cells = [cell("server", first), cell("server", "not-tested", attack="dear"), cell("world", "none-seen")]
    made = result(cells, {"server": ("world",)})
    early = made.model_copy(update={"unfinished": Unfinished(done=2, of=3)})
    server, _ = standings(early, judge_all(early))
    assert (server.level, figures_in(server.inherited)) == ("not-tested", ["1"])
    assert summarise(early).level in ("inconclusive", "not-tested")
    leaks = early.model_copy(update={"cells": (cell("server", "leak"), *early.cells[1:])})
    assert levels(leaks)["server"] == "leak"


@pytest.mark.parametrize("own", ["not-applicable", "not-requested", "not-tested"])
def test_an_adversary_tested_only_on_a_part_of_its_view_is_open(own: str) -> None:
    made = result([cell("world", "none-seen"), cell("server", own)], {"server": ("world",)})
    (_, server) = standings(made, judge_all(made))
    assert (server.level, server.source) == ("inconclusive", "world")
    assert "what world sees" in server.inherited


def test_no_leak_is_claimed_where_a_budget_left_an_attack_out() -> None:
    made = result([cell("server", "none-seen"), cell("server", "not-tested", attack="dear")])
    (standing,) = standings(made, judge_all(made))
    assert standing.level == "not-tested"
    assert "left out dear" in standing.inherited
    assert summarise(made).level == "not-tested"
    leaks = result([cell("server", "leak"), cell("server", "not-tested", attack="dear")])
    assert levels(leaks) == {"server": "leak"}


def test_no_leak_is_claimed_where_private_messages_were_not_read() -> None:
    made = result([cell("server", "none-seen")])
    assert levels(made) == {"server": "none-seen"}
    row = received("server", "acme/bank", "client").model_copy(
        update={"unread": "no attack knows its tensors"}
    )
    for changes, level in (
        ({}, "not-tested"),
        ({"private": False}, "none-seen"),
        ({"direction": "sent"}, "none-seen"),
    ):
        seen = made.model_copy(update={"exposure": (row.model_copy(update=changes),)})
        assert levels(seen) == {"server": level}
        page = summarise(seen)
        assert page.level == level
        assert (row.unread in " ".join(page.front.untested)) == (level == "not-tested")
    (standing,) = standings(made.model_copy(update={"exposure": (row,)}), judge_all(made))
    assert "acme/bank" in standing.untested


@pytest.mark.parametrize(
    ("release", "level"), [(None, "leak"), ("api", "leak"), ("internal", "not-applicable")]
)
def test_what_is_released_reaches_everybody(release: str | None, level: str) -> None:
    made = result([cell("world", "leak"), cell("client/0", "not-applicable")])
    made = made.model_copy(update={"run": made.run.model_copy(update={"release": release})})
    assert levels(made) == {"world": "leak", "client/0": level}
    findings = summarise(made).front.findings
    assert [f.adversaries for f in findings] == [("world", "client/0") if level == "leak" else ("world",)]
    assert "client/0 could" not in findings[0].what.lower()


def received(
    party: str, kind: str, sender: str, *, private: bool = True, defenses: tuple[str, ...] = ()
) -> Exposure:
    return Exposure(
        party=party,
        kind=kind,
        direction="received",
        count=1,
        bytes=1,
        senders=(sender,),
        recorded="full",
        private=private,
        defenses=defenses,
    )


def receiving(made: Result, private: bool = True) -> Result:
    """The same result, in which client/0 receives the ensemble's labels."""
    row = received("client/0", "ensemble_labels", "server", private=private)
    return made.model_copy(update={"exposure": (row,)})


@pytest.mark.parametrize(
    ("private", "level", "note"),
    [(True, "not-tested", "private ensemble_labels"), (False, "not-applicable", "nothing private")],
)
def test_private_messages_that_no_attack_fits_are_not_cleared(private: bool, level: str, note: str) -> None:
    made = receiving(result([cell("server", "none-seen"), cell("client/0", "not-applicable")]), private)
    assert levels(made)["client/0"] == level
    rows = {row.adversary: row.entries for row in summarise(made).matrix}
    (entry,) = rows["client/0"]
    assert note in entry.note


def test_where_another_goal_was_tried_not_applicable_stays() -> None:
    other = cell("client/0", "not-applicable", "b").model_copy(update={"goal": "label-distribution"})
    made = receiving(result([cell("client/0", "none-seen"), other]))
    assert [s.level for s in standings(made, judge_all(made))] == ["none-seen", "not-applicable"]


# -- what no attack has read ------------------------------------------------------------------------------------


def reading(made: Cell, *needs: str, reads: tuple[str, ...] = ()) -> Cell:
    return made.model_copy(update={"needs": needs, "reads": reads})


def seen(made: Result, *kinds: str, party: str = "server") -> Result:
    rows = tuple(received(party, kind, "client") for kind in kinds)
    return made.model_copy(update={"exposure": rows})


def told(made: Result, adversary: str = "server") -> tuple[str, str]:
    """Return the adversary's level and what its standing says of the part that was not tested."""
    (found,) = (s for s in standings(made, judge_all(made)) if s.adversary == adversary)
    return found.level, found.untested


def test_a_view_with_a_kind_that_no_attack_reads_is_not_tested_and_names_it() -> None:
    quiet = reading(cell("server", "none-seen"), "logits")
    assert told(seen(result([quiet]), "logits")) == ("none-seen", "")
    made = seen(result([quiet]), "logits", "logit_cotangents")
    level, said = told(made)
    assert (level, "logit_cotangents: no attack" in said) == ("not-tested", True)
    page = summarise(made)
    assert page.level == "not-tested"
    assert page.matrix[0].entries[0].words == "Tested in part"
    assert page.matrix[0].entries[0].note.startswith("1 attack")
    assert page.headline.startswith("Tested in part")
    assert figures_in(page.headline) == ["1"]
    assert "logit_cotangents: no attack" in " ".join(page.front.untested)
    both = seen(result([quiet]), "logits", "logit_cotangents", "acme/bank")
    assert "logit_cotangents and acme/bank:" in " ".join(front(both).untested)
    (part,) = document(made, {}).adversaries
    assert (part.level, part.inherited) == ("not-tested", said)


def test_what_was_read_besides_on_a_smaller_view_or_needs_no_reader_counts() -> None:
    quiet = reading(cell("server", "none-seen"), "logits", reads=("sample_count",))
    assert told(seen(result([quiet]), "logits", "sample_count"))[0] == "none-seen"
    cells = [
        reading(cell("server", "none-seen"), "logits"),
        reading(cell("server+client/0", "none-seen"), "ensemble_labels"),
    ]
    made = seen(result(cells), "logits", "ensemble_labels", party="server+client/0")
    assert told(made, "server+client/0") == ("none-seen", "")
    made = result([reading(cell("server", "none-seen"), "logits")])
    rows = (
        received("server", "logits", "client"),
        received("server", "ensemble_labels", "server").model_copy(update={"derived": True}),
    )
    assert told(made.model_copy(update={"exposure": rows})) == ("none-seen", "")
    loud = reading(cell("server", "leak"), "logits")
    assert told(seen(result([loud]), "logits", "logit_cotangents"))[0] == "leak"


@pytest.mark.parametrize("level", ["inconclusive", "failed", "not-applicable", "not-requested"])
def test_an_attack_without_an_answer_has_read_nothing(level: str) -> None:
    cells = [
        reading(cell("server", "none-seen"), "logits"),
        reading(cell("server", level, "b"), "soft_labels"),
    ]
    judged, untested = told(seen(result(cells), "logits", "soft_labels"))
    assert judged == "not-tested"
    assert re.findall(r"(\w+): no attack", untested) == ["soft_labels"]


def test_page_public_page_comparison_and_console_agree_on_what_was_not_tested() -> None:
    made = seen(result([reading(cell("server", "none-seen"), "logits")]), "logits", "logit_cotangents")
    assert summarise(public(made)).level == "not-tested"
    (row,) = compare([ComparedRun(name="one", result=made)]).rows
    assert [o.finding.level for o in row.outcomes if o.finding] == ["not-tested"]
    assert [o.words for o in row.outcomes] == ["Tested in part"]
    lines = list(verdicts(made))
    assert lines[-1].startswith("server, membership: not")
    assert "logit_cotangents: no attack" in lines[-1]
