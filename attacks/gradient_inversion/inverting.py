"""Inverting Gradients: cosine matching with a total-variation prior, for batches and several local steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.models.network import moved
from fdaudit.registry import AttackCard
from fdaudit.storage.cache import computed_once
from fdaudit.training.objectives import ClientStep
from fdaudit.types import AttackTask

from .._reading import reads_forms
from .class_prior import ClassPrior
from .composition import labels_behind
from .engine import Matched, best_of, match_adam
from .gradients import PLAIN, GradientMap, flatten
from .matches import adversary_probes, matched_once, reconstruction
from .readings import auxiliary_distance, find_readings, likeliest, relative_distance
from .statistics import BatchStatistics, shown_statistics
from .training_mode import invertible_network, lone_record
from .trials import compositions, peers, tuned
from .tuning import RECORDS, SearchSettings, first_images
from .updates import SMOOTHING, ClientSteps, UpdateMap
from .upload_attack import UploadAttack
from .uploads import Upload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["InvertingGradients", "InvertingGradientsConfig", "invert_gradients"]


class InvertingGradientsConfig(Config):
    """SearchSettings of Inverting Gradients. Omitted ones are chosen on auxiliary records, unless `tune` is off."""

    restarts: int = Field(2, ge=1)
    """Random starts for each message; all advance together, the best match is kept."""
    iterations: int = Field(1000, ge=1)
    """Steps of signed Adam."""
    tune: bool = True
    """Choose omitted settings of `tv`, `lr`, `start` and `shrink` on auxiliary records, at the model in view."""
    trials: float = Field(0.5, gt=0, le=1)
    """Iterations of a trial that chooses settings, as a share of the attack's; first trials take a quarter of that."""
    lr: float | None = Field(None, gt=0)
    """Size of the first steps, in units of pixel intensity; a tenth after 3/8, 5/8 and 7/8 of them. Untuned: 0.1."""
    tv: float | None = Field(None, ge=0)
    """Weight of total variation (mean absolute difference of neighbouring pixels). Untuned: 0.001."""
    start: Literal["noise", "blend"] | None = None
    """Starting images: noise, or equal parts of noise and the mean auxiliary image. Untuned: noise."""
    shrink: float | None = Field(None, ge=0, le=1)
    """How far the guess is denoised by images of its class: 0 keeps it, 1 returns their mean. Untuned: 0."""
    statistics: float = Field(1.0, ge=0)
    """Weight of the distance to the batch's statistics, where an undefended upload of one step carries BatchNorm's."""
    signed: bool = True
    """Step along the gradient's sign."""
    round: int = Field(0, ge=0)
    """Round of the upload, or the next that shows one of the victim."""
    max_images: int = Field(64, ge=1)
    """Uploads that mix more images than this are not tried."""
    simulated_steps: int = Field(64, ge=1)
    """Updates of more local steps are read as one step on all their images, with a single start."""

    @property
    def given(self) -> dict[str, Any]:
        """Return the tunable settings that the user gave."""
        settings = self.model_dump(include={"tv", "lr", "start", "shrink"})
        for name in list(settings):
            if settings[name] is None:
                del settings[name]
        return settings


@reads_forms
class InvertingGradients(UploadAttack[Sequence[Upload]]):
    """Finds a batch whose gradient has the direction of the one sent: cosine distance, total variation, signed Adam.

    Labels are read off the last layer. An update of several local steps, or of Adam, is inverted by simulating the
    steps, with the optimiser, rate, steps and batch size of the public configuration. The assignment of images to steps
    after the first pass is unknown and assumed to repeat. BatchNorm normalises a guess as it did at the client. An
    undefended update of one step shows its batch statistics, which the guess has to match. If the sample count is not
    in view, several are tried, and one batch of images is returned. Total variation, step, start and shrinkage are
    chosen on auxiliary records at the model that the victims started from. All restarts for one upload advance
    together.
    """

    card = AttackCard(
        name="inverting-gradients",
        work={"once": 23000, "each": 1400, "grows": ("restarts", "iterations")},
        goal="reconstruction",
        needs=("gradient", "model_update", "model_parameters"),
        reads=("optimizer_state",),
        assumes=("architecture", "auxiliary"),
        source="Geiping, Bauermeister, Dröge & Moeller 2020",
        profiles={
            "quick": {"restarts": 1, "iterations": 300, "trials": 0.25, "simulated_steps": 8},
            "standard": {"restarts": 2, "iterations": 2000, "trials": 0.25},
            "full": {"restarts": 8, "iterations": 8000, "trials": 0.125, "simulated_steps": 512},
        },
        control={"on": "gradients", "drowned": {"tune": False}},
    )
    Config: ClassVar[type[InvertingGradientsConfig]] = InvertingGradientsConfig

    def __init__(self, config: InvertingGradientsConfig) -> None:
        self.config = config

    def network(self, knowledge: Knowledge) -> nn.Module | str:
        """Return the network, as it trains at a client."""
        return invertible_network(knowledge)

    def read(self, view: View, knowledge: Knowledge, target: str) -> Sequence[Upload] | str:
        """Return the readings of a victim's upload that can be simulated."""
        readings = find_readings(view, target, self.config.round, self.config.max_images)
        if isinstance(readings, str):
            return readings
        repeatable = [upload for upload in readings if not lone_record(knowledge, upload)]
        return repeatable or lone_record(knowledge, readings[0])

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one `Reconstruction` for each victim with a suitable upload; images (n, c, h, w) in [0, 1]."""
        module = self.checked_network(knowledge)
        guesses = []
        for readings in self.readings(view, knowledge, task)[0].values():
            probes = adversary_probes(knowledge, generator)
            inversion = _Inversion(self.config, view, knowledge, module, probes, knowledge.device)
            guesses.append(inversion.guess(readings))
        return tuple(guesses)


@dataclass(frozen=True, eq=False)
class _Inversion:
    """One attack on one victim: the readings of its upload, their settings, and the guess."""

    config: InvertingGradientsConfig
    view: View
    knowledge: Knowledge
    module: nn.Module
    probes: Tensor
    device: torch.device

    def guess(self, readings: Sequence[Upload]) -> Reconstruction:
        """Return the guess from the reading whose simulation is closest to the sent values."""
        likely = self._likely(readings)
        settings, records = self._settings(likely[0])
        card = {**self.config.model_dump(mode="json"), **asdict(settings)}
        matches = []
        for upload in likely:
            invert = partial(self._invert, upload, settings)
            match = matched_once(InvertingGradients.card.name, card, self.knowledge, upload, invert)
            matches.append((upload, match))
        if len(matches) > 1:
            matches.sort(key=lambda reading: self._distance(*reading))
        upload, match = matches[0]
        if upload.guessed:  # show at most one batch of images
            images = upload.training.images
            count = min(images, max(map(len, upload.training.batches)))
            rows = torch.linspace(0, images - 1, count).round().long()
            match = replace(match, images=match.images[:, rows], labels=match.labels[:, rows])
        guess = reconstruction(upload, match)
        parts = [f"{settings.described()}, not tuned"]
        if records:
            parts = [f"{settings.described()}, chosen on {records} auxiliary records"]
        if upload.guessed:
            parts.append(f"{upload.training.images} records assumed, of {len(readings)} numbers tried")
        if self._as_one_step(upload):
            parts.append(f"{len(upload.training.batches)} local steps read as one")
        if upload.note:
            parts.append(upload.note)
        return replace(guess, note="; ".join(parts))

    def _likely(self, readings: Sequence[Upload]) -> list[Upload]:
        """Return the readings to invert; auxiliary clients rank guessed numbers of records."""
        auxiliary = self.knowledge.auxiliary
        if auxiliary is None or len(readings) == 1 or not all(u.guessed for u in readings):
            return list(readings)

        def make(generator: torch.Generator) -> dict[str, Tensor]:
            distances = []
            for upload in readings:
                distance = auxiliary_distance(upload, self.module, auxiliary, self.probes, generator)
                distances.append(distance)
            return {"distances": torch.tensor(distances)}

        card = {"readings": [asdict(u.training) for u in readings], **self.knowledge.described}
        tensors: list[Tensor | Mapping[str, Tensor]] = [*auxiliary, readings[0].start, readings[0].sent]
        return likeliest(readings, computed_once(card, tensors, make)["distances"].tolist())

    def _settings(self, upload: Upload) -> tuple[SearchSettings, int]:
        """Return the settings for an upload, and the number of auxiliary records that they were chosen on."""
        cfg, auxiliary = self.config, self.knowledge.auxiliary
        if not cfg.tune or auxiliary is None or len(cfg.given) == len(SearchSettings().tensors()):
            return SearchSettings(**cfg.given), 0
        as_one_step = self._as_one_step(upload)
        alike = peers(self.view, upload, cfg.round, cfg.max_images)
        records = RECORDS // 2 if as_one_step else RECORDS
        labels = compositions(alike, self.module, self.probes, auxiliary, records)
        settings = tuned(
            cfg.given,
            upload,
            labels,
            self.module,
            self.knowledge,
            iterations=max(1, round(cfg.trials * cfg.iterations)),
            one_step=as_one_step,
            signed=cfg.signed,
            statistics=cfg.statistics,
            device=self.device,
        )
        return settings, labels.numel()

    def _as_one_step(self, upload: Upload) -> bool:
        many = len(upload.training.batches) > self.config.simulated_steps
        return many and upload.update is not None and not upload.training.adaptive

    def _invert(self, upload: Upload, settings: SearchSettings, generator: torch.Generator) -> Matched:
        auxiliary = self.knowledge.auxiliary
        labels = labels_behind(upload, self.module, upload.training.images, self.probes, auxiliary)
        prior = None
        if auxiliary is not None:
            classes = 1 + max(int(auxiliary[1].max()), int(labels.max()))
            prior = ClassPrior.of(auxiliary, classes)
        reading, cfg = upload, self.config
        if self._as_one_step(upload):  # the reading is coarse, and more starts or steps make it no finer
            few = {"restarts": 1, "iterations": max(1, cfg.iterations // 4)}
            reading, cfg = upload.as_one_step(), cfg.model_copy(update=few)
        match = invert_gradients(
            self.module.to(self.device),
            moved(reading.start, self.device),
            [moved(reading.sent, self.device)],
            labels[None],
            shape=tuple(self.probes.shape[1:]),
            config=cfg,
            generator=generator,
            training=None if reading.update is None else reading.training,
            step=reading.training.step,
            settings=settings,
            means=None if prior is None else prior.means,
            statistics=self._statistics(reading),
        )
        if prior is None:
            return match
        return replace(match, images=prior.denoised(match.images, match.labels, settings.shrink))

    def _statistics(self, upload: Upload) -> BatchStatistics | None:
        """Return the statistics of the batch that an undefended upload of one step carries, if any."""
        layers = shown_statistics(upload, self.module)
        if not layers or not self.config.statistics:
            return None
        return BatchStatistics(self.module, moved(upload.start, self.device), layers)

    def _distance(self, upload: Upload, match: Matched) -> float:
        """Return the relative distance of the matched records' simulated upload from the one that was sent."""
        if self._as_one_step(upload):
            upload = upload.as_one_step()
        simulate: GradientMap | UpdateMap
        if upload.update is None:
            simulate = GradientMap(self.module.cpu(), upload.start, step=upload.training.step)
        else:
            simulate = UpdateMap(self.module.cpu(), upload.start, upload.training)
        simulated = simulate(match.images.cpu().nan_to_num(0.5), match.labels.cpu())[0].detach()
        return relative_distance(simulated, flatten(upload.sent, simulate.names))


def invert_gradients(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    sent: Sequence[Mapping[str, Tensor]],
    labels: Tensor,
    *,
    shape: tuple[int, ...],
    config: InvertingGradientsConfig,
    generator: torch.Generator,
    training: ClientSteps | None = None,
    step: ClientStep = PLAIN,
    settings: SearchSettings | None = None,
    means: Tensor | None = None,
    statistics: BatchStatistics | None = None,
) -> Matched:
    """Run Inverting Gradients on bare gradients or updates (Geiping 2020, eq. 4): M of the same model at once.

    Args:
        module: the architecture.
        tensors: parameters, and buffers, that the clients started from.
        sent: M named gradients of mean cross-entropy; updates if `training` is given.
        labels: (M, n); with several steps, in no particular order: restarts try different ones.
        shape: (c, h, w) of an image.
        config: settings.
        generator: draws starting points, and orders of labels.
        training: the local steps behind the updates; None for gradients.
        step: how a client makes a gradient; `training` has its own.
        settings: the tuned settings; default: the configuration's own.
        means: (C, c, h, w) mean auxiliary image of each class, for a start that blends them in.
        statistics: those of the M batches at BatchNorm's layers, where the messages carry them.

    Returns:
        M rows, the best restart of each.
    """
    simulate: GradientMap | UpdateMap
    if training is None:
        simulate = GradientMap(module, tensors, step=step)
    else:
        simulate = UpdateMap(module, tensors, training, smoothing=SMOOTHING)
    settings = settings or SearchSettings(**config.given)
    R, (M, n) = config.restarts, labels.shape
    target = torch.stack([flatten(s, simulate.names) for s in sent])
    x = torch.rand(M * R, n, *shape, generator=generator).to(target)
    y = labels.repeat_interleave(R, 0)
    if training is not None:
        # Within one step the order means nothing; across steps it decides which labels met.
        y = torch.stack([row[torch.randperm(n, generator=generator)] for row in y])
    # Restarts of one message share their target's memory, which the engine takes advantage of.
    target = target.expand(R, -1) if M == 1 else target.repeat_interleave(R, 0)
    penalty = None
    if statistics is not None:
        penalty = statistics.repeated(R).weighted(config.statistics)
    matches = match_adam(
        simulate,
        target,
        first_images(x, y, means, settings.start),
        y.to(target.device),
        iterations=config.iterations,
        lr=settings.lr,
        tv=settings.tv,
        signed=config.signed,
        penalty=penalty,
    )
    return best_of(matches, R)
