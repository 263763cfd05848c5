"""Masks from a spec to the report: what is measured, what applies, and what is refused."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from fdaudit.attacks._target_model import log_likelihood, soft_dice
from fdaudit.protocols import REGISTRY

import fdaudit
from fdaudit.adversary.oracle import answer
from fdaudit.errors import SpecError, UsageError
from fdaudit.evaluation.controls.rehearsals import _uneven
from fdaudit.handout.auxiliary import _turned, shifted
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.spec.schema import load_spec
from fdaudit.storage.files import load_tensors
from fdaudit.tasks import SEGMENTATION
from fdaudit.testing.federation import masked, records
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.wire import Outage

from ..helpers.mask_cases import discs, write_masks
from ..helpers.protocol_cases import every_case, thorough_beyond_defaults
from ..helpers.protocol_cases import run as run_protocol
from ..helpers.refusals import refused
from ..helpers.results import cell_of, figures_of
from ..helpers.run_cases import known
from .task_cases import check_repeated, check_resumed, first_gradient, loss_scores

pytestmark = pytest.mark.thorough

TRAINED = {"rounds": 3, "batch_size": 8, "local_steps": 5, "lr": 0.2, "momentum": 0.9}


def spec_of(folder, **changes):
    name = f"masks:{write_masks(folder / 'discs.npz', 120)}"
    own = {
        "dataset": {"name": name},
        "partition": {"name": "by-site"},
        "splits": {"test": 0.2, "proxy": 0.1, "auxiliary": 0.2, "candidates": 8},
        "model": {"name": "unet", "params": {"width": 8, "depth": 1}},
        "protocol": {"name": "fedavg", "params": TRAINED},
    }
    return small_spec(**(own | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks")
    references = ["standalone", "centralized"]
    spec = spec_of(folder, references=references, attacks="all", adversaries=["server", "world"])
    made = fdaudit.run(spec, folder / "run")
    fdaudit.report(made)
    return made


def rows_of(run):
    with (run.directory / "utility.csv").open() as file:
        return list(csv.DictReader(file))


# -- utility --------------------------------------------------------------------------------------------------


def test_utility_is_the_mean_dice_coefficient_of_test_images(finished):
    rows = rows_of(finished)
    assert list(rows[0])[3:] == ["dice", "low", "high", "mean_iou", "object_dice", "aji", "hd95", "n", "site"]
    assert {r["line"] for r in rows} == {"fedavg", "standalone", "centralized"}
    asked = ("fedavg", "2", "server", "")
    (last,) = [r for r in rows if (r["line"], r["round"], r["party"], r["site"]) == asked]
    x, y = finished.case.test
    weights = load_tensors(finished.directory / "vault/models/server.safetensors")
    guess = finished.case.trainer().predict(weights, x).argmax(1).numpy()
    truth = y.numpy()
    by_image = [2 * (g * t).sum() / (g.sum() + t.sum()) for g, t in zip(guess, truth, strict=True)]
    assert float(last["dice"]) == pytest.approx(np.mean(by_image))
    iou = [((guess == c) & (truth == c)).sum() / ((guess == c) | (truth == c)).sum() for c in (0, 1)]
    assert float(last["mean_iou"]) == pytest.approx(np.mean(iou))
    assert float(last["low"]) < float(last["dice"]) < float(last["high"])
    assert int(last["n"]) == len(y)


def test_every_last_model_is_measured_on_the_test_images_of_each_site(finished):
    rows = [r for r in rows_of(finished) if r["site"]]
    assert {r["round"] for r in rows} == {"2"}
    clients = {f"client/{k}" for k in range(2)}
    by_line = {"fedavg": {"server", *clients}, "standalone": clients, "centralized": {"client/0"}}
    for line, parties in by_line.items():
        found = {(r["party"], r["site"]) for r in rows if r["line"] == line}
        assert found == {(p, str(k)) for p in parties for k in range(2)}
    x, y = finished.case.test
    weights = load_tensors(finished.directory / "vault/models/server.safetensors")
    guess = finished.case.trainer().predict(weights, x).argmax(1).numpy()
    of = finished.case.dataset.sites[finished.case.splits.test].numpy()
    for row in (r for r in rows if (r["line"], r["party"]) == ("fedavg", "server")):
        mine = of == int(row["site"])
        pairs = list(zip(guess[mine], y.numpy()[mine], strict=True))
        assert int(row["n"]) == len(pairs)
        dice = np.mean([2 * (g * t).sum() / (g.sum() + t.sum()) for g, t in pairs])
        assert float(row["dice"]) == pytest.approx(dice)


def test_the_result_has_one_figure_a_party_and_none_of_a_single_site(finished):
    final = finished.result.plain()["utility"]["final"]
    assert len({(f["line"], f["party"]) for f in final}) == len(final)
    assert {f["figure"]["n"] for f in final} == {len(finished.case.test[1])}


def test_discs_are_learnt(finished):
    best = [float(r["dice"]) for r in rows_of(finished) if r["line"] == "centralized" and not r["site"]][-1]
    assert best > 0.8


def test_the_result_and_the_report_speak_of_dice(finished):
    result = finished.result.plain()
    assert result["run"]["task"] == "segmentation"
    figures = [row["figure"] for row in result["utility"]["final"]]
    assert {f["name"] for f in figures} == {"dice"}
    assert all("mIoU" in f["note"] and "AJI" in f["note"] for f in figures)
    assert all({"dice", "mean_iou"} <= point.keys() for point in result["utility"]["curve"])
    pixels = [
        torch.bincount(finished.case.records(k)[1].flatten(), minlength=2) for k in finished.case.clients
    ]
    assert result["class_table"] == [p.tolist() for p in pixels]
    page = (finished.directory / "report" / "index.html").read_text(encoding="utf-8")
    assert "Test Dice in" in page
    assert "Mean Dice coefficient" in page
    assert "mIoU" in page
    assert "Pixels of each" in page
    assert "Test accuracy" not in page


def test_the_command_line_prints_dice_and_a_gate_reads_it(tmp_path, cli):
    spec = tmp_path / "spec.json"
    gates = {"utility": 0.999}
    spec.write_text(json.dumps(spec_of(tmp_path, gates=gates)))
    code, out, _ = cli("run", spec, "--out", tmp_path / "run")
    assert code == 1
    assert out.split()[:2] == ["Dice", "fedavg"]


def test_a_model_that_has_learnt_nothing_is_said_to_be_near_chance(tmp_path):
    idle = {**TRAINED, "rounds": 1, "local_steps": 1, "lr": 1e-9}
    made = fdaudit.run(spec_of(tmp_path, protocol={"name": "fedavg", "params": idle}), tmp_path / "run")
    (warning,) = made.result.plain()["utility"]["warnings"]
    assert "near chance" in warning
    assert "a constant answer" in warning


@pytest.mark.thorough
def test_a_run_again_from_the_same_seed_gives_the_same_bytes(finished, tmp_path):
    check_repeated(finished, tmp_path / "again")


# -- attacks --------------------------------------------------------------------------------------------------


def test_membership_by_loss_runs_with_its_controls_and_every_other_attack_says_why_not(finished):
    for cell in finished.result.plain()["cells"]:
        if cell["attack"] == "loss-threshold":
            assert cell["status"] == "run", cell["reason"]
            assert {name: c["passed"] for name, c in cell["controls"].items()} == {
                "positive": True,
                "negative": True,
            }
        elif cell["attack"] == "label-counts":
            assert cell["status"] == "not-applicable"
            assert "class_counts" in cell["reason"]
        elif cell["attack"] in ("pixel-comparison", "pixel-matching"):
            assert cell["reason"].startswith("no gradients at")
        elif cell["attack"] == "learned-inversion":
            assert cell["status"] == "not-applicable"
            assert "20 auxiliary records" in cell["reason"]
        else:
            assert cell["status"] == "not-applicable"
            images = "the attack needs one answer for each record, not one for each pixel"
            texts = "the attack works on texts, not on images"
            assert cell["reason"] == (texts if cell["attack"] in ("embedding-rows", "tag") else images)


def test_members_of_an_overfit_federation_are_told_by_their_loss(tmp_path):
    """Acceptance: few noisy masks, learnt for long; each client's own model is in the server's view."""
    name = f"masks:{write_masks(tmp_path / 'noisy.npz', 180, each=1, noise=0.5)}"
    local = {"rounds": 1, "local_steps": 300, "batch_size": 16, "lr": 0.1, "momentum": 0.9}
    spec = spec_of(
        tmp_path,
        dataset={"name": name},
        splits={"test": 0.2, "proxy": 0.05, "auxiliary": 0.2, "candidates": 15},
        protocol={"name": "fedavg", "params": local},
        attacks=[{"name": "loss-threshold", "adversaries": ["server"]}],
    )
    made = fdaudit.run(spec, tmp_path / "run")
    cell = cell_of(made, "server/loss-threshold")
    assert cell["params"]["mask_loss"] == "dice"
    told = [fdaudit.attack("loss-threshold", made, "server", mask_loss=k) for k in ("cross-entropy", "both")]
    for one in (cell, *(t.plain() for t in told)):
        assert {name: c["passed"] for name, c in one["controls"].items()} == {
            "positive": True,
            "negative": True,
        }
        (auc,) = [f for f in one["figures"] if f["name"] == "auc" and not f.get("target")]
        assert auc["low"] > 0.6, auc


def test_gradients_of_single_masks_show_their_images(tmp_path):
    one = {"name": "fedavg", "params": {"rounds": 1, "upload": "gradient", "batch_size": 1, "lr": 0.1}}
    spec = spec_of(
        tmp_path,
        protocol=one,
        attacks=[{"name": "learned-inversion"}],
        adversaries=["server"],
        splits={"test": 0.1, "proxy": 0.05, "auxiliary": 0.5, "candidates": 4},
        victims=2,
    )
    made = fdaudit.run(spec, tmp_path / "run")
    cell = cell_of(made, "learned-inversion")
    assert cell["controls"]["negative"]["passed"]
    figures = figures_of(cell)
    assert figures["psnr_gain"]["value"] > 1, figures["psnr_gain"]
    assert figures["identification_rank"]["value"] <= 3
    assert figures["frechet_task_encoder"]["value"] is None
    fdaudit.report(made)


def test_pixel_counts_in_clear_are_class_shares(tmp_path):
    kd = {"name": "fedkd", "params": {"local_steps": 2, "distill_rounds": 1, "distill_steps": 1}}
    spec = spec_of(tmp_path, protocol=kd, attacks=[{"name": "label-counts"}], adversaries=["aggregator"])
    made = fdaudit.run(spec, tmp_path / "run")
    cell = cell_of(made, "label-counts")
    assert cell["status"] == "run", cell["reason"]
    assert {name: c["passed"] for name, c in cell["controls"].items()} == {"positive": True, "negative": True}
    distance = figures_of(cell)["label_tv_mean"]
    assert distance["value"] == pytest.approx(0, abs=1e-12)


def test_the_clients_of_a_control_on_masks_differ_in_their_pixels():
    _, objects = discs(60)
    y = torch.from_numpy(objects > 0).long()
    parts = _uneven(y, 3, child(0, "uneven"))
    assert sorted(torch.cat(parts).tolist()) == list(range(60))
    shares = [float((y[part] == 0).double().mean()) for part in parts]
    assert shares == sorted(shares)
    assert shares[-1] - shares[0] > 0.05


def test_the_score_of_a_mask_is_the_mean_log_likelihood_of_its_pixels():
    p = torch.tensor([[0.9, 0.2], [0.5, 1.0]])
    soft = torch.stack([1 - p, p])[None]
    y = torch.tensor([[[1, 0], [0, 0]]])
    expected = (np.log(0.9) + np.log(0.8) + np.log(0.5) + np.log(1e-12)) / 4
    assert log_likelihood(soft, y).tolist() == pytest.approx([expected], rel=1e-5)


def dice_of(p, mask):
    """Return the soft Dice coefficient of an answer (C, h, w) in NumPy, over the classes that the mask has."""
    classes = [c for c in range(1, len(p)) if (mask == c).any()] or [0]
    each = [2 * p[c][mask == c].sum() / ((p[c] ** 2).sum() + (mask == c).sum()) for c in classes]
    return np.mean(each)


def test_the_dice_score_of_a_mask_is_that_of_the_classes_it_has():
    p = torch.randn(6, 3, 5, 4, generator=child(0, "p"), dtype=torch.float64).mul(2).softmax(1)
    y = torch.randint(3, (6, 5, 4), generator=child(0, "y"))
    y[1], y[2], y[3] = 0, y[2].clamp(max=1), 2
    expected = [dice_of(a, m) for a, m in zip(p.numpy(), y.numpy(), strict=True)]
    assert soft_dice(p, y).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_perfect_answer_has_the_dice_score_1_even_for_a_mask_without_objects():
    y = torch.tensor([[[0, 0], [0, 0]], [[0, 1], [1, 1]]])
    sure = torch.nn.functional.one_hot(y, 2).movedim(-1, 1)
    assert soft_dice(sure, y).tolist() == [1, 1]
    assert soft_dice(1 - sure, y).tolist() == [0, 0]


@pytest.mark.parametrize("loss", ["dice", "cross-entropy", "both"])
def test_membership_scores_are_asked_of_an_oracle_pixel_by_pixel(loss):
    soft = torch.rand(2, 2, 4, 4, generator=child(0, "z")).softmax(1)
    y = torch.randint(2, (2, 4, 4), generator=child(0, "y"))
    scores = loss_scores(soft, y, SEGMENTATION, mask_loss=loss)
    dice, fit = soft_dice(soft, y), log_likelihood(soft, y)
    assert torch.equal(scores, {"dice": dice, "cross-entropy": fit, "both": fit + dice}[loss])


def test_oracles_answer_for_each_pixel():
    z = torch.randn(2, 3, 4, 4, generator=child(0, "z"))
    assert torch.equal(answer("soft", z, SEGMENTATION.labels), z.softmax(1))
    assert torch.equal(answer("hard", z, SEGMENTATION.labels), z.argmax(1))


def test_shifted_masks_are_turned_with_their_images():
    _, objects = discs(10, side=32)
    y = torch.from_numpy(objects > 0).long()
    turned = _turned(y)
    assert set(turned.unique().tolist()) == {0, 1}
    assert ((shifted(y[:, None].float())[:, 0] > 0.5).long() == turned).double().mean() > 0.97


# -- protocols --------------------------------------------------------------------------------------------------


CASES = [c for c in every_case() if "segmentation" in REGISTRY.load(c[0]).card.tasks]
CASES = [c for c in CASES if "votes" not in (c[1].get("ensemble"), c[1].get("outputs"))]
THOROUGH = thorough_beyond_defaults(CASES)


@pytest.mark.parametrize("case", THOROUGH)
def test_protocols_that_declare_masks_run_them_and_resume_bit_for_bit(case, tmp_path):
    check_resumed(case, tmp_path, clients=masked(records()), task=SEGMENTATION)


@pytest.mark.parametrize("case", THOROUGH)
def test_rounds_with_masks_are_completed_without_a_silent_client(case, tmp_path):
    silent = [Outage(party="client/1", first=0, last=9, after=0)]
    ran = run_protocol(tmp_path / "a", *case, clients=masked(records()), task=SEGMENTATION, outages=silent)
    assert not any(m.sender == "client/1" and m.kind != "silence" and m.receivers for m in ran.messages)
    assert len(ran.rounds) == ran.protocol.config.rounds


def test_a_gradient_is_that_of_cross_entropy_and_dice(tmp_path):
    got, module, x, y = first_gradient(tmp_path / "a", masked(records()), SEGMENTATION)
    z = module(x)
    hot = torch.stack([y == c for c in range(3)], 1).float()
    q = z.softmax(1)
    overlap = 2 * (q * hot).sum((2, 3)) / (q.square().sum((2, 3)) + hot.sum((2, 3)) + 1e-6)
    loss = -(z.log_softmax(1) * hot).sum(1).mean() + 1 - overlap[:, 1:].mean()
    expected = torch.autograd.grad(loss, list(module.parameters()))
    for (name, _), value in zip(module.named_parameters(), expected, strict=True):
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-6)


def test_dp_sgd_trains_on_masks_and_states_its_epsilon(tmp_path):
    entry = {
        "at": "training",
        "name": "dp-sgd",
        "params": {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.2},
    }
    params = {**TRAINED, "rounds": 1, "local_steps": 2, "weighting": "uniform"}
    spec = spec_of(tmp_path, defenses=[entry], protocol={"name": "fedavg", "params": params})
    made = fdaudit.run(spec, tmp_path / "run")
    (entry,) = [e for e in made.result.plain()["ledger"] if e["adversary"] == "server"]
    assert 0 < entry["epsilon"] < 100


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"name": "cnn-strided"}}, "model.name"),
        ({"protocol": {"name": "fedmd"}}, "protocol.name"),
        ({"protocol": {"name": "selective-fd"}}, "protocol.name"),
        ({"partition": {"name": "dirichlet", "alpha": 1.0}}, "partition.name"),
        ({"canaries": {"clients": [0]}}, "canaries.kind"),
        ({"clients": 4}, "clients"),
    ],
)
def test_what_masks_do_not_support_is_one_clear_error(tmp_path, changes, field):
    refused(lambda: simulated_case(load_spec(spec_of(tmp_path, **changes)), known(0)), field, kind=UsageError)


def test_a_network_for_masks_is_refused_for_labels():
    spec = small_spec(model={"name": "unet"}, dataset={"name": "digits", "limit": 100, "image_size": 16})
    with pytest.raises(SpecError, match="for masks"):
        simulated_case(load_spec(spec), known(0))
