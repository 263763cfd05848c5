"""The ledger of whole runs: by Python, by the command line, in the result and on the page."""

from __future__ import annotations

import json
import math
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fdaudit
from fdaudit.cli.app import app
from fdaudit.errors import SpecError

from ..helpers.run_cases import three_clients

NOISE = {"sigma": 40.0, "clip": 1.0}


def spec(**changes: Any) -> dict[str, Any]:
    params = {"rounds": 2, "local_steps": 1, "batch_size": 8, "weighting": "uniform"}
    own = {"protocol": {"name": "fedavg", "params": params}, "adversaries": ["server", "client/0", "world"]}
    return three_clients(**own | changes)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    defence = {"kind": "model_update", "sender": "client", "name": "gaussian-noise", "params": NOISE}
    return fdaudit.run(spec(defenses=[defence]), tmp_path_factory.mktemp("noisy") / "run")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    return fdaudit.run(spec(), tmp_path_factory.mktemp("bare") / "run")


def test_client_level_noise_on_every_update_is_all_that_any_view_costs(noisy: fdaudit.Run) -> None:
    """Two rounds of sensitivity 2 at σ = 40: zCDP of ρ = 2 · (2 / 40)² / 2, whose ε at 1e-5 lies below 0.32."""
    found = noisy.ledger("server")
    assert (found.unit, found.relation, found.delta) == ("record", "replace-one", 1e-5)
    rho = 2 * (2 / 40) ** 2 / 2
    assert 0.1 < found.epsilon < rho + 2 * math.sqrt(rho * math.log(1e5))
    assert [(c.kind, c.sender, c.mechanism, c.charges) for c in found.contributions] == [
        ("model_update", "client", "Gaussian", 2)
    ]
    for view in ("world", "client/0", "eavesdropper", "server+client/1"):
        assert noisy.ledger(view).epsilon == pytest.approx(found.epsilon)
    assert noisy.ledger("server", unit="client").epsilon == pytest.approx(found.epsilon)


def test_without_noise_the_first_update_is_the_cause(bare: fdaudit.Run) -> None:
    found = bare.ledger("world")
    assert (found.epsilon, found.kind) == (math.inf, "model_update")
    assert found.message is not None
    assert f"(message {found.message})" in found.cause
    assert bare.ledger("server+client/0+client/1+client/2").epsilon == 0.0


def test_the_result_and_the_command_say_the_same(noisy: fdaudit.Run, bare: fdaudit.Run) -> None:
    for run in (noisy, bare):
        done = CliRunner().invoke(app, ["ledger", str(run.directory), "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == run.result.plain()["ledger"]
        assert [entry["adversary"] for entry in run.result.plain()["ledger"]] == [
            "server",
            "world",
            "client/0",
        ]


def test_the_command_prints_a_table_and_warns_of_a_generous_delta(
    noisy: fdaudit.Run, bare: fdaudit.Run
) -> None:
    done = CliRunner().invoke(
        app, ["ledger", str(noisy.directory), "--adversary", "server", "--delta", "0.1"]
    )
    assert "2 times Gaussian" in done.stdout
    assert "delta = 0.1" in done.stderr
    done = CliRunner().invoke(app, ["ledger", str(bare.directory), "--adversary", "world"])
    assert "∞" in done.stdout
    assert "model_update of client/0" in done.stdout
    assert not done.stderr


def test_the_page_shows_the_ledger_and_its_cause(noisy: fdaudit.Run, bare: fdaudit.Run) -> None:
    page = fdaudit.report(bare).read_text(encoding="utf-8")
    assert bare.ledger("world").cause in unescape(page)
    assert "∞" in page
    page = fdaudit.report(noisy).read_text(encoding="utf-8")
    assert "2</data> times Gaussian" in page.replace("\n", " ")
    assert all(line in unescape(page) for line in noisy.ledger("server").assumptions)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--unit", "person"), ("--relation", "swap"), ("--delta", "2"), ("--adversary", "servr")],
)
def test_a_mistake_is_one_line(noisy: fdaudit.Run, option: str, value: str) -> None:
    with pytest.raises(
        SpecError if option in ("--delta", "--adversary") else fdaudit.errors.UsageError
    ) as caught:
        CliRunner().invoke(app, ["ledger", str(noisy.directory), option, value], catch_exceptions=False)
    assert value in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_what_an_oracle_answered_is_part_of_the_view_of_who_asked(tmp_path: Path) -> None:
    asked = spec(
        attacks=[{"name": "loss-threshold", "adversaries": ["world"]}],
        splits={"candidates": 8, "auxiliary": 0.2},
        victims=1,
        queries=64,
        defenses=[
            {"kind": "model_parameters", "sender": "server", "name": "gaussian-noise", "params": NOISE}
        ],
    )
    run = fdaudit.run(asked, tmp_path / "run")
    (cell,) = [
        c
        for c in run.result.plain()["cells"]
        if c["adversary"] == "world" and c["attack"] == "loss-threshold"
    ]
    assert cell["queries"]["spent"] > 0
    found = run.ledger("world")
    assert found.finite, "answers are computed from the model that was published with noise"
    assert found.contributions[0].kind == "model_parameters"
