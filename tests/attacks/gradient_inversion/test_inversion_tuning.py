"""Settings that tune themselves, uploads without a sample count, and coalitions that find what their members find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from fdaudit.attacks.gradient_inversion.class_prior import ClassPrior
from fdaudit.attacks.gradient_inversion.composition import batch_like, class_means, labels_behind
from fdaudit.attacks.gradient_inversion.defended import defended
from fdaudit.attacks.gradient_inversion.engine import match_adam
from fdaudit.attacks.gradient_inversion.gradients import GradientMap, Simulator, flatten
from fdaudit.attacks.gradient_inversion.inverting import InvertingGradients, InvertingGradientsConfig
from fdaudit.attacks.gradient_inversion.readings import COUNTS, auxiliary_distance, find_readings, likeliest
from fdaudit.attacks.gradient_inversion.trials import auxiliary_trial
from fdaudit.attacks.gradient_inversion.tuning import SearchSettings, TuningTrial, choose, first_images
from fdaudit.attacks.gradient_inversion.updates import ClientSteps, UpdateMap, gradient_of_update, schedule
from fdaudit.attacks.gradient_inversion.uploads import Upload
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.isolation.frames import Tensors
from fdaudit.isolation.schema import guesses_of, packed_guesses
from fdaudit.storage import cache
from fdaudit.types import AttackTask

from .gradient_inversion_cases import (
    digits,
    matched_psnr,
    mlp,
    one_thread,  # noqa: F401
    pooling_cnn,
    strided_cnn,
    tensors,
    true_gradient,
    world,
)

QUICK = InvertingGradientsConfig(restarts=1, iterations=40)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class _Whole(Simulator):
    """What is sent of an image is the image."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return x.flatten(1)


def _trial(simulate: Simulator, x: Tensor) -> TuningTrial:
    y = torch.zeros(x.shape[:2], dtype=torch.int64)
    return TuningTrial(
        simulate=simulate,
        target=simulate(x, y),
        x=x,
        y=y,
        prior=_isotropic(x.new_full((1, *x.shape[2:]), 0.5)),
    )


def _isotropic(means: Tensor) -> ClassPrior:
    """A prior that has the same variance along all directions."""
    return ClassPrior(means, torch.zeros(0, means[0].numel()), torch.zeros(0), 0.04)


PLAIN: Mapping[str, Any] = {"lr": 0.1, "start": "noise", "shrink": 0.0}


def _bare(make: Any, n: int) -> tuple[Any, Upload]:
    """An untrained network, and an upload of one step of n records at it."""
    module = make(16, _generator(2))
    training = ClientSteps(lr=0.1, batches=(tuple(range(n)),))
    upload = Upload(
        target="client/0",
        seq=1,
        start_seq=0,
        start=tensors(module),
        training=training,
        gradient={},
        update=None,
    )
    return module, upload


@pytest.mark.thorough
def test_tuning_smooths_more_than_the_default_on_max_pooling_and_less_on_strides() -> None:
    """Max-pooling hides detail, which the prior has to fill in; a strided network shows it all."""
    x, y = digits()
    found = {}
    for make in (pooling_cnn, strided_cnn):
        module, upload = _bare(make, 4)
        labels = torch.tensor([[0, 1, 3, 7], [2, 4, 5, 8]])
        trials = [
            auxiliary_trial(upload, labels, module, (x[1000:], y[1000:]), _generator(seed)) for seed in (0, 1)
        ]
        found[make] = choose(PLAIN, trials[0], 120, _generator())
        noise = torch.rand(trials[1].x.shape, generator=_generator(9))
        tried = trials[1].inverted([SearchSettings(), found[make]], noise, 120)
        default, better = (matched_psnr(i.flatten(0, 1), trials[1].x.flatten(0, 1)).mean() for i in tried)
        print(f"{make.__name__}: {found[make].described()}: {better:.1f} dB, default {default:.1f}")
        if make is pooling_cnn:
            assert better > default + 1
    assert found[pooling_cnn].tv >= 0.03
    assert found[strided_cnn].tv <= 0.001


@pytest.mark.parametrize("given", [{"tv": 0.5}, {"lr": 0.02, "shrink": 0.3}, {"start": "blend", "tv": 0.0}])
def test_a_setting_of_the_user_is_never_changed(given: dict[str, Any]) -> None:
    chosen = choose(
        given, _trial(_Whole(), torch.rand(1, 4, 1, 8, 8, generator=_generator(3))), 20, _generator()
    )
    assert {name: getattr(chosen, name) for name in given} == given
    assert InvertingGradientsConfig(**given).given == given


def test_the_defaults_stand_where_no_setting_helps() -> None:
    """Whatever the settings, a map that ignores its images sends the same: nothing beats the default."""

    class Blind(Simulator):
        def __call__(self, x: Tensor, y: Tensor) -> Tensor:
            return 0 * x.flatten(1) + 1

    x = torch.rand(2, 4, 1, 4, 4, generator=_generator())
    chosen = choose(
        {"lr": 0.1, "start": "noise", "tv": 0.0, "shrink": 0.0}, _trial(Blind(), x), 20, _generator()
    )
    assert chosen == SearchSettings(tv=0.0)


def test_settings_of_each_problem_are_those_of_a_search_of_its_own() -> None:
    x = torch.rand(1, 4, 1, 8, 8, generator=_generator())
    trial = _trial(_Whole(), x)
    tried = [SearchSettings(tv=0.01, lr=0.1), SearchSettings(tv=0.1, lr=0.03)]
    noise = torch.rand(x.shape, generator=_generator(1))
    together = trial.inverted(tried, noise, 60)
    for settings, found in zip(tried, together, strict=True):
        alone = match_adam(
            trial.simulate, trial.target, noise, trial.y, iterations=60, lr=settings.lr, tv=settings.tv
        )
        torch.testing.assert_close(found, alone.images, atol=1e-4, rtol=1e-4)


def test_settings_survive_the_cache() -> None:
    settings = SearchSettings(tv=0.03, lr=0.2, start="blend", shrink=0.4)
    assert SearchSettings.of(settings.tensors()) == settings


def test_with_the_same_variance_everywhere_shrinkage_is_a_weighted_mean_of_the_guess_and_its_class() -> None:
    images, means = (
        torch.rand(2, 3, 1, 4, 4, generator=_generator()),
        torch.rand(5, 1, 4, 4, generator=_generator(1)),
    )
    labels = torch.tensor([[0, 4, 1], [2, 2, 3]])
    prior = _isotropic(means)
    assert torch.equal(prior.denoised(images, labels, 0.0), images)
    torch.testing.assert_close(prior.denoised(images, labels, 1.0), means[labels])
    torch.testing.assert_close(prior.denoised(images, labels, 0.25), 0.75 * images + 0.25 * means[labels])
    assert torch.equal(first_images(images, labels, means, "noise"), images)
    torch.testing.assert_close(first_images(images, labels, means, "blend"), (images + means[labels]) / 2)


def test_the_covariance_of_a_class_prior_is_shrunk_as_ledoit_and_wolf_do() -> None:
    x, y = digits()
    for n in (20, 300):
        prior = ClassPrior.of((x[:n], y[:n]), 10)
        kept = (x[:n] - class_means((x[:n], y[:n]), 10)[y[:n]]).flatten(1).double().numpy()
        expected, _ = ledoit_wolf(kept, assume_centered=True)
        along = prior.directions.T * (prior.variances - prior.rest) @ prior.directions
        torch.testing.assert_close(
            along + prior.rest * torch.eye(256, dtype=along.dtype),
            torch.from_numpy(expected),
            atol=1e-9,
            rtol=1e-9,
        )


def test_denoised_images_are_the_gaussian_posterior_mean() -> None:
    """Beside the textbook's formula, with the whole covariance inverted."""
    x, y = digits()
    prior = ClassPrior.of((x[:200], y[:200]), 10)
    images, labels = torch.rand(3, 1, 16, 16, generator=_generator()), torch.tensor([1, 0, 7])
    covariance = prior.directions.T * (prior.variances - prior.rest) @ prior.directions
    covariance += prior.rest * torch.eye(256, dtype=covariance.dtype)
    noise = float(covariance.trace()) / 256 * 0.3 / 0.7
    gain = covariance @ torch.linalg.inv(covariance + noise * torch.eye(256, dtype=covariance.dtype))
    means = prior.means[labels].flatten(1).double()
    expected = means + (images.flatten(1).double() - means) @ gain
    torch.testing.assert_close(
        prior.denoised(images, labels, 0.3), expected.clamp(0, 1).view_as(images).float(), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_denoising_by_the_covariance_is_closer_than_any_weighted_mean(noise: float) -> None:
    x, y = digits()
    prior = ClassPrior.of((x[:400], y[:400]), 10)
    seen = x[1000:1200] + noise * torch.randn(200, 1, 16, 16, generator=_generator())

    def closest(prior: ClassPrior) -> float:
        shares = [k / 20 for k in range(21)]
        return max(float(matched(prior.denoised(seen, y[1000:1200], s), x[1000:1200])) for s in shares)

    def matched(images: Tensor, records: Tensor) -> Tensor:
        return (-10 * (images - records).square().flatten(1).mean(1).log10()).mean()

    assert closest(prior) > closest(_isotropic(prior.means)) + 0.5


def test_a_prior_of_identical_images_returns_them() -> None:
    x = torch.rand(1, 1, 4, 4, generator=_generator()).expand(6, 1, 4, 4)
    prior = ClassPrior.of((x, torch.zeros(6, dtype=torch.int64)), 1)
    noisy = torch.rand(2, 1, 4, 4, generator=_generator(1))
    labels = torch.zeros(2, dtype=torch.int64)
    assert prior.denoised(noisy, labels, 0.5).isfinite().all()
    torch.testing.assert_close(prior.denoised(noisy, labels, 1.0), x[:2])


# -- auxiliary uploads --------------------------------------------------------------------------------------


def _upload(
    make: Any, n: int, epochs: int, size: int = 8, seed: int = 2
) -> tuple[Any, Upload, Tensor, Tensor]:
    """A client's update after some epochs on n digits of four classes; the network and the records."""
    x, y = digits()
    module = make(16, _generator(seed))
    start = tensors(module)
    rows = (y[:1000] < 4).nonzero()[:n, 0]
    training = ClientSteps(lr=0.1, batches=schedule(n, size, epochs=epochs))
    simulate = UpdateMap(module, start, training)
    flat = simulate(x[rows][None], y[rows][None])[0].detach()
    sizes = [t.numel() for t in simulate.parameters.values()]
    update = {
        name: part.view_as(start[name]) for name, part in zip(simulate.names, flat.split(sizes), strict=True)
    }
    upload = Upload(
        target="client/0",
        seq=1,
        start_seq=0,
        start=start,
        training=training,
        gradient=gradient_of_update(update, start, training),
        update=update,
    )
    return module, upload, x[rows], y[rows]


def _read_as(upload: Upload, n: int, epochs: int, size: int = 8) -> Upload:
    training = replace(upload.training, batches=schedule(n, size, epochs=epochs))
    gradient = gradient_of_update(upload.update or {}, upload.start, training)
    return replace(upload, training=training, gradient=gradient, guessed=True)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [mlp, strided_cnn])
@pytest.mark.parametrize("n", [8, 16, 32])
def test_the_number_of_records_is_found_from_the_update(make: Any, n: int) -> None:
    x, y = digits()
    auxiliary = (x[1000:], y[1000:])
    module, upload, _, _ = _upload(make, n, epochs=3)
    readings = [_read_as(upload, count, 3) for count in COUNTS]
    distances = [auxiliary_distance(u, module, auxiliary, auxiliary[0], _generator()) for u in readings]
    assert likeliest(readings, distances)[0].training.images == n


def test_a_second_number_is_tried_only_where_it_is_nearly_as_close() -> None:
    _, upload, _, _ = _upload(mlp, 8, epochs=2)
    readings = [_read_as(upload, count, 2) for count in COUNTS]
    assert [u.training.images for u in likeliest(readings, [0.9, 0.1, 0.5, 0.8])] == [16]
    assert [u.training.images for u in likeliest(readings, [0.9, 0.1, 0.11, 0.8])] == [16, 32]


def test_classes_behind_several_steps_are_found_whatever_number_of_records_is_assumed() -> None:
    x, y = digits()
    module, upload, _, labels = _upload(mlp, 16, epochs=3)
    for n in (8, 16, 32):
        found = labels_behind(_read_as(upload, n, 3), module, n, x[1000:], (x[1000:], y[1000:]))
        assert len(found) == n
        assert set(found.tolist()) <= set(labels.tolist())


def test_auxiliary_uploads_are_what_such_clients_send() -> None:
    x, y = digits()
    auxiliary = (x[1000:], y[1000:])
    module, upload, _, labels = _upload(mlp, 8, epochs=2)
    trial = auxiliary_trial(upload, labels.sort().values[None], module, auxiliary, _generator())
    assert sorted(trial.y[0].tolist()) == sorted(labels.tolist())
    distances = torch.cdist(trial.x[0].flatten(1), auxiliary[0].flatten(1)).min(1).values
    assert distances.max() < 1e-4  # every record is an auxiliary one
    one = replace(upload, update=None, gradient={}, training=ClientSteps(lr=0.1, batches=(tuple(range(8)),)))
    trial = auxiliary_trial(one, labels.sort().values[None], module, auxiliary, _generator())
    rows = batch_like(labels.sort().values, auxiliary[1], _generator())
    expected = flatten(true_gradient(module, auxiliary[0][rows], auxiliary[1][rows]), list(upload.start))
    torch.testing.assert_close(trial.target[0], expected, atol=1e-5, rtol=1e-4)


def test_the_class_means_of_a_trial_leave_its_own_records_out() -> None:
    x, y = digits()
    auxiliary = (x[1000:1040], y[1000:1040])
    module, upload, _, _ = _upload(mlp, 8, epochs=1)
    labels = auxiliary[1].unique()[:4].repeat_interleave(2)
    trial = auxiliary_trial(upload, labels[None], module, auxiliary, _generator())
    used = torch.cdist(auxiliary[0].flatten(1), trial.x[0].flatten(1)).min(1).values < 1e-4
    rest = (auxiliary[0][~used], auxiliary[1][~used])
    torch.testing.assert_close(trial.prior.means, class_means(rest, len(trial.prior.means)))


def test_defences_on_record_act_on_auxiliary_uploads() -> None:
    values = torch.randn(4, 5000, generator=_generator())
    noisy = defended(values, [{"name": "gaussian-noise", "sigma": 2.0, "clip": None}], _generator(1))
    assert (noisy - values).std().item() == pytest.approx(2.0, rel=0.03)
    clipped = defended(values, [{"name": "gaussian-noise", "sigma": 1e-9, "clip": 3.0}], _generator(1))
    torch.testing.assert_close(clipped.norm(dim=1), torch.full((4,), 3.0), rtol=1e-3, atol=1e-3)
    bounded = defended(values, [{"name": "laplace-noise", "gamma": 1e9, "clip": 0.5}], _generator(1))
    torch.testing.assert_close(bounded, values.clamp(-0.5, 0.5), atol=1e-5, rtol=0)
    spread = defended(0 * values, [{"name": "laplace-noise", "gamma": 0.5}], _generator(1)).abs().mean()
    assert spread.item() == pytest.approx(2.0, rel=0.05)  # the mean size of Laplace noise is its scale
    update = defended(values, [{"name": "dp-fedavg", "clip": 1.0, "sigma": 0.5, "shares": 4}], _generator(1))
    short = values / values.norm(dim=1, keepdim=True)
    assert (update - short).std().item() == pytest.approx(0.25, rel=0.05)
    grid = {"name": "discrete-gaussian", "clip": 1.0, "levels": 8, "sigma": 0.5}
    steps = defended(values, [grid], _generator(1)) / 0.25
    torch.testing.assert_close(steps, steps.round())
    assert torch.equal(defended(values, [{"name": "of somebody else"}], _generator(1)), values)


# -- the attack on views ------------------------------------------------------------------------------------


def _uncounted(view: Any) -> Any:
    kept = [m for m in view.messages if m.kind != "sample_count"]
    return replace(view, messages=tuple(kept), hyperparameters={**view.hyperparameters, "local_steps": None})


@pytest.mark.thorough
def test_without_a_sample_count_several_numbers_are_tried_and_one_batch_is_handed_back() -> None:
    view, knowledge, task, _ = world(mlp, "model_update", (4,), local_epochs=1)
    view = _uncounted(view)
    readings = find_readings(view, "client/0", 0, 64)
    assert [u.training.images for u in readings] == list(COUNTS)
    assert all(u.guessed for u in readings)
    (guess,) = InvertingGradients(QUICK).run(view, knowledge, task, _generator())
    assert len(guess.images) == view.hyperparameters["batch_size"]
    assert "numbers tried" in guess.note


def test_where_no_number_is_allowed_the_reason_says_so() -> None:
    view, _, _, _ = world(mlp, "model_update", (4,), local_epochs=1)
    assert "max_images" in find_readings(_uncounted(view), "client/0", 0, 4)


def _coalition(view: Any, *members: str) -> Any:
    return replace(view, name="+".join(members), members=members)


def test_a_coalition_finds_what_its_member_finds_whoever_else_is_attacked() -> None:
    view, knowledge, task, _ = world(mlp, "gradient", (2, 2, 2))
    attack = InvertingGradients(QUICK)
    cache._kept.clear()
    alone = attack.run(view, knowledge, task, _generator())
    cache._kept.clear()
    victims = AttackTask(targets=("client/1", "client/2"))
    colluding = attack.run(_coalition(view, "server", "client/0"), knowledge, victims, _generator(5))
    for one, other in zip(alone[1:], colluding, strict=True):
        assert one.target == other.target
        assert torch.equal(one.images, other.images)
        assert one.note == other.note


def test_a_coalition_reads_an_upload_as_each_member_would() -> None:
    """A member to whom another model was sent last has a reading of its own; equal ones count once."""
    view, _, _, _ = world(mlp, "gradient", (2, 2))
    coalition = _coalition(view, "server", "client/0")
    assert len(find_readings(coalition, "client/1", 0, 64)) == 1
    model = next(m for m in view.messages if m.kind == "model_parameters")
    last = max(m.seq for m in view.messages)
    upload = next(m for m in view.messages if m.sender == "client/1" and m.kind == "gradient")
    # The upload comes after a second model, which client/0 alone handed over.
    second = replace(model, seq=last + 1, sender="client/0", receivers=("client/1",))
    later = replace(upload, seq=last + 2)
    messages = tuple(m for m in view.messages if m is not upload)
    payloads = {**view.payloads, second.seq: view.payloads[model.seq], later.seq: view.payloads[upload.seq]}
    seen = replace(coalition, messages=(*messages, second, later), payloads=payloads)
    readings = find_readings(seen, "client/1", 0, 64)
    assert [u.start_seq for u in readings] == [second.seq, model.seq]


def test_a_guess_is_the_same_for_the_same_view_and_says_how_it_was_made() -> None:
    view, knowledge, task, _ = world(mlp, "gradient", (2,))
    guesses = []
    for seed in (0, 1):
        cache._kept.clear()
        guesses += InvertingGradients(QUICK).run(view, knowledge, task, _generator(seed))
    assert torch.equal(guesses[0].images, guesses[1].images)
    assert "8 auxiliary records" in guesses[0].note


def test_untuned_settings_are_the_defaults() -> None:
    view, knowledge, task, _ = world(mlp, "gradient", (1,))
    for known in (knowledge, Knowledge(architecture=knowledge.architecture)):
        config = QUICK.model_copy(update={"tune": known.auxiliary is None})
        (guess,) = InvertingGradients(config).run(view, known, task, _generator())
        assert guess.note == f"{SearchSettings().described()}, not tuned"


def test_a_note_reaches_the_auditor() -> None:
    sent = Reconstruction(target="client/0", messages=(1,), images=torch.zeros(1, 1, 2, 2), note="as chosen")
    named = Tensors()
    packed = packed_guesses([sent], named)
    assert guesses_of(packed, named.named, 1)[0].note == "as chosen"


def test_the_simulated_gradient_of_a_trial_is_differentiable() -> None:
    """A trial is inverted by the same engine: its map must pass gradients on to images."""
    x, y = digits()
    module, upload, _, labels = _upload(strided_cnn, 8, epochs=1)
    trial = auxiliary_trial(upload, labels[None], module, (x[1000:], y[1000:]), _generator(), one_step=True)
    assert isinstance(trial.simulate, GradientMap)
    images = torch.rand(trial.x.shape, generator=_generator()).requires_grad_()
    dot, _ = trial.simulate.products(images, trial.y, trial.target)
    (slope,) = torch.autograd.grad(dot.sum(), images)
    assert slope.abs().max() > 0
