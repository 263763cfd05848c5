"""The power control: coins that are tossed anew, and what an attack reaches in the rehearsal beside the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fdaudit.reports.judgement.verdict import judge

import fdaudit
from fdaudit.evaluation.controls.rehearsed import tossed_anew
from fdaudit.result import Control, Controls
from fdaudit.rng import SecretStream

from ..helpers.results import cells_of, figures_of
from ..reports.test_verdict import cell, figure

pytestmark = pytest.mark.thorough

SPEC = {
    "fdaudit": 1,
    "clients": 3,
    "victims": 2,
    "dataset": {"name": "digits", "limit": 300},
    "splits": {"test": 0.2, "proxy": 0.3, "auxiliary": 0.2},
    "model": {"name": "mlp", "params": {"widths": [16]}},
    "protocol": {
        "name": "fedavg",
        "params": {"rounds": 15, "upload": "gradient", "batch_size": 8, "lr": 0.2},
    },
    "references": [],
    "evaluate_every": 15,
    "adversaries": ["server", "world"],
    "seed": 3,
}
ATTACKS = [{"name": "update-projection"}, {"name": "loss-threshold"}]


def test_each_pair_keeps_one_record_and_its_place() -> None:
    train = torch.tensor([4, 7, 9, 12, 30])
    members, others = torch.tensor([7, 12]), torch.tensor([100, 101])
    seen = set()
    for k in range(40):
        made = tossed_anew(train, members, others, SecretStream(bytes([k]) * 32, "power")).tolist()
        assert [made[0], made[2], made[4]] == [4, 9, 30]
        assert made[1] in (7, 100)
        assert made[3] in (12, 101)
        seen.add(tuple(made))
    assert len(seen) == 4


def test_a_client_without_pairs_keeps_its_records() -> None:
    train, nothing = torch.arange(5), torch.zeros(0, dtype=torch.int64)
    assert torch.equal(tossed_anew(train, nothing, nothing, SecretStream(bytes(32), "power")), train)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    return fdaudit.run({**SPEC, "power": True, "attacks": ATTACKS}, tmp_path_factory.mktemp("power") / "run")


@pytest.mark.thorough
def test_what_is_expected_stands_beside_what_was_found(run: fdaudit.Run) -> None:
    cells = {c["id"]: c for c in run.result.plain()["cells"] if c["status"] in ("run", "inconclusive")}
    strong = cells["server/update-projection"]
    (expected,) = strong["controls"]["power"]["figures"]
    found = figures_of(strong)["auc"]
    assert strong["controls"]["power"]["passed"]
    assert expected["value"] > 0.9
    assert abs(expected["value"] - found["value"]) < 0.1
    (asked,) = cells["server/loss-threshold"]["controls"]["power"][
        "figures"
    ]  # through the released model's oracle
    assert asked["value"] is not None


def test_adversaries_that_guess_the_same_have_the_same_figures_and_power(run: fdaudit.Run) -> None:
    cells = cells_of(run)
    server, world = (cells[f"{name}/loss-threshold"] for name in ("server", "world"))
    for one, another in ((server, world), (server["controls"]["power"], world["controls"]["power"])):
        assert one["figures"][0]["low"] is not None
        assert one["figures"] == another["figures"]
    assert server["targets"] == world["targets"]


def test_the_rehearsal_has_coins_of_its_own(run: fdaudit.Run) -> None:
    from fdaudit.evaluation.stage import Stage

    rehearsed = Stage(run.opened)._rehearsed
    truth = run.opened.truth
    for client in ("client/0", "client/1"):
        challenge, member = truth.challenge(client)
        again = rehearsed.members(client)
        assert not torch.equal(member, again)
        for pair in challenge.pair.unique():
            assert int(again[challenge.pair == pair].sum()) == 1
    assert (run.directory / "vault" / "rehearsal").stat().st_mode & 0o777 == 0o700


def test_the_report_prints_it(run: fdaudit.Run) -> None:
    page = Path(fdaudit.report(run)).read_text("utf-8")
    assert "Power control passed" in page
    assert "coins tossed anew" in page


def test_quick_audits_do_without() -> None:
    from fdaudit.spec.schema import load_spec

    assert not load_spec({"fdaudit": 1, "profile": "quick"}).rehearses
    assert load_spec({"fdaudit": 1, "profile": "standard"}).rehearses
    assert load_spec({"fdaudit": 1, "profile": "quick", "power": True}).rehearses


def test_an_attack_without_power_shows_nothing() -> None:
    quiet = cell("membership", figure("auc", 0.5, 0.4, 0.6))
    assert judge(quiet).level == "none-seen"
    assert quiet.controls is not None
    blind = Control(what="a rehearsal", passed=False)
    controls = Controls(positive=quiet.controls.positive, negative=quiet.controls.negative, power=blind)
    finding = judge(quiet.model_copy(update={"controls": controls}))
    assert finding.level == "inconclusive"
    assert "no power" in finding.because
