"""Texts from a spec to the report: what is measured, what is read off gradients, and what is refused."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from fdaudit.reports.goals import RULES
from fdaudit.reports.judgement.verdict import judge_all

import fdaudit
from fdaudit.errors import UsageError
from fdaudit.evaluation.stage import Stage
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.isolation.trials import _are_tokens
from fdaudit.planning.simulated import simulated_case
from fdaudit.planning.site_records import DesignSpec, load_site_records
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import load_spec
from fdaudit.storage.files import load_tensors
from fdaudit.testing.specs import small_spec

from ..helpers.refusals import refused
from ..helpers.results import cell_of, figures_of
from ..helpers.run_cases import known, tree
from ..helpers.text_cases import write_texts

pytestmark = pytest.mark.thorough

TRAINED = {"rounds": 2, "batch_size": 2, "local_steps": 1, "lr": 0.1, "upload": "gradient"}
READ = [{"name": "embedding-rows"}, {"name": "tag", "params": {"iterations": 40}}]
ABLE = {
    "calibrated-loss",
    "co-op-lira",
    "coin-regression",
    "distillation-lira",
    "embedding-rows",
    "gap",
    "label-answers",
    "label-counts",
    "label-presence",
    "label-updates",
    "lira-offline",
    "lira-online",
    "loss-threshold",
    "prototype-regression",
    "rehearsed-regression",
    "rmia",
    "tag",
    "update-projection",
}


def spec_of(folder, **changes):
    own = {
        "clients": 3,
        "dataset": {"name": f"text:{write_texts(folder / 'a.csv', 300)}", "length": 10},
        "splits": {"test": 0.2, "proxy": 0.2, "auxiliary": 0.2, "candidates": 8},
        "model": {"name": "transformer", "params": {"width": 8}},
        "protocol": {"name": "fedavg", "params": TRAINED},
    }
    return small_spec(**(own | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    references = ["standalone", "centralized"]
    made = fdaudit.run(spec_of(folder, references=references, attacks=READ), folder / "run")
    fdaudit.report(made)
    return made


def figure(cell, name):
    return figures_of(cell)[name]


# -- utility --------------------------------------------------------------------------------------------------------


def test_utility_is_the_accuracy_on_test_texts(finished):
    with (finished.directory / "utility.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {r["line"] for r in rows} == {"fedavg", "standalone", "centralized"}
    (last,) = [r for r in rows if (r["line"], r["round"], r["party"]) == ("fedavg", "1", "server")]
    x, y = finished.case.test
    weights = load_tensors(finished.directory / "vault/models/server.safetensors")
    guess = finished.case.trainer().predict(weights, x).argmax(1)
    assert float(last["accuracy"]) == pytest.approx((guess == y).double().mean().item())
    assert finished.result.plain()["run"]["task"] == "text"


def test_topics_are_learnt(tmp_path):
    params = {"rounds": 8, "local_steps": 10, "batch_size": 16, "lr": 0.1, "momentum": 0.9}
    made = fdaudit.run(spec_of(tmp_path, protocol={"name": "fedavg", "params": params}), tmp_path / "run")
    (server,) = [r for r in made.result.plain()["utility"]["final"] if r["party"] == "server"]
    assert server["figure"]["value"] > 0.9


# -- words read off gradients -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["embedding-rows", "tag"])
def test_words_are_recovered_with_controls_and_the_report_calls_it_a_leak(finished, name):
    cell = cell_of(finished, name)
    assert (cell["status"], cell["goal"]) == ("run", "text-reconstruction"), cell["reason"]
    assert {k: c["passed"] for k, c in cell["controls"].items()} == {"positive": True, "negative": True}
    findings = judge_all(finished.result)
    (finding,) = [f for f in findings if f.cell.attack == name]
    assert finding.level == "leak"
    assert "F1" in finding.measured


def test_rows_find_every_word_of_the_batch(finished):
    cell = cell_of(finished, "embedding-rows")
    assert figure(cell, "token_f1")["value"] == 1
    assert figure(cell, "token_gain")["p"] < 0.01
    (target,) = cell["targets"]
    case, (_, seq) = finished.case, target["messages"]
    batches = {}
    for name in (finished.directory / "vault" / "truth").rglob("*.safetensors"):
        batches |= load_tensors(name)
    x = case.records("client/0")[0][batches[str(seq)]]
    note = next(f["note"] for f in target["figures"] if f["name"] == "token_f1")
    named = note.rpartition("recovered: ")[2].split(", ")
    assert {case.dataset.words.index(w) for w in named} <= set(x.flatten().tolist())


def test_the_report_speaks_of_words_and_the_public_one_names_none(finished, tmp_path):
    page = (finished.directory / "report" / "index.html").read_text(encoding="utf-8")
    assert RULES["text-reconstruction"].leaked in page
    assert "F1 of recovered" in page
    fdaudit.report(finished, tmp_path / "public", public=True)
    everything = "".join(
        p.read_text(encoding="utf-8")
        for p in (tmp_path / "public").rglob("*")
        if p.suffix in (".html", ".json")
    )
    assert "rare words recovered" not in everything


def test_secure_aggregation_leaves_nothing_to_read(tmp_path):
    params = {"rounds": 1, "batch_size": 2, "local_steps": 1, "aggregation": "secure", "weighting": "uniform"}
    spec = spec_of(tmp_path, protocol={"name": "fedavg", "params": params}, attacks=READ)
    made = fdaudit.run(spec, tmp_path / "run")
    assert {
        c["status"] for c in made.result.plain()["cells"] if c["attack"] in ("embedding-rows", "tag")
    } == {"not-applicable"}


def test_attacks_on_images_say_that_they_do_not_read_texts(tmp_path):
    cheap = {"rounds": 1, "batch_size": 2, "local_steps": 1}
    images = [n for n in fdaudit.attacks.REGISTRY.names() if n not in ABLE]
    spec = spec_of(
        tmp_path, protocol={"name": "fedavg", "params": cheap}, attacks=[{"name": n} for n in images]
    )
    made = fdaudit.run(spec, tmp_path / "run")
    asked = [c for c in made.result.plain()["cells"] if c["attack"] in images]
    assert len(asked) == len(images)
    assert {(c["status"], "not on texts" in c["reason"]) for c in asked} == {("not-applicable", True)}


def test_attacks_on_texts_say_that_they_do_not_read_images(tmp_path):
    made = fdaudit.run(small_spec(attacks=[{"name": "embedding-rows"}]), tmp_path / "run")
    cell = cell_of(made, "embedding-rows")
    assert (cell["status"], "not on images" in cell["reason"]) == ("not-applicable", True)


# -- membership and class shares ------------------------------------------------------------------------------------


def test_membership_and_class_shares_are_attacked(tmp_path):
    params = {
        "local_steps": 30,
        "batch_size": 16,
        "lr": 0.1,
        "momentum": 0.9,
        "distill_rounds": 1,
        "distill_steps": 5,
    }
    names = ("loss-threshold", "gap", "label-counts", "rmia")
    few = {"rmia": {"shadows": 4, "most_steps": 20, "population": 10}}
    attacks = [{"name": n, "params": few.get(n, {})} for n in names]
    spec = spec_of(
        tmp_path,
        protocol={"name": "fedkd", "params": params},
        attacks=attacks,
        adversaries=["world", "aggregator"],
    )
    made = fdaudit.run(spec, tmp_path / "run")
    cells = {
        (c["adversary"], c["attack"]): c
        for c in made.result.plain()["cells"]
        if c["status"] != "not-requested"
    }
    for name in ("loss-threshold", "gap", "rmia"):
        cell = cells["world", name]
        assert cell["status"] in ("run", "inconclusive"), cell["reason"]
        assert 0 <= figure(cell, "auc")["value"] <= 1
    assert cells["aggregator", "label-counts"]["status"] == "run"


def test_an_oracle_for_texts_takes_numbers_of_words_only():
    assert _are_tokens(torch.tensor([[0, 4]]), 5)
    assert not _are_tokens(torch.tensor([[0, 5]]), 5)
    assert not _are_tokens(torch.tensor([[-1, 0]]), 5)
    assert not _are_tokens(torch.rand(1, 2), 5)


# -- again, and with defences ---------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_run_again_from_the_same_seed_gives_the_same_bytes(finished, tmp_path):
    again = fdaudit.run(finished.directory / "spec.yaml", tmp_path / "again", seed_from=finished.directory)
    fdaudit.report(again)
    timed = (
        "timings.json",
        "report/index.html",
        "report/index.json",
        "report/appendix.html",
        "vault/published.json",
    )
    assert tree(again.directory, timed) == tree(finished.directory, timed)


def test_dp_sgd_trains_on_texts_and_states_its_epsilon(tmp_path):
    entry = {
        "at": "training",
        "name": "dp-sgd",
        "params": {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.2},
    }
    params = {"rounds": 1, "local_steps": 2, "batch_size": 8, "weighting": "uniform"}
    spec = spec_of(tmp_path, defenses=[entry], protocol={"name": "fedavg", "params": params})
    made = fdaudit.run(spec, tmp_path / "run")
    (entry,) = [e for e in made.result.plain()["ledger"] if e["adversary"] == "server"]
    assert 0 < entry["epsilon"] < 100


def test_a_class_of_the_users_own_is_audited(tmp_path):
    model = {"name": "import:fdaudit_bag:Bag"}
    (tmp_path / "fdaudit_bag.py").write_text(
        "from torch import nn\n\n\n"
        "class Bag(nn.Module):\n"
        "    def __init__(self, words, classes):\n"
        "        super().__init__()\n"
        "        self.bag, self.head = nn.Embedding(words, 4), nn.Linear(4, classes)\n\n"
        "    def forward(self, x):\n"
        "        return self.head(self.bag(x).mean(1))\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        made = fdaudit.run(spec_of(tmp_path, model=model), tmp_path / "run")
    assert made.result.plain()["run"]["model"] == "import:fdaudit_bag:Bag"


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"name": "cnn-strided"}}, "model.name"),
        *(
            ({"protocol": {"name": n}}, "protocol.name")
            for n in ("selective-fd", "fediod", "dafkd", "fedftg")
        ),
        ({"canaries": {"clients": [0]}}, "canaries.kind"),
        ({"public_dataset": {"name": "digits"}}, "public_dataset.name"),
        ({"auxiliary": {"others": "shifted"}}, "auxiliary.others"),
        ({"partition": {"name": "by-site"}}, "partition.name"),
    ],
)
def test_what_texts_do_not_support_is_one_clear_error(tmp_path, changes, field):
    refused(lambda: simulated_case(load_spec(spec_of(tmp_path, **changes)), known(0)), field, kind=UsageError)


def test_a_damaged_table_ends_the_command_with_one_error_and_writes_nothing(tmp_path, cli):
    table = tmp_path / "bad.csv"
    table.write_text("text,label\nfine,0\nalso fine,one\n")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(spec_of(tmp_path, dataset={"name": f"text:{table}"})))
    code, out, err = cli("run", spec, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert "line 3" in err
    assert "label 'one'" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "texts", "message"),
    [
        ([10**12], None, "word 1000000000000"),
        ([2], [[2, 3]], "2 tokens, not 10"),
        ([-1], None, "distinct numbers"),
        ([2, 2], None, "distinct numbers"),
    ],
)
def test_guesses_that_are_no_words_are_refused(finished, words, texts, message):
    seqs = tuple(cell_of(finished, "embedding-rows")["targets"][0]["messages"])
    guess = TextReconstruction(
        target="client/0",
        messages=seqs,
        words=torch.tensor(words),
        texts=None if texts is None else torch.tensor(texts),
    )
    with pytest.raises(ValueError, match=message):
        Stage(finished.opened).score("server/own", "server", [guess])


def test_guesses_of_another_clients_messages_are_refused(finished):
    stage = Stage(finished.opened)
    sent = next(m.seq for m in stage.run.view("server").select(kind="gradient", sender="client/1"))
    guess = TextReconstruction(target="client/0", messages=(sent,), words=torch.tensor([2]))
    with pytest.raises(ValueError, match="names messages of"):
        stage.score("server/own", "server", [guess])


def test_an_exported_view_names_the_words_and_candidates_of_texts(finished, tmp_path, cli):
    code, _, err = cli("export-view", finished.directory, "server", "--out", tmp_path / "view")
    assert code == 0, err
    card = json.loads(next((tmp_path / "view").rglob("card.json")).read_text())
    assert card["words"] == list(finished.case.dataset.words)
    assert (card["task"], card["input_shape"]) == ("text", [10])


def test_a_design_of_texts_is_refused(tmp_path):
    table = write_texts(tmp_path / "a.csv")
    spec = DesignSpec(sites=2)
    with pytest.raises(UsageError, match="holds texts"):
        load_site_records(f"text:{table}", spec, SecretStream(b"0" * 16, "design"))
