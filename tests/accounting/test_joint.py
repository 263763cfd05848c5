"""Joint ledgers: several runs with one recipient, against closed forms and laws."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fdaudit
from fdaudit.accounting.accounts import Accounts
from fdaudit.accounting.charges import Charge
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.joint import joined
from fdaudit.accounting.profile import profile
from fdaudit.attestation.statement import facts
from fdaudit.audit.joint_ledger import joint
from fdaudit.cli.app import app
from fdaudit.errors import RunError, UsageError

from ..helpers.ledger_cases import dp_sgd, gaussian, laplace
from ..helpers.run_cases import three_clients
from ..helpers.text_cases import write_texts

DELTA = 1e-5
Clients = dict[str, dict[Charge, int]]


def accounts(clients: Clients, **causes: str) -> Accounts:
    ways = {name: (charges,) for name, charges in clients.items()}
    return Accounts(view="server", unit="record", relation="replace-one", charges=ways, causes=causes)


def test_each_record_is_charged_for_the_clients_that_hold_it() -> None:
    first = accounts({"client/0": {gaussian(1.0): 1}, "client/1": {gaussian(4.0): 1}})
    second = accounts({"client/0": {gaussian(4.0): 1}, "client/1": {gaussian(1.0): 1}})
    found = joined([first, second], ("a", "b"), [("client/0", "client/0"), ("client/1", None)], DELTA)
    assert found.accounts.charges == {
        "client/0": (Counter({gaussian(1.0): 1, gaussian(4.0): 1}),),
        "client/1 of a": (Counter({gaussian(4.0): 1}),),
    }
    assert profile(found.accounts).gdp == pytest.approx(math.hypot(1, 1 / 4))


def test_where_records_cannot_be_matched_the_dearest_clients_add_up() -> None:
    first = accounts({"client/0": {gaussian(1.0): 1}, "client/1": {gaussian(1.0): 2}})
    second = accounts({"client/0": {gaussian(2.0): 3}, "client/1": {gaussian(2.0): 1}})
    found = joined([first, second], ("a", "b"), None, DELTA)
    assert profile(found.accounts).gdp == pytest.approx(math.sqrt(2 + 3 / 4))
    assert list(found.holders.values()) == [("client/1", "client/0")]


def test_a_bound_stands_for_too_many_combinations() -> None:
    many = accounts({f"client/{k}": {dp_sgd(scale=1 + k): 1} for k in range(20)})
    found = joined([many, many], ("a", "b"), None, DELTA)
    (charges,) = found.accounts.charges.values()
    assert all(charges[0][dp_sgd(scale=1 + k)] == 2 for k in range(20))


def test_a_member_s_records_are_no_victims_and_a_leak_leaves_nothing() -> None:
    first, second = (
        accounts({"client/0": {gaussian(): 1}}),
        accounts({"client/0": {gaussian(): 1}}, **{"client/1": "x"}),
    )
    held = [("client/0", "client/0"), ("client/1", "client/0")]
    assert list(joined([first, first], ("a", "b"), held, DELTA).accounts.charges) == ["client/0"]
    assert joined([first, second], ("a", "b"), [("client/0", "client/1")], DELTA).accounts.cause == "b: x"
    assert joined([first, second], ("a", "b"), None, DELTA).accounts.cause == "b: x"


@pytest.mark.thorough
def test_a_joint_epsilon_is_at_least_each_and_at_most_the_sum() -> None:
    kinds: list[dict[Charge, int]] = [{dp_sgd(rate=0.05, count=20): 1}, {laplace(2.0): 1}, {gaussian(3.0): 2}]
    for one in kinds:
        for other in kinds:
            found = joined(
                [accounts({"client/0": one}), accounts({"client/0": other})],
                ("a", "b"), [("client/0", "client/0")], DELTA,
            )  # fmt: skip
            (eps,) = profile(found.accounts, np.array([DELTA])).epsilons
            alone = [epsilon(c, DELTA).value for c in (one, other)]
            assert max(alone) <= eps * (1 + 1e-9)
            assert eps <= sum(alone) * (1 + 1e-6)


# -- whole runs -----------------------------------------------------------------------------------------------------


def spec(sigma: float, **changes: Any) -> dict[str, Any]:
    noise = {
        "kind": "model_update",
        "sender": "client",
        "name": "gaussian-noise",
        "params": {"sigma": sigma, "clip": 1.0},
    }
    params = {"rounds": 2, "local_steps": 1, "batch_size": 8, "weighting": "uniform"}
    own = {"protocol": {"name": "fedavg", "params": params}, "defenses": [noise]}
    return three_clients(**own | changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fdaudit.Run]:
    """Two runs with the same split, one with another split of the same data, and one with other data."""
    made = {
        "a": spec(40.0),
        "b": spec(20.0),
        "split": spec(20.0, partition={"name": "dirichlet", "alpha": 0.5}),
        "other": spec(20.0, dataset={"name": "digits", "limit": 200}),
    }
    home = tmp_path_factory.mktemp("runs")
    return {name: fdaudit.run(value, home / name) for name, value in made.items()}


def test_two_gaussian_runs_add_up_in_quadrature(runs: dict[str, fdaudit.Run]) -> None:
    pair = joint([runs["a"], runs["b"]])
    mu = math.hypot(math.sqrt(2) * 2 / 40, math.sqrt(2) * 2 / 20)
    for view in pair.views:
        found = pair.ledger(view)
        assert found.gdp == pytest.approx(mu)
        assert found.epsilon == pytest.approx(epsilon({gaussian(1 / mu): 1}, DELTA).value, rel=1e-6)
        assert [share.epsilon for share in found.runs] == pytest.approx(
            [runs[name].ledger(view).epsilon for name in ("a", "b")], rel=1e-5
        )
    assert pair.profile("server").gdp == pytest.approx(mu)


def test_what_is_left_if_a_party_departs_composes_over_runs(
    runs: dict[str, fdaudit.Run], tmp_path: Path
) -> None:
    """DP-SGD holds in each run and so in both; noise on a message of one of them leaves nothing of the joint claim."""
    training = {
        "name": "dp-sgd",
        "at": "training",
        "params": {"noise_multiplier": 4.0, "clip": 1.0, "sample_rate": 0.1},
    }
    private = [
        fdaudit.run(spec(20.0, seed=3, defenses=[training], name=name), tmp_path / name)
        for name in ("c", "d")
    ]
    found = joint(private).ledger("server")
    cases = {case.who: case for case in found.against}
    assert set(cases) == {"the server", "all other clients"}
    assert all(case.holds and case.epsilon == pytest.approx(found.epsilon) for case in cases.values())
    assert found.epsilon > private[0].ledger("server").epsilon
    stated = facts(private[0].directory)["ledger"]
    assert [(row["departs"], row["holds"]) for row in stated[0]["against"]] == [
        ("server", True),
        ("client", True),
    ]
    mixed = joint([private[0], runs["a"]]).ledger("server")
    left = {case.who: case for case in mixed.against}
    assert set(left) == {"the server", "one other client"}
    assert all(case.epsilon is None and case.why.startswith("a: model_update of") for case in left.values())


def test_a_record_that_another_run_hands_out_has_no_epsilon(runs: dict[str, fdaudit.Run]) -> None:
    found = joint([runs["a"], runs["other"]]).ledger("server")
    assert found.epsilon == math.inf
    assert "auxiliary data of other" in found.cause
    assert any("data differ" in line for line in found.assumptions)


def test_one_dataset_split_in_two_ways_is_matched_record_by_record(runs: dict[str, fdaudit.Run]) -> None:
    pair = joint([runs["a"], runs["split"]])
    found = pair.ledger("server")
    assert any("split one dataset" in line for line in found.assumptions)
    assert found.gdp == pytest.approx(math.hypot(math.sqrt(2) * 2 / 40, math.sqrt(2) * 2 / 20))
    with pytest.raises(UsageError, match="in different ways"):
        pair.ledger("server", unit="client")


def test_the_same_record_twice_and_shared_noise_are_refused(
    runs: dict[str, fdaudit.Run], tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="given twice"):
        joint([runs["a"], runs["a"]])
    shutil.copytree(runs["a"].directory, tmp_path / "copy")
    with pytest.raises(RunError, match=r"copy' .*same record"):
        joint([runs["a"], fdaudit.load(tmp_path / "copy")])
    with pytest.raises(RunError, match="stands alone"):
        joint([runs["a"]])


def test_runs_that_draw_from_one_stream_are_refused(
    runs: dict[str, fdaudit.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SimpleNamespace(salt="one salt")
    monkeypatch.setattr("fdaudit.audit.joint_ledger.read_messages", lambda transcript: [first])
    with pytest.raises(RunError, match="stream as a"):
        joint([runs["a"], runs["b"]])


@pytest.mark.thorough
def test_the_command_states_a_joint_ledger_and_writes_its_profile(
    runs: dict[str, fdaudit.Run], tmp_path: Path
) -> None:
    names = [str(runs[name].directory) for name in ("a", "b")]
    done = CliRunner().invoke(
        app, ["ledger", *names, "--json", "--adversary", "server", "--curve", str(tmp_path / "c")]
    )
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["ledger"][0]["runs"][0]["run"] == "a"
    assert value["files"][-1] == str(tmp_path / "c" / "profile.json")
    done = CliRunner().invoke(app, ["ledger", *names])
    assert "Each run alone" in done.stdout
    assert "0.1582-GDP" in done.stdout
    assert "0.0125-zCDP" in done.stdout


def test_the_command_states_both_relations_side_by_side(runs: dict[str, fdaudit.Run]) -> None:
    path = str(runs["a"].directory)
    done = CliRunner().invoke(app, ["ledger", path, "--both-relations", "--adversary", "server"])
    head, line = done.stdout.split("\n")[:2]
    assert head.split() == ["adversary", "add-or-remove", "replace-one", "unit"]
    assert line.split()[0] == "server"
    found = json.loads(CliRunner().invoke(app, ["ledger", path, "--both-relations", "--json"]).stdout)
    assert [e["relation"] for e in found[:2]] == ["add-or-remove", "replace-one"]
    with pytest.raises(UsageError, match="excludes --both-relations"):
        CliRunner().invoke(
            app, ["ledger", path, "--both-relations", "--relation", "replace-one"], catch_exceptions=False
        )


# -- one record in two encodings ------------------------------------------------------------------------------------


def texts_of(folder: Path, length: int) -> dict[str, Any]:
    file = folder / "texts.csv"
    if not file.exists():
        write_texts(file, 150)
    return spec(
        20.0,
        dataset={"name": f"text:{file}", "length": length},
        model={"name": "transformer", "params": {"width": 8}},
    )


def images_of(folder: Path, size: int | None) -> dict[str, Any]:
    return spec(20.0, dataset={"name": "digits", "limit": 300, "image_size": size})


@pytest.mark.parametrize(
    "pair",
    [
        lambda folder: [texts_of(folder, 8), {**texts_of(folder, 6), "seed": 4}],
        lambda folder: [images_of(folder, 10), {**images_of(folder, 12), "seed": 4}],
        lambda folder: [
            images_of(folder, None),
            spec(
                20.0,
                dataset={"name": "digits-multilabel", "limit": 100, "image_size": 12},
                splits={"proxy": 0.0},
                public_dataset={"name": "digits", "image_size": 12},
            ),
        ],
    ],
    ids=["texts", "images", "public-dataset"],
)
def test_records_are_compared_as_their_source_stores_them(pair: Any, tmp_path: Path) -> None:
    """A run's own vocabulary, length and size hid that it hands out what the other one protects."""
    runs = [fdaudit.run(value, tmp_path / str(n)) for n, value in enumerate(pair(tmp_path))]
    assert all(math.isfinite(run.ledger("server").epsilon) for run in runs)
    found = joint(runs).ledger("server")
    assert found.epsilon == math.inf
    assert "auxiliary data of 1" in found.cause
