"""ε of a run that was chosen from a sweep by results."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from fdaudit.accounting.accounts import accounts_from_json, accounts_to_json
from fdaudit.accounting.charges import Drawn, Grouped, Selected, charges_from_json, charges_to_json
from fdaudit.errors import IntegrityError, RunError, UsageError
from fdaudit.events import Gaussian
from fdaudit.sweeps import sweep as engine
from fdaudit.sweeps.chosen import ChosenRun, choose
from fdaudit.sweeps.index import ACCOUNTS, Index, read_index, write_index

from ..helpers.command import Cli
from ..helpers.ledger_cases import dp_sgd, gaussian
from ..helpers.sweep_cases import grid, inline


def tuned(**changes: Any) -> dict[str, Any]:
    """Two runs of FedAvg on the same records, at ε of 8 and of 4."""
    made = grid(epsilon=[8, 4], seeds=[1], **changes)
    return {**made, "protocols": made["protocols"][:1]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chosen") / "out"
    engine.sweep(tuned(), out, executor=inline)
    return out


def places(out: Path) -> list[Path]:
    return [engine.run_directory(out, e.key) for e in read_index(out).runs if e.status == "done"]


def mu(place: Path) -> float:
    (entry,) = [
        e for e in json.loads((place / "result.json").read_text())["ledger"] if e["adversary"] == "server"
    ]
    return float(entry["gdp"])


def test_a_chosen_run_costs_what_all_runs_of_the_sweep_cost_together(swept: Path) -> None:
    first, second = places(swept)
    found = ChosenRun(swept, second).ledger("server")
    assert found.gdp == pytest.approx(math.hypot(mu(first), mu(second)))
    assert found.gdp > max(mu(first), mu(second))
    assert found == ChosenRun(swept, first).ledger("server")
    assert len(found.runs) == 2
    assert any("from 2 runs" in line for line in found.assumptions)
    assert any("departs from the" in line for line in found.assumptions)
    assert not any("and every setting" in line for line in found.assumptions)
    assert ChosenRun(swept, first).views == ("server", "world")


def test_the_command_states_the_price_of_the_choice(swept: Path, cli: Cli) -> None:
    place = places(swept)[0]
    code, text, _ = cli("ledger", str(place), "--chosen-from", str(swept), "--json")
    assert code == 0
    entry, _ = json.loads(text)
    assert entry["epsilon"] == pytest.approx(ChosenRun(swept, place).ledger("server").epsilon)
    code, _, text = cli("ledger", str(place), str(place), "--chosen-from", str(swept))
    assert code == 2


def test_a_sweep_names_the_best_run_and_the_price_of_choosing_it(
    swept: Path, tmp_path: Path, cli: Cli
) -> None:
    out = Path(shutil.copytree(swept, tmp_path / "out"))
    for place, accuracy in zip(places(out), (0.5, 0.75), strict=True):
        result = json.loads((place / "result.json").read_text())
        for row in result["utility"]["final"]:
            row["figure"]["value"] = accuracy
        (place / "result.json").write_text(json.dumps(result))
    found = engine.sweep(tuned(choose="utility"), out, resume=True, executor=inline).chosen
    assert found is not None
    assert (found.key, found.value, found.runs) == (places(out)[1].name, 0.75, 2)
    assert [entry.adversary for entry in found.ledger] == ["server", "world"]
    assert found.ledger[0].epsilon == pytest.approx(
        ChosenRun(swept, places(swept)[0]).ledger("server").epsilon
    )
    assert read_index(out).chosen == found
    (tmp_path / "grid.json").write_text(json.dumps(tuned(choose="utility")))
    code, text, _ = cli("sweep", str(tmp_path / "grid.json"), "--out", str(out), "--resume")
    assert code == 0
    assert f"({found.key}): utility 0.750" in text
    assert f"server: ε {found.ledger[0].epsilon:.3g} of all 2" in text


def test_a_choice_among_runs_of_which_one_failed_has_no_epsilon(swept: Path, tmp_path: Path) -> None:
    out = altered(swept, tmp_path, status="failed", reason="OSError: gone")
    found = choose(out, read_index(out))
    assert found is not None
    assert found.key == places(out)[0].name
    assert all(entry.epsilon is None and "it failed" in entry.cause for entry in found.ledger)


def altered(swept: Path, tmp_path: Path, **changes: Any) -> Path:
    """The sweep with fields of its second run's entry set."""
    out = Path(shutil.copytree(swept, tmp_path / "out"))
    index = read_index(out)
    first, second = index.runs
    runs = (first, second.model_copy(update=changes))
    write_index(out, Index.model_validate({**index.model_dump(by_alias=True), "runs": runs}))
    return out


def test_a_failed_run_leaves_nothing_to_claim(swept: Path, tmp_path: Path) -> None:
    out = altered(swept, tmp_path, status="failed", reason="OSError: gone")
    found = ChosenRun(out, places(out)[0]).ledger("server")
    assert found.epsilon == math.inf
    assert "it failed" in found.cause


def test_a_run_that_was_not_carried_out_costs_nothing(swept: Path, tmp_path: Path) -> None:
    out = altered(swept, tmp_path, status="pending")
    (place,) = places(out)
    assert ChosenRun(out, place).ledger("server").gdp == pytest.approx(mu(place))


def test_a_run_that_left_the_grid_still_counts(swept: Path, tmp_path: Path) -> None:
    out = altered(swept, tmp_path, in_grid=False)
    assert (
        ChosenRun(out, places(out)[0]).ledger("server").gdp
        == ChosenRun(swept, places(swept)[0]).ledger("server").gdp
    )


def test_a_run_without_accounts_leaves_nothing_to_claim(swept: Path, tmp_path: Path) -> None:
    out = altered(swept, tmp_path)
    first, second = places(out)
    (second / ACCOUNTS).unlink()
    assert "no accounts.json" in ChosenRun(out, first).ledger("server").cause
    (first / ACCOUNTS).write_text("{}")
    with pytest.raises(IntegrityError, match="fields"):
        ChosenRun(out, first).ledger("server")


def test_runs_and_terms_of_another_sweep_are_refused(swept: Path, tmp_path: Path) -> None:
    out = altered(swept, tmp_path, status="pending")
    with pytest.raises(RunError, match="no finished run"):
        ChosenRun(out, places(swept)[1])
    with pytest.raises(UsageError, match="relation"):
        ChosenRun(swept, places(swept)[0]).ledger("server", relation="add-or-remove")
    value = json.loads((places(swept)[0] / ACCOUNTS).read_text())["accounts"][0]
    assert json.loads(json.dumps(accounts_to_json(accounts_from_json(value)))) == value
    with pytest.raises(IntegrityError):
        accounts_from_json({**value, "relation": "neither"})
    assert isinstance(next(iter(accounts_from_json(value).charges["client/0"][0])), Gaussian)


def test_what_leaves_nothing_to_claim(tmp_path: Path) -> None:
    out = tmp_path / "out"
    engine.sweep({**tuned(), "epsilon": [8, "inf"]}, out, executor=inline)
    found = ChosenRun(out, places(out)[-1]).ledger("server")
    assert found.epsilon == math.inf
    assert "from raw data" in found.cause
    out = tmp_path / "seeds"
    engine.sweep({**tuned(), "epsilon": [8], "seeds": [1, 2]}, out, executor=inline)
    found = ChosenRun(out, places(out)[0]).ledger("server")
    assert found.epsilon == math.inf
    assert "one seed" in found.cause


def test_charges_are_read_back_whole() -> None:
    coins = dp_sgd()
    charges: dict[Any, int] = {
        gaussian(3.0): 2,
        Drawn(gaussian=gaussian(4.0), clients=10, steps=7, drawn=2): 1,
        Grouped(event=coins, size=3): 5,
        Selected(charges=((coins, 2),), mean=4.5): 1,
    }
    assert charges_from_json(json.loads(json.dumps(charges_to_json(charges)))) == charges


@pytest.mark.parametrize(
    "charge",
    [
        {
            "event": "Drawn",
            "of": {"event": "NoGuarantee", "reason": "none"},
            "clients": 2,
            "drawn": 1,
            "steps": 1,
        },
        {"event": "Grouped", "of": charges_to_json({gaussian(1.0): 1})[0]["charge"], "size": 2},
        {"event": "Nothing"},
        {},
    ],
)
def test_impossible_charges_are_refused(charge: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        charges_from_json([{"times": 1, "charge": charge}])
    with pytest.raises(IntegrityError):
        charges_from_json([{"times": 0, "charge": charges_to_json({gaussian(1.0): 1})[0]["charge"]}])
