"""Membership by several losses of masks, on overfit U-Nets of nuclei: which loss tells members best.

Run with `-m slow -s` to see the figures. FDAUDIT_DATA must hold dsb2018_nuclei.npz. Some five minutes on one core.
"""

from __future__ import annotations

import numpy as np
import torch
from fdaudit.attacks._target_model import log_likelihood, soft_dice
from sklearn.metrics import roc_auc_score

from fdaudit.data.datasets import load_dataset
from fdaudit.models import architecture
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import DatasetSpec, ModelSpec
from fdaudit.tasks import SEGMENTATION
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Job, Trainer, draw_batches, parameters_of

from ...helpers.marks import SLOW_ON_DATA

pytestmark = SLOW_ON_DATA

SEEDS, STEPS = range(5), (200, 400)
SITES = {"all": None, "fluorescence-256x256": 0, "fluorescence-520x696": 1, "histology-256x320": 2}
MEMBERS = (15, 40)
FIT = Fit(lr=0.1, momentum=0.9, objective="cross-entropy-dice")


def mean_at(values, where):
    """Return the mean of some pixels, or of all if there are none."""
    return values[where].mean() if where.any() else values.mean()


def scores_of(p, y):
    """Return scores (n,) by their name: minus losses of answers (n, 2, h, w) for masks (n, h, w)."""
    right = p.gather(1, y[:, None])[:, 0].clamp_min(1e-12).log()
    widest = torch.nn.functional.max_pool2d(torch.stack([y, -y], 1).double(), 3, 1, 1)
    border = widest.sum(1) > 0  # several classes among a pixel and its eight neighbours
    entropy = -torch.xlogy(p, p).sum(1)
    centred = right + entropy  # zero on average, were the labels drawn from the answer
    masks = range(len(y))
    fit, dice = log_likelihood(p, y), soft_dice(p, y)
    return {
        "cross-entropy": fit,
        "dice": dice,
        "both": fit + dice,
        "border": torch.stack([mean_at(right[k], border[k]) for k in masks]),
        "centred": centred.mean((1, 2)),
        "centred at the border": torch.stack([mean_at(centred[k], border[k]) for k in masks]),
    }


def one_per_picture(data, site, generator):
    """Return rows of a site in random order, one of each picture."""
    rows = torch.arange(len(data.y)) if site is None else (data.sites == site).nonzero().squeeze(1)
    rows = rows[torch.randperm(len(rows), generator=generator)].numpy()
    return rows[np.unique(data.pictures[rows].numpy(), return_index=True)[1]]


def aucs(data, trainer, site, members, seed):
    """Return the AUC (steps, losses) of each score after some steps of training on `members` masks."""
    generator = torch.Generator().manual_seed(seed)
    rows = one_per_picture(data, site, generator)
    rows = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)[: 2 * members]]
    x, y, inside = data.x[rows], data.y[rows], np.arange(2 * members) < members
    weights, found = parameters_of(trainer.architecture.build(generator)), []
    for more in np.diff((0, *STEPS)):
        batches = draw_batches(members, 16, steps=int(more), generator=generator)
        job = Job(party="a", parameters=weights, x=x[:members], targets=y[:members], batches=batches)
        weights = trainer.fit([job], FIT)[0].parameters
        scores = scores_of(trainer.predict(weights, x).double().softmax(1), y)
        found.append([roc_auc_score(inside, s.numpy()) for s in scores.values()])
    names = list(scores)
    return names, np.array(found)


def test_the_dice_loss_tells_members_of_overfit_models_better_than_cross_entropy():
    torch.set_num_threads(1)
    data = load_dataset(
        DatasetSpec(name="masks:dsb2018_nuclei.npz", image_size=32), SecretStream(b"0" * 32, "d")
    )
    network = architecture(
        ModelSpec(name="unet", params={"width": 8, "depth": 2}), data.input_shape, 2, SEGMENTATION
    )
    execution = Execution.resolve(device="cpu", threads=1, convolutions=True, work=network.work)
    trainer, table = Trainer(network, execution), []
    for site, number in SITES.items():
        for members in MEMBERS:
            made = [aucs(data, trainer, number, members, seed) for seed in SEEDS]
            names, found = made[0][0], np.stack([of for _, of in made])  # (seeds, steps, losses)
            table.append(found)
            for k, steps in enumerate(STEPS):
                row = "  ".join(f"{name} {v:.3f}" for name, v in zip(names, found[:, k].mean(0), strict=True))
                print(f"{site:22} {members:3} masks {steps:4} steps  {row}", flush=True)
    by_seed = np.stack(table).mean((0, 2))  # (seeds, losses)
    gain = by_seed - by_seed[:, :1]
    for k, name in enumerate(names):
        print(
            f"{name:22} mean {by_seed[:, k].mean():.3f}; above cross-entropy by {gain[:, k].mean():.3f}, "
            f"by seed {gain[:, k].min():.3f} to {gain[:, k].max():.3f}"
        )
    dice = names.index("dice")
    assert (gain[:, dice] > 0).all()
