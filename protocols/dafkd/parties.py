"""DaFKD's parties: each holds only its own data and sees the others only through received messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fdaudit.federation.protocol import PartyData, Setting
from fdaudit.models.conditional import (
    build_conditional,
    build_discriminator_apart,
    build_domain_head,
    shared_network,
)
from fdaudit.models.network import Network, moved, trainable_parameters
from fdaudit.rng import child, child_seed
from fdaudit.training.private_step import Guard, per_sample_gradients
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches, parameters_of

from .losses import ensemble, generator_loss, gradient_penalty, importance, joint_loss, sameness

if TYPE_CHECKING:
    from fdaudit.transcript.wire import Delivery

    from .config import DaFKDConfig

__all__ = ["ArrivedModels", "DaFKDClient", "DaFKDServer", "DaFKDUpdate", "initial_generator"]

_GAN = (0.5, 0.999)
"""Adam's moments for the generator, as GANs have them since Radford 2016."""

_Tensors = Mapping[str, Tensor]


def initial_generator(config: DaFKDConfig, setting: Setting) -> nn.Module:
    """Return the generator that every client starts from: its initial weights are public."""
    draws = child(setting.seed, "dafkd", "generator")
    shape, classes = setting.input_shape, setting.classes
    width, conditional = config.generator_width, config.conditional
    return build_conditional(draws, config.latent, width, shape, classes, conditional)


@dataclass(frozen=True, eq=False)
class DaFKDUpdate:
    """The result of one client's round.

    Attributes:
        w: its classifier.
        d: its discriminator, without the extractor if that is w's.
        g: its generator.
        batch: numbers of the records it trained on, in training order.
        loss: mean joint loss.
    """

    w: Parameters
    d: Parameters
    g: Parameters
    batch: Tensor
    loss: float


class DaFKDClient:
    """Client k: its records, and its discriminator, which never comes from another party except w's extractor."""

    def __init__(self, name: str, data: PartyData, config: DaFKDConfig, setting: Setting) -> None:
        self.name, self._data, self._config, self._seed = name, data, config, setting.seed
        self._trainer, self._classes = setting.trainers[name], setting.classes
        device = self._trainer.device
        self._net = shared_network(self._trainer.network(setting.initial["server"]))
        draws = child(setting.seed, "dafkd", "discriminator", name)
        self._D = _discriminator(draws, config, self._net, setting).to(device)
        self._G = initial_generator(config, setting).to(device)
        self._x, self._y = data.x, data.y

    def update(self, t: int, w: _Tensors, g: _Tensors, guard: Guard | None = None) -> DaFKDUpdate:
        """Train locally in round `t` from the global classifier `w` and generator `g`.

        Args:
            t: the round.
            w: the global classifier.
            g: the global generator.
            guard: the training defence of classifier and discriminator. The generator then learns only from these two.
        """
        cfg = self._config
        _load(self._net, w)
        _load(self._G, g)
        both = nn.ModuleDict({"w": self._net, "d": self._D})
        joint = Learner(self.name, both, cfg.local_optimizer, self._trainer.device)
        adam = Optimizer(lr=cfg.generator_lr, betas=_GAN)
        generator = Learner(self.name, self._G, adam, self._trainer.device)
        draws = child(self._seed, "dafkd", "batches", t, self.name)
        batches = draw_batches(len(self._data), cfg.batch_size, generator=draws, **cfg.steps)
        noise = child(self._seed, "dafkd", "noise", t, self.name)
        dropout = child_seed(self._seed, "dafkd", "dropout", t, self.name)
        with self._trainer.randomness(dropout if guard is None else guard.noise):
            # θ_k^d, w_k <- argmin L_J, against pseudo-samples of the global generator
            drawn, losses, later = list[Tensor](), list[float](), list[int]()
            size = cfg.batch_size if guard is None else guard.rule.expected_batch
            epoch = max(1, -(-len(self._data) // size))
            for number in range(len(batches) if guard is None else guard.steps):
                judged = cfg.learns("discriminator", t, number // epoch)
                if guard is None:
                    batch = batches[number]
                    loss = joint.step(self._joint_loss(batch, noise, adversarial=judged))
                    size = len(batch)
                else:
                    batch, loss = self._guarded_step(joint, guard, noise, adversarial=judged)
                drawn.append(batch)
                losses.append(loss)
                if not cfg.learns("generator", t, number // epoch):
                    continue
                if cfg.interleaved:
                    generator.step(self._generator_loss(size, noise, own_classes=guard is None))
                else:
                    later.append(size)
        for size in later:  # θ_k^g <- argmax L_adv, against the discriminator as it now stands
            generator.step(self._generator_loss(size, noise, own_classes=guard is None))
        return DaFKDUpdate(
            w=parameters_of(self._net),
            d=parameters_of(self._D),
            g=parameters_of(self._G),
            batch=torch.cat(drawn),
            loss=sum(losses) / len(losses),
        )

    def answer(self, sent: Tensor) -> tuple[Tensor, Tensor]:
        """Return Appendix B's scores f (n,) of pseudo-samples (n, c, h, w), and predictions times scores (n, C)."""
        logits, scores = _judge(self._net, self._D, sent)
        soft = (logits / self._config.temperature).softmax(1)
        return scores, scores[:, None] * soft

    def _joint_loss(self, batch: Tensor, noise: torch.Generator, *, adversarial: bool = True) -> Tensor:
        """Return Eq. 9 on a batch of records, with as many pseudo-samples, or the cross-entropy alone."""
        cfg, device, n = self._config, self._trainer.device, len(batch)
        x = self._x.index_select(0, batch).to(device)
        if not adversarial:
            net = self._net.train()
            return nn.functional.cross_entropy(net(x), self._y.index_select(0, batch).to(device))
        with torch.no_grad():
            # All classes equally often: with the client's own alone, its discriminator would not learn the others.
            pseudo = self._G(*self._asked(torch.randint(self._classes, (n,), generator=noise), noise))
        # Both halves together, so that the statistics of the discriminator's extractor match its later inputs.
        both, net = torch.cat([x, pseudo]), self._net.train()
        features = net.extractor(both if cfg.share_extractor else x)
        on_real, on_pseudo = _logit(self._D.train(), both, features).split(n)
        y = self._y.index_select(0, batch).to(device)
        loss = joint_loss(net.head(features[:n]), y, on_real, on_pseudo, cfg.adversarial)
        if cfg.gradient_penalty:
            share = torch.rand(n, generator=noise).to(device)
            penalty = gradient_penalty(self._probability, x, pseudo, share)
            loss = loss + cfg.adversarial * cfg.gradient_penalty * penalty
        return loss

    def _probability(self, x: Tensor) -> Tensor:
        """Return the discriminator's f (n,) of samples (n, c, h, w), with gradients."""
        features = self._net.extractor(x) if self._config.share_extractor else x
        return _logit(self._D, x, features).sigmoid()

    def _guarded_step(
        self, joint: Learner, guard: Guard, noise: torch.Generator, *, adversarial: bool = True
    ) -> tuple[Tensor, float]:
        """Take a step on Eq. 9 by a clipped and noisy sum over records; return the drawn records and the joint loss.

        Each record contributes its cross-entropy and half its term of L_adv. The other half of L_adv depends on no
        record: it uses as many pseudo-samples as a batch is expected to have.
        """
        cfg, device, n = self._config, self._trainer.device, guard.rule.expected_batch
        with torch.no_grad():
            pseudo = self._G(*self._asked(torch.randint(self._classes, (n,), generator=noise), noise))
        net, D, weight = self._net.train(), self._D.train(), cfg.adversarial / 2 * adversarial
        on_pseudo = weight * nn.functional.softplus(_logit(D, pseudo, net.extractor(pseudo))).mean()
        parameters = trainable_parameters(joint.module)
        public = torch.autograd.grad(on_pseudo, list(parameters.values()), allow_unused=True)

        def on_records(drawn: Tensor) -> Tensor:
            x = self._x.index_select(0, drawn).to(device).requires_grad_()
            features = net.extractor(x)
            y = self._y.index_select(0, drawn).to(device)
            cross_entropy = nn.functional.cross_entropy(net.head(features), y, reduction="sum")
            return cross_entropy + weight * nn.functional.softplus(-_logit(D, x, features)).sum()

        with per_sample_gradients(joint.module):
            step = guard.step(joint.module, len(self._data), on_records)
        added = {k: 0 if g is None else g for k, g in zip(parameters, public, strict=True)}
        gradient: dict[str, Tensor] = {}
        for k, g in step.gradient.items():
            gradient[k] = g + added[k]
        joint.descend(gradient)
        return step.batch, float(step.loss) + float(on_pseudo.detach())

    def _generator_loss(self, n: int, noise: torch.Generator, own_classes: bool = True) -> Tensor:
        """Return Eq. 3 on pseudo-samples in pairs of one class, plus terms for recognised classes and diversity.

        The classes are drawn like the client's own records, or with all classes equally likely.
        """
        cfg, half = self._config, -(-n // 2)
        if own_classes:
            own = torch.randint(len(self._data), (half,), generator=noise)
            classes = self._y.cpu().index_select(0, own)
        else:
            classes = torch.randint(self._classes, (half,), generator=noise)
        z, y = self._asked(classes.repeat(2), noise)
        x = self._G(z, y)
        features = self._net.eval().extractor(x)
        loss = generator_loss(_logit(self._D.eval(), x, features))
        if cfg.recognised:
            loss = loss + cfg.recognised * nn.functional.cross_entropy(self._net.head(features), y)
        if cfg.diversity:
            loss = loss + cfg.diversity * sameness(x[:half], x[half:])
        return loss

    def _asked(self, y: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the generator's inputs for samples of classes y (n,): noise (n, latent) and the classes."""
        device = self._trainer.device
        return torch.randn(len(y), self._config.latent, generator=noise).to(device), y.to(device)

    # -- what outlives a round ------------------------------------------------------------------------------

    def state(self) -> Parameters:
        """Return the discriminator, without a shared extractor."""
        return moved(parameters_of(self._D), "cpu")

    def restore(self, state: _Tensors) -> None:
        """Load a result of `state`."""
        _load(self._D, state)


@dataclass(frozen=True, eq=False)
class ArrivedModels:
    """A client's messages that arrived; w always did."""

    w: Delivery
    d: Delivery | None
    g: Delivery | None


class DaFKDServer:
    """The server's arithmetic; the protocol's `state` holds its data between rounds."""

    def __init__(self, config: DaFKDConfig, setting: Setting) -> None:
        self._config, self._seed, self._classes = config, setting.seed, setting.classes
        self._trainer = setting.trainers["server"]
        device = self._trainer.device
        self._net = shared_network(self._trainer.network(setting.initial["server"]))
        self._D = _discriminator(child(setting.seed, "dafkd", "judge"), config, self._net, setting).to(device)
        self._G = initial_generator(config, setting).to(device)

    def draw(self, t: int, g: _Tensors) -> Tensor:
        """Draw D̂_g: pseudo-samples (n, c, h, w) of the global generator, with all classes equally likely."""
        n, device = self._config.pseudo_samples, self._trainer.device
        draws = child(self._seed, "dafkd", "pseudo", t)
        y = torch.randint(self._classes, (n,), generator=draws)
        z = torch.randn(n, self._config.latent, generator=draws)
        _load(self._G, g)
        with torch.no_grad():
            samples: Tensor = self._G(z.to(device), y.to(device))
        return samples

    def target(self, uploads: Sequence[ArrivedModels], x: Tensor) -> Tensor:
        """Return Eq. 7 and the ensemble of Eq. 8 (n, C) from the clients' uploads."""
        of_scores = self._config.ensemble == "logits"
        predicted, scores = [], list[Tensor | None]()
        for upload in uploads:
            _load(self._net, upload.w)
            if upload.d is not None:
                _load(self._D, upload.d)
            logits, score = _judge(self._net, self._D, x)
            predicted.append(logits if of_scores else (logits / self._config.temperature).softmax(1))
            scores.append(score if upload.d is not None else None)
        available = [score for score in scores if score is not None]
        if self._config.weights == "uniform" or not available:
            weights = torch.full((len(scores), len(x)), 1 / len(scores))
        else:  # a client without a discriminator is weighed as the mean of the others
            mean = torch.stack(available).mean(0)
            weights = importance(torch.stack([mean if score is None else score for score in scores]))
        mixed = ensemble(weights.to(x.device), torch.stack(predicted))
        return (mixed / self._config.temperature).softmax(1) if of_scores else mixed

    def target_of_answers(self, answers: Sequence[tuple[Tensor | None, Tensor]]) -> Tensor:
        """Return Appendix B's Σ_k f_k s_k / Σ_k f_k (n, C) from scores (n,) and weighted soft predictions (n, C).

        If a client's scores did not arrive, they are recovered from its weighted predictions.
        """
        scores_by_client: list[Tensor] = []
        weighted_by_client: list[Tensor] = []
        for f, f_s in answers:
            if f is None:
                scores_by_client.append(f_s.sum(1))
            else:
                scores_by_client.append(f)
            weighted_by_client.append(f_s)
        scores, weighted = torch.stack(scores_by_client), torch.stack(weighted_by_client)
        if self._config.weights == "uniform":
            return (weighted / weighted.sum(2, keepdim=True).clamp_min(1e-12)).mean(0)
        return weighted.sum(0) / scores.sum(0)[:, None].clamp_min(1e-12)

    def distil(self, t: int, average: Parameters, x: Tensor, target: Tensor) -> tuple[Parameters, float]:
        """Return w_{t+1} of Eq. 8 from ŵ_{t+1}, and the mean KL."""
        cfg = self._config
        if not cfg.distill_steps or t < cfg.distill_from:
            return average, 0.0
        draws = child(self._seed, "dafkd", "distil", t)
        batches = draw_batches(len(x), cfg.distill_batch_size, steps=cfg.distill_steps, generator=draws)
        seed = child_seed(self._seed, "dafkd", "dropout", t, "server")
        job = Job(party="server", parameters=average, x=x, targets=target, batches=batches, seed=seed)
        rule = cfg.distill_optimizer
        fit = Fit(lr=cfg.distill_lr, optimizer=rule, objective="kl", temperature=cfg.temperature)
        (fitted,) = self._trainer.fit([job], fit)
        return moved(fitted.parameters, "cpu"), float(fitted.losses.mean())


def _discriminator(
    drawn: torch.Generator, config: DaFKDConfig, network: Network, setting: Setting
) -> nn.Module:
    """Return a new discriminator: a layer over the classifier's features, or a network of its own."""
    build = build_domain_head if config.share_extractor else build_discriminator_apart
    return build(drawn, network, setting.input_shape)


def _logit(D: nn.Module, x: Tensor, features: Tensor) -> Tensor:
    """Return a discriminator's logits (n,) on samples (n, c, h, w), of which the classifier has features (n, d)."""
    logits: Tensor = D(x if isinstance(D, Network) else features)
    return logits[:, 0]


@torch.no_grad()
def _judge(network: nn.Module, D: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (n, C) and scores f (n,) of samples (n, c, h, w)."""
    net, logits, scores = shared_network(network).eval(), [], []
    D.eval()
    for part in x.split(1024):
        features = net.extractor(part)
        logits.append(net.head(features))
        scores.append(_logit(D, part, features).sigmoid())
    return torch.cat(logits), torch.cat(scores)


def _load(module: nn.Module, parameters: _Tensors) -> None:
    """Load floating-point parameters and buffers."""
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            if tensor.is_floating_point():
                tensor.copy_(parameters[name])
