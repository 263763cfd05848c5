"""PATE's aggregators as defences on messages: they take votes and send noisy plurality labels.

Each takes a message of kind `vote_counts`, with `counts` (n, C) and, unless it is about all samples in order, `index`
(n,), and makes `hard_labels` of it. Only the defended message leaves the aggregator. The aggregators do not protect
against a receiver of the counts themselves.

The guarantee does not cover whether and when a message was sent. This is part of the protocol's schedule, which must
not depend on data.

The claims assume that a client casts at most one vote of weight one for each sample, or abstains. An abstention counts
for no class (a row of zeros if all abstain). The aggregator enforces this; the counts do not show it. The claims
assume real numbers. The low bits of floating-point noise can reveal it (Mironov 2012). The claims do not account for
that. It matters less than for published noisy values, since only classes are sent.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import ProtocolError
from fdaudit.events import Composed, Event, EventUnit, Gaussian, NoGuarantee, PureDP, Relation
from fdaudit.registry import DefenseCard
from fdaudit.rng import SecretStream
from fdaudit.transcript.samples import narrow
from fdaudit.transcript.wire import Released

from .._parts import Configured

__all__ = ["ConfidentGNMax", "ConfidentGNMaxConfig", "GNMax", "GNMaxConfig", "LNMax", "LNMaxConfig"]

_UNIT: EventUnit = "client"
_RELATION: Relation = "replace-one"
_COVERS = ("each-client",)


class _PateConfig(Config):
    """Common settings of the aggregators."""

    public_index: bool = False
    """Private data do not decide which samples are asked about. If false, the `index` that is sent reveals the choice,
    and no guarantee is claimed.
    """


class LNMaxConfig(_PateConfig):
    """Settings of LNMax."""

    gamma: float = Field(gt=0)
    """γ: the noise on each count has scale 1/γ, in votes."""


class GNMaxConfig(_PateConfig):
    """Settings of GNMax."""

    sigma: float = Field(gt=0)
    """σ: standard deviation of the noise on each count, in votes."""


class ConfidentGNMaxConfig(_PateConfig):
    """Settings of Confident-GNMax."""

    threshold: float
    """T: a sample is answered if its largest count, with noise, reaches it. In votes."""
    sigma_threshold: float = Field(gt=0)
    """σ1: standard deviation of the noise on the largest count, in votes."""
    sigma: float = Field(gt=0)
    """σ: standard deviation of the noise on each count of an answered sample, in votes."""
    cap: int | None = Field(None, ge=1)
    """The most answers a message may contain, fixed beforehand; samples past it are not answered. A message does not
    depend on other messages: each has its own cap. None: any number, and every sample is charged as answered.
    """


Asked = TypeVar("Asked", bound=_PateConfig)


class _Aggregator(Configured[Asked]):
    """Base of the aggregators: their input, their output, and when no guarantee can be claimed."""

    leaves_out: ClassVar[bool] = False
    """Whether some samples are not answered, so that the answered ones must be named."""

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Return the noisy plurality of each answered sample, in the order of the message.

        Raises:
            ProtocolError: the message is not of `vote_counts`, or its counts are not whole numbers >= 0.
        """
        if kind != "vote_counts" or tensors.keys() - {"index"} != {"counts"}:
            accepted = "takes vote_counts of counts, or of counts and index"
            contents = f"{kind} of {', '.join(sorted(tensors)) or 'nothing'}"
            raise ProtocolError(f"{self.card.name}: {accepted}; this is {contents}.")
        index, counts = tensors.get("index"), tensors["counts"].double().cpu()
        if counts.ndim != 2 or counts.shape[1] < 1 or (index is not None and index.shape != counts.shape[:1]):
            numbering = "no index" if index is None else f"index {tuple(index.shape)}"
            problem = f"{numbering}, counts {tuple(counts.shape)} do not belong together"
            raise ProtocolError(f"{self.card.name}: {problem}. Send (n,) and (n, classes).")
        # Soft votes or weights would move by less or more than one vote does.
        wrong = ~((counts >= 0) & (counts == counts.floor()) & torch.isfinite(counts))
        if wrong.any():
            problem = f"{float(counts[wrong][0])} is no number of votes"
            raise ProtocolError(f"{self.card.name}: {problem}. Count one whole vote a client.")
        queries, classes = counts.shape
        answered, values = self._answers(counts, noise)
        labels = {"values": narrow(values[answered], classes).to(tensors["counts"].device)}
        if index is not None:
            labels["index"] = index[answered]
        elif self.leaves_out:
            labels["index"] = narrow(answered, queries)
        event: Event
        if not queries:
            event = NoGuarantee(reason="a message without samples has nothing to add noise to")
        elif not self.config.public_index:
            reason = "which samples are asked about is not declared public: index goes out without noise"
            event = NoGuarantee(reason=reason)
        else:
            event = self._guarantee(queries)
        return Released(kind=self.card.makes or kind, tensors=labels, event=event)

    @abstractmethod
    def _answers(self, counts: Tensor, noise: SecretStream) -> tuple[Tensor, Tensor]:
        """Return the numbers (m,) of the answered rows, ascending, and the class (n,) of every row."""

    @abstractmethod
    def _guarantee(self, queries: int) -> Event:
        """Return the guarantee of the noise on so many samples."""


def _normal(noise: SecretStream, sigma: float, *shape: int) -> Tensor:
    return torch.as_tensor(noise.normal(*shape)) * sigma


def _gaussian(sensitivity: float, sigma: float, count: int) -> Gaussian:
    """Return the event of normal noise on counts: √2 in ℓ2 for all, where a vote takes one and adds one; else 1."""
    return Gaussian(
        sensitivity=sensitivity, scale=sigma, count=count, unit=_UNIT, relation=_RELATION, covers=_COVERS
    )


class LNMax(_Aggregator[LNMaxConfig]):
    """Publishes for each sample the class with the most votes, after Laplace noise of scale 1/γ on every count.

    Takes `vote_counts` (`counts`, perhaps `index`) and sends `hard_labels` (`values`, and the same `index`). A client
    that changes its vote moves two counts by one. A client that abstains moves one. This is 2γ-differential privacy a
    sample, for the client as unit. Every client casts at most one vote a sample, which the aggregator must enforce. The
    choice of samples is not covered: no guarantee is claimed unless the spec declares `index` public.

    Guarantees:
      * counts that are not whole numbers >= 0 are refused;
      * all samples are answered, in the order of the message;
      * ties are broken by the noise, evenly;
      * noise comes from the vault's secret.
    """

    card = DefenseCard(
        name="lnmax",
        source="Papernot, Abadi, Erlingsson, Goodfellow & Talwar 2017, section 2.1",
        protects="each client's votes",
        accepts=("vote_counts",),
        makes="hard_labels",
        fixed_size=True,
    )
    Config: ClassVar[type[LNMaxConfig]] = LNMaxConfig

    def _answers(self, counts: Tensor, noise: SecretStream) -> tuple[Tensor, Tensor]:
        draws = torch.as_tensor(noise.laplace(*counts.shape)) / self.config.gamma
        return torch.arange(len(counts)), (counts + draws).argmax(1)

    def _guarantee(self, queries: int) -> Event:
        return PureDP(
            epsilon=2 * self.config.gamma, count=queries, unit=_UNIT, relation=_RELATION, covers=_COVERS
        )


class GNMax(_Aggregator[GNMaxConfig]):
    """Publishes for each sample the class with the most votes, after Gaussian noise on every count.

    Takes `vote_counts` (`counts`, perhaps `index`) and sends `hard_labels` (`values`, and the same `index`). A client
    that changes its vote moves the counts by √2 in ℓ2. Each sample is one Gaussian release, for the client as unit, and
    only the class is published. Every client casts at most one vote a sample, which the aggregator must enforce. The
    choice of samples is not covered: no guarantee is claimed unless the spec declares `index` public.

    Guarantees:
      * counts that are not whole numbers >= 0 are refused;
      * all samples are answered, in the order of the message;
      * ties are broken by the noise, evenly;
      * noise comes from the vault's secret.
    """

    card = DefenseCard(
        name="gnmax",
        source=(
            "Papernot, Song, Mironov, Raghunathan, Talwar & Erlingsson 2018, section 4.1 and Proposition 8"
        ),
        protects="each client's votes",
        accepts=("vote_counts",),
        makes="hard_labels",
        fixed_size=True,
    )
    Config: ClassVar[type[GNMaxConfig]] = GNMaxConfig

    def _answers(self, counts: Tensor, noise: SecretStream) -> tuple[Tensor, Tensor]:
        draws = _normal(noise, self.config.sigma, *counts.shape)
        return torch.arange(len(counts)), (counts + draws).argmax(1)

    def _guarantee(self, queries: int) -> Event:
        return _gaussian(math.sqrt(2), self.config.sigma, queries)


class ConfidentGNMax(_Aggregator[ConfidentGNMaxConfig]):
    """Answers the samples on which enough clients agree, by GNMax, and drops the others.

    Takes `vote_counts` (`counts`, perhaps `index`) and sends `hard_labels` (`index`, `values`) of the answered
    samples. A sample is answered if its largest count, with noise N(0, σ1²), reaches T. A client moves that count by at
    most one, for every sample, answered or not. Answered samples also cost GNMax: `cap` of them, however many were
    answered, or all samples without a cap. Every client casts at most one vote a sample, which the aggregator must
    enforce. The choice of samples is not covered: no guarantee is claimed unless the spec declares `index` public.

    Guarantees:
      * counts that are not whole numbers >= 0 are refused;
      * at most `cap` samples of a message are answered: the first that pass, in the order of the message, not the
        ones with most votes;
      * the class uses separate noise, not the threshold's;
      * ties are broken by the noise, evenly;
      * noise comes from the vault's secret.
    """

    card = DefenseCard(
        name="confident-gnmax",
        fixed_size=False,  # it answers as many samples as the votes agree on
        source=(
            "Papernot, Song, Mironov, Raghunathan, Talwar & Erlingsson 2018, Algorithm 1; the cap is ours"
        ),
        protects="each client's votes, and whether clients agree",
        accepts=("vote_counts",),
        makes="hard_labels",
    )
    leaves_out: ClassVar[bool] = True
    Config: ClassVar[type[ConfidentGNMaxConfig]] = ConfidentGNMaxConfig

    def _answers(self, counts: Tensor, noise: SecretStream) -> tuple[Tensor, Tensor]:
        largest = counts.amax(1) + _normal(noise, self.config.sigma_threshold, len(counts))
        draws = _normal(noise, self.config.sigma, *counts.shape)
        passed = torch.nonzero(largest >= self.config.threshold).flatten()
        return passed[: self.config.cap], (counts + draws).argmax(1)

    def _guarantee(self, queries: int) -> Event:
        threshold = _gaussian(1.0, self.config.sigma_threshold, queries)
        answers = queries if self.config.cap is None else min(self.config.cap, queries)
        return Composed(parts=(threshold, _gaussian(math.sqrt(2), self.config.sigma, answers)))
