"""Coins read off discriminators' scores and off gradients at generated samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.membership._discriminators import judged, steps_of
from fdaudit.attacks.membership._queried import own_answers, stranger
from fdaudit.attacks.membership._ridge import regressed_in_parts
from fdaudit.attacks.membership._study import Study
from fdaudit.attacks.membership.discriminator_regression import (
    DiscriminatorRegression,
    DiscriminatorRegressionConfig,
)
from torch.nn import functional as F

from fdaudit.adversary.view import View
from fdaudit.evaluation.controls import controls
from fdaudit.models.generative import build_discriminator
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.spec.schema import load_spec
from fdaudit.training.optimizers import annealed
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import Trainer

from ...helpers.doubles import SEED as RUN_SEED
from ...helpers.doubles import spec
from ...helpers.run_cases import known
from .membership_cases import studied
from .rehearsed_cases import Paired, mlp, rehearsed, stream

PUBLIC = {"discriminator_width": 4, "adam_lr": 0.01, "rounds": 2, "steps_per_round": 6}
PAIRS = 16
VOTES = {"outputs": "votes", "weights": "uniform", "shares": "uniform"}


# -- shadows of a discriminator ---------------------------------------------------------------------------------


def shadows(count: int, records: int = 10) -> Study:
    x = torch.rand(records, 1, 8, 8, generator=stream(1))
    held = torch.rand(count, records, generator=stream(2)) < 0.5
    held[:, 0] = True
    return Study(
        models=[],
        inside=held,
        others=torch.zeros(count, 0).bool(),
        coins=torch.ones(count, 1),
        pool=(x, torch.zeros(records)),
    )


def test_shadows_take_the_steps_that_a_client_takes() -> None:
    """Against another writing of the client's step (Gong et al. 2023, Algorithm 1), with the shadow's own draws."""
    made, sent = shadows(2), [torch.rand(5, 1, 8, 8, generator=stream(10 + t)) for t in range(6)]
    scores, gradients = judged(made, sent, PUBLIC, count=2, batch=5, scored=[1, 5], pulled=[0, 4, 5], seed=3)
    assert scores.shape == (2, 2, 5)
    assert gradients.shape == (2, 3, 5, 64)
    for k in range(2):
        D = build_discriminator(child(3, "discriminator", k, "start"), 4, (1, 8, 8))
        learner = Learner("client/0", D, Optimizer(lr=0.01, betas=(0.5, 0.999)))
        draws, mine = child(3, "discriminator", k, "records"), made.held[k].nonzero().squeeze(1)
        told = []
        for t, x in enumerate(sent):
            real = made.pool[0][mine[torch.randint(len(mine), (5,), generator=draws)]]
            leaf = x.clone().requires_grad_()
            on_real, on_x = D(torch.cat([real, leaf])).split(5)
            (toward,) = torch.autograd.grad(F.softplus(-on_x).mean(), leaf, retain_graph=True)
            told.append((on_x.detach().sigmoid().mean((1, 2)) / on_real.detach().sigmoid().mean(), toward))
            learner.step(F.softplus(-on_real).mean() + F.softplus(on_x).mean(), annealed(0.01, 0.0, t, 6))
        for row, t in enumerate([1, 5]):
            assert torch.allclose(scores[k, row], told[t][0], rtol=1e-3)
        for row, t in enumerate([0, 4, 5]):
            assert torch.allclose(gradients[k, row], told[t][1].flatten(1), rtol=1e-2, atol=1e-6)


def test_a_shadow_learns_from_a_part_of_a_step_if_asked_to() -> None:
    made, sent = shadows(1), [torch.rand(5, 1, 8, 8, generator=stream(10 + t)) for t in range(4)]
    same, whole = (
        judged(made, sent, PUBLIC, count=1, batch=batch, scored=[0, 3], pulled=[], seed=3)[0][0]
        for batch in (2, 5)
    )
    assert torch.equal(same[0], whole[0])
    assert not torch.equal(same[1], whole[1])


# -- a federation -----------------------------------------------------------------------------------------------


class Case(Paired):
    """FedIOD among two clients; the first holds one of each of 16 pairs, or none of them."""

    def __init__(self, place: Path, holds: bool = True, adversary: str = "server", **params: Any) -> None:
        draws = stream(9)
        x, y = torch.rand(2 * PAIRS, 1, 8, 8, generator=draws), torch.arange(PAIRS).repeat_interleave(2) % 4
        super().__init__(x, y, torch.randint(2, (PAIRS,), generator=draws).bool())
        others = [(torch.rand(n, 1, 8, 8, generator=draws), torch.arange(n) % 4) for n in (PAIRS, PAIRS, 40)]
        given = {
            "rounds": 2, "steps_per_round": 120, "samples": 16, "local_epochs": 3, "batch_size": 8, "lr": 0.01,
            "adam_lr": 0.01, "latent": 8, "generator_width": 4, "discriminator_width": 8, "student_steps": 1,
        }  # fmt: skip
        network, data = mlp(shape=(1, 8, 8)), [self.held if holds else others[0], others[1]]
        self.view = rehearsed(
            place / "transcript", "fediod", data, network=network, adversary=adversary, **given | params
        )
        self.knows(others[2], network=network)

    def told(self, view: View | None = None, **params: Any) -> tuple[float, str]:
        settings = {"matched": 60, "discriminators": 60, "reads": 12, **params}
        guess = self.guess(DiscriminatorRegression(DiscriminatorRegressionConfig(**settings)), view)
        return self.auc_of(guess), guess.note


def without(view: View, *kinds: str) -> View:
    return replace(view, messages=tuple(m for m in view.messages if m.kind not in kinds))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"))


def test_scores_alone_tell_members(case: Case) -> None:
    found, note = case.told(without(case.view, "logits", "sample_gradients", "logit_cotangents"))
    assert note.endswith("from scores")
    assert found > 0.7


def test_all_that_the_server_hears_is_stacked(case: Case) -> None:
    found, note = case.told()
    assert note.endswith("scores, gradients, logits")
    assert found > 0.7


class Model:
    """An oracle of client/0's model that answers from given parameters."""

    answers, budget, models = "soft", 1000, ("client/0",)

    def __init__(self, trainer: Trainer, parameters: dict[str, torch.Tensor]) -> None:
        self._trainer, self._parameters, self.remaining = trainer, parameters, self.budget

    def query(self, x: torch.Tensor, of: str | None = None) -> torch.Tensor:
        assert of == "client/0"
        self.remaining -= len(x)
        return self._trainer.predict(self._parameters, x).softmax(1)


def shadowed(case: Case) -> Study:
    """Shadows of the first client that learn their records by heart."""
    training = {**case.view.hyperparameters, "local_epochs": 60, "lr": 0.2}
    view = replace(case.view, hyperparameters=training)
    return studied(view, case.knowledge, case.challenge, 60, most_steps=2000)


def test_what_a_model_answers_about_candidates_tells_more_of_their_coins(case: Case) -> None:
    """The oracle answers from one of the shadows, which is left out."""
    made, trainer = shadowed(case), case.knowledge.train
    assert trainer is not None
    x = torch.rand(40, 1, 8, 8, generator=stream(3))
    logits = torch.stack([trainer.predict(model, x).flatten() for model in made.models])
    others = replace(made, models=made.models[1:], coins=made.coins[1:])
    answers = logits[1:], logits[0], 0.0
    own = own_answers(
        case.view, case.knowledge, replace(case.task, oracle=Model(trainer, made.models[0])), case.challenge,
        others, answers, paired=True,
    )  # fmt: skip
    assert [tuple(one.mine.shape) for one in own] == [(PAIRS, 8), (PAIRS, 2)]
    without = regressed_in_parts([answers], others.coins, stack=False)
    joined = regressed_in_parts([answers], others.coins, stack=False, own=own)
    assert joined.error < 0.9 * without.error
    assert joined.right > without.right


def test_a_model_that_is_not_the_one_that_answered_is_not_believed(case: Case) -> None:
    made, trainer = shadowed(case), case.knowledge.train
    assert trainer is not None
    x = torch.rand(40, 1, 8, 8, generator=stream(3))
    logits = torch.stack([trainer.predict(model, x).flatten() for model in made.models])
    other = {name: 5 * tensor for name, tensor in made.models[0].items()}
    task = replace(case.task, oracle=Model(trainer, other))
    answers = logits[1:], logits[0], 0.0
    others = replace(made, models=made.models[1:], coins=made.coins[1:])
    assert not own_answers(case.view, case.knowledge, task, case.challenge, others, answers, paired=True)


def test_first_answers_that_are_alike_by_chance_refuse_no_others() -> None:
    theirs = torch.randn(200, 50, generator=stream(6))
    centre = theirs.mean(0)
    near, usual = centre + 0.3 * (theirs[0] - centre), centre + 1.2 * (theirs[1] - centre)
    assert not stranger((theirs, usual, 0.0), (theirs, near, 0.0))
    assert stranger((theirs, centre + 2 * (theirs[1] - centre), 0.0), (theirs, near, 0.0))


def test_the_client_s_model_is_asked_about_its_candidates(case: Case) -> None:
    trainer = case.knowledge.train
    assert trainer is not None
    oracle = Model(trainer, shadowed(case).models[0])
    heard = DiscriminatorRegression(DiscriminatorRegressionConfig(matched=10, discriminators=10, reads=2))
    heard.run(case.view, case.knowledge, replace(case.task, oracle=oracle), stream(0))
    assert oracle.remaining == oracle.budget - 2 * PAIRS


@pytest.mark.thorough
def test_gradients_of_l_gan_tell_members_where_votes_hide_logits(tmp_path: Path) -> None:
    case = Case(tmp_path, **VOTES)
    found, note = case.told()
    assert note.endswith("from gradients")
    assert found > 0.6


@pytest.mark.thorough
def test_a_client_without_the_candidates_gives_nothing_away(tmp_path: Path) -> None:
    found, _ = Case(tmp_path, holds=False, **VOTES).told()
    assert 0.25 < found < 0.75  # 16 coins: the standard deviation is 0.125


def test_gradients_of_shadows_are_those_of_their_answers(case: Case) -> None:
    """The recorded gradient of a step is what a shadow with the client's own networks would have answered."""
    steps = steps_of(case.view, "client/0")
    assert len(steps) == 120
    assert all(
        set(step.answers) == {"logits", "discriminator_scores", "logit_cotangents", "sample_gradients"}
        for step in steps[:-1]
    )
    attack = DiscriminatorRegression(DiscriminatorRegressionConfig(matched=8, discriminators=8))
    made = studied(case.view, case.knowledge, case.challenge, 8, most_steps=2000)
    toward = torch.rand(8, 1, 16, 64, generator=stream(4))
    found = attack._pulled_back(case.view, case.knowledge, made, steps[3:4], toward.clone())
    told = case.view.tensors(steps[3].answers["logit_cotangents"])
    x = case.view.tensors(steps[3].samples)["samples"].clone().requires_grad_()
    assert case.knowledge.train is not None
    z = case.knowledge.train.network(made.models[5]).eval()(x)
    (back,) = torch.autograd.grad(z, x, told["values"])
    assert torch.allclose(
        found[5], (back.flatten(1) + told["gan_weight"] * toward[5, 0]).flatten(), atol=1e-7
    )


def test_where_one_client_is_asked_its_own_steps_count(tmp_path: Path) -> None:
    case = Case(tmp_path, gradients_from="one", steps_per_round=40)
    asked = [k for k, s in enumerate(steps_of(case.view, "client/0")) if "sample_gradients" in s.answers]
    assert 0 < len(asked) < 40
    assert case.told(discriminators=10, matched=10)[1].endswith("scores, gradients, logits")


def test_it_says_why_it_does_not_apply(case: Case) -> None:
    attack = DiscriminatorRegression(DiscriminatorRegressionConfig())
    silent = without(case.view, "discriminator_scores", "sample_gradients")
    assert "no discriminator_scores" in attack.applicable(silent, case.knowledge, case.task).reason
    other = replace(case.view, hyperparameters={"lr": 0.1})
    assert "discriminator_width" in attack.applicable(other, case.knowledge, case.task).reason
    assert not attack.applicable(case.view, replace(case.knowledge, auxiliary=None), case.task)


# -- controls ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_its_controls_find_members_and_nothing_else() -> None:
    settings = {"matched": 120, "discriminators": 120, "batch": 8, "reads": 12}
    wanted = spec(
        attacks=[{"name": "discriminator-regression", "params": settings}],
        model={"name": "mlp", "params": {"widths": [16]}},
        splits={"candidates": 10, "proxy": 0.2, "auxiliary": 0.35},
    )
    case = simulated_case(load_spec(wanted), known(RUN_SEED))
    (attack,) = (a for a in case.attacks if a.name == "discriminator-regression")
    found = controls(attack, case)
    assert found["positive"].passed
    assert found["negative"].passed
