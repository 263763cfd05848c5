"""DP-SGD by itself: what it clips, draws and adds, against plain autograd, Opacus' own step and closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch.nn import functional as F

from fdaudit.errors import TrainingDivergedError
from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.testing.federation import CLASSES, execution, initial, network, trainer
from fdaudit.training import private_step as guard
from fdaudit.training.private_step import Guard
from fdaudit.training.trainer import Fit, Job, Trainer, parameters_of

from ..helpers.dp_sgd_cases import HUGE, LR, N, data, job, rule, stream


def single_gradients(parameters, x, targets, loss=F.cross_entropy, made=None):
    """The gradient of each record's own loss, one backward pass each, on a module of its own."""
    module = made or network().build(torch.Generator().manual_seed(0))
    module.load_state_dict(parameters)
    found = []
    for i in range(len(x)):
        module.zero_grad()
        loss(module(x[i : i + 1]), targets[i : i + 1]).backward()
        found.append({n: p.grad.clone().double() for n, p in module.named_parameters()})
    return found


def clipped_sum(singles, clip):
    """Σ g_i min(1, C / ||g_i||), record by record."""
    total = {n: torch.zeros_like(g) for n, g in singles[0].items()}
    for g in singles:
        norm = math.sqrt(sum(float(t.square().sum()) for t in g.values()))
        for n in total:
            total[n] += g[n] * min(1.0, clip / norm)
    return total


def close(one, two, rtol=1e-5, atol=1e-6):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name].double(), two[name].double(), rtol=rtol, atol=atol)


# -- clipping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.05, 0.7, 3.0])
def test_a_step_applies_the_clipped_sum_of_single_gradients(clip):
    x, y = data()
    (got,) = trainer().gradients([job(rule(clip))], Fit(lr=LR))
    expected = clipped_sum(single_gradients(initial(), x, y), clip)
    close(got.parameters, {n: t / N for n, t in expected.items()})


OBJECTIVES = [
    ("cross-entropy", F.cross_entropy),
    ("l2", lambda z, t: (z - t).square().sum()),
    ("l1", lambda z, t: (z - t).abs().mean()),
]


@pytest.mark.parametrize(("objective", "loss"), OBJECTIVES)
def test_every_objective_is_a_mean_of_the_records_own_losses(objective, loss):
    x, _ = data()
    targets = torch.rand(N, CLASSES, generator=child(3, "t"))
    made = job(rule(0.5), targets=targets)
    (got,) = trainer().gradients([made], Fit(lr=LR, objective=objective))
    expected = clipped_sum(single_gradients(initial(), x, targets, loss), 0.5)
    close(got.parameters, {n: t / N for n, t in expected.items()})


def test_unknown_answers_of_a_multi_label_record_add_nothing():
    x, _ = data()
    targets = torch.randint(-1, 2, (N, CLASSES), generator=child(4, "t"))

    def loss(z, t):
        known = t >= 0
        return F.binary_cross_entropy_with_logits(z[known], t[known].float(), reduction="sum") / CLASSES

    (got,) = trainer().gradients(
        [job(rule(0.2), targets=targets)], Fit(lr=LR, objective="binary-cross-entropy")
    )
    expected = clipped_sum(single_gradients(initial(), x, targets, loss), 0.2)
    close(got.parameters, {n: t / N for n, t in expected.items()})


@settings(deadline=None, max_examples=50)
@given(
    clip=st.floats(1e-3, 1e3),
    scale=st.floats(1e-6, 1e6),
    n=st.integers(1, 9),
    seed=st.integers(0, 99),
    without=st.integers(0, 8),
)
def test_no_record_moves_the_sum_by_more_than_the_clip(clip, scale, n, seed, without):
    g = child(seed, "g")
    per_sample = {"w": torch.randn(n, 3, 2, generator=g) * scale, "b": torch.randn(n, 4, generator=g) * scale}
    one = without % n
    rest = {k: torch.cat([t[:one], t[one + 1 :]]) for k, t in per_sample.items()}
    made = rule(clip)
    moved = [
        a - b for a, b in zip(made.clipped(per_sample).values(), made.clipped(rest).values(), strict=True)
    ]
    norm = math.sqrt(sum(float(t.square().sum()) for t in moved))
    own = math.sqrt(sum(float(t[one].double().square().sum()) for t in per_sample.values()))
    assert norm == pytest.approx(min(own, clip), rel=1e-6, abs=1e-9 * n * clip)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_whose_gradient_is_no_number_adds_nothing(value):
    per_sample = {"w": torch.ones(3, 4), "b": torch.ones(3, 2)}
    per_sample["b"][1, 0] = value
    total = rule(0.5).clipped(per_sample)
    whole = rule(0.5).clipped({n: t[[0, 2]] for n, t in per_sample.items()})
    close(total, whole, rtol=0, atol=0)


def test_a_record_that_is_no_number_does_not_stop_a_guarded_run_as_it_stops_a_plain_one():
    made = job(rule(0.5))
    broken = made.x.clone()
    broken[3] = math.nan
    (got,) = trainer().fit([replace(made, x=broken)], Fit(lr=LR))
    assert all(torch.isfinite(t).all() for t in got.parameters.values())
    with pytest.raises(TrainingDivergedError):
        trainer().fit([replace(made, x=broken, guard=None, batches=(torch.arange(N),))], Fit(lr=LR))


def test_a_model_that_leaves_the_numbers_stops_the_run():
    with pytest.raises(TrainingDivergedError):
        trainer().fit([job(rule(1.0, noise=1e38), steps=2)], Fit(lr=1e38))


# -- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fit",
    [
        Fit(lr=LR),
        Fit(lr=LR, momentum=0.5, weight_decay=0.1),
        Fit(lr=LR, mu=0.4),
        Fit(lr=LR, final_lr=0.01),
        Fit(lr=0.01, optimizer="adam"),
    ],
    ids=["plain", "momentum-decay", "proximal", "annealed", "adam"],
)
def test_without_noise_clip_or_sampling_it_is_full_batch_training(fit):
    steps = 4
    anchor = {n: t + 0.1 for n, t in initial().items()}
    guarded = job(rule(HUGE), steps, anchor=anchor)
    plain = replace(guarded, guard=None, batches=(torch.arange(N),) * steps)
    (one,), (two,) = trainer().fit([guarded], fit), trainer().fit([plain], fit)
    close(one.parameters, two.parameters, rtol=1e-4)
    torch.testing.assert_close(one.losses, two.losses, rtol=1e-4, atol=1e-6)


def test_moments_are_kept_where_they_are_asked_for():
    (one,) = trainer().fit([job(rule(HUGE), 4, moments={})], Fit(lr=LR, momentum=0.5))
    (half,) = trainer().fit([job(rule(HUGE), 2, moments={})], Fit(lr=LR, momentum=0.5))
    rest = replace(job(rule(HUGE), 2), parameters=half.parameters, moments=half.moments)
    (two,) = trainer().fit([rest], Fit(lr=LR, momentum=0.5))
    close(one.parameters, two.parameters)


def test_a_noiseless_step_is_that_of_opacus_own_optimiser():
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    x, y = data()
    module = network().build(torch.Generator().manual_seed(0))
    module.load_state_dict(initial())
    hooked = GradSampleModule(module, loss_reduction="sum")
    sgd = torch.optim.SGD(module.parameters(), lr=LR)
    private = DPOptimizer(
        sgd, noise_multiplier=0.0, max_grad_norm=0.4, expected_batch_size=N, loss_reduction="mean"
    )
    F.cross_entropy(hooked(x.clone().requires_grad_()), y, reduction="sum").backward()
    private.step()
    (got,) = trainer().fit([job(rule(0.4))], Fit(lr=LR))
    close(got.parameters, {n: p.detach() for n, p in module.named_parameters()}, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "params"),
    [("cnn-strided", {}), ("lenet-dlg", {}), ("resnet8", {"width": 8}), ("resnet18", {}), ("cnn-3-3", {})],
)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_networks_of_the_zoo_give_the_gradients_of_single_records(name, params, layout):
    made = architecture(ModelSpec(name=name, params=params), (1, 16, 16), CLASSES)
    x, y = torch.rand(2, 1, 16, 16, generator=child(0, "x")), torch.tensor([0, 2])
    start = parameters_of(made.build(child(1, "w")))
    guard = Guard(rule(HUGE, expected=1), stream())
    guarded = Job(party="c", parameters=start, x=x[:1], targets=y[:1], batches=(), guard=guard)
    core = Trainer(made, replace(execution(), memory_format=layout))
    (got,) = core.gradients([guarded], Fit(lr=LR))
    (expected,) = single_gradients(start, x[:1], y[:1], made=made.build(child(1, "w")))
    scale = max(float(g.abs().max()) for g in expected.values())
    close(got.parameters, expected, rtol=1e-3, atol=1e-5 * scale)


def test_the_sum_does_not_depend_on_the_parts_it_is_made_in(monkeypatch):
    (whole,) = trainer().gradients([job(rule(0.3))], Fit(lr=LR))
    monkeypatch.setitem(guard._ENTRIES, "cpu", 3 * sum(t.numel() for t in initial().values()))
    (parts,) = trainer().gradients([job(rule(0.3))], Fit(lr=LR))
    close(whole.parameters, parts.parameters)


# -- noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "noise", "expected"), [(1.0, 1.0, 1), (0.2, 3.0, 16)])
def test_the_noise_is_gaussian_of_sigma_times_clip_over_the_public_batch(clip, noise, expected):
    total = {
        "w": torch.full((100, 100), 5.0, dtype=torch.float64),
        "b": torch.zeros(500, dtype=torch.float64),
    }
    got = rule(clip, noise, expected=expected).noised(total, stream())
    residual = torch.cat([(got[n] * expected - total[n]).flatten() for n in total]).numpy()
    assert kstest(residual / (noise * clip), "norm").pvalue > 0.01


def test_a_step_that_draws_nobody_is_noise_alone():
    made = job(rule(1.0, noise=2.0, q=0.5), n=0)
    (got,) = trainer().gradients([made], Fit(lr=LR))
    drawn = torch.cat([t.flatten() for t in got.parameters.values()]).numpy() * N
    assert kstest(drawn / 2.0, "norm").pvalue > 0.01
    assert got.losses.tolist() == [0.0]
    assert [len(b) for b in got.batches] == [0]


def test_every_step_has_noise_of_its_own():
    (got,) = trainer().fit([job(rule(1e-6, noise=1e6), steps=2)], Fit(lr=1.0))
    (once,) = trainer().fit([job(rule(1e-6, noise=1e6), steps=1)], Fit(lr=1.0))
    one = torch.cat([(once.parameters[n] - t).flatten() for n, t in initial().items()])
    two = torch.cat([(got.parameters[n] - once.parameters[n]).flatten() for n in initial()])
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 4 / math.sqrt(len(one))


def test_secret_and_path_decide_all_that_is_drawn_and_global_randomness_nothing():
    found = []
    for seed, path in ((1, "m"), (2, "m"), (1, "other")):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        (got,) = trainer().fit([job(rule(1.0, noise=1.0, q=0.5), 3, path=path)], Fit(lr=LR))
        assert torch.equal(torch.get_rng_state(), before)
        found.append(got)
    for n in initial():
        assert torch.equal(found[0].parameters[n], found[1].parameters[n])
        assert not torch.equal(found[0].parameters[n], found[2].parameters[n])


def test_side_by_side_and_one_after_the_other_end_alike():
    jobs = [job(rule(1.0, noise=1.0, q=0.5), 3, path=k) for k in range(4)]
    again = [job(rule(1.0, noise=1.0, q=0.5), 3, path=k) for k in range(4)]
    one = trainer().fit(jobs, Fit(lr=LR))
    two = Trainer(network(), replace(execution(), threads=3)).fit(again, Fit(lr=LR))
    for a, b in zip(one, two, strict=True):
        assert all(torch.equal(a.parameters[n], b.parameters[n]) for n in a.parameters)
        assert torch.equal(a.losses, b.losses)


def test_models_that_would_advance_together_each_have_their_guard():
    jobs = [job(rule(1.0, noise=1.0), 2, path=k) for k in range(2)]
    stacked = Trainer(network(), replace(execution(), strategy="stacked"))
    alone = [trainer().fit([job(rule(1.0, noise=1.0), 2, path=k)], Fit(lr=LR))[0] for k in range(2)]
    for a, b in zip(stacked.fit(jobs, Fit(lr=LR)), alone, strict=True):
        assert all(torch.equal(a.parameters[n], b.parameters[n]) for n in a.parameters)


def test_a_network_is_as_it_was_after_a_guarded_training():
    core, x = trainer(), data()[0]
    before = core.predict(initial(), x)
    core.fit([job(rule(1.0, noise=1.0), 2)], Fit(lr=LR))
    plain = replace(job(rule()), guard=None, batches=(torch.arange(N),))
    (after,), (fresh,) = core.fit([plain], Fit(lr=LR)), trainer().fit([plain], Fit(lr=LR))
    assert all(torch.equal(after.parameters[n], fresh.parameters[n]) for n in fresh.parameters)
    assert torch.equal(core.predict(initial(), x), before)
