"""Shadow models: their halves, how they are fitted, and the cache that trains them once."""

from __future__ import annotations

import pytest
import torch
from fdaudit.attacks._shadows import in_and_out, recipe_of, shadow_models, shadows
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import UsageError
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.storage import cache
from fdaudit.training.trainer import Trainer

from .label_only_cases import Case


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.delenv("FDAUDIT_CACHE", raising=False)
    monkeypatch.setattr(cache, "_kept", type(cache._kept)())


@pytest.fixture(scope="module")
def case():
    return Case(model=ModelSpec(name="mlp", params={"widths": [64]}), each=20, auxiliary=60, fitted=False)


def counted(case, monkeypatch):
    calls, real = [], Trainer.fit
    monkeypatch.setattr(
        Trainer, "fit", lambda core, jobs, fit: calls.append(len(jobs)) or real(core, jobs, fit)
    )
    return calls


def same(a, b):
    return all(torch.equal(p[n], q[n]) for p, q in zip(a, b, strict=True) for n in p)


@settings(max_examples=30, deadline=None)
@given(models=st.integers(1, 20), records=st.integers(1, 50), seed=st.integers(0, 10**6))
def test_every_record_is_in_half_of_the_models(models, records, seed):
    inside = in_and_out(models, records, child(seed, "halves"))
    assert inside.shape == (models, records)
    assert inside.sum(0).tolist() == [models // 2] * records


@pytest.mark.parametrize(("models", "records"), [(8, 2), (8, 3), (6, 6), (64, 6), (2, 2)])
def test_no_model_is_without_records_however_few_there_are(models, records):
    for seed in range(20):
        assert bool(in_and_out(models, records, child(seed, "halves")).any(1).all())


def test_models_fit_what_they_hold_and_know_nothing_of_the_rest(case):
    x, y = case.knowledge.auxiliary
    made = shadows(case.knowledge, x, y, 4)
    for parameters, row in zip(made.parameters, made.inside, strict=True):
        assert bool((case.trainer.predict(parameters, x[row]).argmax(1) == y[row]).all())
    changed = torch.where(made.inside[0], y, (y + 1) % 10)
    (again,) = shadow_models(case.knowledge, x, changed, made.inside[:1])
    assert same([again], made.parameters[:1])


def test_the_same_pool_is_fitted_once_and_all_models_together(case, monkeypatch):
    x, y = case.knowledge.auxiliary
    calls = counted(case, monkeypatch)
    public = {"lr": 0.1, "batch_size": 8, "local_steps": 3, "rounds": 2}
    first = shadows(case.knowledge, x, y, 4, hyperparameters=public)
    assert calls == [4]
    assert same(first.parameters, shadows(case.knowledge, x, y, 4, hyperparameters=public).parameters)
    assert calls == [4]
    for other in ({"seed": 1}, {"hyperparameters": {**public, "lr": 0.2}}, {"most_steps": 3}):
        shadows(case.knowledge, x, y, 4, **{"hyperparameters": public, **other})
    shadows(case.knowledge, x + 0.01, y, 4, hyperparameters=public)
    assert calls == [4] * 5


def test_the_cache_on_disk_is_read_and_damage_is_trained_anew(case, monkeypatch, tmp_path):
    monkeypatch.setenv("FDAUDIT_CACHE", str(tmp_path / "new" / "cache"))
    x, y = case.knowledge.auxiliary
    calls = counted(case, monkeypatch)
    public = {"lr": 0.1, "batch_size": 8, "local_steps": 3}
    first = shadows(case.knowledge, x, y, 4, hyperparameters=public).parameters
    assert same(first, shadows(case.knowledge, x, y, 4, hyperparameters=public).parameters)
    assert calls == [4]
    (file,) = (tmp_path / "new" / "cache").glob("*.kept")
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    assert same(first, shadows(case.knowledge, x, y, 4, hyperparameters=public).parameters)
    assert calls == [4, 4]


def test_the_recipe_is_the_public_one_or_adam():
    y = torch.zeros(10, dtype=torch.int64)
    public = {
        "lr": 0.5,
        "batch_size": 8,
        "rounds": 30,
        "warm_up_steps": 100,
        "local_steps": 1,
        "momentum": 0.9,
    }
    recipe = recipe_of(public, y, records=10)
    assert (recipe.fit.lr, recipe.fit.momentum, recipe.batch_size, recipe.steps) == (0.5, 0.9, 8, 130)
    assert recipe_of({"lr": 0.1, "batch_size": 5, "rounds": 3, "local_epochs": 2}, y, records=10).epochs == 6
    assert recipe_of({"lr": 0.1, "batch_size": 5, "optimizer": "adam"}, y, records=10).fit.optimizer == "adam"
    assert recipe_of({"lr": 0.1, "batch_size": 5}, y, records=10).fit.optimizer == "sgd"
    adam = recipe_of({}, y, records=10)
    assert adam.fit.optimizer == "adam"
    assert adam.until_fitted
    assert recipe_of({}, torch.zeros(10, 3), records=10).fit.objective == "binary-cross-entropy"


def test_a_rate_at_which_training_diverges_gives_way_to_adam(case):
    x, y = case.knowledge.auxiliary
    inside = torch.ones(1, len(y), dtype=torch.bool)
    (found,) = shadow_models(
        case.knowledge, x, y, inside, hyperparameters={"lr": 1e30, "batch_size": 8, "local_steps": 50}
    )
    assert bool((case.trainer.predict(found, x).argmax(1) == y).all())


def test_what_cannot_be_trained_is_refused(case):
    x, y = case.knowledge.auxiliary
    with pytest.raises(UsageError, match="network"):
        shadow_models(Knowledge(), x, y, torch.ones(1, len(y), dtype=torch.bool))
    with pytest.raises(UsageError, match="inside"):
        shadow_models(case.knowledge, x, y, torch.zeros(1, len(y), dtype=torch.bool))


def test_shadows_score_as_a_target_does_that_was_trained_with_the_stated_loss(case):
    """Label smoothing keeps a target unsure of its members; shadows of plain cross-entropy are surer."""
    x, y = case.knowledge.auxiliary
    train, network = case.knowledge.train, case.knowledge.architecture
    inside = in_and_out(8, len(y), child(9, "targets"))
    public = {"lr": 0.2, "batch_size": 10, "local_epochs": 1, "rounds": 30, "loss": {"label_smoothing": 0.2}}

    def scores(models, inside):
        members = []
        for model, row in zip(models, inside, strict=True):
            z = train.predict(model, x[row])
            members.append(-torch.nn.functional.cross_entropy(z, y[row], reduction="none"))
        return torch.cat(members).sort().values

    targets = []
    for k, row in enumerate(inside):
        module = network.build(child(9, "target", k))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
        mine, draws = row.nonzero().squeeze(1), child(9, "target batches", k)
        for _ in range(30):
            for batch in mine[torch.randperm(len(mine), generator=draws)].split(10):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(x[batch]), y[batch], label_smoothing=0.2).backward()
                optimizer.step()
        targets.append({n: t.detach() for n, t in module.state_dict().items()})
    wanted = scores(targets, inside)

    def distance(hyperparameters):
        """Wasserstein distance of the members' scores, in nats."""
        made = shadows(case.knowledge, x, y, 8, hyperparameters=hyperparameters)
        return float((scores(made.parameters, made.inside) - wanted).abs().mean())

    stated, unstated = distance(public), distance({**public, "loss": None})
    assert stated < 0.25 * unstated


def test_a_loss_of_the_users_own_is_replaced_by_cross_entropy():
    own = {"lr": 0.1, "batch_size": 5, "loss": {"function": "import:nothing:loss"}, "clip": {"norm": 1.0}}
    step = recipe_of(own, torch.arange(10) % 2, records=10).fit.step
    assert step.function is None
    assert step.plain
    assert step.clip_norm == 1.0
