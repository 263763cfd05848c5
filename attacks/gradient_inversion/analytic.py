"""Analytic recovery: read inputs from the gradient of a fully connected first layer, without search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.errors import UsageError
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .labels import recover_labels
from .uploads import Upload, adversary_probes, applies, find_uploads, network

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["AnalyticConfig", "AnalyticRecovery", "Candidates", "candidates", "first_linear", "recover_image"]


class AnalyticConfig(Config):
    """Settings of analytic recovery."""

    tolerance: float = Field(1e-3, gt=0, lt=1)
    """Two neurons show the same input if their root-mean-square pixel difference is below this."""
    round: int = Field(0, ge=0)
    """Round of the upload."""
    max_images: int = Field(4096, ge=1)
    """Uploads that mix more images than this are not tried."""


@reads_forms
class AnalyticRecovery:
    """Reads inputs off the gradient of a fully connected first layer: dL/dW_i = dL/db_i · x, neuron by neuron.

    It is exact for one image if one neuron is active. In a batch, a neuron that only one image activates shows that
    image. Inputs are ranked by the number of neurons that agree on them. This also holds for updates of several steps,
    without weight decay.
    """

    name: ClassVar[str] = "analytic"
    work: ClassVar[dict[str, Any]] = {"once": 700, "each": 700}
    goal: ClassVar[str] = "reconstruction"
    needs: ClassVar[tuple[str, ...]] = ("gradient", "model_update", "model_parameters")
    assumes: ClassVar[tuple[str, ...]] = ("architecture", "auxiliary")
    source: ClassVar[str] = "Phong et al. 2018, section 3; batches: Boenisch et al. 2023, Fowl et al. 2022"
    tasks: ClassVar[tuple[str, ...]] = ("single-label", "multi-label")
    profiles: ClassVar[dict[str, dict[str, Any]]] = {"quick": {}, "standard": {}, "full": {}}
    control: ClassVar[dict[str, Any]] = {"on": "gradients"}
    Config: ClassVar[type[AnalyticConfig]] = AnalyticConfig

    def __init__(self, config: AnalyticConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a network that starts with a linear layer with a bias, and a victim's upload in view."""
        module = network(knowledge)
        if isinstance(module, str):
            return Applicability(False, module)
        if (
            knowledge.architecture is not None
            and first_linear(module, knowledge.architecture.input_shape) is None
        ):
            return Applicability(False, "the network's first layer is not fully connected with a bias")
        found, reasons = self._uploads(view, task)
        return applies(found, reasons)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one `Reconstruction` for each victim: for n images the n best-supported candidates, in [0, 1].

        There are fewer if fewer neurons are active, and none (0, c, h, w) if no neuron is.
        """
        module = network(knowledge)
        if isinstance(module, str) or knowledge.architecture is None:
            raise UsageError("knowledge", None, f"does not do: {module}", "Ask `applicable` first.")
        shape = knowledge.architecture.input_shape
        layer = first_linear(module, shape)
        if layer is None:
            raise UsageError("module", None, "has no fully connected first layer", "Ask `applicable` first.")
        # Labels are read off a softmax layer only.
        probes = adversary_probes(knowledge, generator) if knowledge.task == "single-label" else None
        return tuple(self._one(u, module, layer, probes, shape) for u in self._uploads(view, task)[0])

    def _one(
        self, u: Upload, module: nn.Module, layer: str, probes: Tensor | None, shape: tuple[int, ...]
    ) -> Reconstruction:
        n = u.training.images
        dW, db = u.gradient[f"{layer}.weight"], u.gradient[f"{layer}.bias"]
        one = n == 1
        images = recover_image(dW, db)[None] if one else candidates(dW, db, self.config.tolerance).inputs[:n]
        # A candidate has no label of its own; only for one image is it known which label is whose.
        labels = (
            recover_labels(u.gradient, module, u.start, n, probes) if one and probes is not None else None
        )
        return Reconstruction(
            target=u.target,
            messages=(u.start_seq, u.seq),
            images=images.view(-1, *shape).clamp(0, 1).cpu(),
            labels=labels,
            evaluations=0,
        )

    def _uploads(self, view: View, task: AttackTask) -> tuple[list[Upload], dict[str, str]]:
        found, reasons = find_uploads(view, task.targets, self.config.round, self.config.max_images)
        decayed = [u for u in found if u.update is not None and u.training.weight_decay]
        reasons |= {u.target: "weight decay over several steps blurs dW / db" for u in decayed}
        return [u for u in found if u not in decayed], reasons


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The inputs that the neurons of a first layer show, best supported first.

    Attributes:
        inputs: (m, d) distinct candidate inputs.
        support: (m,) number of neurons that agree on each.
    """

    inputs: Tensor
    support: Tensor


def first_linear(module: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return the name of the linear layer with a bias that receives the flattened image, if the network starts so.

    Args:
        module: the network.
        shape: (c, h, w) of an image.
    """
    owners = [(name, m) for name, m in module.named_modules() if list(m.parameters(recurse=False))]
    if not owners or not isinstance(owners[0][1], nn.Linear) or owners[0][1].bias is None:
        return None
    name, layer = owners[0]
    # Check its actual input for an image with distinct values: nothing may scale or reorder it.
    probe = torch.linspace(0, 1, int(torch.tensor(shape).prod())).view(1, *shape)
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with torch.no_grad():
            module(probe)
    finally:
        hook.remove()
    same = seen and seen[0].shape == (1, probe.numel()) and torch.equal(seen[0], probe.flatten(1))
    return name if same else None


def recover_image(weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """Return the one input (d,) behind dW (H, d) and db (H,): every row is dW_i = db_i x (Phong 2018, eq. 7).

    It is the rows' least-squares solution, which weights neurons by their activity; zeros if no neuron is active.
    """
    db = bias_gradient.double()
    x = weight_gradient.double().T @ db / db.square().sum().clamp_min(1e-300)
    return x.to(weight_gradient.dtype)


def candidates(weight_gradient: Tensor, bias_gradient: Tensor, tolerance: float = 1e-3) -> Candidates:
    """Return distinct inputs that neurons of a first layer show for a batch, sorted by the number of agreeing neurons.

    Neuron i shows dW_i / db_i = Σ_b w_ib x_b, with weights that sum to 1. It shows an input itself if only one image
    activates it. Two neurons almost never mix several inputs in equal parts, so agreement indicates a pure one. Ties go
    to candidates within [0, 1], then to the larger |db|.

    Args:
        weight_gradient: (H, d).
        bias_gradient: (H,).
        tolerance: root-mean-square difference of inputs that count as equal.
    """
    active = bias_gradient.abs() > 1e-6 * bias_gradient.abs().max().clamp_min(1e-30)
    strength, order = bias_gradient[active].abs().sort(descending=True)
    rows = (weight_gradient[active] / bias_gradient[active][:, None])[order]
    if not len(rows):
        return Candidates(inputs=rows, support=torch.zeros(0, dtype=torch.int64))
    near = torch.cdist(rows.double(), rows.double()) <= tolerance * rows.shape[1] ** 0.5
    outside = (rows.clamp(0, 1) - rows).abs().amax(1) > tolerance
    free = torch.ones(len(rows), dtype=torch.bool)
    chosen, support = [], []
    for i in sorted(range(len(rows)), key=lambda i: (-int(near[i].sum()), bool(outside[i]), i)):
        if free[i]:
            alike = near[i] & free
            # The most active of those that agree has the smallest rounding error.
            chosen.append(rows[alike][0])
            support.append((int(alike.sum()), not bool(outside[i]), float(strength[i])))
            free &= ~near[i]
    best = sorted(range(len(chosen)), key=lambda i: support[i], reverse=True)
    return Candidates(
        inputs=torch.stack([chosen[i] for i in best]), support=torch.tensor([support[i][0] for i in best])
    )
