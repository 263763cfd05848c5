"""Selective-FD's parties: the data and the steps of a client and of the server.

They exchange data only through deliveries of the wire. A receiver ignores values that it cannot use, because a defence
may have changed indices as well as values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.federation.local_training import Basis
from fdaudit.federation.protocol import PartyData
from fdaudit.federation.public_answers import ballot, count
from fdaudit.federation.state import copies_of
from fdaudit.rng import child, child_seed
from fdaudit.training.trainer import Job, Parameters, draw_batches
from fdaudit.transcript.messages import ALL
from fdaudit.transcript.samples import narrow, sample_index

from .selectors import BoundingBox, Selection, confidence, energy, fit_density, threshold

__all__ = ["SelectiveFDClient", "SelectiveFDServer"]

_MOST_VALIDATED = 1000
"""Largest number of validation records behind the threshold of a selector by outputs."""

Predict = Callable[[Tensor], Tensor]
"""Images (n, c, h, w) to a client's own logits (n, C)."""


class SelectiveFDClient:
    """One client: its records, its model, and the samples that its selector lets it answer.

    Args:
        name: `client/3`.
        data: its records.
        model: its initial parameters.
        public: (m, c, h, w) proxy samples.
        classes: number of classes C.
        settings: its selector's.
        seed: of the run.

    Attributes:
        model: its current parameters.
        basis: the inputs of its model.
        accepts: (m,) bool, the proxy samples within its density; None before `prepare`, and for other selectors.
    """

    def __init__(
        self,
        name: str,
        data: PartyData,
        model: Parameters,
        *,
        public: Tensor,
        classes: int,
        settings: Selection,
        seed: int,
    ) -> None:
        self.name, self.model = name, copies_of(model)
        self.accepts: Tensor | None = None
        self.basis: Basis = ALL
        self._data, self._public, self._classes = data, public, classes
        self._settings, self._seed = settings, seed

    def prepare(self, represent: Callable[[Tensor], Tensor], box: BoundingBox) -> None:
        """Fit the client-side selector, unless it depends on the model, and apply it to every proxy sample."""
        if self._settings.selector == "density-ratio":
            selector = fit_density(
                self._data,
                self._settings,
                represent=represent,
                box=box,
                seed=self._seed,
                party=self.name,
            )
            self.accepts = selector.accepts(represent(self._public))

    def local_job(self, stage: str, t: int, batch_size: int, steps: int) -> Job:
        """Return local training's SGD steps on the client's own records."""
        generator = child(self._seed, "selective-fd", stage, t, self.name)
        batches = draw_batches(len(self._data), batch_size, steps=steps, generator=generator)
        return self._job(stage, t, self._data.x, self._data.y, batches)

    def answer(self, index: Tensor, predict: Predict, form: str) -> dict[str, Tensor]:
        """Return predictions of the requested proxy samples that the selector accepts.

        Returns:
            `index` (n,) and `values` (n, C) probabilities or (n,) classes; n may be 0. For votes, `index` has all
            requested samples, and the class is -1 if the selector declines.
        """
        index = _known(index, len(self._public))
        logits = predict(self._public[index])
        accepted = self._accepted(index, logits, predict)
        if form == "votes":
            return {"index": self._named(index), "values": ballot(logits, accepted)}
        values = logits[accepted].softmax(1)
        if form == "hard":
            values = narrow(values.argmax(1), self._classes)
        return {"index": self._named(index[accepted]), "values": values.contiguous()}

    def distil_job(self, t: int, ensemble: Mapping[str, Tensor], steps: int) -> Job | None:
        """Return distillation's SGD steps on the proxy samples with ensemble predictions; None if there are none."""
        index = sample_index(ensemble)
        within = (index >= 0) & (index < len(self._public))
        # What noise has driven out of the simplex counts as nothing; the rest is a distribution again.
        values = ensemble["values"].cpu().float()[within].clamp(min=0)
        values = values / values.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        if not len(values):
            return None
        return self._job(
            "distil", t, self._public[index[within]], values, (torch.arange(len(values)),) * steps
        )

    def _job(self, stage: str, t: int, x: Tensor, targets: Tensor, batches: tuple[Tensor, ...]) -> Job:
        seed = child_seed(self._seed, "selective-fd", "dropout", stage, t, self.name)
        return Job(party=self.name, parameters=self.model, x=x, targets=targets, batches=batches, seed=seed)

    def _named(self, index: Tensor) -> Tensor:
        return narrow(index, len(self._public))

    def _accepted(self, index: Tensor, logits: Tensor, predict: Predict) -> Tensor:
        """Return which rows the selector accepts: (n,) bool."""
        if self._settings.selector == "none":
            return torch.ones(len(index), dtype=torch.bool)
        if self.accepts is not None:
            return self.accepts[index]
        score = {"confidence": confidence, "energy": energy}[self._settings.selector]
        order = torch.randperm(
            len(self._data), generator=child(self._seed, "selective-fd", "validation", self.name)
        )
        held_out = min(max(round(self._settings.validation * len(order)), 1), _MOST_VALIDATED)
        validation = self._data.x[order[:held_out].to(self._data.x.device)]
        return score(logits) >= threshold(score(predict(validation)), self._settings.tau_client)


@dataclass(frozen=True, eq=False)
class SelectiveFDServer:
    """The server: it knows the number of proxy samples and its received messages.

    Args:
        samples: number of proxy samples.
        classes: number of classes C.
        tau: τ_server, the largest ℓ1 distance of an ensemble prediction from its one-hot prediction.
        seed: of the run.
    """

    samples: int
    classes: int
    tau: float
    seed: int

    def choose(self, t: int, n: int) -> Tensor:
        """Draw a round's indices (min(n, samples),) of proxy samples at random."""
        generator = child(self.seed, "selective-fd", "proxy", t)
        return narrow(torch.randperm(self.samples, generator=generator)[:n], self.samples)

    def count(self, asked: Tensor, ballots: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Count the clients' votes for each class of each requested sample, in place of their mean.

        Returns:
            `index` (n,), in the order asked, and `counts` (n, C) int64.
        """
        asked = _known(asked, self.samples)
        return {"index": narrow(asked, self.samples), "counts": count(ballots, asked, self.classes)}

    def aggregate(self, asked: Tensor, answers: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return the mean over the clients that answered, without ambiguous and unanswered samples.

        ‖h - ĥ‖₁ = 2 (1 - max_c h_c) for a distribution h and its one-hot prediction ĥ, so a sample is kept if its
        confidence is at least 1 - τ_server / 2.

        Returns:
            `index` (n,), in the order asked, and `values` (n, C) float32; n may be 0.
        """
        position = torch.full((self.samples,), -1)
        asked = _known(asked, self.samples)
        position[asked] = torch.arange(len(asked))
        total = torch.zeros(len(asked), self.classes, dtype=torch.float64)
        count = torch.zeros(len(asked), dtype=torch.float64)
        for answer in answers:
            index, values = sample_index(answer), _distributions(answer["values"].cpu(), self.classes)
            usable = (index >= 0) & (index < self.samples) & torch.isfinite(values).all(1)
            rows = position[index.where(usable, 0)]
            usable &= rows >= 0
            total.index_add_(0, rows[usable], values[usable])
            count.index_add_(0, rows[usable], torch.ones(int(usable.sum()), dtype=torch.float64))
        mean = (total / count.clamp(min=1).unsqueeze(1)).float()
        mask = (count > 0) & (mean.amax(1) >= 1 - self.tau / 2)
        return {"index": narrow(asked[mask], self.samples), "values": mean[mask]}


def _distributions(values: Tensor, classes: int) -> Tensor:
    """Return rows (n, C) in float64 of soft labels, or of hard labels one-hot; an invalid label becomes NaN."""
    if values.dim() == 2:
        return values.double()
    labels = values.long()
    wrong = (labels < 0) | (labels >= classes)
    rows = F.one_hot(labels.masked_fill(wrong, 0), classes).double()
    return rows.masked_fill(wrong.unsqueeze(1), torch.nan)


def _known(index: Tensor, samples: int) -> Tensor:
    """Return the indices (n,) that name a proxy sample, each once, in their order, int64."""
    index = index.cpu().long()
    index = index[(index >= 0) & (index < samples)]
    first = torch.full((samples,), len(index)).scatter_reduce(0, index, torch.arange(len(index)), "amin")
    return index[first[index] == torch.arange(len(index))]
