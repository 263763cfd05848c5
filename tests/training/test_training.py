"""The training core: both strategies against each other and against plain torch, dropout, divergence."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from fdaudit.errors import TrainingDivergedError
from fdaudit.rng import child
from fdaudit.storage.files import decode, encode
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Trainer, parameters_of

from .training_cases import (
    CLASSES,
    FITS,
    FITS_OF_MASKS,
    NETWORKS,
    SHAPE,
    STEPS,
    UNET,
    close,
    execution,
    jobs,
    plain,
)

# -- strategies ---------------------------------------------------------------------------------------------------


def distance(one, two):
    return torch.stack([(one[n] - two[n]).norm() for n in one]).norm()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "fit"),
    [
        *(pytest.param(m, fit, id=f"{m}-{name}") for m in ("mlp", "cnn") for name, fit in FITS.items()),
        *(pytest.param("unet", fit, id=f"unet-{name}") for name, fit in FITS_OF_MASKS.items()),
    ],
)
def test_loop_stacked_and_plain_torch_take_the_same_steps(model, fit):
    network = UNET if model == "unet" else NETWORKS[model]
    work = jobs(network, objective=fit.objective)
    looped = Trainer(network, execution("loop")).fit(work, fit)
    stacked = Trainer(network, execution("stacked")).fit(work, fit)
    for job, one, two in zip(work, looped, stacked, strict=True):
        expected, losses = plain(network, job, fit)
        for found in (one, two):
            if model == "unet":  # of its many units one may lie at its kink, where rounding decides
                moved = distance(expected, job.parameters)
                assert distance(found.parameters, expected) < 0.01 * moved
            else:
                close(found.parameters, expected)
            torch.testing.assert_close(
                found.losses, losses, rtol=1e-3 if model == "unet" else 1e-4, atol=1e-5
            )
        assert any(not torch.equal(expected[n], job.parameters[n]) for n in expected)


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_cross_entropy_takes_weights_of_the_classes_as_targets(strategy):
    """Weights that do not sum to 1 scale the step, as the sum of several cross-entropies does."""
    network, work = NETWORKS["mlp"], jobs(NETWORKS["mlp"])
    g = child(6, "weights")
    weighted = [dataclasses.replace(j, targets=2 * torch.rand(len(j.x), CLASSES, generator=g)) for j in work]
    found = Trainer(network, execution(strategy)).fit(weighted, Fit(lr=0.1))
    for job, result in zip(weighted, found, strict=True):
        module = network.build(child(0, "plain"))
        module.load_state_dict(job.parameters)
        for step, batch in enumerate(job.batches):
            loss = -(job.targets[batch] * module(job.x[batch]).log_softmax(1)).sum(1).mean()
            torch.testing.assert_close(result.losses[step], loss.detach(), rtol=1e-4, atol=1e-5)
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for p, slope in zip(module.parameters(), gradients, strict=True):
                    p -= 0.1 * slope
        close(result.parameters, parameters_of(module))


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_unknown_labels_move_no_weight(strategy):
    network, fit = NETWORKS["mlp"], FITS["binary-cross-entropy"]
    first, second = jobs(network, 2, objective=fit.objective)
    blind = dataclasses.replace(first, targets=torch.full_like(first.targets, -1))
    # A class that nobody labels keeps its row of the last layer.
    partly = second.targets.clone()
    partly[:, 2] = -1
    half = dataclasses.replace(second, targets=partly)
    one, two = Trainer(network, execution(strategy)).fit([blind, half], fit)
    assert (one.losses == 0).all()
    assert all(torch.equal(one.parameters[n], t) for n, t in first.parameters.items())
    weight = [n for n, t in second.parameters.items() if t.shape[0] == CLASSES and t.dim() == 2][-1]
    moved = (two.parameters[weight] != second.parameters[weight]).any(1)
    assert moved.tolist() == [True, True, False, True]


def test_binary_kl_is_zero_at_its_target_and_finite_at_certainty():
    network = NETWORKS["mlp"]
    trainer, (job,) = Trainer(network, execution()), jobs(network, 1, objective="binary-kl", batch=20)
    own = (trainer.predict(job.parameters, job.x) / 3.0).sigmoid()
    fit = FITS["binary-kl"]
    (fitted,) = trainer.fit([dataclasses.replace(job, targets=own)], fit)
    assert fitted.losses.abs().max() < 1e-5
    (fitted,) = trainer.fit([dataclasses.replace(job, targets=own.round())], fit)
    assert torch.isfinite(fitted.losses).all()
    assert (fitted.losses.diff() < 0).all()


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
@pytest.mark.parametrize("name", ["momentum", "adam", "weight-decay"])
def test_training_in_parts_with_the_optimisers_moments_is_training_in_one_go(name, strategy):
    network, fit = NETWORKS["cnn"], FITS[name]
    trainer = Trainer(network, execution(strategy))
    whole = trainer.fit([dataclasses.replace(job, moments={}) for job in jobs(network)], fit)
    first = [dataclasses.replace(job, batches=job.batches[:2], moments={}) for job in jobs(network)]
    parts = trainer.fit(first, fit)
    kept = [decode(encode(part.moments)) for part in parts]
    rest = [
        dataclasses.replace(job, parameters=part.parameters, batches=job.batches[2:], moments=moments)
        for job, part, moments in zip(jobs(network), parts, kept, strict=True)
    ]
    for one, two in zip(whole, trainer.fit(rest, fit), strict=True):
        assert encode(one.parameters) == encode(two.parameters)
        assert encode(one.moments) == encode(two.moments)
    afresh = trainer.fit([dataclasses.replace(job, moments={}) for job in rest], fit)
    same = [encode(a.parameters) == encode(b.parameters) for a, b in zip(whole, afresh, strict=True)]
    assert all(same) if name == "weight-decay" else not any(same)


def test_moments_are_kept_only_where_asked_for():
    network = NETWORKS["mlp"]
    assert all(not f.moments for f in Trainer(network, execution()).fit(jobs(network), FITS["adam"]))


def test_channels_last_agrees_with_contiguous():
    network, fit = NETWORKS["cnn"], FITS["momentum"]
    work = jobs(network)
    one, two = (
        Trainer(network, execution(memory_format=f)).fit(work, fit) for f in ("contiguous", "channels_last")
    )
    for a, b in zip(one, two, strict=True):
        close(a.parameters, b.parameters)
        assert all(t.is_contiguous() for t in b.parameters.values())


def part_sizes(monkeypatch, network, work, fit, memory_format="channels_last"):
    """What is fitted where two images and a half fill a processor's caches, and the sizes of the forward passes."""
    monkeypatch.setattr("fdaudit.training.replicas._PIXELS", 2.5 * 64)
    trainer, sizes = Trainer(network, execution(memory_format=memory_format)), []
    trainer._module.register_forward_hook(lambda module, given, logits: sizes.append(len(logits)))
    return trainer.fit(work, fit), sizes


@pytest.mark.parametrize("name", FITS)
def test_a_large_batch_in_parts_makes_the_step_of_the_whole(monkeypatch, name):
    network, fit = NETWORKS["cnn"], FITS[name]
    (job,) = jobs(network, count=1, objective=fit.objective)
    (fitted,), sizes = part_sizes(monkeypatch, network, [job], fit)
    assert sizes == [3, 2] * STEPS
    parameters, losses = plain(network, job, fit)
    close(fitted.parameters, parameters)
    torch.testing.assert_close(fitted.losses, losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "memory_format"), [("norm", "channels_last"), ("mlp", "channels_last"), ("cnn", "contiguous")]
)
def test_a_batch_stays_whole_where_it_must_or_is_quicker_so(monkeypatch, model, memory_format):
    work = jobs(NETWORKS[model], count=1)
    assert part_sizes(monkeypatch, NETWORKS[model], work, FITS["sgd"], memory_format)[1] == [5] * STEPS


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_mixed_precision_takes_about_the_same_steps_and_keeps_float32(strategy):
    network, fit = NETWORKS["cnn"], FITS["momentum"]
    work = jobs(network)
    exact = Trainer(network, execution(strategy)).fit(work, fit)
    mixed = Trainer(network, dataclasses.replace(execution(strategy), precision="bfloat16")).fit(work, fit)
    for job, a, b in zip(work, exact, mixed, strict=True):
        moved = torch.cat([(a.parameters[n] - job.parameters[n]).flatten() for n in a.parameters])
        apart = torch.cat([(a.parameters[n] - b.parameters[n]).flatten() for n in a.parameters])
        assert 0 < apart.norm() < 0.1 * moved.norm()
        assert {t.dtype for t in (*b.parameters.values(), b.losses)} == {torch.float32}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the compiler's own modules
def test_compiled_training_takes_the_same_steps():
    network, fit = NETWORKS["cnn"], FITS["momentum"]
    work = jobs(network)
    compiled = Execution.resolve(device="cpu", threads=2, strategy="loop", compile=True, convolutions=True)
    if not compiled.compile:
        pytest.skip("torch.compile does not work here")
    made = Trainer(network, compiled).fit(work, fit)
    for a, b in zip(Trainer(network, execution()).fit(work, fit), made, strict=True):
        close(a.parameters, b.parameters)


def test_jobs_of_unlike_shape_are_fitted_all_the_same():
    network, fit = NETWORKS["mlp"], FITS["sgd"]
    work = [*jobs(network, 2), *jobs(network, 1, batch=3)]
    for job, fitted in zip(work, Trainer(network, execution("stacked")).fit(work, fit), strict=True):
        close(fitted.parameters, plain(network, job, fit)[0])


def test_batchnorm_statistics_are_part_of_a_fitted_model_whatever_the_strategy_asked_for():
    network, fit = NETWORKS["norm"], FITS["sgd"]
    assert network.has_batchnorm
    work = jobs(network)
    trainer = Trainer(network, execution("stacked"))
    for job, fitted in zip(work, trainer.fit(work, fit), strict=True):
        expected, _ = plain(network, job, fit)
        close(fitted.parameters, expected)
        assert any("running_mean" in n for n in fitted.parameters)
    assert not any("running" in n for n in trainer._trainable)


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_nothing_given_is_changed_and_no_model_leaks_into_the_next(strategy):
    network, fit = NETWORKS["mlp"], FITS["fedprox"]
    work = jobs(network)
    before = [(dict(j.parameters), j.x.clone(), j.targets.clone()) for j in work]
    kept = [{n: t.clone() for n, t in p.items()} for p, _, _ in before]
    trainer = Trainer(network, execution(strategy))
    first = trainer.fit(work, fit)
    again = trainer.fit(work[::-1], fit)[::-1]
    for job, (_, x, y), copy, one, two in zip(work, before, kept, first, again, strict=True):
        close(job.parameters, copy, rtol=0, atol=0)
        assert torch.equal(job.x, x)
        assert torch.equal(job.targets, y)
        close(one.parameters, two.parameters, rtol=1e-6, atol=1e-7)
    pointers = [t.data_ptr() for f in first for t in f.parameters.values()]
    assert len(set(pointers)) == len(pointers)


def test_no_steps_leave_the_model_as_it_is():
    network = NETWORKS["mlp"]
    for strategy in ("loop", "stacked"):
        work = [dataclasses.replace(job, batches=()) for job in jobs(network)]
        for job, fitted in zip(
            work, Trainer(network, execution(strategy)).fit(work, Fit(lr=0.1)), strict=True
        ):
            close(fitted.parameters, job.parameters, rtol=0, atol=0)
            assert fitted.losses.shape == (0,)


# -- gradients and predictions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_gradients_are_those_of_the_first_batch_by_autograd(model):
    network = NETWORKS[model]
    work = jobs(network)
    gradients = Trainer(network, execution(memory_format="channels_last")).gradients(work, Fit(lr=1.0))
    for job, found in zip(work, gradients, strict=True):
        module = network.build(child(0, "g"))
        module.load_state_dict(job.parameters)
        loss = F.cross_entropy(module(job.x[job.batches[0]]), job.targets[job.batches[0]])
        loss.backward()
        close(found.parameters, {n: p.grad for n, p in module.named_parameters()})
        torch.testing.assert_close(found.losses, loss.detach().reshape(1))


def test_a_gradient_step_is_what_sgd_does():
    network, (job,) = NETWORKS["cnn"], jobs(NETWORKS["cnn"], 1)
    trainer = Trainer(network, execution())
    (gradient,) = trainer.gradients([job], Fit(lr=0.2))
    single = dataclasses.replace(job, batches=job.batches[:1])
    (fitted,) = trainer.fit([single], Fit(lr=0.2))
    close(fitted.parameters, {n: p - 0.2 * gradient.parameters[n] for n, p in job.parameters.items()})


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("model", NETWORKS)
def test_predictions_are_the_modules_own_in_evaluation_mode_in_any_number(model, memory_format):
    network = NETWORKS[model]
    weights = parameters_of(network.build(child(7, "w")))
    module = network.build(child(0, "p")).eval()
    module.load_state_dict(weights, strict=False)
    trainer = Trainer(network, execution(memory_format=memory_format))
    trainer.fit(jobs(network, 1), Fit(lr=0.1))  # training mode and other weights must not stay behind
    x = torch.rand(1030, *SHAPE, generator=child(8, "x"))
    found = trainer.predict(weights, x)
    with torch.no_grad():
        torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)
    assert not found.requires_grad
    assert trainer.predict(weights, x[:0]).shape == (0, CLASSES)


# -- divergence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
@pytest.mark.parametrize(("poison", "value"), [(float("nan"), "nan"), (3e38, "(inf|nan)")])
def test_a_loss_that_is_no_number_names_party_step_and_value(strategy, poison, value):
    network = NETWORKS["mlp"]
    work = jobs(network)
    bad = work[1].batches[4]
    x = work[1].x.clone()
    x[[i for i in bad.tolist() if i not in torch.cat(work[1].batches[:4]).tolist()] or bad] = poison
    first = next(
        s for s, b in enumerate(work[1].batches) if not torch.isfinite(x[b]).all() or (x[b] > 1).any()
    )
    work[1] = dataclasses.replace(work[1], x=x)
    with pytest.raises(TrainingDivergedError, match=rf"^client/1: .* step {first} is {value}"):
        Trainer(network, execution(strategy)).fit(work, Fit(lr=0.1))


def test_a_diverging_gradient_is_refused_too():
    network, (job,) = NETWORKS["mlp"], jobs(NETWORKS["mlp"], 1)
    bad = dataclasses.replace(job, party="client/9", x=job.x * float("nan"))
    with pytest.raises(TrainingDivergedError, match=r"^client/9: .* nan"):
        Trainer(network, execution()).gradients([bad], Fit(lr=0.1))


def test_fedprox_without_an_anchor_says_what_is_missing():
    network, (job,) = NETWORKS["mlp"], jobs(NETWORKS["mlp"], 1)
    bare = dataclasses.replace(job, anchor=None)
    with pytest.raises(ValueError, match=r"^client/0: mu .*anchor"):
        Trainer(network, execution()).fit([bare], FITS["fedprox"])
