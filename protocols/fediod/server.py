"""FedIOD's server: it draws samples, aggregates the clients' answers, and stores them to distil again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.federation.protocol import Setting
from fdaudit.federation.state import put, take
from fdaudit.models.generative import build_generator
from fdaudit.rng import child, child_seed
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import Parameters

from .losses import (
    aggregate,
    balance_loss,
    by_pixel,
    confidence_loss,
    importance,
    label_loss,
    mimic_loss,
    unique_loss,
)
from .parties import GAN, laid_out

if TYPE_CHECKING:
    from .config import FedIODConfig

__all__ = ["FedIODServer", "Replay"]


_MOMENTUM = 0.9


class FedIODServer:
    """The server: generator G, student S, the clients' class counts, and stored samples to distil again."""

    def __init__(self, config: FedIODConfig, setting: Setting) -> None:
        self._config, self._seed = config, setting.seed
        self._trainer, self._classes = setting.trainers["server"], setting.classes
        draws = child(setting.seed, "fediod", "generator")
        G = build_generator(draws, config.latent, config.generator_width, setting.input_shape)
        device = self._trainer.device
        self._G = Learner(
            "server", laid_out(G, self._trainer), Optimizer(lr=config.adam_lr, betas=GAN), device
        )
        S = self._trainer.network(setting.initial["server"])
        rule = Optimizer(lr=config.student_lr or config.adam_lr)
        if config.student_optimizer == "sgd":
            rule = Optimizer(name="sgd", lr=rule.lr, momentum=_MOMENTUM)
        self._S = Learner("server", S, rule, device)
        self._counts: dict[str, Tensor] = {}
        self._clients = len(setting.clients)
        self._of_one = self._clients if config.gradients_from == "one" else 1
        answer = setting.task.labels.answer_shape(setting.classes, setting.input_shape)
        self._replay = Replay(config.replay, config.samples, setting.input_shape, answer, device)

    def hear_counts(self, client: str, counts: Tensor) -> None:
        """Store a client's class counts (C,)."""
        self._counts[client] = counts.cpu()

    # -- one step -------------------------------------------------------------------------------------------

    def generate(self, t: int) -> Tensor:
        """Return a step's samples x = G(w) (n, c, h, w); the graph is kept for `update`."""
        draws = child(self._seed, "fediod", "latent", t)
        w = torch.randn(self._config.samples, self._config.latent, generator=draws)
        x: Tensor = self._G.module(w.to(self._trainer.device))
        self._x = x
        return x.detach()

    def judge(
        self, t: int, sent: Tensor, logits: Mapping[str, Tensor], scores: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Tensor]]:
        """Compute the losses of a step; return the message to each client that answered.

        Args:
            t: the step.
            sent: the samples (n, c, h, w) as the clients have them.
            logits: z_k (n, C), of masks (n, C, h, w), by client, at least one.
            scores: D_k's ratios (n,), of the clients whose scores arrived.
        """
        cfg, names = self._config, list(logits)
        z = torch.stack([logits[k] for k in names]).requires_grad_()
        x = sent.clone().requires_grad_()
        shares = self._shares(names).to(z.device)
        weights = self._weights(names, scores, len(x)).to(z.device)
        with self._trainer.randomness(child_seed(self._seed, "fediod", "student", t)):
            student = self._S.module.train()(x)
        target = aggregate(z, weights)
        L_mimic = self._imitation(student, target)
        each = by_pixel(z, 2)
        L_conf, L_unique = confidence_loss(each, shares), unique_loss(each, shares)
        total = cfg.conf * L_conf + cfg.unique * L_unique - cfg.mimic * L_mimic
        if cfg.balance:
            total = total + cfg.balance * balance_loss(each, shares)
        cotangents, self._own = torch.autograd.grad(total, [z, x], retain_graph=True)
        self._mimic: Tensor | None = L_mimic
        self._kept = sent, target.detach()
        gan = self._gan_weights(shares)
        requests: dict[str, dict[str, Tensor]] = {}
        for i, k in enumerate(names):
            requests[k] = {"values": cotangents[i], "gan_weight": gan[i]}
        return requests

    def hear_labels(self, t: int, sent: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Compute the losses from labels in place of logits; return the message to each client.

        L_mimic is then the student's cross-entropy with the labels. L_conf and L_unique need each client's logits, so
        they are left out.

        Args:
            t: the step.
            sent: the samples (n, c, h, w) as the clients have them.
            target: the labels as shares of classes (n, C); a sample without a label has a row of zeros.
        """
        answered = target.sum(1) > 0
        self._mimic, self._own = None, torch.zeros_like(sent)
        self._kept = sent[answered], target[answered]
        if answered.any():
            x = sent.clone().requires_grad_()
            with self._trainer.randomness(child_seed(self._seed, "fediod", "student", t)):
                student = self._S.module.train()(x)
            self._mimic = label_loss(student[answered], target[answered])
            (own,) = torch.autograd.grad(self._mimic, x, retain_graph=True)
            self._own = -self._config.mimic * own
        equal = torch.full((self._clients,), 1 / self._clients)
        return {"gan_weight": self._gan_weights(equal)[0]}

    def update(self, t: int, gradients: Mapping[str, Tensor]) -> float | None:
        """Take a step of G and the steps of S; return L_mimic, or None if no sample has a label.

        Args:
            t: the step.
            gradients: received gradients (n, c, h, w), by client. If clients were asked and none answered, G stays
                the same. The gradient of one client drawn from K counts K times: its mean is then the full sum.
        """
        rate = self._config.rate(t)
        if gradients or not self._config.asks:
            back = torch.stack(list(gradients.values())).sum(0) if gradients else torch.zeros_like(self._own)
            at_x = self._own + self._of_one * back
            self._G.step((self._x * at_x).sum(), rate)  # whose gradient is what came back, pulled through G
        rate = self._config.student_rate(t)
        loss = None if self._mimic is None else self._S.step(self._mimic, rate)
        if self._config.fresh:
            return loss
        self._replay.keep(*self._kept)
        for s in range(1, self._config.student_steps if self._replay else 1):
            x, target = self._replay.draw(child(self._seed, "fediod", "replay", t, s))
            with self._trainer.randomness(child_seed(self._seed, "fediod", "student", t, s)):
                again = self._imitation(self._S.module(x), target)
            self._S.step(again, rate)
        return loss

    def show(self, t: int, s: int) -> Tensor:
        """Return fresh samples x = G(w) (n, c, h, w) for the student's step s."""
        draws = child(self._seed, "fediod", "latent", t, s)
        w = torch.randn(self._config.samples, self._config.latent, generator=draws)
        with torch.no_grad():
            x: Tensor = self._G.module(w.to(self._trainer.device))
        return x

    def imitate(self, t: int, s: int, sent: Tensor, logits: Mapping[str, Tensor]) -> float:
        """Take the student's step s on fresh samples (n, c, h, w) and the clients' logits for them; return L_mimic."""
        names = list(logits)
        weights = self._weights(names, {}, len(sent)).to(sent.device)
        target = aggregate(torch.stack([logits[k] for k in names]), weights)
        with self._trainer.randomness(child_seed(self._seed, "fediod", "student", t, s)):
            loss = self._imitation(self._S.module.train()(sent), target)
        return self._S.step(loss, self._config.student_rate(t))

    def _gan_weights(self, shares: Tensor) -> Tensor:
        """Return the weight (K,) of each client's L_gan in the generator's loss: its share π_k, or 1 in the sum."""
        each = shares if self._config.gan_total == "mean" else torch.ones_like(shares)
        return self._config.gan * each

    def _imitation(self, student: Tensor, target: Tensor) -> Tensor:
        """Return L_mimic () on samples that all have a target (n, C), of masks (n, C, h, w)."""
        if self._config.outputs == "votes":
            return label_loss(student, target)
        return mimic_loss(by_pixel(student, 1), by_pixel(target, 1), self._config.temperature)

    def _shares(self, names: list[str]) -> Tensor:
        """Return π_k (K,) of the clients that answered, by their numbers of records, or equal shares."""
        if self._config.shares == "uniform":
            return torch.full((len(names),), 1 / len(names))
        n = self._known(names).sum(1)
        return n / n.sum()

    def _weights(self, names: list[str], scores: Mapping[str, Tensor], n: int) -> Tensor:
        """Return π_k^c(x) (K, n, C) of the clients that answered."""
        if self._config.weights == "eq8":
            return importance(self._known(names), _filled(names, scores, torch.ones(n)))
        if self._config.weights == "class-counts":
            return importance(self._known(names), torch.ones(len(names), n))
        even = torch.ones(len(names), 1) if self._config.weights == "uniform" else self._shares(names)
        counts = even.reshape(-1, 1).expand(-1, self._classes)
        return importance(counts, torch.ones(len(names), n))

    def _known(self, names: list[str]) -> Tensor:
        return _filled(names, self._counts, torch.ones(self._classes))

    # -- what outlives a round ------------------------------------------------------------------------------

    def student(self) -> Parameters:
        """Return S's parameters."""
        return self._S.parameters()

    def save(self, state: dict[str, Tensor]) -> None:
        """Put the server's state into `state`."""
        put(state, "server/G/", self._G.state())
        put(state, "server/S/", self._S.state())
        put(state, "server/counts/", self._counts)
        put(state, "server/replay/", self._replay.state())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load the server's state from `state`."""
        self._G.restore(take(state, "server/G/"))
        self._S.restore(take(state, "server/S/"))
        self._counts = take(state, "server/counts/")
        self._replay.restore(take(state, "server/replay/"))


class Replay:
    """Stores the last samples with the clients' aggregated answers.

    Args:
        batches: number of batches kept; 0 keeps one.
        n: samples of a batch.
        shape: (c, h, w) of a sample.
        answer: (C,), or of masks (C, h, w).
        device: where they are kept.
    """

    def __init__(
        self, batches: int, n: int, shape: tuple[int, ...], answer: tuple[int, ...], device: torch.device
    ) -> None:
        places = max(batches, 1) * n
        self._x = torch.zeros(places, *shape, device=device)
        self._target = torch.zeros(places, *answer, device=device)
        self._n, self._seen = n, 0

    def __bool__(self) -> bool:
        return self._seen > 0

    def keep(self, x: Tensor, target: Tensor) -> None:
        """Store samples (m, c, h, w) and targets (m, C, ...), m up to n, in place of the oldest."""
        places = torch.arange(self._seen, self._seen + len(x), device=self._x.device) % len(self._x)
        self._x[places], self._target[places] = x, target
        self._seen += len(x)

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw n of the stored samples, with replacement."""
        rows = torch.randint(min(self._seen, len(self._x)), (self._n,), generator=generator)
        rows = rows.to(self._x.device)
        return self._x.index_select(0, rows), self._target.index_select(0, rows)

    def state(self) -> dict[str, Tensor]:
        """Return the stored tensors by name, on the CPU."""
        return {"x": self._x.cpu(), "target": self._target.cpu(), "seen": torch.tensor(self._seen)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a result of `state`."""
        self._x.copy_(state["x"])
        self._target.copy_(state["target"])
        self._seen = int(state["seen"])


def _filled(names: list[str], known: Mapping[str, Tensor], otherwise: Tensor) -> Tensor:
    """Return rows of `known` by client; others get the mean of the known ones, or `otherwise` if none is known."""
    by_client: dict[str, Tensor] = {}
    for k in names:
        if k in known:
            by_client[k] = known[k].float().cpu()
    missing = torch.stack(list(by_client.values())).mean(0) if by_client else otherwise
    rows: list[Tensor] = []
    for k in names:
        row = by_client.get(k, missing)
        rows.append(row)
    return torch.stack(rows)
