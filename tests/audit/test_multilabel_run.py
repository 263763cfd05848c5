"""Several labels a record, from a spec to the report: what is measured, what applies, and what is refused."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from fdaudit.protocols import REGISTRY
from sklearn.metrics import f1_score, roc_auc_score

import fdaudit
from fdaudit.adversary.oracle import answer
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.storage.files import load_tensors
from fdaudit.tasks import MULTI_LABEL
from fdaudit.testing.federation import records, several
from fdaudit.testing.specs import small_spec
from fdaudit.training.encoder import TaskEncoder
from fdaudit.training.execution import Execution

from ..helpers.protocol_cases import case_id, every_case
from ..helpers.refusals import refused
from ..helpers.results import cells_of, figures_of
from ..helpers.run_cases import known
from .task_cases import check_repeated, check_resumed, first_gradient, loss_scores

pytestmark = pytest.mark.thorough

MULTI = {
    "dataset": {"name": "digits-multilabel", "limit": 300},
    "splits": {"test": 0.2, "proxy": 0.0, "auxiliary": 0.2, "candidates": 12},
    "model": {"name": "mlp", "params": {"widths": [32]}},
    "references": ["standalone", "centralized"],
    "attacks": "all",
}
PARAMS = {"rounds": 2, "batch_size": 2, "local_steps": 1, "upload": "gradient", "lr": 0.05}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    spec = small_spec(**MULTI, protocol__params=PARAMS, adversaries=["server", "world"])
    made = fdaudit.run(spec, tmp_path_factory.mktemp("multi") / "run")
    fdaudit.report(made)
    return made


# -- utility --------------------------------------------------------------------------------------------------


def test_utility_is_mauc_by_scikit_learns_measure(finished):
    with (finished.directory / "utility.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["line", "round", "party", "mean_auc", "low", "high", "macro_f1", "left_out", "n"]
    assert {r["line"] for r in rows} == {"fedavg", "standalone", "centralized"}
    (last,) = [r for r in rows if (r["line"], r["round"], r["party"]) == ("fedavg", "1", "server")]
    x, y = finished.case.test
    z = finished.case.trainer().predict(
        load_tensors(finished.directory / "vault/models/server.safetensors"), x
    )
    assert float(last["mean_auc"]) == pytest.approx(roc_auc_score(y, z, average="macro"), abs=1e-9)
    f1 = f1_score(y, z > 0, average="macro", zero_division=0)
    assert float(last["macro_f1"]) == pytest.approx(f1, abs=1e-9)
    assert float(last["low"]) < float(last["mean_auc"]) < float(last["high"])
    assert (last["left_out"], int(last["n"])) == ("0", len(y))


def test_the_result_and_the_report_speak_of_mauc(finished):
    result = finished.result.plain()
    assert result["run"]["task"] == "multi-label"
    figures = [row["figure"] for row in result["utility"]["final"]]
    assert {f["name"] for f in figures} == {"mean_auc"}
    assert all(f["low"] <= f["value"] <= f["high"] and f["method"] == "DeLong, logit scale" for f in figures)
    assert all("accuracy" not in point for point in result["utility"]["curve"])
    positives = [(finished.case.records(k)[1] == 1).sum(0).tolist() for k in finished.case.clients]
    assert result["class_table"] == positives
    page = (finished.directory / "report" / "index.html").read_text(encoding="utf-8")
    assert "Test mAUC in" in page
    assert "Records in which" in page
    assert "Test accuracy" not in page
    (client,) = finished.case.splits.clients[:1]
    y = finished.case.dataset.y
    alike = sum(torch.equal(y[m], y[n]) for m, n in zip(client.members, client.non_members, strict=True))
    assert any(f"Of these {len(client.members)} pairs {alike} join" in line for line in result["limits"])


def test_the_command_line_prints_mauc(tmp_path, cli):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(small_spec(**{**MULTI, "attacks": [], "references": []})))
    code, out, _ = cli("run", spec, "--out", tmp_path / "run")
    assert code == 0
    assert out.split()[:2] == ["mAUC", "fedavg"]


@pytest.mark.thorough
def test_a_run_again_from_the_same_seed_gives_the_same_bytes(finished, tmp_path):
    check_repeated(finished, tmp_path / "again")


# -- attacks --------------------------------------------------------------------------------------------------


def test_attacks_that_need_one_class_a_record_say_so_and_the_others_run(finished):
    cells = cells_of(finished)
    for adversary in ("server", "world"):
        for attack in ("dlg", "inverting-gradients"):
            cell = cells[f"{adversary}/{attack}"]
            assert cell["status"] == "not-applicable"
            assert "not multi-label" in cell["reason"]
        cell = cells[f"{adversary}/loss-threshold"]
        assert cell["status"] == "run", cell["reason"]
        assert cell["controls"]["positive"]["passed"]
        assert cell["controls"]["negative"]["passed"]
    analytic = cells["server/analytic"]
    assert analytic["status"] == "run", analytic["reason"]
    figures = figures_of(analytic)
    assert figures["psnr_gain"]["value"] > 10
    assert figures["labels_right"]["unavailable"]
    assert "class-mean" not in figures["psnr_prior"]["note"]


def test_the_score_is_the_log_likelihood_of_the_known_labels():
    answers = torch.tensor([[0.9, 0.2, 0.5], [0.5, 0.5, 1.0]])
    scores = loss_scores(answers, torch.tensor([[1, 0, -1], [-1, -1, 0]]), MULTI_LABEL)
    assert scores.tolist() == pytest.approx([np.log(0.9) + np.log(0.8), np.log(1e-12)], rel=1e-5)


def test_oracles_answer_class_by_class():
    z = torch.tensor([[2.0, -1.0], [0.0, 3.0]])
    assert torch.allclose(answer("soft", z, MULTI_LABEL.labels), 1 / (1 + (-z).exp()))
    assert answer("hard", z, MULTI_LABEL.labels).tolist() == [[1, 0], [0, 1]]


# -- protocols and the encoder --------------------------------------------------------------------------------


MULTI_CASES = [
    c
    for c in every_case()
    if "multi-label" in REGISTRY.load(c[0]).card.tasks and c[1].get("ensemble") != "votes"
]
"""Votes name one class, and are refused where a record has several: `test_votes.py`."""


@pytest.mark.thorough
@pytest.mark.parametrize("case", MULTI_CASES, ids=case_id)
def test_protocols_that_declare_the_task_run_it(case, tmp_path):
    check_resumed(case, tmp_path, clients=several(records()), task=MULTI_LABEL)


def test_a_gradient_is_that_of_binary_cross_entropy(tmp_path):
    got, module, x, y = first_gradient(tmp_path / "a", several(records()), MULTI_LABEL)
    q = module(x).sigmoid()
    loss = -((y == 1) * q.log() + (y == 0) * (1 - q).log()).mean()
    expected = torch.autograd.grad(loss, list(module.parameters()))
    assert got.keys() == dict(module.named_parameters()).keys()
    for (name, _), value in zip(module.named_parameters(), expected, strict=True):
        torch.testing.assert_close(got[name], value)


@pytest.mark.thorough
def test_the_encoder_learns_from_several_labels():
    case = simulated_case(load_spec(small_spec(**MULTI)), known(0))
    x, y = case.auxiliary
    execution = Execution(device="cpu", threads=1, strategy="loop", memory_format="contiguous")
    encoder = TaskEncoder((x, y), classes=10, execution=execution, seed=0)
    assert encoder(x[:3]).shape[0] == 3
    with torch.no_grad():
        assert roc_auc_score(y, encoder._network(x), average="macro") > 0.9  # of its own records


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("stated", ["", ', tasks=("single-label",)'])
def test_a_protocol_of_single_labels_is_refused_multi_label_data(tmp_path, monkeypatch, stated):
    module = f"only_single_{len(stated)}"
    (tmp_path / f"{module}.py").write_text(
        "from fdaudit.federation.kit import SimpleProtocol, SimpleProtocolCard\n"
        "class Single(SimpleProtocol):\n"
        f"    card = SimpleProtocolCard(name='single', messages=(){stated})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    single = {"protocol": {"name": f"import:{module}:Single"}}
    refused(
        lambda: simulated_case(load_spec(small_spec(**{**MULTI, **single})), known(0)),
        "protocol.name",
        remedy=["standalone"],
        said="does not run multi-label data, which digits-multilabel is",
    )
    simulated_case(load_spec(small_spec(**single)), known(0))


def test_the_refusal_names_the_protocols_that_can():
    spec = small_spec(**{**MULTI, "protocol": {"name": "fedmd"}, "references": []})
    able = "centralized, fedavg, fedkd, standalone."
    refused(lambda: simulated_case(load_spec(spec), known(0)), "protocol.name", "fedmd", [f": {able}"])


def test_a_partition_by_class_is_refused():
    spec = small_spec(**MULTI, partition={"name": "by-class", "classes_per_client": 1})
    refused(lambda: simulated_case(load_spec(spec), known(0)), "partition.name", said="multi-label")
