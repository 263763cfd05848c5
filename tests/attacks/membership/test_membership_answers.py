"""Recorded answers: which sample each is about, which one counts, and what defences did to it."""

from __future__ import annotations

import math

import pytest
import torch
from fdaudit.attacks.membership._answers import Treatment, recorded, treatment_of
from fdaudit.defenses import REGISTRY as DEFENSES
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.rng import SecretStream
from fdaudit.transcript.encoding import readable

from .membership_cases import CLASSES, knowledge, records, view

NOISE = SecretStream(b"n" * 32, "test")


def answer(index, values):
    return {"index": torch.tensor(index), "values": values}


def logits(n, seed=0):
    return torch.randn(n, CLASSES, generator=torch.Generator().manual_seed(seed)) * 3


def centred(values):
    return values - values.mean(1, keepdim=True)


@pytest.fixture
def known():
    public, _ = records(20, seed=5)
    return knowledge(*records(8), public=public)


# -- which answer -------------------------------------------------------------------------------------------------


def test_an_answer_belongs_to_the_public_sample_that_its_index_names(tmp_path, known):
    z = logits(3)
    with view(tmp_path / "t", [("client/1", "server", "logits", answer([7, 2, 19], z))]) as seen:
        (told,) = recorded(seen, known, 100).values()
    assert told.samples.tolist() == [2, 7, 19]
    assert torch.equal(told.x, known.public[[2, 7, 19]])
    assert torch.allclose(told.values, centred(z)[[1, 0, 2]], atol=1e-6)


def test_the_last_answer_about_a_sample_counts(tmp_path, known):
    first, second = logits(2, 1), logits(2, 2)
    sent = [
        ("client/1", "server", "logits", answer([4, 5], first), 0),
        ("client/1", "server", "logits", answer([5, 6], second), 1),
    ]
    with view(tmp_path / "t", sent) as seen:
        (told,) = recorded(seen, known, 100).values()
    assert told.samples.tolist() == [4, 5, 6]
    assert torch.allclose(told.values, centred(torch.stack([first[0], *second])), atol=1e-6)


def test_noisy_answers_about_one_sample_are_averaged(tmp_path, known):
    truth, noise = logits(2), [logits(2, seed) for seed in range(1, 6)]
    described = [{"name": "gaussian-noise", "sigma": 1.0}]
    sent = [
        ("client/1", "server", "logits", answer([4, 5], truth + n), r, 0, described)
        for r, n in enumerate(noise)
    ]
    with view(tmp_path / "t", sent) as seen:
        (told,) = recorded(seen, known, 100).values()
    assert told.treatment.noisy
    assert torch.allclose(told.values, centred(truth + torch.stack(noise).mean(0)), atol=1e-5)


def test_samples_that_do_not_exist_are_left_out(tmp_path, known):
    with view(tmp_path / "t", [("client/1", "server", "logits", answer([-1, 3, 20], logits(3)))]) as seen:
        (told,) = recorded(seen, known, 100).values()
    assert told.samples.tolist() == [3]


def test_a_vote_that_declines_is_no_answer(tmp_path, known):
    votes = answer([3, 4, 5], torch.tensor([2, -1, 0]))
    with view(tmp_path / "t", [("client/1", "server", "hard_labels", votes)]) as seen:
        (told,) = recorded(seen, known, 100, kinds=("hard_labels",)).values()
    assert told.samples.tolist() == [3, 5]
    assert told.values.argmax(1).tolist() == [2, 0]


def test_of_many_answers_the_last_ones_are_kept(tmp_path, known):
    sent = [("client/1", "server", "logits", answer([r, r + 1], logits(2, r)), r) for r in range(0, 12, 2)]
    with view(tmp_path / "t", sent) as seen:
        (told,) = recorded(seen, known, 4).values()
    assert told.samples.tolist() == [8, 9, 10, 11]


def test_without_public_samples_answers_belong_to_those_generated_in_the_same_step(tmp_path):
    x, y = records(8)
    made = [records(3, seed)[0] for seed in (1, 2)]
    sent = []
    for step, samples in enumerate(made):
        sent.append(("server", "client/1", "generated_samples", {"samples": samples}, 1, step))
        sent.append(("client/1", "server", "logits", answer([0, 1, 2], logits(3, step)), 1, step))
    with view(tmp_path / "t", sent) as seen:
        (told,) = recorded(seen, knowledge(x, y), 100).values()
    assert torch.equal(told.x, torch.cat(made))
    assert torch.allclose(told.values, centred(torch.cat([logits(3, 0), logits(3, 1)])), atol=1e-6)


def test_rows_that_sum_to_a_score_are_read_as_probabilities(tmp_path, known):
    p = logits(4).softmax(1)
    weighted = p * torch.tensor([[0.9], [0.1], [0.5], [1.0]])
    with view(
        tmp_path / "t", [("client/1", "server", "soft_labels", answer([0, 1, 2, 3], weighted))]
    ) as seen:
        (told,) = recorded(seen, known, 100).values()
    assert torch.allclose(told.values, p, atol=1e-6)


# -- what defences did --------------------------------------------------------------------------------------------


def released(name, kind, values, **settings):
    """What crosses the wire, and what the message says of the defence."""
    cls = DEFENSES.load(name)
    defense = cls(cls.Config(**settings))
    out = defense.release(kind, {"index": torch.arange(len(values)), "values": values}, NOISE)
    return readable(out.tensors)["values"], [defense.describe()]


@given(st.floats(0.3, 8), st.sampled_from(["logits", "soft_labels"]))
def test_a_temperature_is_undone(temperature, kind):
    z = logits(6)
    values = z if kind == "logits" else z.softmax(1)
    sent, described = released("temperature", kind, values, temperature=temperature)
    found = treatment_of(kind, described, sent)
    assert found.temperature == pytest.approx(temperature)
    assert torch.allclose(found.probabilities(sent), z.softmax(1).double(), atol=1e-3)


@given(st.integers(8, 300), st.sampled_from(["eq3", "eq4"]))
def test_a_value_rounded_up_is_moved_to_the_middle_of_its_cell(levels, grid):
    values = logits(400).clamp(-11.9, 11.9)
    sent, described = released("uniform-quantization", "logits", values, levels=levels, grid=grid, z_max=12.0)
    found = treatment_of("logits", described, sent)
    step = 24 / (levels if grid == "eq4" else levels - 1)
    assert found.cell == pytest.approx(step, rel=1e-3)
    off = found.undone(sent) - values
    assert off.abs().max() <= step / 2 + 1e-5
    assert off.mean().abs() < step / 8 + 1e-5  # rounding up alone has a mean of half a step


def test_rounding_says_how_wide_its_cells_are():
    p = logits(5).softmax(1)
    sent, described = released("rounding", "soft_labels", p, decimals=1)
    found = treatment_of("soft_labels", described, sent)
    assert found.cell == pytest.approx(0.1)
    assert not found.raised
    assert found.floor == pytest.approx(0.05)
    assert torch.isfinite(found.probabilities(sent).log()).all()


@pytest.mark.parametrize("name", ["gaussian-noise", "laplace-noise"])
def test_additive_noise_is_known_as_such(name):
    settings = {"sigma": 0.5} if name == "gaussian-noise" else {"gamma": 2.0}
    sent, described = released(name, "logits", logits(5), **settings)
    assert treatment_of("logits", described, sent).noisy


def test_an_answer_without_defences_is_left_as_it_is():
    p = logits(5).softmax(1)
    assert torch.allclose(Treatment().probabilities(p), p.double(), atol=1e-6)
    assert not Treatment().blur(torch.zeros(3)).any()


@given(st.floats(-6, 6), st.integers(1, 3))
def test_the_blur_of_rounded_probabilities_is_what_their_cell_spans(phi, decimals):
    """Away from the edges φ moves across half a cell by about √(3 · blur)."""
    found = Treatment(kind="soft_labels", cell=10.0**-decimals)
    p = 1 / (1 + math.exp(-phi))
    if min(p, 1 - p) < 3 * found.cell:
        return
    ends = [math.log(q / (1 - q)) for q in (p - found.cell / 2, p + found.cell / 2)]
    half = (ends[1] - ends[0]) / 2
    assert math.sqrt(3 * float(found.blur(torch.tensor([phi]))[0])) == pytest.approx(half, rel=0.1)
