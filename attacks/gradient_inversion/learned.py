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
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.models.network import call_with
from fdaudit.registry import AttackCard
from fdaudit.storage.cache import computed_once
from fdaudit.tasks import labels_of
from fdaudit.training.objectives import loss_function
from fdaudit.types import AttackTask

from .._reading import reads_forms
from .training_mode import separable_network
from .upload_attack import UploadAttack
from .uploads import Upload, find_upload

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
_TRIALS = 2000
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
class LearnedInversion(UploadAttack[Upload]):
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

    def network(self, knowledge: Knowledge) -> nn.Module | str:
        """Return the network in evaluation: the regression learns from gradients of single records."""
        return separable_network(knowledge)

    def missing(self, module: nn.Module, knowledge: Knowledge) -> str:
        """Return a reason if there are too few auxiliary records to learn from."""
        if knowledge.auxiliary is None or len(knowledge.auxiliary[0]) < _LEAST:
            return f"the regression needs {_LEAST} auxiliary records"
        return ""

    def read(self, view: View, knowledge: Knowledge, target: str) -> Upload | str:
        """Return a victim's upload of one image."""
        return find_upload(view, target, self.config.round, 1)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one `Reconstruction` for each victim with a suitable upload; images (n, c, h, w) in [0, 1]."""
        module, auxiliary = self.checked_network(knowledge), knowledge.auxiliary
        assert auxiliary is not None  # noqa: S101 - `missing` names them
        regressions: dict[int, _Regression] = {}  # by the model that gradients are taken at
        settings = self.config.model_dump(mode="json")
        card = {"attack": self.card.name, "settings": settings, **knowledge.described}
        guesses = []
        for target, upload in self.readings(view, knowledge, task)[0].items():
            one = upload.as_one_step()

            def predict(draws: torch.Generator, one: Upload = one) -> dict[str, Tensor]:
                if one.start_seq not in regressions:
                    sketch = _GradientSketch(module, one.start, knowledge, self.config.features)
                    regressions[one.start_seq] = _Regression.fitted(
                        sketch, auxiliary, self.config.copies, draws
                    )
                return {"images": regressions[one.start_seq].image(one.gradient)}

            images = computed_once(card, [*auxiliary, one.start, one.gradient], predict)["images"]
            guess = Reconstruction(target=target, messages=upload.messages, images=images, note=upload.note)
            guesses.append(guess)
        return tuple(guesses)


class _GradientSketch:
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
        self._parameters: dict[str, Tensor] = {}
        for name, _ in module.named_parameters():
            self._parameters[name] = start[name].detach().to(self._device)
        self._buffers: dict[str, Tensor] = {}
        for name, own in module.named_buffers():
            self._buffers[name] = start.get(name, own).detach().to(self._device)
        self._loss = loss_function(knowledge.task.labels.objective, 1.0)
        self._features = features
        self._values = sum(p.numel() for p in self._parameters.values())
        generator = torch.Generator().manual_seed(0)  # any will do: the sketch is no secret
        self._place = torch.randint(features, (self._values,), generator=generator)
        self._sign = torch.randint(2, (self._values,), generator=generator) * 2.0 - 1.0

    def of(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sketches (n, f) of the gradients of records (x, y), each by itself."""
        size = max(1, _CHUNK // max(self._values, x[0].numel() * 64))
        sketches = []
        for images, labels in zip(x.split(size), y.split(size), strict=True):
            gradients = self._each(images.to(self._device), labels.to(self._device))
            rows = torch.cat([gradients[name].flatten(1) for name in self._parameters], 1)
            sketches.append(self._sketch(rows.cpu()))
        return torch.cat(sketches)

    def sent(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """Return the sketch (1, f) of a gradient that was sent."""
        parts = []
        for name in self._parameters:
            part = gradient[name].float().flatten()
            parts.append(part)
        row = torch.cat(parts)
        return self._sketch(row[None].cpu())

    def _each(self, x: Tensor, y: Tensor) -> Mapping[str, Tensor]:
        """Return the gradients (n, ...) of n records by parameter."""

        def loss(parameters: Mapping[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            answer = call_with(self._module, {**parameters, **self._buffers}, image[None])
            return self._loss(answer, label[None])

        gradients: dict[str, Tensor] = {}
        try:
            gradients = vmap(grad(loss), (None, 0, 0))(self._parameters, x, y)
        except RuntimeError:  # a network that cannot be vectorised is asked record by record
            each = [grad(loss)(self._parameters, *record) for record in zip(x, y, strict=True)]
            for name in self._parameters:
                gradients[name] = torch.stack([gradient[name] for gradient in each])
        return gradients

    def _sketch(self, values: Tensor) -> Tensor:
        empty = torch.zeros(len(values), self._features)
        return empty.index_add_(1, self._place, values * self._sign)


@dataclass(frozen=True, eq=False)
class _Regression:
    """A kernel ridge regression from sketches of gradients to images.

    Attributes:
        sketch: makes the sketches.
        centres: (m, f + 1) features of the gradients that it was fitted to.
        weights: (m, d) of each of them for each pixel.
        mean: (c, h, w) mean image.
        width: factor of squared distances in the kernel.
    """

    sketch: _GradientSketch
    centres: Tensor
    weights: Tensor
    mean: Tensor
    width: float

    @classmethod
    def fitted(
        cls,
        sketch: _GradientSketch,
        auxiliary: tuple[Tensor, Tensor],
        copies: int,
        generator: torch.Generator,
    ) -> _Regression:
        """Fit the regression to copies of auxiliary records; a fifth of the records chooses width and ridge."""
        rows = torch.randperm(len(auxiliary[1]), generator=generator)[:_RECORDS]
        x, y = auxiliary[0][rows], auxiliary[1][rows]
        images, features = [], []
        for k in range(copies):
            copy = _turned(x, k)
            labels = _turned(y, k) if labels_of(y).dense else y  # masks turn with their images
            images.append(copy)
            features.append(_features(sketch.of(copy, labels)))
        f, targets = torch.stack(features), torch.stack(images)
        mean = targets.flatten(0, 1).mean(0)
        p = (targets - mean).flatten(2)
        # The first fifth of the records is held out: each width and ridge is fitted to some of the others.
        fifth = len(x) // 5
        some = torch.randperm(copies * (len(x) - fifth), generator=generator)[:_TRIALS]
        f_others, p_others = f[:, fifth:].flatten(0, 1)[some], p[:, fifth:].flatten(0, 1)[some]
        errors = {}
        for width in _WIDTHS:
            kernel = _kernel(f[0, :fifth], f_others, width)
            for ridge in _RIDGES:
                predicted = kernel @ _solved(f_others, p_others, width, ridge)
                errors[width, ridge] = float((predicted - p[0, :fifth]).square().mean())
        width, ridge = min(errors, key=errors.__getitem__)
        f, p = f.flatten(0, 1), p.flatten(0, 1)
        return cls(sketch, f, _solved(f, p, width, ridge), mean, width)

    def image(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """Return the image (1, c, h, w) in [0, 1] that stands behind a gradient."""
        near = _kernel(_features(self.sketch.sent(gradient)), self.centres, self.width)
        image = (near @ self.weights).view(1, *self.mean.shape).add(self.mean)
        return image.nan_to_num(0.5).clamp(0, 1)


def _turned(t: Tensor, k: int) -> Tensor:
    """Return images, or masks, (..., h, w) in the k-th of eight attitudes; those that are not square in four."""
    if k & 1:
        t = t.flip(-1)
    if k & 2:
        t = t.flip(-2)
    if k & 4 and t.shape[-1] == t.shape[-2]:
        t = t.transpose(-1, -2)
    return t


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
