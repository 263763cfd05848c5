"""Networks, jobs and fits for tests of the training core, and the same training written out with torch alone."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import SEGMENTATION
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Job, draw_batches, parameters_of

SHAPE, CLASSES, STEPS = (1, 8, 8), 4, 6
NETWORKS = {
    "mlp": architecture(ModelSpec(name="mlp", params={"widths": [12]}), SHAPE, CLASSES),
    "cnn": architecture(
        ModelSpec(name="cnn-strided", params={"channels": [4, 6], "kernel": 3}), SHAPE, CLASSES
    ),
    "norm": architecture(ModelSpec(name="resnet8", params={"width": 8, "norm": "batch"}), SHAPE, CLASSES),
}
UNET = architecture(ModelSpec(name="unet", params={"width": 8, "depth": 1}), SHAPE, CLASSES, SEGMENTATION)


def execution(strategy="loop", memory_format="contiguous", device="cpu"):
    return Execution(device=device, threads=1, strategy=strategy, memory_format=memory_format)


def jobs(network, count=3, objective="cross-entropy", batch=5, n=20, **more):
    made = []
    for k in range(count):
        g = child(3, "job", k)
        x = torch.rand(n, *SHAPE, generator=g)
        y = torch.randint(CLASSES, (n,), generator=g)
        values = torch.randn(n, CLASSES, generator=g)
        maps = torch.randn(n, CLASSES, *SHAPE[1:], generator=g)
        targets = {
            "cross-entropy": y,
            "cross-entropy-dice": maps.argmax(1),
            "dice": maps.softmax(1),
            "binary-cross-entropy": torch.randint(-1, 2, (n, CLASSES), generator=g),
            "kl": values.softmax(1),
            "binary-kl": values.sigmoid(),
            "l1": values,
            "l2": values,
        }[objective]
        made.append(
            Job(
                party=f"client/{k}",
                parameters=parameters_of(network.build(child(4, "w", k))),
                x=x,
                targets=targets,
                batches=draw_batches(n, batch, steps=STEPS, generator=g),
                anchor=parameters_of(network.build(child(5, "anchor", k))),
                **more,
            )
        )
    return made


def plain(network, job, fit):
    """The same training written out with torch alone, penalties and objectives by their formulas."""
    module = network.build(child(0, "plain"))
    module.load_state_dict(job.parameters, strict=False)
    named = dict(module.named_parameters())
    if fit.optimizer == "adam":
        optimizer = torch.optim.Adam(named.values(), lr=fit.lr, weight_decay=fit.weight_decay)
    else:
        optimizer = torch.optim.SGD(
            named.values(), lr=fit.lr, momentum=fit.momentum, weight_decay=fit.weight_decay
        )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, len(job.batches), fit.lr if fit.final_lr is None else fit.final_lr
    )
    module.train()
    losses = []
    for batch in job.batches:
        z, t = module(job.x[batch]), job.targets[batch]
        if fit.objective == "cross-entropy":
            loss = -z.log_softmax(1)[torch.arange(len(t)), t].mean()
        elif fit.objective == "binary-cross-entropy":
            log_q = torch.stack([(-z).sigmoid().log(), z.sigmoid().log()])  # of "does not occur", "occurs"
            loss = -((t == 0) * log_q[0] + (t == 1) * log_q[1]).mean()
        elif fit.objective == "binary-kl":
            q = (z / fit.temperature).sigmoid()
            apart = t * (t / q).log() + (1 - t) * ((1 - t) / (1 - q)).log()
            loss = fit.temperature**2 * apart.sum(1).mean()
        elif fit.objective == "kl":
            q = (z / fit.temperature).log_softmax(1)
            loss = fit.temperature**2 * (t * (t.log() - q)).sum(1).mean()
        elif fit.objective == "cross-entropy-dice":
            hot = F.one_hot(t, CLASSES).movedim(-1, 1)
            loss = -(z.log_softmax(1) * hot).sum(1).mean() + 1 - dice(z.softmax(1), hot)
        elif fit.objective == "dice":
            loss = -dice(z.softmax(1), t)
        elif fit.objective == "l1":
            loss = (z - t).abs().mean()
        else:
            loss = ((z - t) ** 2).sum(1).mean()
        losses.append(loss.item())
        if fit.mu:
            loss = loss + fit.mu / 2 * sum(((p - job.anchor[n]) ** 2).sum() for n, p in named.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return parameters_of(module), torch.tensor(losses)


def dice(q, p):
    """Gong et al. 2022 (FedKD), Eq. 10 without its sign: record by record and class by class, without background."""
    each = [
        2 * (a[c] * b[c]).sum() / ((a[c] ** 2).sum() + (b[c] ** 2).sum() + 1e-6)
        for a, b in zip(q, p, strict=True)
        for c in range(1, CLASSES)
    ]
    return sum(each) / len(each)


def close(one, two, rtol=1e-4, atol=1e-5):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=rtol, atol=atol)


FITS = {
    "sgd": Fit(lr=0.1),
    "momentum": Fit(lr=0.1, momentum=0.9),
    "weight-decay": Fit(lr=0.1, weight_decay=0.05),
    "adam": Fit(lr=0.01, optimizer="adam", weight_decay=0.01),
    "annealed": Fit(lr=0.2, final_lr=0.01, momentum=0.9),
    "annealed-adam": Fit(lr=0.02, final_lr=0.001, optimizer="adam"),
    "fedprox": Fit(lr=0.1, mu=0.5),
    "fedprox-momentum": Fit(lr=0.05, mu=0.5, momentum=0.5, weight_decay=0.01),
    "kl": Fit(lr=0.1, objective="kl", temperature=3.0),
    "l1": Fit(lr=0.1, objective="l1"),
    "binary-cross-entropy": Fit(lr=0.3, objective="binary-cross-entropy"),
    "binary-kl": Fit(lr=0.1, objective="binary-kl", temperature=3.0),
    "l2": Fit(lr=0.02, objective="l2"),
}
FITS_OF_MASKS = {
    "sgd": Fit(lr=0.1, objective="cross-entropy-dice"),
    "momentum": Fit(lr=0.1, momentum=0.9, weight_decay=0.01, objective="cross-entropy-dice"),
    "fedprox": Fit(lr=0.1, mu=0.5, objective="cross-entropy-dice"),
    "dice": Fit(lr=0.1, objective="dice"),
}
