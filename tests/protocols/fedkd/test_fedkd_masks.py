"""FedKD on masks: pixel counts, the ensemble from the record alone, and Eq. 10 written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fdaudit.errors import UsageError
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.tasks import SEGMENTATION
from fdaudit.testing.federation import CLASSES, dense, masked, public, records
from fdaudit.testing.specs import small_spec

from ...helpers.by_hand import module_of
from ...helpers.mask_cases import write_masks
from ...helpers.protocol_cases import run
from ...helpers.record_reader import read
from ...helpers.refusals import refused
from ...helpers.run_cases import known
from .test_replay_fedkd import only, unpacked

GIVEN = {"task": SEGMENTATION}
BARE = {"gamma": None, "levels": None}
CLIENTS = ("client/0", "client/1", "client/2")


def ran(folder, **params):
    return run(folder, "fedkd", params, clients=masked(records()), **GIVEN)


def replayed(folder, *, quantised):
    """Return ẑ as the record has it, and as logits and counts of the record make it by Eq. 1 and 2."""
    record = read(folder)
    N = np.stack([only(record, "class_counts", k)[1]["counts"] for k in CLIENTS]).astype(float)
    sent = [only(record, "logits", k)[1] for k in CLIENTS]
    z = np.stack([unpacked(t)[1] if quantised else t["values"] for t in sent]).astype(np.float64)
    made = np.einsum("knchw,kc->nchw", z, N / N.sum(0))
    return only(record, "ensemble_labels", "aggregator")[1]["values"], made


def test_counts_are_of_pixels(tmp_path):
    made = ran(tmp_path / "a", **BARE)
    sent = {m.sender: made.tensors(m)["counts"] for m in made.messages if m.kind == "class_counts"}
    for k, data in made.clients.items():
        assert sent[k].tolist() == [int((data.y == c).sum()) for c in range(CLASSES)]


@pytest.mark.parametrize("quantised", [False, True])
def test_the_ensemble_follows_from_logits_and_pixel_counts(tmp_path, quantised):
    made = ran(tmp_path / "a", gamma=None, levels=200 if quantised else None)
    stated, expected = replayed(made.folder, quantised=quantised)
    assert stated.shape == (len(public()), CLASSES, 8, 8)
    np.testing.assert_allclose(stated, expected, rtol=1e-4, atol=1e-5)


def test_logits_are_those_of_the_clients_models(tmp_path):
    made = ran(tmp_path / "a", **BARE)
    for k in CLIENTS:
        (sent,) = [m for m in made.messages if (m.kind, m.sender) == ("logits", k)]
        expected = module_of(made.rounds[0].models[k], dense()).eval()(public()).detach()
        torch.testing.assert_close(made.tensors(sent)["values"], expected, rtol=1e-4, atol=1e-5)


def test_another_clients_pixels_change_the_ensemble(tmp_path):
    made = ran(tmp_path / "a", **BARE)
    record = read(made.folder)
    z = np.stack([only(record, "logits", k)[1]["values"] for k in CLIENTS])
    stated = only(record, "ensemble_labels", "aggregator")[1]["values"]
    assert not np.allclose(stated, z.mean(0), rtol=1e-3, atol=1e-3)  # which equal weights would make


def test_a_distillation_step_is_a_step_of_equation_10(tmp_path):
    params = {"distill_rounds": 1, "distill_steps": 1, "distill_batch_size": 7, "distill_optimizer": "sgd"}
    made = ran(tmp_path / "a", **BARE, **params, distill_lr=0.1)
    (label,) = [m for m in made.messages if m.kind == "ensemble_labels"]
    p = made.tensors(label)["values"].softmax(1)
    module = module_of(made.setting.initial["server"], dense())
    q = module(public()).softmax(1)
    by_class = 0.0
    for c in range(1, CLASSES):
        overlap = 2 * (p[:, c] * q[:, c]).sum((1, 2))
        by_class = by_class + overlap / ((p[:, c] ** 2).sum((1, 2)) + (q[:, c] ** 2).sum((1, 2)) + 1e-6)
    loss = -(by_class / (CLASSES - 1)).mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    for (name, before), gradient in zip(module.named_parameters(), gradients, strict=True):
        after = made.rounds[-1].models["server"][name]
        torch.testing.assert_close(after, (before - 0.1 * gradient).detach(), rtol=1e-4, atol=1e-5)


def test_a_temperature_distils_each_pixel(tmp_path):
    made = ran(tmp_path / "a", **BARE, temperature=2.0, distill_rounds=2, distill_steps=30, distill_lr=0.01)
    losses = [done.losses["server"] for done in made.rounds if "server" in done.losses]
    assert 0 < losses[1] < losses[0]


def test_noise_reaches_every_pixel(tmp_path):
    made = ran(tmp_path / "a", gamma=1.0, levels=None)
    stated, clean = replayed(made.folder, quantised=False)
    noise = (stated - clean).ravel()
    assert abs(np.abs(noise).mean() - 1) < 5 / len(noise) ** 0.5  # E|Lap(1)| = 1, with deviation 1


# -- what is refused ------------------------------------------------------------------------------------------------


def spec_of(folder, **changes):
    own = {
        "dataset": {"name": f"masks:{write_masks(folder / 'discs.npz', 120)}"},
        "splits": {"test": 0.2, "proxy": 0.1, "auxiliary": 0.2, "candidates": 4},
        "model": {"name": "unet", "params": {"width": 8, "depth": 1}},
        "protocol": {"name": "fedkd", "params": {}},
    }
    return small_spec(**(own | changes))


def test_votes_are_refused_for_masks(tmp_path):
    spec = spec_of(tmp_path, protocol={"name": "fedkd", "params": {"ensemble": "votes"}})
    refused(
        lambda: simulated_case(load_spec(spec), known(0)), "protocol.params.ensemble", "votes", ["'logits'"]
    )


@pytest.mark.parametrize("name", ["top-k", "temperature"])
def test_defences_of_whole_answers_are_refused_for_masks(tmp_path, name):
    params = {"temperature": 2.0} if name == "temperature" else {}
    entry = {"kind": "logits", "name": name, "params": params}
    with pytest.raises(UsageError, match=rf"^defenses\.0\.name: '{name}' .*segmentation"):
        simulated_case(load_spec(spec_of(tmp_path, defenses=[entry])), known(0))
