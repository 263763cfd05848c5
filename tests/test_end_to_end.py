"""From a spec to a page in a browser: a small run of everything, as a newcomer gets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdaudit
from fdaudit.cli import main

from .browser import Browser, chromium
from .report_cases import SECTIONS

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
        {"name": "dlg", "params": {"restarts": 1, "evaluations": 150}},
        {"name": "inverting-gradients", "params": {"iterations": 250}},
        {"name": "loss-threshold"},
    ],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    run = fdaudit.run(SPEC, tmp_path_factory.mktemp("run") / "out")
    fdaudit.report(run)
    return run


@pytest.fixture(scope="module")
def page(finished: fdaudit.Run) -> Path:
    return finished.directory / "report" / "index.html"


def test_every_cell_has_an_outcome_and_every_other_one_a_reason(finished: fdaudit.Run) -> None:
    cells = {c["id"]: c for c in finished.result["cells"]}
    attacks = {"analytic", "dlg", "inverting-gradients", "loss-threshold"}
    assert set(cells) == {f"{a}/{b}" for a in ("server", "world") for b in attacks}
    assert {c["status"] for c in cells.values()} <= {"run", "not-applicable"}
    assert all(c["reason"] for c in cells.values() if c["status"] != "run")
    ran = {i for i, c in cells.items() if c["status"] == "run"}
    assert {"server/inverting-gradients", "server/loss-threshold", "world/loss-threshold"} <= ran
    assert all(c["controls"]["positive"]["passed"] for c in cells.values() if c["status"] == "run")


def test_private_images_come_back_out_of_the_gradients(finished: fdaudit.Run) -> None:
    (cell,) = [c for c in finished.result["cells"] if c["id"] == "server/inverting-gradients"]
    gain = {f["name"]: f for f in cell["figures"]}["psnr_gain"]
    assert gain["low"] > 3
    for target in cell["targets"]:
        for image in target["images"]:
            for kind in ("truth", "guess", "prior"):
                assert (finished.directory / image[kind]).read_bytes().startswith(b"\x89PNG")


def test_the_record_is_intact_and_the_views_are_what_was_sent(finished: fdaudit.Run) -> None:
    assert finished.verify() == []
    assert len(finished.view("server").select(kind="gradient")) == 9
    assert {m.kind for m in finished.view("world").messages} == {"model_parameters"}
    assert set(finished.utility["line"]) == {"fedavg", "standalone", "centralized"}


def test_one_attack_can_be_run_again_with_other_settings(finished: fdaudit.Run) -> None:
    cell = fdaudit.attack("loss-threshold", finished, adversary="server", floor=1e-6)
    assert cell.params["floor"] == 1e-6
    stored = {c["id"]: c for c in finished.result["cells"]}
    assert stored["server/loss-threshold"]["params"]["floor"] == 1e-6
    assert stored["world/loss-threshold"]["params"]["floor"] == 1e-12


def test_the_command_line_tells_the_same(finished: fdaudit.Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fdaudit", "verify", str(finished.directory), "--json"])
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["intact"] is True


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.browser
def test_the_page_opens_without_a_console_error_or_a_request(browser: Browser, page: Path) -> None:
    opened = browser.open(page)
    assert opened.errors == ()
    assert opened.requests == (opened.url,)


@pytest.mark.browser
def test_every_section_is_there_and_says_something(browser: Browser, page: Path) -> None:
    browser.open(page)
    for section in SECTIONS:
        text = browser.run("return document.getElementById(arguments[0]).innerText", section)
        assert len(text) > 200, section


@pytest.mark.browser
def test_images_are_shown_true_beside_reconstructed(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = browser.run("return [...document.images].map(i => [i.naturalWidth, i.alt, i.src.slice(0, 15)])")
    assert len(shown) >= 3 * 2
    assert all(width == 8 and alt and source == "data:image/png;" for width, alt, source in shown)
