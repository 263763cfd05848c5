"""Analytic recovery: read inputs from the gradient of a fully connected first layer, without search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.goals.row_reconstruction import RowReconstruction
from fdaudit.models.normalization import Normalization, first_linear, normalization_of
from fdaudit.registry import AttackCard
from fdaudit.transcript.messages import DEVIATION, SUM
from fdaudit.types import AttackTask

from .._reading import reads_forms
from .._uploads import with_payload
from .labels import recover_labels
from .matches import adversary_probes
from .training_mode import network
from .upload_attack import UploadAttack
from .uploads import Upload, find_upload, read_upload, sample_count

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = [
    "AnalyticConfig",
    "AnalyticRecovery",
    "Candidates",
    "between",
    "candidates",
    "imprinted",
    "recover_image",
]

_ROUNDING = 1e-5
"""Smallest difference of two neurons' gradients that is no rounding error, as a share of the largest gradient."""


class AnalyticConfig(Config):
    """Settings of analytic recovery."""

    tolerance: float = Field(1e-3, gt=0, lt=1)
    """Two neurons show the same input if their root-mean-square pixel difference is below this."""
    round: int = Field(0, ge=0)
    """Round of the upload, or the next that shows one of the victim."""
    max_images: int = Field(4096, ge=1)
    """Uploads that mix more images than this are not tried."""


@reads_forms
class AnalyticRecovery(UploadAttack[Upload]):
    """Reads inputs off the gradient of a fully connected first layer: dL/dW_i = dL/db_i · x, neuron by neuron.

    It is exact for one image if one neuron is active. In a batch, a neuron that only one image activates shows that
    image. Inputs are ranked by the number of neurons that agree on them. This also holds for updates of several steps,
    without weight decay.

    Where a deviating server sent a layer with equal rows (`imprint`), neighbours by threshold are subtracted first: the
    difference shows the images between the two. Of a deviating server the crafted round is read.
    """

    card = AttackCard(
        name="analytic",
        work={"once": 700, "each": 700},
        goal="reconstruction",
        goals={"table": "row-reconstruction"},
        needs=("gradient", "model_update", "model_parameters"),
        reads=("optimizer_state",),
        assumes=("architecture", "auxiliary"),
        source="Phong et al. 2018, section 3; batches: Boenisch et al. 2023, Fowl et al. 2022",
        tasks=("single-label", "multi-label", "table"),
        profiles={"quick": {}, "standard": {}, "full": {}},
        control={"on": "gradients"},
    )
    Config: ClassVar[type[AnalyticConfig]] = AnalyticConfig

    def __init__(self, config: AnalyticConfig) -> None:
        self.config = config

    def network(self, knowledge: Knowledge) -> nn.Module | str:
        """Return the network, as it trains at a client."""
        return network(knowledge)

    def missing(self, module: nn.Module, knowledge: Knowledge) -> str:
        """Return a reason if the network does not start with a linear layer with a bias."""
        if knowledge.architecture is None or not first_linear(module, knowledge.architecture.input_shape):
            return "the network's first layer is not fully connected with a bias that trains"
        return ""

    def read(self, view: View, knowledge: Knowledge, target: str) -> Upload | str:
        """Return a victim's upload, of any rate; of a deviating server that of the crafted round."""
        upload = self._crafted_or_first(view, target)
        if isinstance(upload, Upload) and upload.update is not None and upload.training.weight_decay:
            return "weight decay over several steps blurs dW / db"
        return upload

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction | RowReconstruction, ...]:
        """Return one guess for each victim: for n records the n best-supported candidates; images in [0, 1], or rows.

        There are fewer if fewer neurons are active. A victim of whose upload no neuron is active has no guess.
        """
        module = self.checked_network(knowledge)
        # Labels are read off a softmax layer only.
        probes = adversary_probes(knowledge, generator) if knowledge.task.labels.one_class else None
        guesses = list[Reconstruction | RowReconstruction]()
        for u in self.readings(view, knowledge, task)[0].values():
            inputs = self._inputs(u, module, knowledge)
            if not len(inputs):
                continue
            # A candidate has no label of its own; only for one image is it known which label is whose.
            labels = None
            if u.training.images == 1 and probes is not None:
                labels = recover_labels(u.gradient, module, u.start, 1, probes)
            about: dict[str, Any] = {
                "target": u.target,
                "messages": u.messages,
                "labels": labels,
                "note": u.note,
            }
            if knowledge.task.inputs.bounded:
                guesses.append(Reconstruction(images=inputs.clamp(0, 1), **about))
            else:
                guesses.append(RowReconstruction(rows=inputs, **about))
        return tuple(guesses)

    def _inputs(self, u: Upload, module: nn.Module, knowledge: Knowledge) -> Tensor:
        """Return the records (m, *shape) behind an upload of n, on the CPU: m is at most n."""
        assert knowledge.architecture is not None  # noqa: S101 - `missing` names it
        shape, normalization = knowledge.architecture.input_shape, normalization_of(module)
        layer = first_linear(module, shape)
        dW, db = u.gradient[f"{layer}.weight"], u.gradient[f"{layer}.bias"]
        if imprinted(u.start[f"{layer}.weight"]):
            dW, db = between(dW, db, u.start[f"{layer}.bias"])
        if u.training.images == 1:
            return _images(recover_image(dW, db)[None], shape, normalization).cpu()
        bounded = knowledge.task.inputs.bounded
        inputs = candidates(dW, db, self.config.tolerance, shape, normalization, bounded=bounded).inputs
        return inputs[: u.training.images].view(-1, *shape).cpu()

    def _crafted_or_first(self, view: View, target: str) -> Upload | str:
        """Return the upload of the round that a deviating server crafted a model for, or else of the first round.

        Where a model was crafted for this client alone, a sum of updates stands for its upload: the first layers of the
        others were silent. No rate is needed: a ratio of gradients has none.
        """
        most = self.config.max_images
        crafted = []
        for message in view.messages:
            if DEVIATION not in message.fields or message.sender not in view.members:
                continue
            if target in message.receivers:
                crafted.append(message)
        alone = [m for m in crafted if m.receivers == (target,)]
        for own in alone:
            for message in with_payload(view.select(round=own.round)):
                if message.fields.get(SUM):
                    count = sample_count(view, target)
                    return read_upload(view, message, own, target, count, most, any_rate=True)
        round = self.config.round
        if crafted:
            round = (alone or crafted)[0].round
        return find_upload(view, target, round, most, any_rate=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The inputs that the neurons of a first layer show, best supported first.

    Attributes:
        inputs: (m, d) distinct candidate inputs.
        support: (m,) number of neurons that agree on each.
    """

    inputs: Tensor
    support: Tensor


def imprinted(weight: Tensor) -> bool:
    """Return whether all rows of a first layer's weights (H, d) are equal, as an imprint makes them."""
    return len(weight) > 1 and bool((weight == weight[:1]).all())


def between(weight_gradient: Tensor, bias_gradient: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the differences of the gradients of neighbouring neurons, by falling bias (Fowl 2022, equation 4).

    Neuron i adds up the images above its threshold. Less those above the next one's, they are the images in between.
    Rounding errors of empty bins become zero.

    Args:
        weight_gradient: (H, d).
        bias_gradient: (H,).
        bias: (H,), less the thresholds.
    """
    order = bias.argsort(descending=True)
    dW, db = weight_gradient[order].double(), bias_gradient[order].double()
    dW = torch.cat([dW[:-1] - dW[1:], dW[-1:]])
    db = torch.cat([db[:-1] - db[1:], db[-1:]])
    db = torch.where(db.abs() > _ROUNDING * bias_gradient.abs().max(), db, 0.0)
    return dW.to(weight_gradient.dtype), db.to(bias_gradient.dtype)


def recover_image(weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """Return the one input (d,) behind dW (H, d) and db (H,): every row is dW_i = db_i x (Phong 2018, eq. 7).

    It is the rows' least-squares solution, which weights neurons by their activity; zeros if no neuron is active.
    """
    db = bias_gradient.double()
    x = weight_gradient.double().T @ db / db.square().sum().clamp_min(1e-300)
    return x.to(weight_gradient.dtype)


def _images(inputs: Tensor, shape: tuple[int, ...], normalization: Normalization | None) -> Tensor:
    """Return a first layer's inputs (m, d) as the records (m, *shape) behind them."""
    images = inputs.view(-1, *shape)
    if normalization is None:
        return images
    return normalization.undone(images)


def candidates(
    weight_gradient: Tensor,
    bias_gradient: Tensor,
    tolerance: float = 1e-3,
    shape: tuple[int, ...] | None = None,
    normalization: Normalization | None = None,
    *,
    bounded: bool = True,
) -> Candidates:
    """Return distinct inputs that neurons of a first layer show for a batch, sorted by the number of agreeing neurons.

    Neuron i shows dW_i / db_i = Σ_b w_ib x_b, with weights that sum to 1. It shows an input itself if only one image
    activates it. Two neurons almost never mix several inputs in equal parts, so agreement indicates a pure one. Ties go
    to candidates within [0, 1], if inputs are bounded so, then to the larger |db|.

    Args:
        weight_gradient: (H, d).
        bias_gradient: (H,).
        tolerance: root-mean-square difference of inputs that count as equal.
        shape: (c, h, w) of an image; needed with `normalization`.
        normalization: of the images before the layer. Candidates are the images, not the layer's inputs.
        bounded: whether inputs lie in [0, 1].
    """
    active = bias_gradient.abs() > 1e-6 * bias_gradient.abs().max().clamp_min(1e-30)
    strength, order = bias_gradient[active].abs().sort(descending=True)
    rows = (weight_gradient[active] / bias_gradient[active][:, None])[order]
    if not len(rows):
        return Candidates(inputs=rows, support=torch.zeros(0, dtype=torch.int64))
    if normalization is not None and shape is not None:
        rows = _images(rows, shape, normalization).flatten(1)
    near = torch.cdist(rows.double(), rows.double()) <= tolerance * rows.shape[1] ** 0.5
    outside = ((rows.clamp(0, 1) - rows).abs().amax(1) > tolerance) & bounded
    # Neurons that agree with most others come first: each takes those that agree with it out of the queue.
    queue = sorted(range(len(rows)), key=lambda i: (-int(near[i].sum()), bool(outside[i]), i))
    free = torch.ones(len(rows), dtype=torch.bool)
    chosen = []
    for i in queue:
        if free[i]:
            alike = near[i] & free
            rank = (int(alike.sum()), not bool(outside[i]), float(strength[i]))
            # The most active of those that agree has the smallest rounding error.
            chosen.append((rank, rows[alike][0]))
            free &= ~near[i]
    chosen.sort(key=lambda candidate: candidate[0], reverse=True)
    inputs = torch.stack([row for _, row in chosen])
    support = torch.tensor([rank[0] for rank, _ in chosen])
    return Candidates(inputs=inputs, support=support)
