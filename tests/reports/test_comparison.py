"""Runs side by side: every figure is one of the results', and nothing untried passes for safe."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports import render_comparison, render_report, write_comparison
from fdaudit.reports.comparison.compare_page import to_json
from fdaudit.reports.comparison.comparison import ComparedRun, compare
from fdaudit.reports.goals import RULES

import fdaudit
from fdaudit.errors import UsageError
from fdaudit.result import read

from ..helpers.command import Cli
from ..helpers.report_cases import FIXTURES, TIMINGS, Document, figures_in, load, minimal, numbers
from ..helpers.run_cases import finished
from .test_report import HOSTILE, poison

ACCURACY = {"name": "accuracy", "unit": "fraction", "low": 0.5, "high": 0.9, "confidence": 0.95, "n": 100}


def final(line: str, **values: float) -> list[dict[str, Any]]:
    """Final accuracies; `client_1` stands for client/1."""
    return [
        {"line": line, "party": p.replace("_", "/"), "figure": {**ACCURACY, "value": v}}
        for p, v in values.items()
    ]


def row(party: str, kind: str, direction: str, count: int, size: int, **rest: Any) -> dict[str, Any]:
    base = {"party": party, "kind": kind, "direction": direction, "count": count, "bytes": size}
    return {**base, "senders": ["client"], "recorded": "full", "private": True, **rest}


def distilled() -> dict[str, Any]:
    """A result with an aggregator, models of the clients' own, none released, and a silent client."""
    raw = minimal()
    raw["run"] |= {
        "protocol": "distil",
        "roles": ["server", "aggregator", "client"],
        "client_models": ["mlp", "cnn-strided"],
        "rounds": 9,
        "silences": [{"party": "client/1", "rounds": [2, 3, 4, 7]}],
    }
    raw["utility"]["final"] = final("distil", client_0=0.8, client_1=0.6) + final("standalone", client_0=0.5)
    raw["exposure"] = [
        row("aggregator", "logits", "received", 4, 400, defenses=["a", "b"]),
        row("aggregator", "class_counts", "received", 2, 20),
        row("server", "ensemble_labels", "received", 1, 100, senders=["aggregator"], defenses=["laplace"]),
        row("server", "proxy_indices", "sent", 2, 16, senders=["server"], private=False),
        row("client/0", "proxy_indices", "received", 1, 8, senders=["server"], private=False),
        row("client/0", "ensemble_labels", "received", 1, 50, senders=["server"]),
        row("client/1", "ensemble_labels", "received", 2, 70, senders=["server"]),
    ]
    raw["wire"] = [
        {"kind": "logits", "sender_role": "client", "messages": 4, "bytes": 400},
        {"kind": "class_counts", "sender_role": "client", "messages": 2, "bytes": 20},
        {"kind": "ensemble_labels", "sender_role": "aggregator", "messages": 1, "bytes": 100},
    ]
    raw["oracles"] = [{"name": "crafted-proxy", "available_to": ["server"], "answers": "soft"}]
    cell = {"protocol": "distil", "status": "not-applicable", "reason": "no gradient in view"}
    raw["cells"] = [
        {**cell, "id": f"{who}/{attack}", "adversary": who, "attack": attack, "goal": goal}
        for who in ("server", "aggregator")
        for attack, goal in (("dlg", "reconstruction"), ("loss-threshold", "membership"))
    ]
    return raw


def entries(*raws: dict[str, Any], report: str | None = "a/report/index.html") -> list[ComparedRun]:
    return [
        ComparedRun(name=f"run-{k}", result=read(raw), report=report, seconds=1.5)
        for k, raw in enumerate(raws)
    ]


# -- the figures --------------------------------------------------------------------------------------------------


def test_accuracy_is_the_server_s_the_mean_client_s_and_the_worst_client_s() -> None:
    raw = distilled()
    raw["utility"]["final"] += final("distil", server=0.7)
    (made,) = compare(entries(raw)).rows
    line = made.utility
    assert line.server is not None
    assert line.worst is not None
    figures = (line.server.value, line.mean, line.worst.value, line.worst_party, line.clients)
    assert figures == (0.7, pytest.approx(0.7), 0.6, "client/1", 2)
    assert line.best == 0.7
    without = compare(entries(distilled())).rows[0].utility
    assert without.server is None
    assert without.best == without.mean


def test_a_line_has_the_figures_of_its_models_and_traffic() -> None:
    (made,) = compare(entries(minimal())).rows
    assert (made.utility.server, made.utility.mean, made.utility.worst, made.utility.best) == (None,) * 4
    assert "no model" in Document(render_comparison(entries(minimal()))).sections["utility"]
    (made,) = compare(entries(distilled())).rows
    assert dict(made.bytes) == {"client": 420, "aggregator": 100}
    assert made.total == 520


def test_reference_lines_are_named_after_the_run_that_trained_them() -> None:
    made = compare(entries(load(), distilled()))
    assert [(run, line.line) for run, line in made.references] == [
        *(("run-0", name) for name in dict.fromkeys(f["line"] for f in load()["utility"]["final"]) if name != "fedavg"),
        ("run-1", "standalone"),
    ]  # fmt: skip
    assert made.references[-1][1].mean == 0.5


def test_what_each_position_saw() -> None:
    (made,) = compare(entries(distilled())).rows
    seen = {s.position: s for s in made.seen}
    assert seen.keys() == {"server", "aggregator", "a client", "eavesdropper", "world"}
    assert [(k.kind, k.count, k.bytes, k.defenses) for k in seen["aggregator"].kinds] == [
        ("logits", 4, 400, ("a", "b")),
        ("class_counts", 2, 20, ()),
    ]
    assert [k.kind for k in seen["server"].kinds] == ["ensemble_labels"], (
        "what it sent itself is nothing it saw"
    )
    assert seen["server"].asks == ("crafted-proxy",)
    assert seen["a client"].party == "client/1", "the client that saw most"
    assert seen["world"].kinds == ()
    assert seen["world"].known
    assert not seen["eavesdropper"].known, "nobody asked what one would have heard"


def test_a_kind_counts_as_defended_only_where_every_private_message_of_it_is() -> None:
    raw = distilled()
    raw["exposure"] = [
        row("server", "logits", "received", 1, 1, defenses=["noise"]),
        row("server", "logits", "received", 1, 1, senders=["aggregator"]),
        row("server", "soft_labels", "received", 1, 1, defenses=["noise"]),
        row("server", "soft_labels", "received", 1, 1, senders=["aggregator"], private=False),
    ]
    kinds = {k.kind: k for s in compare(entries(raw)).rows[0].seen if s.party == "server" for k in s.kinds}
    assert kinds["logits"].defenses == ()
    assert kinds["soft_labels"].defenses == ("noise",)
    assert all(k.private and k.count == 2 for k in kinds.values())


def test_outcomes_are_the_gravest_findings_and_untried_goals_are_said_to_be() -> None:
    first, second = compare(entries(load(), distilled())).rows
    found = {o.goal: o for o in first.outcomes}
    assert found["reconstruction"].finding is not None
    assert found["reconstruction"].finding.level == "leak"
    assert (found["reconstruction"].tried, found["reconstruction"].cells) == (2, 4)
    assert (found["membership"].tried, found["membership"].conclusive) == (4, 2)
    assert [(o.tried, o.conclusive, o.cells) for o in second.outcomes] == [(0, 0, 2), (0, 0, 2)]
    lines = compare(entries(load(), distilled())).headlines
    assert f"{RULES['reconstruction'].leaked} in run-0;" in lines[0]
    assert all(re.search("no attack.*run-1", line) for line in lines)
    assert "No leak measured" not in Document(render_comparison(entries(distilled(), distilled()))).text


def test_a_partial_leak_is_never_named_among_the_leaks() -> None:
    less = load()
    less["cells"] = [c for c in less["cells"] if c["id"] != "server/dlg"]
    (level,) = [
        o.finding.level for o in compare(entries(less)).rows[0].outcomes if o.goal == "reconstruction"
    ]
    assert level == "partial"
    first, second = compare(entries(load(), less)).headlines[0].split(",")
    assert ("run-0" in first, "in part" in first) == (True, False)
    assert ("run-1" in second, "in part" in second) == (True, True)
    assert "in part in" in compare(entries(less)).headlines[0]


def test_runs_that_differ_are_said_to() -> None:
    assert compare(entries(load(), load())).differences == ()
    other = load()
    other["run"]["seed_commitment"] = "0" * 64
    other["run"]["spec"] = {**other["run"]["spec"], "partition": {"name": "iid"}, "protocol": {"name": "x"}}
    other["run"]["device"] = "cuda"
    found = compare(entries(load(), other)).differences
    assert found[0].startswith("`partition` ")
    assert [line.split()[1] for line in found[1:]] == ["seed,", "device"]
    assert "differ in more" in Document(render_comparison(entries(load(), other))).text
    same = Document(render_comparison(entries(load(), load()))).text
    assert "differ in more" not in same
    assert "same seed" in same


# -- the page -----------------------------------------------------------------------------------------------------


def test_every_number_on_the_page_is_in_the_json() -> None:
    made = entries(load(), distilled())
    known = set(numbers(json.loads(json.dumps(to_json(made))))) | {
        float(load()["run"][name]) for name in ("clients", "parameters")
    }
    marked = Document(render_comparison(made)).marked
    assert len(marked) > 60
    assert {value for value, _ in marked} <= known


def test_the_page_says_who_was_silent_and_who_has_no_model() -> None:
    page = Document(render_comparison(entries(load(), distilled())))
    silent = page.sections["words"].partition("client/1 went silent")[2]
    assert figures_in(silent)[:5] == ["4", "9", "2", "4", "7"]  # in 4 of 9: rounds 2 to 4 and 7
    assert "no such party" in page.sections["seen"]
    assert "not on record" in page.sections["seen"]
    assert "may ask crafted-proxy" in page.sections["seen"]


def test_the_page_is_closed_and_links_to_the_reports() -> None:
    page = Document(render_comparison(entries(load(), distilled())))
    assert not {tag for tag, _ in page.elements} & {"iframe", "object", "embed", "base", "form"}
    assert [attributes for tag, attributes in page.elements if tag == "script"] == [{}]
    policy = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    (report,) = [
        a["content"]
        for t, a in Document(render_report(read(load()), FIXTURES, TIMINGS)).elements
        if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == [report]
    links = {a["href"] for t, a in page.elements if t == "a"}
    assert {link for link in links if not str(link).startswith("#")} == {
        "a/report/index.html",
        "comparison.csv",
    }
    ids = [str(a["id"]) for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {str(link)[1:] for link in links if str(link).startswith("#")} <= set(ids)
    assert not re.search(r"url\((?!#)|@import", render_comparison(entries(load())))
    bare = Document(render_comparison(entries(load(), distilled(), report=None)))
    outside = [a["href"] for t, a in bare.elements if t == "a" and not str(a["href"]).startswith("#")]
    assert outside == ["comparison.csv"]
    assert "no report written" in bare.text


@pytest.mark.parametrize("payload", HOSTILE)
def test_hostile_text_is_text(payload: str) -> None:
    raw = poison(distilled(), lambda text: f"{text}{payload}" if text else text, "")
    made = [ComparedRun(name=payload, result=read({**raw, "schema": "fdaudit-result/1"}), report=None)]
    plain = {tag for tag, _ in Document(render_comparison(entries(load(), distilled()))).elements}
    page = Document(render_comparison(made))
    assert {tag for tag, _ in page.elements} <= plain
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_the_same_results_give_the_same_bytes_without_torch(tmp_path: Path) -> None:
    page = write_comparison(entries(load(), distilled()), tmp_path / "a")
    write_comparison(entries(load(), distilled()), tmp_path / "b")
    for name in ("index.html", "comparison.json", "comparison.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert page == tmp_path / "a" / "index.html"
    value = json.loads((tmp_path / "a" / "comparison.json").read_bytes())
    assert value["schema"] == "fdaudit-comparison/1"
    page = "fdaudit.reports.comparison.compare_page"
    code = f"import sys, {page}; assert not {{'torch', 'pandas', 'matplotlib'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- the command --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[fdaudit.Run, fdaudit.Run]:
    """Two runs on the same records, in directories whose names a link must quote; the first with its report."""
    home = tmp_path_factory.mktemp("pair")
    first = fdaudit.load(finished(home / "a: #1", outages=[{"client": 1, "round": 1}]))
    fdaudit.report(first)
    spec = {
        **first.case.spec.model_dump(mode="json"),
        "seed": None,
        "outages": [],
        "references": ["standalone"],
    }
    return first, fdaudit.run(spec, home / "b", seed_from=first.directory)


def test_runs_are_compared_as_they_lie_on_disk(pair: tuple[fdaudit.Run, ...], tmp_path: Path) -> None:
    page = fdaudit.compare(pair, tmp_path / "out")
    value = json.loads(page.with_name("comparison.json").read_bytes())
    assert value["differences"] == []
    assert [run["name"] for run in value["runs"]] == ["a: #1", "b"]
    for run, made in zip(value["runs"], pair, strict=True):
        assert run["head"] == json.loads((made.directory / "manifest.json").read_bytes())["head"]
        assert run["bytes"]["total"] == sum(w["bytes"] for w in made.result.plain()["wire"])
        assert (
            run["accuracy"]["server"]["value"] == made.utility.iloc[-1 if made is pair[0] else 1]["accuracy"]
        )
    assert value["runs"][0]["silences"] == [{"party": "client/1", "rounds": [1]}]
    assert value["runs"][1]["report"] is None
    link = value["runs"][0]["report"]
    assert link.endswith("/a%3A%20%231/report/index.html")
    assert ":" not in link


def test_compare_refuses(pair: tuple[fdaudit.Run, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for runs, out in (((), "x"), (pair[:1], "x"), ((*pair, pair[0]), "x"), (pair, "file"), (pair, "file/x")):
        with pytest.raises(UsageError):
            fdaudit.compare(runs, tmp_path / out)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_result_off_its_schema_names_the_run(pair: tuple[fdaudit.Run, ...], tmp_path: Path) -> None:
    broken = pair[1].result.plain()
    del broken["run"]["head"]
    directory = Path(shutil.copytree(pair[1].directory, tmp_path / "broken"))
    (directory / "result.json").write_text(json.dumps(broken))
    with pytest.raises(UsageError, match=r"broken: result\.run\.head"):
        fdaudit.compare([pair[0], fdaudit.Run(directory)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(pair: tuple[fdaudit.Run, ...], tmp_path: Path, cli: Cli) -> None:
    places = [str(r.directory) for r in pair]
    out = tmp_path / "out"
    assert cli("compare", *places, "--out", out) == (0, f"{out}/index.html\n", "")
    code, said, _ = cli("compare", *places, "--out", out, "--json")
    assert (code, json.loads(said)) == (0, {"page": f"{out}/index.html"})
    code, said, err = cli("compare", places[0], "nothing", "--out", out)
    assert (code, said, len(err.splitlines())) == (2, "", 1)


def test_a_silent_client_stands_in_the_summary_of_its_report(pair: tuple[fdaudit.Run, ...]) -> None:
    page = (pair[0].directory / "report" / "index.html").read_text(encoding="utf-8")
    summary = Document(page).sections["summary"]
    assert "Not every client" in summary
    silent = summary.partition("Silent: client/1")[2]
    assert figures_in(silent)[:3] == ["1", "2", "1"]  # in 1 of 2: round 1
    quiet = fdaudit.report(pair[1], pair[1].directory.parent / "quiet.html").read_text(encoding="utf-8")
    assert "Not every client" not in quiet
