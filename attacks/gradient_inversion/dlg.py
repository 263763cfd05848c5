"""Deep leakage from gradients: find images, and labels, whose gradient equals the one sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.goals.row_reconstruction import RowReconstruction
from fdaudit.models.network import call_with, moved
from fdaudit.registry import AttackCard
from fdaudit.training.objectives import ClientStep
from fdaudit.types import AttackTask

from .._reading import reads_forms
from .engine import Matched, best_of, match_lbfgs
from .gradients import PLAIN, GradientMap, flatten
from .labels import recover_labels
from .matches import adversary_probes, matched_once, reconstruction, row_reconstruction
from .training_mode import invertible_network, lone_record
from .upload_attack import UploadAttack
from .uploads import Upload, find_upload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["DLG", "DLGConfig", "deep_leakage"]


class DLGConfig(Config):
    """Settings of DLG."""

    labels: Literal["recover", "optimise"] = "recover"
    """recover: read off the last layer (iDLG); optimise: found together with the images, as in the paper."""
    restarts: int = Field(4, ge=1)
    """Random starts for each message; all advance together, the best match is kept."""
    evaluations: int = Field(400, ge=1)
    """Largest number of gradient evaluations of each start."""
    history: int = Field(20, ge=1)
    """Curvature pairs that L-BFGS keeps."""
    tolerance: float = Field(1e-9, ge=0)
    """Relative squared distance of gradients at which a start has converged."""
    init: Literal["uniform", "normal"] = "uniform"
    """Distribution of starting images: uniform in [0, 1], or standard normal as in the paper."""
    round: int = Field(0, ge=0)
    """Round of the upload, or the next that shows one of the victim."""
    max_images: int = Field(16, ge=1)
    """Uploads that mix more images than this are not tried."""


@reads_forms
class DLG(UploadAttack[Upload]):
    """Finds images whose gradient is the one sent, by L-BFGS on the squared distance of gradients.

    Labels are first read off the last layer (iDLG) unless `labels: optimise` requests the paper's joint search. It
    works on the gradient of one step, sent directly or as the update that it caused. It works best on few images and on
    networks that keep the image's detail: sigmoid or ReLU, downsampling by stride. All restarts for one upload advance
    together.
    """

    card = AttackCard(
        name="dlg",
        work={"once": 15000, "each": 1500, "grows": ("restarts", "evaluations")},
        goal="reconstruction",
        goals={"table": "row-reconstruction"},
        needs=("gradient", "model_update", "model_parameters"),
        reads=("optimizer_state",),
        assumes=("architecture", "auxiliary"),
        source="Zhu, Liu & Han 2019; labels: Zhao, Mopuri & Bilen 2020",
        tasks=("single-label", "table"),
        profiles={
            "quick": {"restarts": 2, "evaluations": 200},
            "standard": {"restarts": 4, "evaluations": 600},
            "full": {"restarts": 16, "evaluations": 2000},
        },
        control={"on": "gradients"},
    )
    Config: ClassVar[type[DLGConfig]] = DLGConfig

    def __init__(self, config: DLGConfig) -> None:
        self.config = config

    def network(self, knowledge: Knowledge) -> nn.Module | str:
        """Return the network, as it trains at a client."""
        return invertible_network(knowledge)

    def read(self, view: View, knowledge: Knowledge, target: str) -> Upload | str:
        """Return a victim's one-step upload."""
        upload = find_upload(view, target, self.config.round, self.config.max_images)
        if isinstance(upload, str):
            return upload
        if upload.update is not None:
            return (
                f"its update takes {len(upload.training.batches)} steps; inverting-gradients simulates them"
            )
        return lone_record(knowledge, upload) or upload

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction | RowReconstruction, ...]:
        """Return one guess for each victim with a one-step upload: images (n, c, h, w) clamped to [0, 1], or rows."""
        module = self.checked_network(knowledge)
        settings = self.config.model_dump(mode="json")
        guesses = list[Reconstruction | RowReconstruction]()
        for upload in self.readings(view, knowledge, task)[0].values():
            invert = partial(self._invert, upload, module, knowledge)
            matched = matched_once(self.card.name, settings, knowledge, upload, invert)
            if knowledge.task.inputs.shown == "rows":
                guesses.append(row_reconstruction(upload, matched))
            else:
                guesses.append(reconstruction(upload, matched))
        return tuple(guesses)

    def _invert(
        self, upload: Upload, module: nn.Module, knowledge: Knowledge, generator: torch.Generator
    ) -> Matched:
        device, n = knowledge.device, upload.training.images
        probes = adversary_probes(knowledge, generator)
        labels = None
        if self.config.labels == "recover":
            labels = recover_labels(upload.gradient, module, upload.start, n, probes)[None]
        return deep_leakage(
            module.to(device),
            moved(upload.start, device),
            [moved(upload.gradient, device)],
            labels,
            images=(n, *probes.shape[1:]),
            config=self.config,
            generator=generator,
            step=upload.training.step,
        )


def deep_leakage(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    gradients: Sequence[Mapping[str, Tensor]],
    labels: Tensor | None,
    *,
    images: tuple[int, ...],
    config: DLGConfig,
    generator: torch.Generator,
    step: ClientStep = PLAIN,
) -> Matched:
    """Run DLG on bare gradients (Zhu 2019, algorithm 1): M gradients of the same model at once.

    Args:
        module: the architecture.
        tensors: its parameters, and buffers, at which the gradients were computed.
        gradients: M named gradients of mean cross-entropy.
        labels: (M, n), or None to optimise them (overrides `config.labels`).
        images: (n, c, h, w), the shape of the images behind each gradient.
        config: settings.
        generator: draws starting points.
        step: how a client makes its gradient.

    Returns:
        M rows, the best restart of each; images are not clamped.
    """
    R = config.restarts
    simulate = GradientMap(module, tensors, step=step)
    target = torch.stack([flatten(g, simulate.names) for g in gradients])
    starts = (len(target) * R, *images)
    if config.init == "uniform":
        x = torch.rand(starts, generator=generator).to(target)
    else:
        x = torch.randn(starts, generator=generator).to(target)
    if labels is None:
        with torch.no_grad():
            _, classes = call_with(module, {}, x[0]).shape
        y = torch.randn(len(x), images[0], classes, generator=generator).to(target)
    else:
        y = labels.to(target.device).repeat_interleave(R, 0)
    matched = match_lbfgs(
        simulate,
        target.repeat_interleave(R, 0),
        x,
        y,
        evaluations=config.evaluations,
        history=config.history,
        tolerance=config.tolerance,
    )
    return best_of(matched, R)
