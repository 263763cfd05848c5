"""Model inversion: budgets, refusals, and that each attack finds what only a model has seen."""

from __future__ import annotations

import re

import pytest
import torch
from fdaudit.attacks.model_inversion.gan import GanConfig, gan_prior
from fdaudit.attacks.model_inversion.gmi import GMI, GMIConfig
from fdaudit.attacks.model_inversion.ideal import IdealConfig, IdealHard, IdealSoft
from fdaudit.attacks.model_inversion.inversion import InversionConfig
from fdaudit.attacks.model_inversion.inversion_network import InversionNetwork, InversionNetworkConfig
from fdaudit.attacks.model_inversion.paired_logits import PairedLogits, PairedLogitsConfig
from fdaudit.attacks.model_inversion.surrogate import SurrogateConfig
from fdaudit.attacks.model_inversion.victims import model_of
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.types import AttackTask

from .inversion_cases import SHAPE, g, known, run_asking, view, weights

CPU = torch.device("cpu")
SMALL = SurrogateConfig(rounds=3, generator_steps=1, surrogate_steps=2, width=8, batch=8)
QUICK = InversionConfig(restarts=1, iterations=3, copies=1)
IDEAL = IdealConfig(queries=100, least_queries=20, **{**QUICK.model_dump(), **SMALL.model_dump()})
ATTACKS = {
    "ideal-soft": IdealSoft(IDEAL),
    "ideal-hard": IdealHard(IDEAL),
    "inversion-network": InversionNetwork(
        InversionNetworkConfig(queries=100, least_queries=20, steps=3, width=8)
    ),
}


# -- budgets --------------------------------------------------------------------------------------------------------


def asked(name: str, budget: int, models: tuple[str, ...] = ()):
    return run_asking(ATTACKS[name], str(ATTACKS[name].card.oracle), budget, models)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_released_model_is_asked_once_for_all_victims(name: str) -> None:
    guesses, spent = asked(name, 1000)
    assert spent == {None: 100}  # `queries`
    assert [guess.target for guess in guesses] == ["client/0", "client/1"]
    assert torch.equal(guesses[0].images, guesses[1].images)
    for guess in guesses:
        assert guess.by_class
        assert guess.messages == ()
        assert guess.labels.tolist() == [0, 1, 2]
        assert guess.images.shape == (3, *SHAPE)
        assert 0 <= guess.images.min() <= guess.images.max() <= 1


@pytest.mark.parametrize("name", ATTACKS)
def test_the_budget_is_spread_over_clients_models_and_never_exceeded(name: str) -> None:
    guesses, spent = asked(name, 71, ("client/0", "client/1"))
    assert spent == {"client/0": 35, "client/1": 35}
    assert not torch.equal(guesses[0].images, guesses[1].images)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_budget_below_the_minimum_is_refused_with_a_reason(name: str) -> None:
    reason, spent = asked(name, 39, ("client/0", "client/1"))
    assert re.findall(r"\d+", reason) == ["20", "2", "19"]  # needed for each model, models, and allowed
    assert spent == {}


@pytest.mark.parametrize("name", ATTACKS)
def test_parameters_in_view_are_asked_and_a_guess_repeats_with_its_generator(name: str) -> None:
    seen = view(("server", ("client/0",), "model_parameters", weights()))
    task = AttackTask(targets=("client/0",))
    one, two = (ATTACKS[name].run(seen, known(), task, g(4))[0].images for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("name", ATTACKS)
def test_reasons_for_not_applying(name: str) -> None:
    attack, task = ATTACKS[name], AttackTask(targets=("client/0",))
    assert "neither" in attack.applicable(view(), known(), task).reason
    seen = view(("server", ("client/0",), "model_parameters", weights()))
    assert "not known" in attack.applicable(seen, known(architecture=None), task).reason
    assert "no victim" in attack.applicable(seen, known(), AttackTask(targets=())).reason
    digests = view(("server", ("client/0",), "model_parameters", weights()), keep=False)
    assert "digests only" in attack.applicable(digests, known(), task).reason
    with pytest.raises(ValueError, match="does not apply"):
        attack.run(view(), known(), task, g())


def test_attacks_that_learn_from_auxiliary_images_need_some() -> None:
    seen, task = (
        view(("server", ("client/0",), "model_parameters", weights())),
        AttackTask(targets=("client/0",)),
    )
    bare = known(auxiliary=None)
    assert "auxiliary" in ATTACKS["inversion-network"].applicable(seen, bare, task).reason
    assert "auxiliary" in GMI(GMIConfig()).applicable(seen, bare, task).reason
    assert ATTACKS["ideal-soft"].applicable(seen, bare, task)  # data-free


@pytest.mark.parametrize("name", ["ideal-soft", "ideal-hard", "gmi"])
def test_only_the_classes_that_are_asked_for_are_shown(name: str) -> None:
    attack = {**ATTACKS, "gmi": SEARCH}[name]
    seen = view(("server", ("client/0",), "model_parameters", weights()))
    (guess,) = attack.run(seen, known(), AttackTask(targets=("client/0",), classes=(2, 0)), g())
    assert guess.labels.tolist() == [2, 0]
    assert guess.images.shape == (2, *SHAPE)


# -- paired logits --------------------------------------------------------------------------------------------------

PAIRED = PairedLogits(PairedLogitsConfig(least_samples=5, steps=3, width=8))
PUBLIC = torch.rand(10, *SHAPE, generator=g(9))


def logits(seed: int, index: Tensor | None = None, n: int = 10) -> dict[str, Tensor]:
    index = torch.arange(n, dtype=torch.int32) if index is None else index
    return {"index": index, "values": torch.randn(len(index), 3, generator=g(seed))}


def test_paired_logits_pairs_the_last_answers_to_samples_that_both_sides_answered() -> None:
    first, last = logits(1), logits(2, torch.arange(4, 10))
    ensemble = logits(3, torch.arange(2, 9))
    seen = view(
        ("client/0", ("server",), "logits", first),
        ("client/0", ("server",), "logits", last),
        ("client/1", ("server",), "logits", logits(7)),
        ("server", ("client/0",), "ensemble_labels", ensemble),
    )
    found, _ = PAIRED._pairs(seen, known(public=PUBLIC), AttackTask(targets=("client/0",)))
    pairs = found["client/0"]
    assert pairs.index.tolist() == list(range(2, 9))
    expected = torch.cat([first["values"][2:4], last["values"][:5]]).softmax(1)
    assert torch.allclose(pairs.client, expected)
    assert torch.allclose(pairs.server, ensemble["values"].softmax(1))


def test_paired_logits_takes_other_clients_where_no_ensemble_is_in_view() -> None:
    soft = {"index": torch.arange(10), "values": logits(5)["values"].softmax(1)}
    seen = view(
        ("client/0", ("server",), "logits", logits(1)), ("client/1", ("server",), "soft_labels", soft)
    )
    task = AttackTask(targets=("client/0",))
    found, _ = PAIRED._pairs(seen, known(public=PUBLIC), task)
    assert torch.allclose(found["client/0"].server, soft["values"])
    (guess,) = PAIRED.run(seen, known(public=PUBLIC), task, g())
    assert guess.by_class
    assert guess.images.shape == (3, *SHAPE)


def test_paired_logits_reasons() -> None:
    task = AttackTask(targets=("client/0",))
    both = (
        ("client/0", ("server",), "logits", logits(1)),
        ("server", ("client/0",), "ensemble_labels", logits(2)),
    )
    assert "not known" in PAIRED.applicable(view(*both), known(), task).reason
    with_public = known(public=PUBLIC)
    assert PAIRED.applicable(view(*both), with_public, task)
    assert "its own" in PAIRED.applicable(view(both[1]), with_public, task).reason
    assert "others' answers" in PAIRED.applicable(view(both[0]), with_public, task).reason
    few = (("client/0", ("server",), "logits", logits(1, torch.arange(3))), both[1])
    assert "3 public samples" in PAIRED.applicable(view(*few), with_public, task).reason
    made = ("server", ("client/0",), "generated_samples", {"samples": PUBLIC})
    assert "generated samples" in PAIRED.applicable(view(*both, made), with_public, task).reason


# -- GMI ------------------------------------------------------------------------------------------------------------

SEARCH = GMI(GMIConfig(gan_steps=1, latent=4, width=4, batch=4, restarts=2, iterations=2))


def test_gmi_inverts_a_victims_own_model_and_else_the_shared_one() -> None:
    start, update = weights(1), {n: torch.full_like(t, 0.5) for n, t in weights(1).items()}
    seen = view(
        ("server", ("client/0", "client/1"), "model_parameters", start),
        ("client/0", ("server",), "model_update", update),
    )
    seq, own = model_of(seen, "client/0")
    assert seq == 1
    assert all(torch.equal(own[n], start[n] + 0.5) for n in start)
    assert model_of(seen, "client/1")[0] == 0
    task = AttackTask(targets=("client/0", "client/1"))
    assert SEARCH.applicable(seen, known(), task)
    guesses = SEARCH.run(seen, known(), task, g())
    assert [guess.target for guess in guesses] == ["client/0", "client/1"]
    assert not torch.equal(guesses[0].images, guesses[1].images)
    for guess in guesses:
        assert guess.by_class
        assert guess.images.shape == (3, *SHAPE)


def test_gmi_needs_a_model_in_view() -> None:
    task = AttackTask(targets=("client/0",))
    assert "no model parameters" in SEARCH.applicable(view(), known(), task).reason


def test_a_gan_prior_is_kept_and_would_be_the_same_if_it_were_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from fdaudit.storage import cache

    config, x = GanConfig(gan_steps=2, latent=4, width=4, batch=4), torch.rand(6, *SHAPE, generator=g())
    monkeypatch.delenv(cache.DIRECTORY, raising=False)
    monkeypatch.setattr(cache, "_kept", type(cache._kept)())
    first = gan_prior(x, config, CPU)
    gan_prior(x.clone(), config, CPU)
    assert len(cache._kept) == 1
    gan_prior(1 - x, config, CPU)
    assert len(cache._kept) == 2
    cache._kept.clear()
    again = gan_prior(x, config, CPU)
    z = torch.randn(3, 4, generator=g())
    assert torch.equal(first.generator(z), again.generator(z))
    assert 0 <= first.generator(z).min() <= first.generator(z).max() <= 1


def test_who_has_the_same_model_in_view_finds_the_same_and_pays_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fdaudit.attacks._target_model import BlackBox
    from fdaudit.attacks.model_inversion.victims import Askable

    from fdaudit.config import Config
    from fdaudit.storage import cache

    monkeypatch.delenv(cache.DIRECTORY, raising=False)
    monkeypatch.setattr(cache, "_kept", type(cache._kept)())
    calls: list[int] = []

    def invert(draws: torch.Generator) -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"images": torch.rand(2, generator=draws)}

    def found(answers: str, weight: float, seed: int) -> torch.Tensor:
        model = BlackBox(answers=answers, parameters={"w": torch.full((2,), weight)})
        askable = Askable(model, ("client/0",), 10)
        return askable.once("any", Config(), Knowledge(), [], g(seed), invert)["images"]

    first = found("soft", 1.0, 0)
    assert torch.equal(found("soft", 1.0, 1), first)
    assert len(calls) == 1
    assert not torch.equal(found("hard", 1.0, 0), first)
    assert not torch.equal(found("soft", 2.0, 0), first)
    assert len(calls) == 3
    # Whoever has an oracle asks it: every answer is on record.
    oracle = Askable(BlackBox(answers="soft"), ("client/0",), 10)
    drawn = [oracle.once("any", Config(), Knowledge(), [], g(seed), invert)["images"] for seed in (0, 1)]
    assert not torch.equal(*drawn)
    assert len(calls) == 5
