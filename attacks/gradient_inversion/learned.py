"""Learning to invert: a kernel regression from gradients to images, fitted on gradients of auxiliary records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import grad, vmap

from fdaudit.config import Config
from fdaudit.errors import UsageError
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.models.network import call_with
from fdaudit.registry import AttackCard
from fdaudit.storage.cache import computed_once
from fdaudit.tasks import labels_of
from fdaudit.training.objectives import loss_function
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .training_mode import separable_network
from .uploads import Upload, applies, find_uploads

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["LearnedInversion", "LearnedInversionConfig"]

_RECORDS = 1000
"""Most auxiliary records."""
_LEAST = 20
"""Fewest auxiliary records: a fifth of them chooses the width and the ridge."""
_WIDTHS = (0.3, 1.0, 3.0)
"""Factors of squared distances in the kernel, between gradients of unit length."""
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
"""λ; the kernel is 1 between equal gradients."""
_TRIED = 2000
"""Most gradients on which widths and ridges are tried."""
_CHUNK = 1 << 25
"""Values of gradients at once."""


class LearnedInversionConfig(Config):
    """Settings of the learned inversion."""

    copies: int = Field(8, ge=1, le=8)
    """Copies of each auxiliary record: itself, and its reflections and turns by right angles."""
    features: int = Field(3000, ge=16, le=10000)
    """Length of the random sketch of a gradient that the regression reads."""
    round: int = Field(0, ge=0)
    """Round of the upload, or the next that shows one of the victim."""


@reads_forms
class LearnedInversion:
    """Predicts the image behind a gradient by kernel ridge regression on gradients of auxiliary records.

    The adversary computes gradients of its own records, of which it knows the images, at the model that the victim
    started from. A regression from a sketch of the gradient to the image is fitted to them, and applied to the victim's
    upload. It needs no search and no label, and works for masks and for several labels a record. It reads uploads of
    one image, also of several local steps on it, which count as one. The paper's regression is a network, and reads
    batches; this one has a Gaussian kernel between sketches of normalised gradients.
    """

    card = AttackCard(
        name="learned-inversion",
        work={"once": 2000, "each": 1, "grows": ("copies",)},
        goal="reconstruction",
        needs=("gradient", "model_update", "model_parameters"),
        reads=("optimizer_state",),
        assumes=("architecture", "auxiliary"),
        tasks=("single-label", "multi-label", "segmentation"),
        source="Wu, Chen, Guo & Weinberger 2023; sketch: Charikar, Chen & Farach-Colton 2002",
        profiles={
            "quick": {"copies": 8, "features": 2000},
            "standard": {"copies": 8, "features": 3000},
            "full": {"copies": 8, "features": 6000},
        },
        control={"on": "gradients"},
    )
    Config: ClassVar[type[LearnedInversionConfig]] = LearnedInversionConfig

    def __init__(self, config: LearnedInversionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a victim's upload, the model that it started from, the architecture and auxiliary records."""
        module = separable_network(knowledge)
        if isinstance(module, str):
            return Applicability(False, module)
        if knowledge.auxiliary is None or len(knowledge.auxiliary[0]) < _LEAST:
            return Applicability(False, f"the regression needs {_LEAST} auxiliary records")
        return applies(*find_uploads(view, task.targets, self.config.round, 1))

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one `Reconstruction` for each victim with a suitable upload; images (n, c, h, w) in [0, 1]."""
        module, auxiliary = separable_network(knowledge), knowledge.auxiliary
        if isinstance(module, str) or auxiliary is None:
            raise UsageError("knowledge", None, "does not do for an inversion", "Ask `applicable` first.")
        fitted: dict[int, _Regression] = {}
        guesses = []
        for upload in find_uploads(view, task.targets, self.config.round, 1)[0]:
            one = upload.as_one_step()

            def predict(draws: torch.Generator, one: Upload = one) -> dict[str, Tensor]:
                if one.start_seq not in fitted:
                    gradients = _Gradients(module, one.start, knowledge, self.config.features)
                    fitted[one.start_seq] = _Regression.fitted(
                        gradients, auxiliary, self.config.copies, draws
                    )
                return {"images": fitted[one.start_seq].image(one.gradient)}

            card = {
                "attack": self.card.name,
                "settings": self.config.model_dump(mode="json"),
                **knowledge.described,
            }
            images = computed_once(card, [*auxiliary, one.start, one.gradient], predict)["images"]
            guesses.append(
                Reconstruction(
                    target=upload.target, messages=upload.messages, images=images, note=upload.note
                )
            )
        return tuple(guesses)


class _Gradients:
    """Sketches of single records' gradients at one model.

    A sketch adds each value, under a random sign, to one of `features` entries. It nearly keeps inner products.

    Args:
        module: the network.
        start: the parameters and buffers at which gradients are taken.
        knowledge: with the task and the device.
        features: length of a sketch.
    """

    def __init__(
        self, module: nn.Module, start: Mapping[str, Tensor], knowledge: Knowledge, features: int
    ) -> None:
        self._device = knowledge.device
        self._module = module.to(self._device)
        self._free = {k: start[k].detach().to(self._device) for k, _ in module.named_parameters()}
        self._fixed = {k: start.get(k, b).detach().to(self._device) for k, b in module.named_buffers()}
        self._loss = loss_function(knowledge.task.labels.objective, 1.0)
        self.values, self._features = sum(p.numel() for p in self._free.values()), features
        generator = torch.Generator().manual_seed(0)  # any will do: the sketch is no secret
        self._place = torch.randint(features, (self.values,), generator=generator)
        self._sign = torch.randint(2, (self.values,), generator=generator) * 2.0 - 1.0

    def of(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sketches (n, f) of the gradients of records (x, y), each by itself."""
        size = max(1, _CHUNK // max(self.values, x[0].numel() * 64))
        parts = zip(x.split(size), y.split(size), strict=True)
        return torch.cat([self._some(a.to(self._device), b.to(self._device)) for a, b in parts])

    def sent(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """Return the sketch (1, f) of a gradient that was sent."""
        return self._sketch(torch.cat([gradient[k].float().flatten() for k in self._free])[None].cpu())

    def _some(self, x: Tensor, y: Tensor) -> Tensor:
        def loss(free: Mapping[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
            return self._loss(call_with(self._module, {**free, **self._fixed}, one[None]), label[None])

        try:
            gradients = vmap(grad(loss), (None, 0, 0))(self._free, x, y)
        except RuntimeError:  # a network that cannot be vectorised is asked record by record
            each = [grad(loss)(self._free, *one) for one in zip(x, y, strict=True)]
            gradients = {}
            for k in self._free:
                gradients[k] = torch.stack([gradient[k] for gradient in each])
        return self._sketch(torch.cat([gradients[k].flatten(1) for k in self._free], 1).cpu())

    def _sketch(self, values: Tensor) -> Tensor:
        empty = torch.zeros(len(values), self._features)
        return empty.index_add_(1, self._place, values * self._sign)


@dataclass(frozen=True, eq=False)
class _Regression:
    """A kernel ridge regression from sketches of gradients to images.

    Attributes:
        gradients: makes the sketches.
        known: (m, f + 1) features of the gradients that it was fitted to.
        weights: (m, d) of each of them for each pixel.
        mean: (c, h, w) mean image.
        width: factor of squared distances in the kernel.
    """

    gradients: _Gradients
    known: Tensor
    weights: Tensor
    mean: Tensor
    width: float

    @classmethod
    def fitted(
        cls, gradients: _Gradients, auxiliary: tuple[Tensor, Tensor], copies: int, generator: torch.Generator
    ) -> _Regression:
        """Fit the regression to copies of auxiliary records; a fifth of the records chooses width and ridge."""
        rows = torch.randperm(len(auxiliary[1]), generator=generator)[:_RECORDS]
        x, y = auxiliary[0][rows], auxiliary[1][rows]
        copied = [_moved(x, y, k) for k in range(copies)]
        features = torch.stack([_features(gradients.of(*one)) for one in copied])
        targets = torch.stack([images for images, _ in copied])
        mean, first = targets.flatten(0, 1).mean(0), len(x) // 5
        pixels = (targets - mean).flatten(2)
        some = torch.randperm(copies * (len(x) - first), generator=generator)[:_TRIED]
        f, p = features[:, first:].flatten(0, 1)[some], pixels[:, first:].flatten(0, 1)[some]
        errors = {}
        for width in _WIDTHS:
            for ridge in _RIDGES:
                predicted = _kernel(features[0, :first], f, width) @ _solved(f, p, width, ridge)
                errors[width, ridge] = float((predicted - pixels[0, :first]).square().mean())
        width, ridge = min(errors, key=errors.__getitem__)
        f, p = features.flatten(0, 1), pixels.flatten(0, 1)
        return cls(gradients, f, _solved(f, p, width, ridge), mean, width)

    def image(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """Return the image (1, c, h, w) in [0, 1] that stands behind a gradient."""
        near = _kernel(_features(self.gradients.sent(gradient)), self.known, self.width)
        return (near @ self.weights).view(1, *self.mean.shape).add(self.mean).nan_to_num(0.5).clamp(0, 1)


def _moved(x: Tensor, y: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return images (n, c, h, w), and masks, in the k-th of eight attitudes; images that are not square in four."""
    turned = x.shape[-1] == x.shape[-2] and bool(k & 4)
    masks = labels_of(y).dense

    def one(t: Tensor) -> Tensor:
        t = t.flip(-1) if k & 1 else t
        t = t.flip(-2) if k & 2 else t
        return t.transpose(-1, -2) if turned else t

    return one(x), one(y) if masks else y


def _features(sketches: Tensor) -> Tensor:
    """Return sketches (m, f) at unit length, and the logarithm of their length as one more entry."""
    length = sketches.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return torch.cat([sketches / length, length.log().clamp(-10, 10) / 10], 1)


def _kernel(one: Tensor, other: Tensor, width: float) -> Tensor:
    """Return the Gaussian kernel (m, k) of features (m, p) and (k, p)."""
    return torch.cdist(one, other).square().mul(-width).exp()


def _solved(f: Tensor, pixels: Tensor, width: float, ridge: float) -> Tensor:
    """Return the weights (m, d) of a kernel ridge regression from features (m, p) to pixels (m, d)."""
    kernel = _kernel(f, f, width)
    kernel.diagonal().add_(ridge)
    return torch.cholesky_solve(pixels, torch.linalg.cholesky(kernel))
