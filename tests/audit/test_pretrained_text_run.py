"""A pretrained network from a spec to the report: words of a gradient, a run of FedKD, and the same bytes again."""

from __future__ import annotations

import pytest

import fdaudit
from fdaudit.data.texts.wordpieces import Pieces
from fdaudit.storage.files import load_tensors
from fdaudit.testing.specs import small_spec

from ..helpers.bert_cases import PIECES, write_bert
from ..helpers.results import cell_of, figures_of
from ..helpers.run_cases import tree
from ..helpers.text_cases import write_texts

pytest.importorskip("transformers")

pytestmark = pytest.mark.thorough

ONE_TEXT = {"rounds": 1, "batch_size": 1, "local_steps": 1, "lr": 0.1, "upload": "gradient"}


def spec_of(folder, **changes):
    own = {
        "clients": 3,
        "dataset": {
            "name": f"text:{write_texts(folder / 'a.csv', 300)}",
            "length": 16,
            "wordpieces": str(write_bert(folder / "net")),
        },
        "splits": {"test": 0.2, "proxy": 0.2, "auxiliary": 0.2, "candidates": 8},
        "model": {"name": "pretrained", "params": {"path": str(folder / "net")}},
        "protocol": {"name": "fedavg", "params": ONE_TEXT},
    }
    return small_spec(**(own | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    attacks = [{"name": "embedding-rows"}, {"name": "tag", "params": {"iterations": 40}}]
    made = fdaudit.run(spec_of(folder, attacks=attacks), folder / "run")
    fdaudit.report(made)
    return made


def figure(cell, name):
    return figures_of(cell)[name]["value"]


def test_rows_name_every_piece_of_a_text_and_nothing_else(finished):
    cell = cell_of(finished, "embedding-rows")
    assert cell["status"] == "run", cell["reason"]
    assert {k: c["passed"] for k, c in cell["controls"].items()} == {"positive": True, "negative": True}
    assert (figure(cell, "token_precision"), figure(cell, "token_recall")) == (1, 1)
    (target,) = cell["targets"]
    note = next(f["note"] for f in target["figures"] if f["name"] == "token_f1")
    named = note.rpartition("recovered: ")[2].split(", ")
    assert named
    assert set(named) <= set(Pieces(PIECES).words[2:])
    assert not {"[CLS]", "[SEP]", "[MASK]", "[unused0]", "<pad>", "<unknown>"} & set(named)


def test_tag_finds_the_text_itself(finished):
    cell = cell_of(finished, "tag")
    assert cell["status"] == "run", cell["reason"]
    assert figure(cell, "rouge_l") > 0.9
    assert figure(cell, "positions_right") > 0.9 > figure(cell, "positions_right_prior")


def test_a_run_again_from_the_same_seed_gives_the_same_bytes(finished, tmp_path):
    again = fdaudit.run(finished.directory / "spec.yaml", tmp_path / "again", seed_from=finished.directory)
    fdaudit.report(again)
    timed = (
        *("timings.json", "report/index.html", "report/index.json", "report/appendix.html"),
        "vault/published.json",
    )
    assert tree(again.directory, timed) == tree(finished.directory, timed)


def test_fedkd_trains_it_and_membership_and_class_shares_are_attacked(tmp_path):
    params = {"local_steps": 20, "batch_size": 16, "lr": 0.05, "distill_rounds": 1, "distill_steps": 5}
    names = ("loss-threshold", "label-counts", "rmia")
    few = {"rmia": {"shadows": 4, "most_steps": 10, "population": 10}}
    spec = spec_of(
        tmp_path,
        protocol={"name": "fedkd", "params": params},
        attacks=[{"name": n, "params": few.get(n, {})} for n in names],
        adversaries=["world", "aggregator"],
    )
    made = fdaudit.run(spec, tmp_path / "run")
    cells = {
        (c["adversary"], c["attack"]): c
        for c in made.result.plain()["cells"]
        if c["status"] != "not-requested"
    }
    for name in ("loss-threshold", "rmia"):
        cell = cells["world", name]
        assert cell["status"] in ("run", "inconclusive"), cell["reason"]
        assert 0 <= figure(cell, "auc") <= 1
    assert cells["aggregator", "label-counts"]["status"] == "run"
    weights = load_tensors(made.directory / "vault/models/server.safetensors")
    assert weights["extractor.embedding.weight"].shape == (len(PIECES) - 2, 16)
