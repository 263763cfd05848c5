"""The quickstart: five runs on the same records and a page that compares them, resumable, in nobody's way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fdaudit.protocols import REGISTRY

import fdaudit
from fdaudit import attacks
from fdaudit.errors import UsageError
from fdaudit.planning.simulated import simulated_case
from fdaudit.progress import Tick
from fdaudit.quickstart import suite
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec

from ..helpers.command import Cli
from ..helpers.report_cases import Document
from ..helpers.run_cases import known, tree

pytestmark = pytest.mark.usefixtures("forked_processes")

GROUND = (
    "clients",
    "dataset",
    "partition",
    "splits",
    "model",
    "public_dataset",
    "profile",
    "victims",
    "queries",
)


def two() -> dict[str, fdaudit.Spec]:
    """Two small runs in the place of the five, which take minutes."""
    alone = small_spec(name="one", references=["standalone"], adversaries=["server", "world"], seed=None)
    other = {**alone, "name": "other", "references": [], "attacks": [{"name": "loss-threshold"}]}
    return {"one": load_spec(alone), "other": load_spec(other)}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "specs", two)


# -- the specs ----------------------------------------------------------------------------------------------------


def test_the_quickstart_has_a_spec_for_each_of_its_protocols() -> None:
    assert list(suite.specs()) == list(suite.PROTOCOLS)
    assert set(suite.PROTOCOLS) <= set(REGISTRY.names())
    for name, spec in suite.specs().items():
        assert spec.protocol.name == name
        assert spec.seed is None
        assert spec.dataset.name == "digits", "nothing but what ships with scikit-learn"


def test_the_quickstart_s_runs_differ_in_their_protocol_only() -> None:
    first, *others = suite.specs().values()
    assert first.references == ("standalone", "centralized")
    for spec in others:
        assert spec.references == (), "reference lines are trained once"
        assert all(getattr(spec, field) == getattr(first, field) for field in GROUND)
        assert set(spec.adversaries) - {"aggregator"} == set(first.adversaries)
        assert not spec.defenses
        assert not spec.outages


@pytest.mark.parametrize("name", suite.PROTOCOLS)
def test_the_quickstart_s_specs_make_a_plan(name: str) -> None:
    case = simulated_case(suite.specs()[name], known(0))
    assert case.spec.profile == "quick"
    assert [a.name for a in case.attacks if a.params is not None] == attacks.REGISTRY.names()
    assert set(case.spec.adversaries) == {
        "server",
        "client/0",
        "server+client/0",
        "eavesdropper",
        "world",
    } | ({"aggregator"} & set(case.parties))


# -- the runs -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_all_runs_have_the_same_records_and_the_references_once(tmp_path: Path) -> None:
    steps: list[str] = []
    made, page = suite.quickstart(tmp_path / "audit", tick=lambda what, done, total: steps.append(what))
    assert [r.directory.name for r in made] == ["one", "other"]
    assert page == tmp_path / "audit" / "index.html"
    value = json.loads(page.with_name("comparison.json").read_bytes())
    assert value["differences"] == []
    assert len({r.result.plain()["run"]["seed_commitment"] for r in made}) == 1
    assert made[0].result.plain()["class_table"] == made[1].result.plain()["class_table"]
    assert [(line["run"], line["line"]) for line in value["references"]] == [("one", "standalone")]
    assert [run["report"] for run in value["runs"]] == ["one/report/index.html", "other/report/index.html"]
    links = {a["href"] for t, a in Document(page.read_text(encoding="utf-8")).elements if t == "a"}
    for run in value["runs"]:
        assert run["report"] in links
        assert (page.parent / run["report"]).is_file()
    assert all(r.verify() == [] for r in made)
    assert {"1/2 one: fedavg", "2/2 other: fedavg"} <= set(steps)


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_an_interrupted_quickstart_goes_on_and_leaves_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "audit", suite.federated

    def killed(spec: Any, place: Path, **options: Any) -> Any:
        if place.name == "other":
            raise KeyboardInterrupt
        return real(spec, place, **options)

    with monkeypatch.context() as patch:
        patch.setattr(suite, "federated", killed)
        with pytest.raises(KeyboardInterrupt):
            suite.quickstart(out)
    assert not (out / "index.html").exists()
    record = tree(out / "one" / "transcript")
    finished, page = suite.quickstart(out, resume=True)
    assert tree(out / "one" / "transcript") == record
    value = json.loads(page.with_name("comparison.json").read_bytes())
    again, _ = suite.quickstart(out, resume=True)
    assert [r.result for r in again] == [r.result for r in finished]
    assert [run["head"] for run in json.loads(page.with_name("comparison.json").read_bytes())["runs"]] == [
        run["head"] for run in value["runs"]
    ]


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_runs_one_by_one_or_beside_each_other_are_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside, _ = suite.quickstart(tmp_path / "beside")
    for name in ("one", "other"):
        (tmp_path / "by-one" / name / "vault").mkdir(parents=True)
        secrets = (tmp_path / "beside" / name / "vault" / "secrets.json").read_bytes()
        (tmp_path / "by-one" / name / "vault" / "secrets.json").write_bytes(secrets)
    waiting = suite._Beside
    monkeypatch.setattr(suite, "_Beside", lambda wait, reported: waiting(True, reported))
    by_one, _ = suite.quickstart(tmp_path / "by-one", resume=True)
    assert [r.result for r in by_one] == [r.result for r in beside]


@pytest.mark.usefixtures("small")
def test_what_goes_wrong_with_the_attacks_of_a_run_ends_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: Any, **options: Any) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(suite, "attacked", fails)
    with pytest.raises(OSError, match="no space left"):
        suite.quickstart(tmp_path / "audit")
    assert not (tmp_path / "audit" / "index.html").exists()


def test_an_interruption_ends_all_attacks_that_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs may be under attack while a third is federated."""
    three, under_way, ended = {**two(), "third": two()["other"]}, set[str](), set[str]()

    def attacked(place: Path, *, tick: Tick, provisional: Callable[[str], None], **options: Any) -> None:
        under_way.add(place.name)
        provisional("a report")
        try:
            while True:
                time.sleep(0.01)
                tick("attacks", 1, 2)
        except InterruptedError:
            ended.add(place.name)
            raise

    def federated(spec: Any, place: Path, **options: Any) -> Path:
        if place.name == "third":
            given_up = time.monotonic() + 30
            while len(under_way) < 2 and time.monotonic() < given_up:
                time.sleep(0.01)
            raise KeyboardInterrupt
        return place

    monkeypatch.setattr(suite, "specs", lambda: three)
    monkeypatch.setattr(suite, "federated", federated)
    monkeypatch.setattr(suite, "attacked", attacked)
    with pytest.raises(KeyboardInterrupt):
        suite.quickstart(tmp_path / "audit")
    assert under_way == ended == {"one", "other"}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_is_in_the_way_is_left_alone(what: str, resume: bool, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    if what == "file":
        out.write_text("mine")
    elif what == "folder":
        (out / "vault").mkdir(parents=True)
    else:
        out.symlink_to(tmp_path / "nowhere")
    before = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="out"):
        suite.quickstart(out, resume=resume)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == before


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_the_command_prints_each_run_s_outcome_and_then_a_line_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("quickstart")
    assert (code, err) == (0, "")
    *runs, table, page = out.strip().split("\n\n")
    for name, told in zip(("one", "other"), runs, strict=True):
        head, _, *matrix, report = told.splitlines()
        assert (head, report) == (f"== {name}", f"report  audit/{name}/report/index.html")
        assert [line.split()[0] for line in matrix[1:]] == ["server", "world"]
    assert "loss-threshold" not in out
    lines = table.splitlines()
    assert page == "page    audit/index.html"
    value = json.loads((tmp_path / "audit" / "comparison.json").read_bytes())
    goals = ["reconstruction", "text-reconstruction", "membership", "label-distribution", "model-extraction"]
    assert sorted(lines[0].split()) == sorted(["run", "server", "clients", "worst", "bytes", *goals])
    assert [line.split()[0] for line in lines[1:4]] == ["one", "other", "standalone"]
    for line, run in zip(lines[1:3], value["runs"], strict=True):
        assert f"{run['accuracy']['server']['value']:.1%}" in line
        assert f"{run['bytes']['total'] / 1e3:.1f} kB" in line
    levels = {o["goal"]: o["level"] for o in value["runs"][1]["outcomes"]}
    assert lines[2].split()[-3:] == [levels[goal] for goal in lines[0].split()[-3:]]
    assert cli("quickstart")[0] == 2
    code, out, _ = cli("quickstart", "--resume", "--json")
    said = json.loads(out)
    assert (code, said["page"], said["comparison"]) == (
        0,
        "audit/index.html",
        json.loads((tmp_path / "audit" / "comparison.json").read_bytes()),
    )
    assert [r["report"] for r in said["runs"]] == [
        "audit/one/report/index.html",
        "audit/other/report/index.html",
    ]
    assert cli("verify", "audit/one")[0] == 0, "other commands take a run of it"


@pytest.mark.usefixtures("small")
@pytest.mark.usefixtures("attacks_here")
def test_a_failed_cell_of_any_run_ends_with_1_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    from fdaudit.attacks.loss_threshold import LossThreshold

    def broken(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(LossThreshold, "run", broken)
    code, _, err = cli("quickstart", "--out", tmp_path / "audit")
    assert code == 1
    said = err.splitlines()[0]
    assert said.startswith("fdaudit: other: ")
    assert "server/loss-threshold failed: RuntimeError:" in said
    assert (tmp_path / "audit" / "index.html").is_file()
