"""Tables from a spec to the report: protocols, rows read off gradients, and what is refused."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from fdaudit.reports.goals import RULES
from fdaudit.reports.judgement.verdict import judge_all

import fdaudit
from fdaudit.errors import DataError, UsageError
from fdaudit.planning.simulated import simulated_case
from fdaudit.planning.site_records import DesignSpec, load_site_records
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import load_spec
from fdaudit.storage.vault import Secrets
from fdaudit.testing.specs import small_spec

from ..helpers.refusals import refused
from ..helpers.results import cell_of, figures_of, values_of
from ..helpers.table_cases import write_table

TRAINED = {"rounds": 1, "batch_size": 1, "local_steps": 1, "lr": 0.1, "upload": "gradient"}
SPLITS = {"test": 0.2, "proxy": 0.2, "auxiliary": 0.2, "candidates": 6}
HOSTILE = "=cmd|'<script>alert(1)</script>"
PROTOCOLS = {
    "fedavg": {"rounds": 1, "local_steps": 2},
    "feddf": {"rounds": 1},
    "fedkd": {},
    "fedmd": {"rounds": 1},
    "selective-fd": {"rounds": 1},
}


def spec_of(**changes):
    own = {
        "clients": 3,
        "dataset": {"name": "made-table", "limit": 180},
        "splits": SPLITS,
        "protocol": {"name": "fedavg", "params": TRAINED},
    }
    made = small_spec(**(own | changes))
    if "model" not in changes:
        del made["model"]
    return made


def planned(**changes):
    return simulated_case(load_spec(spec_of(**changes)), Secrets.draw(1))


# -- what is planned ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_network_of_a_table_is_a_perceptron_unless_the_spec_names_one(trusting):
    assert planned().architecture.name == "mlp"
    imported = {"name": "import:torch.nn:LazyLinear", "params": {"out_features": 2}}
    assert planned(model=imported).architecture.imported


def test_a_network_of_images_is_refused_in_one_line():
    refused(
        lambda: planned(model={"name": "cnn-strided"}), "model.name", "cnn-strided", ["'mlp'"], said=" 16 "
    )
    refused(lambda: planned(model={"name": "transformer"}), "model.name", "transformer")


@pytest.mark.parametrize("protocol", ["fediod", "dafkd"])
def test_protocols_that_generate_images_are_refused_in_one_line(protocol):
    refused(lambda: planned(protocol={"name": protocol}), "protocol.name", protocol, said="made-table")


def test_canaries_and_another_public_dataset_are_refused():
    for changes in ({"canaries": {"count": 4}}, {"public_dataset": {"name": "digits"}}):
        with pytest.raises(UsageError, match="of a table"):
            planned(**changes)


def test_scales_are_kept_in_the_case():
    columns = {column.name: column for column in planned().dataset.columns}
    assert columns["age"].stated
    assert 40 < columns["age"].mean < 70
    assert columns["smoker"].categories == ("no", "yes", "(other)")


def test_a_design_of_a_table_needs_the_vectors_that_clients_train_on(tmp_path):
    stream = SecretStream(b"0" * 16, "design")
    for data in ("wine", f"table:{write_table(tmp_path / 'a.csv')}"):
        with pytest.raises(DataError, match="your own code"):
            load_site_records(data, DesignSpec(sites=2), stream)


# -- what is run ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols_run_on_tables(protocol, tmp_path):
    asked = {"name": protocol, "params": PROTOCOLS[protocol]}
    run = fdaudit.run(spec_of(protocol=asked, attacks=[], references=[]), tmp_path / "run")
    result = run.result.plain()
    assert result["run"]["task"] == "table"
    assert {row["figure"]["name"] for row in result["utility"]["final"]} == {"accuracy"}
    assert run.verify() == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    path = write_table(folder / "a.csv", 200)
    content = path.read_text().replace("colour", f'"{HOSTILE}"', 1)
    for colour in ("red", "green", "blue"):
        content = content.replace(colour, f"<b>{colour}</b>")
    path.write_text(content)
    attacks = [{"name": "analytic"}, {"name": "dlg"}, {"name": "inverting-gradients"}]
    dataset = {"name": f"table:{path}"}
    run = fdaudit.run(spec_of(dataset=dataset, attacks=attacks, references=[], victims=2), folder / "run")
    fdaudit.report(run)
    return run


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["analytic", "dlg"])
def test_a_row_behind_a_gradient_is_recovered(finished, name):
    cell = cell_of(finished, name)
    assert (cell["status"], cell["goal"]) == ("run", "row-reconstruction"), cell["reason"]
    figures = values_of(cell)
    assert figures["categories_right"] == 1
    assert figures["cells_right"] == 1
    assert figures["numbers_error"] < 1e-3
    (finding,) = [f for f in judge_all(finished.result) if f.cell.attack == name]
    assert finding.level == "leak"
    for target in cell["targets"]:
        x, _ = finished.opened.truth.behind(target["target"], target["messages"])
        assert len(target["rows"]) == len(x)


@pytest.mark.thorough
def test_attacks_on_images_do_not_apply(finished):
    cell = cell_of(finished, "inverting-gradients")
    assert cell["status"] == "not-applicable"
    assert "not on rows" in cell["reason"]


@pytest.mark.thorough
def test_the_report_shows_rows_and_escapes_their_names(finished):
    page = (finished.directory / "report" / "index.html").read_text()
    assert RULES["row-reconstruction"].leaked in page
    assert '<th scope="col">Recovered</th>' in page
    assert "<script>alert" not in page
    assert not re.search("<b>(red|green|blue)", page)
    assert re.search("&lt;b&gt;(red|green|blue)&lt;/b&gt;", page)


@pytest.mark.thorough
def test_the_public_report_shows_no_row(finished, tmp_path):
    page = fdaudit.report(finished, tmp_path / "public.html", public=True).read_text()
    assert '<th scope="col">Recovered</th>' not in page
    assert "blue" not in page


@pytest.mark.thorough
def test_the_spec_of_a_run_is_one_that_can_be_run_again(finished):
    spec = yaml.safe_load((finished.directory / "spec.yaml").read_text())
    assert spec["model"]["name"] == "mlp"
    again = load_spec({**spec, "seed": 1})
    assert again.dataset == finished.case.spec.dataset
    assert json.loads((finished.directory / "result.json").read_text())["run"]["task"] == "table"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "local", "told"),
    [
        ("untrained", {"local_steps": 1, "lr": 1e-9}, False),
        ("overfit", {"local_epochs": 60, "lr": 0.5}, True),
    ],
)
def test_coins_tell_members_of_an_overfit_model_only(name, local, told, tmp_path):
    spec = {
        "seed": 1,
        "clients": 2,
        "victims": 2,
        "dataset": {"name": "breast_cancer", "limit": 160},
        "splits": {"test": 0.1, "proxy": 0.1, "auxiliary": 0.3, "candidates": 15},
        "model": {"name": "mlp", "params": {"widths": [256]}},
        "protocol": {"name": "fedavg", "params": {"rounds": 1, "batch_size": 4, **local}},
        "profile": "quick",
        "power": False,
        "references": [],
        "adversaries": ["server"],
        "attacks": [{"name": "update-projection"}],
    }
    cell = cell_of(fdaudit.run(spec, tmp_path / name), "update-projection")
    auc = figures_of(cell)["auc"]
    assert auc["n"] == 30
    told_apart = auc["low"] > 0.5
    assert told_apart == told, auc
