"""AsynDGAN (Chang et al. 2020): a central generator learns from discriminators that stay with their data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.federation.protocol import (
    CURIOUS,
    RELEASED_MODEL,
    PartyData,
    ProtocolConfig,
    Round,
    Setting,
    arrived,
)
from fdaudit.federation.state import copies_of, put, take
from fdaudit.limits import MOST_INNER, MOST_ROUNDS
from fdaudit.models.conditional import build_painter, planes
from fdaudit.models.generative import build_discriminator
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child, child_seed
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches
from fdaudit.transcript.messages import ALL, DATA

__all__ = ["AsynDGAN", "AsynDGANConfig"]

_GAN = (0.5, 0.999)
"""Adam's moments for generator and discriminators."""


class AsynDGANConfig(ProtocolConfig):
    """AsynDGAN's settings; symbols follow Chang et al. 2020."""

    rounds: int = Field(10, ge=1, le=MOST_ROUNDS)
    """Each round is `steps_per_round` steps; the task model is fitted in the last one."""
    steps_per_round: int = Field(40, ge=1)
    """Steps of the generator a round; in each step every client sends labels and a gradient."""
    samples: int = Field(16, ge=1)
    """Records of a client a step, whose labels it sends."""
    adam_lr: float = Field(0.0002, gt=0)
    """Adam's learning rate for the generator and the discriminators."""
    latent: int = Field(2, ge=0, le=MOST_INNER)
    """Planes of noise beside the label's, so that one label has several images; the paper has dropout instead."""
    generator_width: int = Field(16, ge=1, le=MOST_INNER)
    """Channels of the generator's first level."""
    discriminator_width: int = Field(16, ge=1, le=MOST_INNER)
    """Channels of the discriminator's first convolution; the second has twice as many."""
    l1: float = Field(10.0, ge=0)
    """λ₁: weight of the mean absolute difference between a generated image and the record whose label it has."""
    kept: int = Field(100, ge=1)
    """Batches of labels of each client, the last ones, from which the task model's images are made."""
    task_steps: int = Field(600, ge=1)
    """Steps of Adam that fit the task model to generated images."""
    task_batch_size: int = Field(32, ge=1)
    """Generated images a step."""
    task_lr: float = Field(0.001, gt=0)
    """Adam's learning rate for the task model."""


class AsynDGAN:
    """The server trains a generator of images from labels; each client's discriminator stays with its records.

    In each step a client sends the labels of some of its records: classes, or masks. The server makes an image for each
    and sends it back. The client's discriminator compares it with the true record, and the client returns the gradient
    at the image. In the end the server fits a task model to generated images alone. Neither records nor parameters
    leave a client. Its labels do, and each gradient compares a generated image with a record pixel by pixel.
    """

    card = ProtocolCard(
        name="asyndgan",
        source="Chang, Qu, Zhang, Sabuncu, Chen, Zhang & Metaxas 2020 (CVPR)",
        roles=("server", "client"),
        messages=(
            {
                "kind": "sample_count",
                "from": "client",
                "to": "server",
                "what": "number of records, once, for the shares π_k",
            },
            {
                "kind": "private_labels",
                "from": "client",
                "to": "server",
                "what": "the labels of the step's records, in clear: classes, or whole masks",
            },
            {
                "kind": "generated_samples",
                "from": "server",
                "to": "client",
                "what": "one image for each label, every step, to the client that sent them",
            },
            {
                "kind": "sample_gradients",
                "from": "client",
                "to": "server",
                "what": "gradient of the discriminator's and of the L1 loss at each image, every step",
            },
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client, world",
                "what": "the final task model",
            },
        ),
        trust=(
            "The server sees the labels of single records, and each client's gradients by themselves.",
            "The server chooses the images that discriminators answer to: nothing holds it to its generator.",
            CURIOUS,
        ),
        oracles=(RELEASED_MODEL,),
        differences=(
            (
                "All clients answer in each step, and the generator descends the sum of their losses weighted by π_k; "
                "the paper takes one client after another."
            ),
            "The perceptual loss is left out: it needs a pretrained network. λ₁ is 10 by default for its 100.",
            "The generator is a U-Net with planes of noise; the paper's has nine residual blocks and dropout.",
            "Generator and discriminators do without BatchNorm, whose statistics would couple the samples of a batch.",
            (
                "A discriminator sees the image and the planes of its label. Gradients are taken at it as it stood "
                "when the images arrived."
            ),
            "For classes, which the paper does not have, the label is one plane of ones among C planes.",
            "A client whose count did not arrive counts as the mean of the others; without any, as all alike.",
            "The task model is fitted to images made from the labels that the server received, with Adam.",
        ),
        withholdable=("sample_count",),
        privacy={
            "claims": "Images stay where they are; labels are sent. No ε is claimed.",
            "finds": {"server": "private_labels", "world": "private_labels"},
        },
        starts={
            "weights": "own",
            "source": "Chang et al. 2020: clients train discriminators of their own; no model is sent before the end.",
        },
        pools_data=False,
        heterogeneous=False,
        needs_public=False,
        tasks=("single-label", "segmentation"),
        trains={},
    )
    Config: ClassVar[type[AsynDGANConfig]] = AsynDGANConfig

    def __init__(self, config: AsynDGANConfig, setting: Setting) -> None:
        self.config, self._wire, self._seed = config, setting.wire, setting.seed
        self._trainer, self._task = setting.trainers["server"], setting.task
        self._classes, self._shape = setting.classes, setting.input_shape
        self._data: Mapping[str, PartyData] = setting.clients
        maps = self._classes + config.latent
        draws = child(self._seed, "asyndgan", "generator")
        G = build_painter(draws, maps, config.generator_width, self._shape)
        self._G = self._learner("server", G)
        judged = (self._shape[0] + self._classes, *self._shape[1:])
        self._D: dict[str, Learner] = {}
        for k in self._data:
            draws = child(self._seed, "asyndgan", "discriminator", k)
            D_k = build_discriminator(draws, config.discriminator_width, judged)
            self._D[k] = self._learner(k, D_k)
        self.state: dict[str, Tensor] = {}
        put(self.state, "server/w/", copies_of(setting.initial["server"]))
        self._save()

    def rounds(self, start: int) -> Iterator[Round]:
        """Run the steps of the generator, then fit the task model to what it makes."""
        self._G.restore(take(self.state, "server/G/"))
        for k, D_k in self._D.items():
            D_k.restore(take(self.state, f"{k}/D/"))
        for r in range(start, self.config.rounds):
            batches: dict[int, Tensor] = {}
            self._wire.begin(r)
            if r == 0:
                for k, data in self._data.items():
                    n_k = {"n": torch.tensor(len(data))}
                    message = self._wire.send(k, ["server"], "sample_count", n_k, inputs=[DATA])
                    if message is not None:
                        self.state[f"server/count/{k}"] = message["n"].cpu()
            losses: dict[str, list[float]] = {}
            for s in range(self.config.steps_per_round):
                self._wire.begin(r, s)
                of_step, behind = self._step(r * self.config.steps_per_round + s)
                batches |= behind
                for k, loss in of_step.items():
                    losses.setdefault(k, []).append(loss)
            if r == self.config.rounds - 1:
                losses["server"] = [self._fit()]
                self._wire.send("server", [*self._data, "world"], "model_parameters", self.released())
            self._save()
            means = {k: sum(values) / len(values) for k, values in losses.items()}
            yield Round(index=r, models={"server": self.released()}, batches=batches, losses=means)

    def released(self) -> Parameters:
        """Return the task model's parameters."""
        return take(self.state, "server/w/")

    # -- a step ---------------------------------------------------------------------------------------------

    def _step(self, t: int) -> tuple[dict[str, float], dict[int, Tensor]]:
        """Run one step of the generator and of every discriminator.

        Returns:
            the discriminators' losses by client, and the records behind each message by `seq`.
        """
        losses, batches = dict[str, float](), dict[int, Tensor]()
        answers: list[tuple[str, Tensor, Tensor]] = []
        for number, (k, data) in enumerate(self._data.items()):
            draws = child(self._seed, "asyndgan", "real", t, k)
            batch = torch.randint(len(data), (self.config.samples,), generator=draws)
            labels = {"values": data.y[batch].to(torch.uint8 if self._classes <= 256 else torch.int32)}
            message = self._wire.send(k, ["server"], "private_labels", labels, inputs=[DATA])
            if message is None:
                continue
            batches[message.seq] = batch
            place = t % self.config.kept  # that of the client's oldest labels
            self.state[f"server/labels/{k}/{place:05d}"] = message["values"].cpu()
            images = self._painted(message["values"], child(self._seed, "asyndgan", "latent", t, number))
            sent = self._wire.send("server", [k], "generated_samples", {"samples": images.detach()})
            x = arrived(sent, "asyndgan: the server's generated_samples")
            loss, gradient = self._judged(k, x["samples"], batch)
            losses[k] = loss
            back = self._wire.send(k, ["server"], "sample_gradients", {"values": gradient}, inputs=ALL)
            if back is not None:
                batches[back.seq] = batch
                answers.append((k, images, back["values"]))
        if answers:
            shares = self._shares([k for k, _, _ in answers])
            total = torch.zeros(())
            for share, (_, images, at) in zip(shares, answers, strict=True):
                total = total + share * (images * at).sum()
            self._G.step(total)  # whose gradient is what came back, pulled through G
        return losses, batches

    def _judged(self, k: str, sent: Tensor, batch: Tensor) -> tuple[float, Tensor]:
        """Take a step of client k's discriminator; return its loss, and the generator's gradient at the images."""
        device = self._trainer.device
        real, y = self._data[k].x[batch].to(device), self._data[k].y[batch].to(device)
        x, maps = sent.to(device).clone().requires_grad_(), planes(y, self._classes, self._shape)
        D_k = self._D[k].module
        on_real, on_x = D_k(torch.cat([torch.cat([real, maps], 1), torch.cat([x, maps], 1)])).split(len(x))
        generator = F.softplus(-on_x).mean() + self.config.l1 * (x - real).abs().mean()
        (gradient,) = torch.autograd.grad(generator, x, retain_graph=True)
        loss = self._D[k].step(F.softplus(-on_real).mean() + F.softplus(on_x).mean())
        return loss, gradient

    def _painted(self, labels: Tensor, drawn: torch.Generator) -> Tensor:
        """Return images (n, c, h, w) of labels (n,) or masks (n, h, w); the graph is kept."""
        device = self._trainer.device
        maps = planes(labels.to(device).long(), self._classes, self._shape)
        noise = torch.randn(len(labels), self.config.latent, *self._shape[1:], generator=drawn)
        images: Tensor = self._G.module(torch.cat([maps, noise.to(device)], 1))
        return images

    def _shares(self, names: list[str]) -> Tensor:
        """Return π_k (K,) of the clients that answered; one whose count did not arrive counts as the mean."""
        counts: dict[str, float] = {}
        for k in names:
            count = self.state.get(f"server/count/{k}")
            if count is not None:
                counts[k] = float(count)
        mean = sum(counts.values()) / len(counts) if counts else 1.0
        n = torch.tensor([counts.get(k, mean) for k in names])
        return n / n.sum()

    # -- the task model -------------------------------------------------------------------------------------

    def _fit(self) -> float:
        """Fit the task model to generated images of all stored labels; return its mean loss."""
        stored = take(self.state, "server/labels/")
        if not stored:
            return 0.0
        y = torch.cat([stored[name] for name in sorted(stored)]).long()
        images: list[Tensor] = []
        with torch.no_grad():
            for i, part in enumerate(y.split(256)):
                draws = child(self._seed, "asyndgan", "images", i)
                images.append(self._painted(part, draws).cpu())
        x = torch.cat(images)
        job = Job(
            party="server",
            parameters=self.released(),
            x=x,
            targets=y,
            batches=draw_batches(
                len(y),
                self.config.task_batch_size,
                steps=self.config.task_steps,
                generator=child(self._seed, "asyndgan", "task"),
            ),
            seed=child_seed(self._seed, "asyndgan", "task", "dropout"),
        )
        fit = Fit(lr=self.config.task_lr, optimizer="adam", objective=self._task.labels.objective)
        (fitted,) = self._trainer.fit([job], fit)
        put(self.state, "server/w/", fitted.parameters)
        return float(fitted.losses.mean())

    # -- what outlives a round ------------------------------------------------------------------------------

    def _learner(self, party: str, module: nn.Module) -> Learner:
        return Learner(party, module, Optimizer(lr=self.config.adam_lr, betas=_GAN), self._trainer.device)

    def _save(self) -> None:
        put(self.state, "server/G/", self._G.state())
        for k, D_k in self._D.items():
            put(self.state, f"{k}/D/", D_k.state())
