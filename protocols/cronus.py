"""Cronus (Chang et al. 2019): a robust mean of the clients' predictions on public samples joins their own records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.federation.protocol import Round, Setting
from fdaudit.federation.public_answers import (
    CRAFTED_PROXY,
    PREDICTIONS,
    PREDICTIONS_SEEN,
    REQUEST,
    SAMPLES_KNOWN,
    PublicAnswers,
    WarmUp,
    stacked,
)
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child
from fdaudit.transcript.wire import Delivery

__all__ = ["Cronus", "CronusConfig", "robust_mean"]

_BOUND = 9.0
"""Diakonikolas et al. 2017: the filter stops when the greatest variance is at most 9 σ²."""


class CronusConfig(WarmUp):
    """Cronus's settings."""

    share: Literal["soft_labels", "hard_labels"] = "soft_labels"
    """The clients' messages: softmax outputs, or predicted classes."""
    sigma: float = Field(0.1, gt=0)
    """σ: honest clients' predictions have at most this standard deviation in every direction; 0.24 or more filters
    nothing."""
    warm_up_steps: int = Field(200, ge=0)
    """SGD steps on private records before the first round: the initialization phase."""


def robust_mean(values: Tensor, present: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Return the filtered mean (n, C) of the clients' predictions for each sample (Diakonikolas et al. 2017).

    While the greatest variance of a sample's predictions exceeds 9 σ², those that lie T or further from their mean
    along its direction are dropped. T² is uniform up to the square of the greatest distance.

    Guarantees:
      * predictions with at most 9 σ² of variance in every direction give the plain mean;
      * more than half of a sample's predictions are kept: T is drawn above the distance that would drop more;
      * the order of the clients decides nothing, except between directions of the same variance;
      * a prediction that is NaN or infinite makes its sample's mean so too, and no other sample's.

    Args:
        values: (n, K, C) predictions, float64.
        present: (n, K) which of them were sent; at least one for each sample.
        sigma: σ.
        generator: draws T.
    """
    mask, least = present.clone(), present.sum(1) // 2 + 1
    while True:
        weights = mask.double() / mask.sum(1, keepdim=True)
        mean = torch.einsum("nk,nkc->nc", weights, values)
        centred = values - mean[:, None]
        covariance = torch.einsum("nk,nkc,nkd->ncd", weights, centred, centred)
        variance, axes = torch.linalg.eigh(covariance.nan_to_num(0.0, 0.0, 0.0))  # of NaN it has no answer
        distance = torch.einsum("nkc,nc->nk", centred, axes[:, :, -1]).abs().masked_fill(~mask, torch.inf)
        # the `least` nearest are never dropped
        majority = distance.sort(1).values.gather(1, least[:, None] - 1)
        farthest = distance.masked_fill(~mask, -torch.inf).amax(1, keepdim=True)
        u = 1 - torch.rand(len(values), 1, dtype=torch.float64, generator=generator)  # in (0, 1]
        T = (majority.square() + u * (farthest.square() - majority.square())).sqrt()
        acts = (variance[:, -1:] > _BOUND * sigma**2) & (farthest > majority)
        if not acts.any():
            return mean
        mask &= ~acts | (distance <= majority) | ((distance < T) & (distance < farthest))


class Cronus(PublicAnswers):
    """Clients train on their own records and on public samples that a robust mean of all clients has labelled.

    Clients first train alone. Then each round the server names some public samples, and every client sends its
    predictions for them. For each sample the server filters out predictions that lie far from the others and sends the
    mean of the rest. Every client trains on its records and these labelled samples together. No model leaves a client.
    The filter limits what a few malicious clients can do. It hides nothing: the server sees each client's predictions.
    """

    card = ProtocolCard(
        name="cronus",
        source="Chang, Shejwalkar, Shokri & Houmansadr 2019; filter: Diakonikolas et al. 2017",
        roles=("server", "client"),
        messages=(
            REQUEST,
            *PREDICTIONS,
            {
                "kind": "ensemble_labels",
                "from": "server",
                "to": "client",
                "what": "index (m,), the robust mean (m, C) of the clients' predictions",
                "when": {"share": "soft_labels"},
                "index": "public",
            },
            {
                "kind": "ensemble_labels",
                "from": "server",
                "to": "client",
                # A defence may turn votes into no class, and a sample without votes is left out.
                "what": "index (n,), the same of votes (n, C), n ≤ m: of the samples with a valid vote",
                "when": {"share": "hard_labels"},
            },
        ),
        trust=(
            PREDICTIONS_SEEN,
            SAMPLES_KNOWN,
            "Parties follow the protocol and are curious (honest-but-curious): no malicious client is simulated.",
        ),
        oracles=(CRAFTED_PROXY,),
        differences=(
            (
                "The filter's theory takes the variance of honest points to be at most σ² = 1. Softmax outputs have at "
                "most 0.5, so σ = 1 filters nothing: `sigma` is a setting, and 0.1 is our choice."
            ),
            (
                "The theory has more samples than dimensions; a federation has few clients. T is drawn so that more "
                "than half of a sample's predictions are kept. The filter then never empties; with two clients it does "
                "nothing."
            ),
            "The server names `public_batch` samples a round; the paper uses all public samples.",
            (
                "Batches mix records and public samples at random, each of equal weight; the length of a pass is that "
                "of both."
            ),
            (
                "Hard labels are not the paper's. A vote counts as its one-hot vector. Three clients with three votes "
                "vary alike in several directions: which of them is filtered is left to the linear algebra library."
            ),
        ),
        withholdable=(),
        privacy={
            "claims": ("Predictions reveal less than parameters do. No ε is claimed."),
            "finds": {"server": "soft_labels"},
            "private": {
                "params": {},
                "withhold": [],
                "training": ["model"],
                "tuned": {"warm_up_steps": 50, "rounds": 10, "local_steps": 5, "lr": 1.0},
            },
        },
        starts={
            "weights": "own",
            "source": "Chang et al. 2019: parties choose their networks and train alone first; no model is sent.",
        },
        copies={
            "server": ("proxy_indices", "ensemble_labels"),
            "client": ("soft_labels", "hard_labels"),
        },
        pools_data=False,
        heterogeneous=True,
        needs_public=True,
        tasks=("single-label",),
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[CronusConfig]] = CronusConfig

    def __init__(self, config: CronusConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config = config

    def rounds(self, start: int) -> Iterator[Round]:
        """Run the initialization phase, then the collaboration phase: predict, aggregate, train on both."""
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            if t == 0 and self.config.warm_up_steps:  # initialization phase
                self._train("warm-up", length={"steps": self.config.warm_up_steps})
            predictions = self._answer(self._ask(t), self.config.share)
            beside: dict[str, tuple[Tensor, Tensor]] = {}
            taught: dict[str, tuple[int, ...]] = {}
            aggregate = self._aggregate(t, predictions)
            if aggregate is not None:
                for k in self._clients:
                    copy = aggregate.of(k)
                    beside[k], taught[k] = self._samples(copy), (copy.seq,)
            losses = self._train("update", t, beside=beside, taught=taught)
            yield Round(index=t, models=self._models(), losses=losses)

    # -- the server -----------------------------------------------------------------------------------------

    def _aggregate(self, t: int, predictions: Mapping[str, Delivery]) -> Delivery | None:
        """Send the robust mean over the clients that answered; None without answers."""
        if not predictions:
            return None
        answers = list(predictions.values())
        values, present = stacked(answers, len(self._public), self._classes)
        index = present.any(1).nonzero().flatten()
        draws = child(self._seed, self.card.name, "filter", t)
        mean = robust_mean(values[index], present[index], self.config.sigma, draws)
        labels = self._fused({"index": index, "values": mean.float()}, answers)
        return self._send_labels(labels, predictions)
