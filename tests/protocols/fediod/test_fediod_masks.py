"""FedIOD on masks: pixel counts, Eq. 3, 5, 8 and 9 pixel by pixel from the record alone, and what is refused.

The replay works out cotangents and the student's gradients in NumPy, a pixel for a sample. Only the U-Net is torch's.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.tasks import SEGMENTATION
from fdaudit.testing.federation import CLASSES, dense, masked, records
from fdaudit.testing.specs import small_spec

from ...helpers.mask_cases import write_masks
from ...helpers.protocol_cases import run
from ...helpers.record_reader import BrokenRecordError, read
from ...helpers.refusals import refused
from ...helpers.run_cases import known
from .test_replay_fediod import replay

SIDE = 8
SMALL = {"rounds": 2, "steps_per_round": 1, "samples": 4, "student_steps": 1, "local_steps": 6, "lr": 0.5}
"""One step of stage 2, whose messages tell everything that its server computed."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    params = {**SMALL, "gan": 0.5, "conf": 0.3, "unique": 0.7, "mimic": 0.0}
    return run(
        tmp_path_factory.mktemp("fediod") / "a",
        "fediod",
        params,
        clients=masked(records()),
        task=SEGMENTATION,
        rounds=2,
    )


def sent(made, kind, sender=None):
    found = [m for m in made.messages if m.kind == kind and sender in (None, m.sender)]
    return {m.receivers[0] if kind == "logit_cotangents" else m.sender: made.tensors(m) for m in found}


def test_counts_are_of_pixels(made):
    counts = sent(made, "class_counts")
    for k, data in made.clients.items():
        assert counts[k]["counts"].tolist() == [int((data.y == c).sum()) for c in range(CLASSES)]


def test_answers_and_cotangents_are_maps_and_gradients_are_images(made):
    maps, images = (4, CLASSES, SIDE, SIDE), (4, 1, SIDE, SIDE)
    assert {tuple(t["values"].shape) for t in sent(made, "logits").values()} == {maps}
    assert {tuple(t["values"].shape) for t in sent(made, "logit_cotangents").values()} == {maps}
    assert {tuple(t["values"].shape) for t in sent(made, "sample_gradients").values()} == {images}
    assert {tuple(t["values"].shape) for t in sent(made, "discriminator_scores").values()} == {(4,)}


def test_cotangents_are_the_gradient_of_equations_3_and_5_over_pixels(made):
    """Written out in NumPy in double precision, from logits and counts of the record."""
    logits, counts = sent(made, "logits"), sent(made, "class_counts")
    names = list(logits)
    z = np.stack([logits[k]["values"].double().numpy() for k in names])
    n = np.array([float(counts[k]["counts"].sum()) for k in names])
    pi = n / n.sum()

    def total(at):
        q = np.exp(at - at.max(2, keepdims=True))
        q /= q.sum(2, keepdims=True)
        entropies = -(q * np.log(q)).sum(2)  # (K, n, h, w)
        mixed = np.einsum("k,knchw->nchw", pi, q)
        conf = np.einsum("k,knhw->nhw", pi, entropies)
        unique = -(-(mixed * np.log(mixed)).sum(1) - conf)
        return 0.3 * conf.mean() + 0.7 * unique.mean()

    cotangents = sent(made, "logit_cotangents")
    rng = np.random.default_rng(0)
    for _ in range(12):
        place = tuple(int(rng.integers(size)) for size in z.shape)
        up, down = z.copy(), z.copy()
        up[place] += 1e-4
        down[place] -= 1e-4
        expected = (total(up) - total(down)) / 2e-4
        stated = float(cotangents[names[place[0]]]["values"][place[1:]])
        assert stated == pytest.approx(expected, rel=2e-3, abs=1e-8)


def test_the_student_learns_equation_9_at_every_pixel(made):
    logits, counts, scores = (sent(made, k) for k in ("logits", "class_counts", "discriminator_scores"))
    names = list(logits)
    z = torch.stack([logits[k]["values"] for k in names])
    raw = torch.stack([counts[k]["counts"].float()[None] * scores[k]["values"][:, None] for k in names])
    weights = raw / raw.sum(0)
    expected = torch.einsum("knc,knchw->nchw", weights, z)
    state = made.protocol.state
    torch.testing.assert_close(state["server/replay/target"][:4], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        state["server/replay/x"][:4], next(iter(sent(made, "generated_samples").values()))["samples"]
    )


# -- replay: the record alone ---------------------------------------------------------------------------------------

SETTINGS = {
    "rounds": 3,
    "steps_per_round": 2,
    "samples": 4,
    "local_steps": 6,
    "adam_lr": 0.01,
    "gan": 0.7,
    "gan_total": "mean",
    "conf": 0.6,
    "unique": 0.5,
    "mimic": 0.4,
    "student_steps": 1,
    "replay": 0,
    "weights": "eq8",
    "shares": "samples",
    "temperature": None,
}


def rows_of(maps):
    """Return maps (..., n, C, h, w) as samples (..., n*h*w, C)."""
    rows = np.moveaxis(maps, -3, -1)
    return rows.reshape(*maps.shape[:-4], -1, maps.shape[-3])


class Student:
    """The U-Net in double precision, and Adam."""

    def __init__(self, initial):
        self.module = dense().build(torch.Generator().manual_seed(0)).double()
        self.module.load_state_dict(initial)
        self.adam = torch.optim.Adam(self.module.parameters(), lr=1.0)

    @property
    def w(self):
        return {name: tensor.numpy() for name, tensor in self.module.state_dict().items()}

    def __call__(self, x):
        self.answer = self.module(torch.from_numpy(x).double())
        return self.answer.detach().numpy()

    def step(self, by_output, lr):
        """Go down the gradient whose value at the last output is `by_output`, in samples."""
        n = len(self.answer)
        maps = np.moveaxis(by_output.reshape(n, SIDE, SIDE, -1), -1, -3)
        self.adam.param_groups[0]["lr"] = lr
        self.adam.zero_grad()
        self.answer.backward(torch.from_numpy(maps))
        self.adam.step()


def checked(record, initial, settings):
    return replay(record, Student(initial), settings, 3, [], rows_of=rows_of, atol=1e-6)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the record of a run of three rounds, and the server's initial parameters."""
    folder = tmp_path_factory.mktemp("replayed") / "a"
    made = run(folder, "fediod", SETTINGS, clients=masked(records()), task=SEGMENTATION, rounds=3)
    return read(made.folder), made.setting.initial["server"]


def test_what_the_server_told_and_published_follows_from_the_record(recorded):
    assert checked(*recorded, SETTINGS) == 4 * 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"conf": 0.61},
        {"unique": 0.51},
        {"mimic": 0.41},
        {"gan": 0.71},
        {"weights": "samples"},
        {"shares": "uniform"},
        {"temperature": 3.0},
        {"adam_lr": 0.011},
    ],
    ids=lambda c: "-".join(c),
)
def test_the_replay_tells_other_settings_from_those_that_were_used(change, recorded):
    with pytest.raises(BrokenRecordError):
        checked(*recorded, {**SETTINGS, **change})


@pytest.mark.thorough
def test_taking_any_one_message_away_breaks_the_replay(recorded):
    record, initial = recorded
    for k in range(len(record)):
        with pytest.raises(BrokenRecordError):
            checked(record[:k] + record[k + 1 :], initial, SETTINGS)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["logits", "discriminator_scores", "class_counts", "generated_samples"])
def test_every_value_that_the_server_was_sent_or_sent_counts(kind, recorded):
    record, initial = recorded
    k = next(k for k, (message, _) in enumerate(record) if message["kind"] == kind)
    message, tensors = record[k]
    other = {n: t if n == "index" else t + np.ones((), t.dtype) for n, t in tensors.items()}
    with pytest.raises(BrokenRecordError):
        checked([*record[:k], (message, other), *record[k + 1 :]], initial, SETTINGS)


# -- what is refused ------------------------------------------------------------------------------------------------


def test_votes_are_refused_for_masks(tmp_path):
    params = {"outputs": "votes", "weights": "uniform", "shares": "uniform"}
    spec = small_spec(
        dataset={"name": f"masks:{write_masks(tmp_path / 'discs.npz', 120)}"},
        splits={"test": 0.2, "proxy": 0.1, "auxiliary": 0.2, "candidates": 4},
        model={"name": "unet", "params": {"width": 8, "depth": 1}},
        protocol={"name": "fediod", "params": params},
    )
    refused(
        lambda: simulated_case(load_spec(spec), known(0)), "protocol.params.outputs", "votes", ["'logits'"]
    )
