"""FedIOD's parties: each holds only what is its own and sees the others only through what it is handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.errors import ProtocolError
from fdaudit.federation import PartyData, Setting
from fdaudit.guard import Guard, per_sample_gradients
from fdaudit.learner import Learner, Optimizer
from fdaudit.local import Basis, joined
from fdaudit.messages import ALL
from fdaudit.models.generative import build_discriminator, build_generator
from fdaudit.rng import child, child_seed
from fdaudit.training import Job, Parameters, Trainer, draw_batches

from ._fediod_losses import aggregate, confidence_loss, importance, mimic_loss, unique_loss
from ._state import basis_of, keep_basis, put, take

if TYPE_CHECKING:
    from .fediod import FedIODConfig

__all__ = ["Answer", "Client", "Server"]

_GAN = (0.5, 0.999)
"""Adam's moments for G and D_k, as GANs have them since Radford 2016; the student has Adam's own."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client made of generated samples.

    Attributes:
        logits: z_k (n, C).
        scores: D_k(x) over the mean of D_k on real records (n,), where the server is to have them.
        batch: numbers of those records.
        loss: L_gan of the discriminator.
    """

    logits: Tensor
    scores: Tensor
    batch: Tensor
    loss: float


class Client:
    """Client k: its records, its task model T_k, frozen after stage 1, and its discriminator D_k.

    Attributes:
        T: T_k's parameters.
        T_basis: what T_k was made from.
        D_basis: what D_k was made from.
    """

    def __init__(self, name: str, data: PartyData, config: FedIODConfig, setting: Setting) -> None:
        self.name, self._data, self._config, self._seed = name, data, config, setting.seed
        self._trainer = setting.trainers[name]
        self.T: Parameters = {n: t.clone() for n, t in setting.initial[name].items()}
        self.T_basis: Basis = ()
        self.D_basis: Basis = () if setting.local.defended("discriminator") else ALL
        self._freeze()
        drawn = child(setting.seed, "fediod", "discriminator", name)
        D_k = build_discriminator(drawn, config.discriminator_width, setting.input_shape)
        adam = Optimizer(lr=config.adam_lr, betas=_GAN)
        self._D = Learner(name, _laid_out(D_k, self._trainer), adam, self._trainer.device)
        self._held: tuple[Tensor, Tensor, Tensor] | None = None

    # -- stage 1 --------------------------------------------------------------------------------------------

    def job(self) -> Job:
        """Line 104: local training, to be fitted by the training core."""
        generator = child(self._seed, "fediod", "batches", self.name)
        cfg, n = self._config, len(self._data)
        batches = draw_batches(n, cfg.batch_size, generator=generator, **cfg.steps)
        seed = child_seed(self._seed, "fediod", "dropout", self.name)
        x, y = self._data.x, self._data.y
        return Job(party=self.name, parameters=self.T, x=x, targets=y, batches=batches, seed=seed)

    def adopt(self, parameters: Parameters, basis: Basis) -> None:
        """Takes over the trained T_k, and what it was made from."""
        self.T, self.T_basis = parameters, basis
        self._freeze()

    def class_counts(self, classes: int) -> Tensor:
        """Records of each class (C,)."""
        return torch.bincount(self._data.y, minlength=classes)

    # -- stage 2 --------------------------------------------------------------------------------------------

    def made_from(self) -> Basis:
        """What `pull_back` draws on besides the messages that it was sent: T_k, and D_k where it counts."""
        return joined(self.T_basis, self.D_basis if self._config.gan else ())

    def answer(self, t: int, sent: Tensor, guard: Guard | None = None) -> Answer:
        """Lines 111-114: predicts, scores, and takes a step of D_k on real records against the samples.

        The graphs that lead back to the samples are kept for `pull_back`.

        Args:
            t: the step.
            sent: x (n, c, h, w).
            guard: the training defence under which D_k takes its step.
        """
        x = sent.clone().requires_grad_()
        z_k = self._task(x)
        drawn = child(self._seed, "fediod", "real", t, self.name)
        batch = torch.randint(len(self._data), (len(x),), generator=drawn)
        real = self._data.x.index_select(0, batch).to(x.device)
        if guard is not None:
            return self._guarded_answer(t, x, z_k, batch, real, guard)
        on_real, on_x = self._D.module(torch.cat([real, x])).split(len(x))
        (toward_real,) = torch.autograd.grad(F.softplus(-on_x).mean(), x, retain_graph=True)
        L_gan = F.softplus(-on_real).mean() + F.softplus(on_x).mean()
        loss = self._D.step(L_gan, self._config.rate(t))
        scores = on_x.detach().sigmoid().mean((1, 2)) / on_real.detach().sigmoid().mean()
        self._held = x, z_k, toward_real
        return Answer(z_k.detach(), scores, batch, loss)

    def _guarded_answer(
        self, t: int, x: Tensor, z_k: Tensor, batch: Tensor, real: Tensor, guard: Guard
    ) -> Answer:
        """The same, but that D_k's step learns of the records by a clipped and noisy sum alone.

        What scores are taken over is a look at records of its own, which happens only where scores are sent.
        """
        D_k = self._D.module
        on_x = D_k(x)
        (toward_real,) = torch.autograd.grad(F.softplus(-on_x).mean(), x, retain_graph=True)
        L_x = F.softplus(on_x).mean()  # of samples that the server knows: public given x
        named = dict(D_k.named_parameters())
        on_samples = dict(zip(named, torch.autograd.grad(L_x, list(named.values())), strict=True))
        scores = on_x.detach().sigmoid().mean((1, 2))
        if self._config.weights == "eq8":
            with torch.no_grad():
                scores = scores / D_k(real).sigmoid().mean()

        def on_records(drawn: Tensor) -> Tensor:
            records = self._data.x.index_select(0, drawn.to(self._data.x.device)).to(x.device)
            loss: Tensor = F.softplus(-D_k(records.requires_grad_())).mean((1, 2)).sum()
            return loss

        with per_sample_gradients(D_k):
            step = guard.step(D_k, len(self._data), on_records)
        self._D.descend({n: g + on_samples[n] for n, g in step.gradient.items()}, self._config.rate(t))
        self._held = x, z_k, toward_real
        return Answer(z_k.detach(), scores, batch, float(step.loss) + float(L_x.detach()))

    def pull_back(self, values: Tensor, gan_weight: Tensor) -> Tensor:
        """The gradient of the generator's loss at the samples (n, c, h, w), as far as it runs through here.

        Args:
            values: ∂L/∂z_k (n, C).
            gan_weight: what L_gan's gradient counts for ().
        """
        if self._held is None:
            raise ProtocolError(f"{self.name} was sent cotangents of samples that it never answered to.")
        (x, z_k, toward_real), self._held = self._held, None
        (through_T,) = torch.autograd.grad(z_k, x, values)
        if not self._config.gan:
            return through_T
        return through_T + gan_weight * toward_real

    # -- what outlives a round ------------------------------------------------------------------------------

    def save(self, state: dict[str, Tensor]) -> None:
        """Puts T_k and D_k into `state`."""
        put(state, f"{self.name}/T/", self.T)
        put(state, f"{self.name}/D/", self._D.state())
        keep_basis(state, self.name, self.T_basis)
        keep_basis(state, f"{self.name}/discriminator", self.D_basis)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Takes them out of it."""
        self.adopt(take(state, f"{self.name}/T/"), basis_of(state, self.name))
        self.D_basis = basis_of(state, f"{self.name}/discriminator")
        self._D.restore(take(state, f"{self.name}/D/"))

    def _freeze(self) -> None:
        self._task = self._trainer.network(self.T).eval().requires_grad_(False)


class Server:
    """The server: generator G, student S, the class counts it was told, and what it keeps to distil again."""

    def __init__(self, config: FedIODConfig, setting: Setting) -> None:
        self._config, self._seed = config, setting.seed
        self._trainer, self._classes = setting.trainers["server"], setting.classes
        drawn = child(setting.seed, "fediod", "generator")
        G = build_generator(drawn, config.latent, config.generator_width, setting.input_shape)
        device = self._trainer.device
        self._G = Learner(
            "server", _laid_out(G, self._trainer), Optimizer(lr=config.adam_lr, betas=_GAN), device
        )
        S = self._trainer.network(setting.initial["server"])
        self._S = Learner("server", S, Optimizer(lr=config.adam_lr), device)
        self._counts: dict[str, Tensor] = {}
        self._replay = _Replay(config.replay, config.samples, setting.input_shape, setting.classes, device)

    def hear_counts(self, client: str, counts: Tensor) -> None:
        """Takes note of a client's class counts (C,)."""
        self._counts[client] = counts.cpu()

    # -- one step -------------------------------------------------------------------------------------------

    def generate(self, t: int) -> Tensor:
        """Lines 108-109: x = G(w) (n, c, h, w); the graph is kept for `update`."""
        drawn = child(self._seed, "fediod", "latent", t)
        w = torch.randn(self._config.samples, self._config.latent, generator=drawn)
        x: Tensor = self._G.module(w.to(self._trainer.device))
        self._x = x
        return x.detach()

    def judge(
        self, t: int, sent: Tensor, logits: Mapping[str, Tensor], scores: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Tensor]]:
        """Lines 116-119: forms the losses; returns what each client that answered is sent.

        Args:
            t: the step.
            sent: the samples (n, c, h, w) as the clients have them.
            logits: z_k (n, C) by client, at least one.
            scores: D_k's ratios (n,), of those of whom they arrived.
        """
        cfg, names = self._config, list(logits)
        z = torch.stack([logits[k] for k in names]).requires_grad_()
        x = sent.clone().requires_grad_()
        shares = self._shares(names).to(z.device)
        weights = self._weights(names, scores, len(x)).to(z.device)
        with self._trainer.randomness(child_seed(self._seed, "fediod", "student", t)):
            student = self._S.module.train()(x)
        target = aggregate(z, weights)
        L_mimic = mimic_loss(student, target, cfg.temperature)
        L_conf, L_unique = confidence_loss(z, shares), unique_loss(z, shares)
        total = cfg.conf * L_conf + cfg.unique * L_unique - cfg.mimic * L_mimic
        cotangents, self._own = torch.autograd.grad(total, [z, x], retain_graph=True)
        self._mimic, self._sent, self._target = L_mimic, sent, target.detach()
        return {k: {"values": cotangents[i], "gan_weight": cfg.gan * shares[i]} for i, k in enumerate(names)}

    def update(self, t: int, gradients: Mapping[str, Tensor]) -> float:
        """Lines 121-122: a step of G and the steps of S; returns L_mimic.

        Args:
            t: the step.
            gradients: what came back (n, c, h, w), by client. Where nothing did, G stays as it is.
        """
        rate = self._config.rate(t)
        if gradients:
            at_x = self._own + torch.stack(list(gradients.values())).sum(0)
            self._G.step((self._x * at_x).sum(), rate)  # whose gradient is what came back, pulled through G
        loss = self._S.step(self._mimic, rate)
        self._replay.keep(self._sent, self._target)
        for s in range(1, self._config.student_steps):
            x, target = self._replay.draw(child(self._seed, "fediod", "replay", t, s))
            with self._trainer.randomness(child_seed(self._seed, "fediod", "student", t, s)):
                again = mimic_loss(self._S.module(x), target, self._config.temperature)
            self._S.step(again, rate)
        return loss

    def _shares(self, names: list[str]) -> Tensor:
        """π_k (K,) of the clients that answered, by the number of their records or all alike."""
        if self._config.shares == "uniform":
            return torch.full((len(names),), 1 / len(names))
        n = self._known(names).sum(1)
        return n / n.sum()

    def _weights(self, names: list[str], scores: Mapping[str, Tensor], n: int) -> Tensor:
        """π_k^c(x) (K, n, C) of the clients that answered."""
        if self._config.weights == "eq8":
            return importance(self._known(names), _filled(names, scores, torch.ones(n)))
        even = torch.ones(len(names), 1) if self._config.weights == "uniform" else self._shares(names)
        counts = even.reshape(-1, 1).expand(-1, self._classes)
        return importance(counts, torch.ones(len(names), n))

    def _known(self, names: list[str]) -> Tensor:
        return _filled(names, self._counts, torch.ones(self._classes))

    # -- what outlives a round ------------------------------------------------------------------------------

    def student(self) -> Parameters:
        """S's parameters."""
        return self._S.parameters()

    def save(self, state: dict[str, Tensor]) -> None:
        """Puts all of it into `state`."""
        put(state, "server/G/", self._G.state())
        put(state, "server/S/", self._S.state())
        put(state, "server/counts/", self._counts)
        put(state, "server/replay/", self._replay.state())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Takes it out of it."""
        self._G.restore(take(state, "server/G/"))
        self._S.restore(take(state, "server/S/"))
        self._counts = take(state, "server/counts/")
        self._replay.restore(take(state, "server/replay/"))


class _Replay:
    """The last batches of samples with what the clients together said of them."""

    def __init__(
        self, batches: int, n: int, shape: tuple[int, int, int], classes: int, device: torch.device
    ) -> None:
        self._x = torch.zeros(max(batches, 1), n, *shape, device=device)
        self._target = torch.zeros(max(batches, 1), n, classes, device=device)
        self._seen = 0

    def keep(self, x: Tensor, target: Tensor) -> None:
        place = self._seen % len(self._x)
        self._x[place], self._target[place] = x, target
        self._seen += 1

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """n samples with replacement, of all that are kept."""
        n = self._x.shape[1]
        rows = torch.randint(min(self._seen, len(self._x)) * n, (n,), generator=generator).to(self._x.device)
        return tuple(t.flatten(0, 1).index_select(0, rows) for t in (self._x, self._target))  # type: ignore[return-value]

    def state(self) -> dict[str, Tensor]:
        return {"x": self._x.cpu(), "target": self._target.cpu(), "seen": torch.tensor(self._seen)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._x.copy_(state["x"])
        self._target.copy_(state["target"])
        self._seen = int(state["seen"])


def _filled(names: list[str], known: Mapping[str, Tensor], otherwise: Tensor) -> Tensor:
    """Rows of `known` by client; who is unknown counts as the mean of the others, all unknown as `otherwise`."""
    rows = [known[k].float().cpu() for k in names if k in known]
    missing = torch.stack(rows).mean(0) if rows else otherwise
    return torch.stack([known[k].float().cpu() if k in known else missing for k in names])


def _laid_out(module: nn.Module, trainer: Trainer) -> nn.Module:
    """The module in the memory format in which the run trains."""
    last = trainer.execution.memory_format == "channels_last"
    return module.to(memory_format=torch.channels_last if last else torch.contiguous_format)
