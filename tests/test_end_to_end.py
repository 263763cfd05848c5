"""From a spec to a page in a browser: a small run of everything, as a newcomer gets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fdaudit
from fdaudit import attacks
from fdaudit.cli.app import main
from fdaudit.metrics import OWN_IMAGES
from fdaudit.quickstart import suite
from fdaudit.spec.schema import Spec

from .helpers.browser import Browser
from .helpers.report_cases import SECTIONS
from .helpers.results import cell_of, cells_of, figures_of
from .helpers.warm import forked_workers, programs_as_attackers

SPEC = {
    "name": "End to end",
    "seed": 5,
    "profile": "quick",
    "clients": 3,
    "threads": 2,
    "dataset": {"name": "digits"},
    "model": {"name": "cnn-strided", "params": {"channels": [16, 32], "kernel": 3}},
    "protocol": {"params": {"rounds": 3, "upload": "gradient", "batch_size": 2, "lr": 0.1}},
    "splits": {"candidates": 20},
    "adversaries": ["server", "world"],
    "victims": 2,
    "attacks": [
        {"name": "analytic"},
        {"name": "dlg", "params": {"restarts": 1, "evaluations": 40}},
        {"name": "inverting-gradients", "params": {"iterations": 80, "restarts": 2}},
        {"name": "loss-threshold"},
    ],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    with programs_as_attackers():
        run = fdaudit.run(SPEC, tmp_path_factory.mktemp("run") / "out")
    fdaudit.report(run)
    return run


@pytest.fixture(scope="module")
def page(finished: fdaudit.Run) -> Path:
    return finished.directory / "report" / "index.html"


def test_every_cell_has_an_outcome_and_every_other_one_a_reason(finished: fdaudit.Run) -> None:
    cells = cells_of(finished)
    assert set(cells) == {f"{a}/{b}" for a in ("server", "world") for b in attacks.REGISTRY.names()}
    asked = {entry["name"] for entry in SPEC["attacks"]}
    assert {c["attack"] for c in cells.values() if c["status"] == "not-requested"}.isdisjoint(asked)
    assert not [(i, c["reason"]) for i, c in cells.items() if c["status"] in ("failed", "inconclusive")]
    assert {c["status"] for c in cells.values() if c["attack"] in asked} <= {"run", "not-applicable"}
    assert all(c["reason"] for c in cells.values() if c["status"] != "run")
    ran = {i for i, c in cells.items() if c["status"] == "run"}
    assert {"server/inverting-gradients", "server/loss-threshold", "world/loss-threshold"} <= ran
    assert all(c["controls"]["positive"]["passed"] for c in cells.values() if c["status"] == "run")


def test_private_images_come_back_out_of_the_gradients(finished: fdaudit.Run) -> None:
    cell = cell_of(finished, "server/inverting-gradients")
    gain = figures_of(cell)["psnr_gain"]
    assert gain["low"] > 3, gain
    for target in cell["targets"]:
        prior = figures_of(target)["psnr_prior"]
        # The stricter baseline may be the guess itself beside other records: it has no picture of its own.
        kinds = ("truth", "guess") if OWN_IMAGES in prior["note"] else ("truth", "guess", "prior")
        for image in target["images"]:
            assert [kind for kind in ("truth", "guess", "prior") if image[kind]] == list(kinds)
            for kind in kinds:
                assert (finished.directory / image[kind]).read_bytes().startswith(b"\x89PNG")


def test_the_record_is_intact_and_the_views_are_what_was_sent(finished: fdaudit.Run) -> None:
    assert finished.verify() == []
    assert len(finished.view("server").select(kind="gradient")) == 9
    assert {m.kind for m in finished.view("world").messages} == {"model_parameters"}
    assert set(finished.utility["line"]) == {"fedavg", "standalone", "centralized"}


def test_one_attack_can_be_run_again_with_other_settings(finished: fdaudit.Run) -> None:
    cell = fdaudit.attack("loss-threshold", finished, adversary="server", floor=1e-6)
    assert cell.params["floor"] == 1e-6
    stored = cells_of(finished)
    assert stored["server/loss-threshold"]["params"]["floor"] == 1e-6
    assert stored["world/loss-threshold"]["params"]["floor"] == 1e-12


def test_the_command_line_tells_the_same(finished: fdaudit.Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fdaudit", "verify", str(finished.directory), "--json"])
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["intact"] is True


@pytest.mark.browser
def test_the_page_opens_and_every_section_says_something(browser: Browser, page: Path) -> None:
    opened = browser.open(page)
    assert opened.errors == ()
    assert opened.requests == (opened.url,)
    browser.open(page)
    browser.unfold()
    for section in SECTIONS:
        text = browser.run("return document.getElementById(arguments[0]).innerText", section)
        assert len(text) > 200, section


@pytest.mark.browser
def test_images_are_shown_true_beside_reconstructed(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = browser.run(
        "return [...document.querySelectorAll('main img')].map(i => [i.naturalWidth, i.alt, i.src.slice(0, 15)])"
    )
    assert len(shown) >= 3 * 2
    assert all(width == 8 and alt and source == "data:image/png;" for width, alt, source in shown)


# -- the five protocols side by side ------------------------------------------------------------------------------

SHORT: dict[str, dict[str, object]] = {
    "fedavg": {"rounds": 3},
    "fedkd": {"local_epochs": 2, "distill_rounds": 1, "distill_steps": 5},
    "selective-fd": {"rounds": 2, "warm_up_steps": 3, "public_batch": 40},
    "fediod": {"rounds": 2, "local_epochs": 2, "steps_per_round": 2, "samples": 8, "generator_width": 2},
    "dafkd": {"rounds": 2, "local_epochs": 1, "pseudo_samples": 16, "distill_steps": 2},
}


def _short(name: str, spec: Spec) -> Spec:
    """A spec of the quickstart with what takes time cut down."""
    value = spec.model_dump(mode="json")
    value["dataset"]["limit"], value["victims"] = 500, 1
    value["protocol"]["params"] |= SHORT[name]
    value["attacks"] = [{"name": "loss-threshold"}, {"name": "analytic"}]
    return fdaudit.load_spec(value)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    specs = {name: _short(name, spec) for name, spec in suite.specs().items()}
    with pytest.MonkeyPatch.context() as patch, forked_workers():
        patch.setattr(suite, "specs", lambda: specs)
        return suite.quickstart(tmp_path_factory.mktemp("five") / "audit")[1]


def test_the_comparison_holds_what_each_run_s_result_says(five: Path) -> None:
    value = json.loads(five.with_name("comparison.json").read_bytes())
    assert [run["protocol"] for run in value["runs"]] == list(suite.PROTOCOLS)
    assert value["differences"] == []
    for run in value["runs"]:
        made = fdaudit.load(five.parent / run["name"])
        assert made.verify() == []
        result = made.result.plain()
        assert run["bytes"]["total"] == sum(w["bytes"] for w in result["wire"])
        rows = made.utility
        last = rows[(rows["line"] == run["protocol"]) & (rows["round"] == result["run"]["rounds"] - 1)]
        by_party = dict(zip(last["party"], last["accuracy"], strict=True))
        assert (run["accuracy"]["server"] or {}).get("value") == by_party.pop("server", None)
        clients = [a for party, a in by_party.items() if party.startswith("client/")]
        if clients:
            assert run["accuracy"]["mean"] == pytest.approx(sum(clients) / len(clients))
            assert run["accuracy"]["worst"]["value"] == min(clients)
        seen = {s["position"]: s for s in run["seen"]}
        assert ("aggregator" in seen) == (run["protocol"] == "fedkd")
        for position in ("server", "eavesdropper"):
            view = made.view(position)
            counts: dict[str, int] = {}
            for message in view.messages:
                if message.sender != position:
                    counts[message.kind] = counts.get(message.kind, 0) + 1
            assert {k["kind"]: k["count"] for k in seen[position]["kinds"]} == counts


def test_no_protocol_but_fedavg_and_dafkd_sends_models_upwards(five: Path) -> None:
    value = json.loads(five.with_name("comparison.json").read_bytes())
    seen = {
        run["protocol"]: {k["kind"] for s in run["seen"] if s["position"] == "server" for k in s["kinds"]}
        for run in value["runs"]
    }
    models = {"gradient", "model_update", "model_parameters"}
    assert {name for name, kinds in seen.items() if kinds & models} == {"fedavg", "dafkd"}
    assert seen["fedkd"] == {"ensemble_labels"}


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_comparison_opens_on_a_phone_and_a_laptop(browser: Browser, five: Path, width: int) -> None:
    opened = browser.open(five, width)
    assert opened.errors == ()
    assert opened.requests == (opened.url,)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.scripts.length") == 1
    assert browser.run("return document.querySelectorAll('#attacks tbody tr').length") == 5
    assert browser.run("return document.querySelector('#utility svg').clientWidth") > 200
    links = browser.run("return [...document.querySelectorAll('#attacks tbody a')].map(a => a.href)")
    assert {Path(link.removeprefix("file://")) for link in links} == {
        five.parent / name / "report" / "index.html" for name in suite.PROTOCOLS
    }


@pytest.mark.browser
@pytest.mark.parametrize("name", suite.PROTOCOLS)
def test_every_report_opens_from_the_comparison(browser: Browser, five: Path, name: str) -> None:
    opened = browser.open(five.parent / name / "report" / "index.html", 390)
    assert opened.errors == ()
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.unfold()
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    for section in SECTIONS:
        text = browser.run("return document.getElementById(arguments[0]).innerText", section)
        assert len(text) > 150, section
