"""Attacks on recorded answers, discriminators and generated samples: what they need, and what they must find."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fdaudit.attacks.membership.distillation_lira import CoopLiRA, DistillationLiRA
from fdaudit.attacks.membership.generator_leakage import GeneratorLeakage, distances, proximity
from fdaudit.attacks.membership.logan import DiscriminatorScore
from fdaudit.protocols.dafkd.protocol import DaFKD
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from fdaudit.metrics import score_generated
from fdaudit.models.conditional import build_conditional, build_discriminator_apart
from fdaudit.models.declared import generator_card
from fdaudit.training.trainer import Fit, Job, parameters_of

from .membership_cases import CLASSES, SHAPE, core, knowledge, network, records, task, view


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def attack(cls, **settings):
    return cls(cls.Config(**{**cls.card.profiles["quick"], **settings}))


def by_heart(x, y, seed, steps=150):
    made = network((32,))
    start = parameters_of(made.build(gen(seed)))
    job = Job(party="t", parameters=start, x=x, targets=y, batches=[torch.arange(len(y))] * steps)
    return core(made).fit([job], Fit(lr=0.01, optimizer="adam"))[0].parameters


@pytest.fixture(scope="module")
def federation():
    """Four clients that learnt 30 records each by heart; of the first one's, 30 more are candidates."""
    x, y = records(60, seed=1)
    member = torch.rand(30, generator=gen(3)) < 0.5
    member = torch.stack([member, ~member], 1).flatten()
    public, _ = records(300, seed=2)
    data = [(x[member], y[member]), *(records(30, seed) for seed in (11, 12, 13))]
    models = [by_heart(a, b, k) for k, (a, b) in enumerate(data)]
    z = [core(network((32,))).predict(m, public) for m in models]
    known = knowledge(*records(60, seed=21), public=public, widths=(32,))
    return {"x": x, "y": y, "member": member, "z": z, "known": known, "models": models}


def sent(federation, clients=4, kind="logits", **more):
    values = [z if kind == "logits" else z.softmax(1) for z in federation["z"]]
    index = torch.arange(len(values[0]))
    return [
        (f"client/{k}", "server", kind, {"index": index, "values": v}) for k, v in enumerate(values[:clients])
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["logits", "soft_labels"])
@pytest.mark.parametrize("cls", [DistillationLiRA, CoopLiRA])
def test_members_are_found_from_recorded_answers_alone(tmp_path, federation, cls, kind):
    runner = attack(cls, distill_steps=300, shadows=8)
    asked = task(federation["x"], federation["y"])
    with view(tmp_path / "t", sent(federation, kind=kind)) as seen:
        assert runner.applicable(seen, federation["known"], asked)
        (guess,) = runner.run(seen, federation["known"], asked, gen())
    assert guess.target == "client/0"
    assert roc_auc_score(federation["member"], guess.scores) > 0.6


@pytest.mark.thorough
def test_the_same_view_gives_the_same_scores(tmp_path, federation):
    runner, asked = (
        attack(DistillationLiRA, distill_steps=20, most_steps=20),
        task(federation["x"], federation["y"]),
    )
    with view(tmp_path / "t", sent(federation)) as seen:
        found = [runner.run(seen, federation["known"], asked, gen(s))[0].scores for s in (1, 2)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("cls", "clients", "changes", "reason"),
    [
        (DistillationLiRA, 0, {}, "no logits or soft labels of client/0"),
        (CoopLiRA, 2, {}, "answers of 2 clients are in view, 3 or more are needed"),
        (DistillationLiRA, 4, {"auxiliary": None}, "no auxiliary records"),
        (DistillationLiRA, 4, {"public": None}, "no logits or soft labels of client/0 with their samples"),
        (CoopLiRA, 4, {"architecture": None}, "architecture is not known"),
    ],
)
def test_what_is_missing_is_said(tmp_path, federation, cls, clients, changes, reason):
    given = {k: getattr(federation["known"], k) for k in ("architecture", "auxiliary", "train", "public")}
    known = knowledge(*records(4), **{**given, **changes})
    with view(tmp_path / "t", sent(federation, clients)) as seen:
        answer = attack(cls).applicable(seen, known, task(federation["x"], federation["y"]))
    assert not answer
    assert reason in answer.reason


# -- the discriminator --------------------------------------------------------------------------------------------


def discriminator_guess(folder, messages, x, y):
    """Return the guess about candidates `x` with classes `y` from these messages."""
    with view(folder, messages) as seen:
        runner = attack(DiscriminatorScore)
        assert runner.applicable(seen, knowledge(x, y), task(x, y))
        (guess,) = runner.run(seen, knowledge(x, y), task(x, y), gen())
    return guess


def test_the_discriminator_scores_a_candidate_by_its_own_logit(tmp_path):
    x, y = records(20)
    made = network()
    module = made.build(gen(4))
    weight, bias = torch.randn(1, 16, generator=gen(5)), torch.randn(1, generator=gen(6))
    messages = [
        ("client/0", "server", "model_parameters", parameters_of(module), 2),
        ("client/0", "server", "discriminator_parameters", {"weight": weight, "bias": bias}, 2),
        ("server", "client/0", "model_parameters", parameters_of(made.build(gen(9))), 2),
    ]
    guess = discriminator_guess(tmp_path / "t", messages, x, y)
    plain = F.linear(module.eval().features(x), weight, bias)[:, 0]
    assert torch.allclose(guess.scores, plain.double(), atol=1e-6)


def test_a_discriminator_with_an_extractor_of_its_own_scores_through_it(tmp_path):
    x, y = records(20)
    classifier = network().build(gen(4))
    D = build_discriminator_apart(gen(5), network().build(gen(6)), SHAPE)
    messages = [
        ("client/0", "server", "model_parameters", parameters_of(classifier), 2),
        ("client/0", "server", "discriminator_parameters", parameters_of(D), 2),
    ]
    guess = discriminator_guess(tmp_path / "t", messages, x, y)
    assert torch.allclose(guess.scores, D.eval()(x)[:, 0].double(), atol=1e-6)


def test_scores_of_generated_samples_say_nothing_of_candidates(tmp_path):
    x, y = records(20)
    with view(
        tmp_path / "t", [("client/0", "server", "discriminator_scores", {"values": torch.rand(5)})]
    ) as seen:
        answer = attack(DiscriminatorScore).applicable(seen, knowledge(x, y), task(x, y))
    assert not answer
    assert "generated samples" in answer.reason


# -- generated samples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["nearest", "monte-carlo"])
@pytest.mark.parametrize("space", ["pixels", "features", "both"])
def test_images_that_a_generator_repeats_are_found(tmp_path, rule, space):
    x, y = records(40)
    member = torch.arange(40) % 2 == 0
    noise = 0.02 * torch.randn(200, *SHAPE, generator=gen())
    samples = (x[member].repeat(10, 1, 1, 1) + noise).clamp(0, 1)
    runner = attack(GeneratorLeakage, rule=rule, space=space)
    with view(tmp_path / "t", [("server", "client/0", "generated_samples", {"samples": samples})]) as seen:
        assert runner.applicable(seen, knowledge(x, y), task(x, y))
        (guess,) = runner.run(seen, knowledge(x, y), task(x, y), gen())
    assert roc_auc_score(member, guess.scores) == 1
    assert torch.equal(guess.generated, samples)


def test_samples_are_drawn_from_the_generator_that_the_victim_sent(tmp_path):
    x, y = records(10)
    mine, shared = (build_conditional(gen(s), 6, 8, SHAPE, CLASSES) for s in (1, 2))
    messages = [
        ("client/0", "server", "generator_parameters", parameters_of(mine)),
        ("server", "client/0", "generator_parameters", parameters_of(shared)),
    ]
    with view(tmp_path / "t", messages) as seen:
        settings = {"latent": 6, "generator_width": 8, "conditional": True}
        card = generator_card(DaFKD.card.generator, settings, input_shape=SHAPE, classes=CLASSES, features=0)
        knows = knowledge(x, y, generator=card)
        (guess,) = attack(GeneratorLeakage, samples=8).run(seen, knows, task(x, y), gen(7))
    with torch.no_grad():
        plain = mine(torch.randn(8, 6, generator=gen(7)), torch.arange(8) % CLASSES)
    assert torch.allclose(guess.generated, plain)


def test_monte_carlo_is_the_plain_loop_up_to_how_ties_are_broken():
    points, samples = torch.rand(9, 5, generator=gen(1)), torch.rand(30, 5, generator=gen(2))
    d = np.linalg.norm(points.double().numpy()[:, None] - samples.double().numpy()[None], axis=2)
    epsilon = torch.from_numpy(d.min(1)).median().item()
    plain = [np.mean([np.log(epsilon / v) if v < epsilon else 0.0 for v in row]) for row in d]
    assert np.allclose(proximity(points, samples, "monte-carlo"), plain, atol=1e-5)
    assert np.allclose(distances(points, samples), d.min(1))


# -- figures of generated sets ------------------------------------------------------------------------------------


def figures(made, inside, outside, seed=0):
    found = score_generated(made, inside, outside, lambda x: x.flatten(1)[:, :8], np.random.default_rng(seed))
    return {f.name: f for f in found}


def test_a_generator_that_repeats_members_is_nearer_to_them():
    inside, outside = records(40, 1)[0], records(40, 2)[0]
    found = figures(inside.repeat(3, 1, 1, 1), inside, outside)
    assert found["frechet_gap"].value > 0
    assert "p = 0.01 " in found["frechet_gap"].note
    assert found["nearest_members"].value == pytest.approx(0, abs=1e-6)
    assert found["nearest_gap"].low > 0


def test_realism_alone_leaves_no_gap():
    """Samples of the same distribution, of nobody's records: near both halves alike."""
    found = figures(records(200, 3)[0], records(60, 1)[0], records(60, 2)[0])
    assert found["nearest_gap"].low < 0 < found["nearest_gap"].high
    p = float(found["frechet_gap"].note.split("p = ")[1].split()[0])
    assert p > 0.01


def test_halves_that_are_alike_have_no_gap_whatever_is_exchanged():
    half = records(30, 1)[0]
    assert "p = 1 " in figures(records(50, 3)[0], half, half)["frechet_gap"].note


def test_exchanging_the_halves_changes_the_sign():
    made, inside, outside = records(50, 3)[0], records(30, 1)[0], records(30, 2)[0]
    one, other = figures(made, inside, outside), figures(made, outside, inside)
    for name in ("frechet_gap", "nearest_gap"):
        assert one[name].value == pytest.approx(-other[name].value, abs=1e-9)
