"""What a red team may not do: read class shares off its candidates, or submit more images than there are records."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fdaudit
from fdaudit.data import load_dataset
from fdaudit.errors import UsageError
from fdaudit.evaluation.stage import Stage
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.goals.membership import Membership
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.metrics import (
    Bystanders,
    score_class_reconstruction,
    score_label_distribution,
    score_reconstruction,
)
from fdaudit.planning.attacks import plan_attack
from fdaudit.result import Cell
from fdaudit.scoring.guesses import refuse_too_many
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import DatasetSpec
from fdaudit.storage.vault import Vault
from fdaudit.testing.specs import small_spec

from ..helpers.doubles import Spy, in_a_thread, registered
from ..helpers.run_cases import stream, tree
from .test_red_team import SPEC

NON_IID = {
    **SPEC,
    "clients": 3,
    "dataset": {"name": "digits"},
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "protocol": {
        "name": "fedavg",
        "params": {"rounds": 2, "batch_size": 8, "local_epochs": 1, "upload": "model_update"},
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("limits")
    fdaudit.run(NON_IID, home / "run")
    return home


@pytest.fixture
def home(made, tmp_path):
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home"


def write(home: Path, handout: Path, **guesses) -> Path:
    card = json.loads((handout / "card.json").read_text())
    value = {"schema": "fdaudit-guesses/1", "name": "mine", "adversary": card["adversary"]}
    path = home / "guesses.json"
    path.write_text(json.dumps({**value, "view": card["view_sha256"], **guesses}))
    return path


def shares(handout: Path) -> list[dict[str, object]]:
    """What a histogram of the candidates says of each victim."""
    card = json.loads((handout / "card.json").read_text())
    found = []
    for target in card["victims"]:
        file = handout / "challenges" / f"{target.replace('/', '-')}.safetensors"
        y = load_file(file)["y"] if file.is_file() else torch.arange(10)
        found.append(
            {"target": target, "distribution": (torch.bincount(y, minlength=10) / len(y)).double().tolist()}
        )
    return found


def upload(run: fdaudit.Run, sender: str = "client/0") -> int:
    return next(m.seq for m in run.view("server").messages if (m.kind, m.sender) == ("model_update", sender))


def answered(directory: Path, goal: str, answer) -> Cell:
    """The cell of an attack of this goal that returns what `answer` makes of its task."""

    with registered("spy"):
        case = fdaudit.load(directory).case
        attack = plan_attack("spy", {}, case.spec, "attack", ("server",))
    stage = Stage(RunDirectory(directory, case))
    with in_a_thread(), pytest.MonkeyPatch.context() as patch, stage.adversary("server") as adversary:
        patch.setattr("fdaudit.evaluation.stage.kept_controls", lambda *_: {})
        patch.setattr(Spy, "run", lambda self, view, knowledge, task, generator: answer(task))
        return stage.cell(adversary, replace(attack, card=replace(attack.card, goal=goal)))


# -- candidates tell classes and images -------------------------------------------------------------------------


def test_a_histogram_of_candidates_would_beat_every_prior(home):
    """Without this the refusals below would refuse nothing worth it."""
    run = fdaudit.load(home / "run")
    out = fdaudit.export_view(run, "server", home / "out", challenges=True)
    truth = run.case.records("client/0")[1]
    of = torch.bincount(truth, minlength=10).double() / len(truth)
    guess = torch.tensor(shares(out)[0]["distribution"], dtype=torch.float64)
    figures = score_label_distribution(of, guess, torch.full((10,), 0.1, dtype=torch.float64))
    assert figures["label_tv"].value < figures["label_tv_prior"].value / 2


@pytest.mark.thorough
@pytest.mark.parametrize("asker", ["server", "world", "server+client/2"])
def test_no_class_shares_are_scored_once_candidates_are_out_whoever_asks(home, asker, cli):
    run = fdaudit.load(home / "run")
    handout = fdaudit.export_view(run, asker, home / "asker")
    path = write(home, handout, label_distribution=shares(handout))
    assert fdaudit.score(run, path).status == "run"  # before
    code, _, _ = cli("export-view", home / "run", "server", "--out", home / "with", "--challenges")
    assert code == 0
    stolen = shares(home / "with")
    before = tree(home / "run")
    for name in ("mine", "another"):
        path = write(home, handout, label_distribution=stolen, name=name)
        code, out, err = cli("score", home / "run", path)
        assert (code, out, len(err.splitlines())) == (2, "", 1), err
        assert "guesses.label_distribution.0.target" in err
        assert "membership handed out" in err
        assert "new secret" in err
    assert tree(home / "run") == before
    assert "external-mine" in fdaudit.report(run).read_text("utf-8")  # what was scored before stands


def test_no_images_are_scored_either_since_candidates_are_half_the_victims_own(home):
    run = fdaudit.load(home / "run")
    out = fdaudit.export_view(run, "server", home / "out", challenges=True)
    x = load_file(out / "challenges" / "client-0.safetensors")["x"]
    save_file({"images": x}, home / "images.safetensors")
    one = [{"target": "client/0", "messages": [upload(run)], "images": "images.safetensors"}]
    with pytest.raises(UsageError, match=r"guesses\.reconstruction\.0\.target"):
        fdaudit.score(run, write(home, out, reconstruction=one))


def test_an_export_without_candidates_spoils_nothing_and_membership_is_scored_afterwards(home):
    run = fdaudit.load(home / "run")
    bare = fdaudit.export_view(run, "server", home / "bare")
    assert Vault(home / "run" / "vault").handed_out == frozenset()
    fdaudit.score(run, write(home, bare, label_distribution=shares(bare)))
    out = fdaudit.export_view(run, "server", home / "out", challenges=True)
    issued = json.loads((out / "card.json").read_text())["challenges"]
    scores = [
        {"target": t, "challenge": c["sha256"], "scores": [float(k) for k in range(c["candidates"])]}
        for t, c in issued.items()
    ]
    assert fdaudit.score(run, write(home, out, name="other", membership=scores)).status == "run"


def test_the_note_is_there_before_the_candidates_are(home, monkeypatch):
    """A handout that fails to appear is noted all the same; one that appears is never without its note."""
    run, noted = fdaudit.load(home / "run"), list[bool]()
    real = Vault.note_handed_out
    monkeypatch.setattr(
        Vault,
        "note_handed_out",
        lambda self, clients: (noted.append((home / "out").exists()), real(self, clients))[1],
    )
    fdaudit.export_view(run, "server", home / "out", challenges=True)
    assert noted == [False]
    assert Vault(home / "run" / "vault").handed_out == {"client/0", "client/1"}


def test_a_note_that_cannot_be_written_stops_the_handout(home):
    (home / "run" / "vault" / "handed-out").write_text("in the way")
    with pytest.raises(fdaudit.FdauditError, match="is no folder"):
        fdaudit.export_view(fdaudit.load(home / "run"), "server", home / "out", challenges=True)
    assert not (home / "out").exists()


def test_a_run_of_the_same_secret_knows_what_was_handed_out(home):
    run = fdaudit.load(home / "run")
    fdaudit.export_view(run, "server", home / "out", challenges=True)
    again = fdaudit.run({**NON_IID, "seed": None}, home / "again", seed_from=home / "run")
    bare = fdaudit.export_view(again, "server", home / "bare")
    with pytest.raises(UsageError, match="handed out"):
        fdaudit.score(again, write(home, bare, label_distribution=shares(home / "out")))


def test_attacks_on_class_shares_are_given_no_candidates_and_no_others_may_guess_them(home):
    """Who is given candidates answers about membership; who answers about classes is given none."""
    given = {}

    def shares(task):
        given.update(task.challenges)
        return tuple(LabelDistribution(target=k, distribution=torch.full((10,), 0.1)) for k in task.targets)

    cell = answered(home / "run", "label-distribution", shares)
    assert (cell.status, given) == ("run", {})
    cell = answered(home / "run", "membership", shares)
    assert given
    assert cell.status == "failed"
    assert "not about membership" in cell.reason


# -- no more images than records ----------------------------------------------------------------------------------


def submitted(home: Path, run: fdaudit.Run, images: torch.Tensor, messages=None) -> Path:
    handout = fdaudit.export_view(run, "server", home / "handed")
    save_file({"images": images.contiguous()}, home / "images.safetensors")
    one = {"target": "client/0", "messages": messages or [upload(run)], "images": "images.safetensors"}
    return write(home, handout, reconstruction=[one])


def test_a_whole_public_dataset_is_refused_with_a_number_to_act_on(home, cli):
    run, before = fdaudit.load(home / "run"), tree(home / "run")
    everything = load_dataset(DatasetSpec(), stream(0, "dataset")).x
    n = len(run.case.records("client/0")[1])
    code, out, err = cli("score", home / "run", submitted(home, run, everything))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "1797 images" in err
    assert f"the {n} records" in err
    assert f"Give the {n} likeliest, or fewer" in err
    assert tree(home / "run") == before


def test_naming_more_messages_does_not_add_records(home):
    """Of two rounds the records are the same; so is the number of images allowed."""
    run = fdaudit.load(home / "run")
    n = len(run.case.records("client/0")[1])
    mine = [m.seq for m in run.view("server").messages if (m.kind, m.sender) == ("model_update", "client/0")]
    received = [m.seq for m in run.view("server").messages if m.sender == "server"]
    images = torch.rand(n + 1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UsageError, match=f"more than the {n} records"):
        fdaudit.score(run, submitted(home, run, images, [*mine, *received, *mine]))


def test_a_gradient_of_one_record_allows_one_image(tmp_path):
    run = fdaudit.run(SPEC, tmp_path / "run")
    seq = next(m.seq for m in run.view("server").messages if m.kind == "gradient")
    with pytest.raises(UsageError, match=r"2 images.*\b1 records"):
        fdaudit.score(run, submitted(tmp_path, run, torch.zeros(2, 1, 8, 8), [seq]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("guess", "says"),
    [
        (
            lambda seq: [
                Reconstruction(target="client/0", messages=(seq,), images=torch.zeros(1797, 1, 8, 8))
            ],
            "more than the",
        ),
        (
            lambda seq: (
                [Reconstruction(target="client/0", messages=(seq,), images=torch.zeros(1, 1, 8, 8))] * 2
            ),
            "one reconstruction a victim",
        ),
        (
            lambda seq: [
                Reconstruction(
                    target="client/0",
                    messages=(),
                    images=torch.zeros(2, 1, 8, 8),
                    labels=torch.tensor([3, 3]),
                )
            ],
            "shows a class more than once",
        ),
        (
            lambda seq: [
                Reconstruction(target="client/0", messages=(seq,), images=torch.full((1, 1, 8, 8), torch.nan))
            ],
            "outside",
        ),
        (
            lambda seq: [
                Reconstruction(target="client/0", messages=(seq,), images=torch.full((1, 1, 8, 8), 9.0))
            ],
            "outside",
        ),
        (
            lambda seq: [
                Reconstruction(target="client/0", messages=(seq,), images=torch.zeros(1, 1, 900, 900))
            ],
            "shape",
        ),
        (lambda seq: [Membership(target="client/0", scores=torch.zeros(20))], "challenged were"),
    ],
)
def test_an_attacks_own_guesses_have_the_same_limits(home, guess, says):
    seq = upload(fdaudit.load(home / "run"))
    cell = answered(home / "run", "reconstruction", lambda task: tuple(guess(seq)))
    assert cell.status == "failed"
    assert says in cell.reason


def test_secret_batches_do_not_fail_an_attack_that_guesses_as_many_as_a_step_takes(tmp_path):
    """How many records secret coins drew is unknown to the attack; the limit is what the victim has."""
    dp = {
        "at": "training",
        "name": "dp-sgd",
        "params": {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5},
    }
    run = fdaudit.run(small_spec(defenses=[dp]), tmp_path / "run")
    own = [m.seq for m in run.view("server").messages if m.sender == "client/0"]
    n = len(run.case.records("client/0")[1])
    truth = RunDirectory(tmp_path / "run", run.case).truth
    guess = Reconstruction(target="client/0", messages=(own[-1],), images=torch.zeros(n, 1, 8, 8))
    refuse_too_many([guess], run.view("server"), truth)
    with pytest.raises(ValueError, match=f"more than the {max(n, 16)} records"):
        refuse_too_many(
            [replace(guess, images=torch.zeros(max(n, 16) + 1, 1, 8, 8))], run.view("server"), truth
        )


# -- images that show nobody ---------------------------------------------------------------------------------------


def scored(home: Path, images: torch.Tensor):
    run = fdaudit.load(home / "run")
    guess = Reconstruction(target="client/0", messages=(upload(run),), images=images)
    return RunDirectory(home / "run", run.case).scorer.of(guess).compared([guess]).figures


@pytest.mark.thorough
def test_as_many_images_of_a_public_dataset_as_allowed_gain_nothing(home):
    """Some of them are the victim's records, and as many are other people's."""
    run = fdaudit.load(home / "run")
    n = len(run.case.records("client/0")[1])
    order = torch.randperm(len(run.case.dataset.y), generator=torch.Generator().manual_seed(1))
    dumped = scored(home, run.case.dataset.x[order[:n]])
    assert dumped["psnr_max"].value == 100
    assert "own images beside" in dumped["psnr_prior"].note
    assert dumped["psnr_gain"].value < 2


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["auxiliary", "mean", "duplicates", "one"])
def test_images_without_a_leak_gain_nothing(home, which):
    case = fdaudit.load(home / "run").case
    x, _ = case.auxiliary
    n = len(case.records("client/0")[1])
    images = {
        "auxiliary": x[:n],
        "mean": x.mean(0, keepdim=True).expand(n, -1, -1, -1),
        "duplicates": x[:1].expand(n, -1, -1, -1),
        "one": x[:1],
    }[which]
    assert scored(home, images)["psnr_gain"].value < 0.5


def test_a_true_reconstruction_still_gains(home):
    case = fdaudit.load(home / "run").case
    x = case.records("client/0")[0]
    figures = scored(home, x[:20])
    assert figures["psnr"].value == 100
    assert figures["psnr_gain"].value > 60


def test_bystanders_are_of_the_same_classes_and_none_is_taken_twice_while_others_are_left():
    y = np.array([0] * 5 + [1] * 3 + [2] * 2)
    others = Bystanders(torch.arange(10.0).view(10, 1, 1, 1) / 10, np.arange(10), y)
    for seed in range(20):
        drawn = others.draw(6, np.array([1, 0, 1, 1, 1, 3]), np.random.default_rng(seed))
        rows = (drawn.flatten() * 10).round().long()
        assert len(rows.unique()) == 6
        assert (y[rows[[0, 2, 3]]] == 1).all()
        assert y[rows[1]] == 0
    assert len(others.draw(25, None, np.random.default_rng(0))) == 25


def test_class_guesses_taken_from_other_people_gain_nothing():
    rng = np.random.default_rng(0)
    population = torch.from_numpy(rng.random((400, 1, 8, 8)))
    labels = np.arange(400) % 4
    own, others, aux = slice(0, 100), slice(100, 300), slice(300, 400)

    def gain(images, bystanders):
        return (
            score_class_reconstruction(
                [images],
                [np.arange(4)],
                [population[own]],
                [labels[own]],
                population[aux],
                np.random.default_rng(1),
                auxiliary_labels=labels[aux],
                bystanders=bystanders,
            )
            .figures["psnr_gain"]
            .value
        )

    beside = Bystanders(population, np.arange(400)[others], labels[others])
    assert gain(population[own][:4], beside) > 60
    assert gain(population[others][:4], beside) < gain(population[others][:4], None) + 1e-9
    known = torch.stack([population[labels == k].mean(0) for k in range(4)])
    assert gain(known, beside) < 0.5


def test_a_few_images_that_suit_some_record_are_compared_with_what_they_suit_elsewhere():
    """One image chooses the record that it is nearest to; without bystanders the prior could not."""
    rng = np.random.default_rng(0)
    population = torch.from_numpy(rng.random((600, 1, 8, 8)) * 0.2 + rng.random((600, 1, 1, 1)) * 0.8)
    own, aux = population[:250], population[500:]
    guess = aux[:3]
    alone = score_reconstruction(guess, own, aux, np.random.default_rng(1)).figures["psnr_gain"].value
    beside = score_reconstruction(
        guess, own, aux, np.random.default_rng(1), bystanders=Bystanders(population, np.arange(250, 500))
    ).figures["psnr_gain"]
    assert alone > 2
    assert beside.value < 1
