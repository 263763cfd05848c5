"""Shared steps of protocols in which clients predict public samples and models learn from the average."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.federation.client_models import ClientModels, draw_job
from fdaudit.federation.local_settings import LocalTraining
from fdaudit.federation.local_training import joined
from fdaudit.federation.protocol import Setting
from fdaudit.federation.state import basis_of
from fdaudit.rng import child
from fdaudit.training.trainer import Fit, Job
from fdaudit.transcript.samples import narrow, sample_index
from fdaudit.transcript.wire import Delivery
from fdaudit.types import Trained

__all__ = [
    "CRAFTED_PROXY",
    "PREDICTIONS",
    "PREDICTIONS_SEEN",
    "REQUEST",
    "SAMPLES_KNOWN",
    "PublicAnswers",
    "PublicDistillation",
    "PublicRequests",
    "PublicTraining",
    "Share",
    "WarmUp",
    "answer",
    "average",
    "ballot",
    "count",
    "draw_samples",
    "existing",
    "request",
    "stacked",
    "targets",
    "told",
]

Share = Literal["logits", "soft_labels", "hard_labels"]
"""The form of a client's shared predictions, which is the kind of message."""

REQUEST: dict[str, Any] = {
    "kind": "proxy_indices",
    "from": "server",
    "to": "client",
    "what": "index (m,) of the round's public samples, drawn at random",
    "index": "public",
}
"""Declares the message that `request` makes."""

PREDICTIONS: tuple[dict[str, Any], ...] = (
    {
        "kind": "soft_labels",
        "from": "client",
        "to": "server",
        "what": "index (m,), softmax outputs (m, C) of the client's model (share: soft_labels)",
        "when": {"share": "soft_labels"},
        "index": "public",
    },
    {
        "kind": "hard_labels",
        "from": "client",
        "to": "server",
        "what": "index (m,), predicted classes (m,) (share: hard_labels)",
        "when": {"share": "hard_labels"},
        "index": "public",
    },
)
"""Declares the messages that `answer` makes of softmax outputs and of classes."""

PREDICTIONS_SEEN = (
    "The server sees every client's predictions by themselves; no secure aggregation is assumed."
)
SAMPLES_KNOWN = "All parties hold the same public samples before the first round; nothing private is in them."

CRAFTED_PROXY: dict[str, Any] = {
    "name": "crafted-proxy",
    "available_to": ("server",),
    "answers": ("soft", "hard"),
}
"""The oracle of a server that may choose which samples clients answer."""


class PublicRequests(LocalTraining):
    """Local SGD on private records, and predictions on public samples."""

    public_batch: int = Field(512, ge=1)
    """Public samples a round, drawn again each round; all of them if there are fewer."""


class WarmUp(PublicRequests):
    """Training on private records before the first round, for `warm_up_steps`: a field of each configuration below."""

    if TYPE_CHECKING:

        @property
        def warm_up_steps(self) -> int:
            """Return the number of SGD steps before the first round."""
            ...

    def trainings(self, of: Trained = "model") -> tuple[Mapping[str, int | None], ...]:
        """Return the warm-up, then one training a round."""
        if of != "model":
            return ()
        if not self.warm_up_steps:
            return super().trainings()
        return ({"steps": self.warm_up_steps}, *super().trainings())


class PublicTraining(PublicRequests):
    """Local SGD on private records, then distillation on public samples."""

    distill_steps: int = Field(10, ge=1)
    """SGD steps a round on these samples."""
    distill_batch_size: int | None = Field(None, ge=1)
    """Samples a distillation step; default: all of the round's."""
    distill_lr: float | None = Field(None, gt=0)
    """Learning rate of distillation; default: `lr`."""

    def alone(self) -> dict[str, Any]:
        """Return settings with as many SGD steps a round, all on private records; a private epoch stays one epoch."""
        own = super().alone()
        if self.local_steps is not None:
            own["local_steps"] = self.local_steps + self.distill_steps
        return own

    def distillation(self, objective: Literal["cross-entropy", "l1"]) -> Fit:
        """Return the training core's settings for distillation."""
        return Fit(lr=self.distill_lr or self.lr, momentum=self.momentum, objective=objective)

    def distill_job(
        self,
        party: str,
        parameters: Mapping[str, Tensor],
        x: Tensor,
        targets: Tensor,
        seed: int,
        *path: str | int,
    ) -> Job:
        """Return a job of `distill_steps` steps that fits `parameters` to `targets` (n, C) on images x (n, c, h, w)."""
        return draw_job(
            party,
            parameters,
            x,
            targets,
            seed=seed,
            path=path,
            batch_size=self.distill_batch_size or len(x),
            steps=self.distill_steps,
        )


def draw_samples(samples: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw `size` of `samples` numbers, in rising order; all if there are fewer."""
    return torch.randperm(samples, generator=generator)[:size].sort().values


def existing(asked: Mapping[str, Tensor] | None, samples: int) -> Tensor:
    """Return the requested public samples (m,) that exist. A defence may have changed a number to one that does not."""
    if asked is None:
        return torch.zeros(0, dtype=torch.int64)
    index = sample_index(asked)
    return index[(index >= 0) & (index < samples)]


def request(samples: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the request for `size` of `samples` public samples, drawn at random."""
    return {"index": narrow(draw_samples(samples, size, generator), samples)}


def answer(index: Tensor, logits: Tensor, share: Share, samples: int) -> dict[str, Tensor]:
    """Return a client's answer about requested samples: `values`, and their `index` (n,) if they are not all in order.

    Args:
        index: (n,) the requested samples, which do not depend on private data.
        logits: (n, C) of the client's model.
        share: what is shared: the logits, their softmax (n, C), or the predicted classes (n,).
        samples: number of all public samples.
    """
    values = logits
    if share == "hard_labels":
        values = narrow(logits.argmax(1), logits.shape[1])
    elif share == "soft_labels":
        values = logits.softmax(1)
    return told(index, values, samples, whole=torch.equal(index, torch.arange(samples)))


def told(index: Tensor, values: Tensor, samples: int, *, whole: bool) -> dict[str, Tensor]:
    """Return a message about samples (n,): without `index` if `whole` says that it is about all of them in order."""
    if whole:
        return {"values": values}
    return {"index": narrow(index, samples), "values": values}


def average(answers: Iterable[Mapping[str, Tensor]], samples: int, classes: int) -> dict[str, Tensor]:
    """Return the mean prediction for each public sample, over the clients that answered for it.

    A predicted class counts as its one-hot vector. An answer that a defence has moved out of range, to a sample or a
    class that does not exist, is ignored.

    Returns:
        `index` (m,) of the samples with an answer, in rising order, and `values` (m, C).
    """
    total = torch.zeros(samples, classes, dtype=torch.float64)
    count = torch.zeros(samples, dtype=torch.float64)
    for answer in answers:
        index, rows = _rows(answer, samples, classes)
        total.index_add_(0, index, rows)
        count.index_add_(0, index, torch.ones(len(rows), dtype=torch.float64))
    answered = count.nonzero().flatten()
    return {"index": answered, "values": (total[answered] / count[answered, None]).float()}


def stacked(answers: Collection[Mapping[str, Tensor]], samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return each client's predictions (samples, K, C), float64, and which of them it sent (samples, K).

    Predicted classes and answers out of range are read as in `average`.
    """
    values = torch.zeros(samples, len(answers), classes, dtype=torch.float64)
    present = torch.zeros(samples, len(answers), dtype=torch.bool)
    for k, answer in enumerate(answers):
        index, rows = _rows(answer, samples, classes)
        values[index, k], present[index, k] = rows, True
    return values, present


def _rows(answer: Mapping[str, Tensor], samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return the samples (n,) of an answer and its predictions (n, C), float64, without those out of range."""
    index, values = sample_index(answer), answer["values"].cpu()
    valid = (index >= 0) & (index < samples)
    if values.dim() == 1:
        values = values.long()
        valid &= (values >= 0) & (values < classes)
        return index[valid], F.one_hot(values[valid], classes).double()
    return index[valid], values[valid].double()


# -- votes ------------------------------------------------------------------------------------------


def ballot(logits: Tensor, accepted: Tensor | None = None) -> Tensor:
    """Return the predicted classes (n,) of logits (n, C), with -1 (abstention) for samples that are not accepted.

    Every sample stays in the ballot, so the sample numbers reveal nothing.
    """
    votes = logits.argmax(1)
    if accepted is not None:
        votes = votes.where(accepted.to(votes.device), -1)
    return narrow(votes, logits.shape[1], 0 if accepted is None else -1)


def count(ballots: Iterable[Mapping[str, Tensor]], asked: Tensor, classes: int) -> Tensor:
    """Return the votes (n, C), int64, on the requested samples (n,), each named once; at most one a client and sample.

    A vote for a class that does not exist is an abstention. A vote on a sample that was not requested is ignored. Of
    several votes of one client on one sample the first counts.
    """
    samples = asked.cpu().long()
    size = int(samples.max()) + 1 if len(samples) else 0
    position = torch.full((size,), -1)
    position[samples] = torch.arange(len(samples))
    counts = torch.zeros(len(samples), classes, dtype=torch.int64)
    for cast in ballots:
        index, votes = sample_index(cast), cast["values"].cpu().long()
        within = (index >= 0) & (index < size)
        rows, votes = position[index[within]], votes[within]
        rows, votes = rows[rows >= 0], votes[rows >= 0]
        first = torch.full((len(samples),), len(rows))
        first.scatter_reduce_(0, rows, torch.arange(len(rows)), "amin")
        valid = (first[rows] == torch.arange(len(rows))) & (votes >= 0) & (votes < classes)
        counts[rows[valid], votes[valid]] += 1
    return counts


def targets(sent: Mapping[str, Tensor], samples: int, classes: int) -> dict[str, Tensor]:
    """Return training targets from `vote_counts`, or from the `hard_labels` that a PATE aggregator made of them.

    Samples without votes are left out. So are values that a defence has moved out of range: a sample or a class that
    does not exist, or a negative count.

    Returns:
        `index` (m,) int32 and `values` (m, C) float32: the shares of the votes, or one-hot labels.
    """
    index = sample_index(sent)
    if "counts" in sent:
        votes = sent["counts"].cpu().double().nan_to_num(posinf=0.0).clamp_min(0)
    else:
        labels = sent["values"].cpu().long()
        votes = F.one_hot(labels.clamp(0, classes - 1), classes).double()
        votes[(labels < 0) | (labels >= classes)] = 0
    total = votes.sum(1)
    valid = (index >= 0) & (index < samples) & (total > 0)
    return {"index": index[valid].int(), "values": (votes[valid] / total[valid, None]).float()}


# -- protocols --------------------------------------------------------------------------------------


class PublicAnswers(ClientModels):
    """Clients predict public samples that the server names; each protocol sets the order of the steps."""

    def __init__(self, config: PublicRequests, setting: Setting) -> None:
        super().__init__(config, setting)
        self._public_batch, self._public = config.public_batch, setting.public
        self._classes = setting.classes

    # -- the server -----------------------------------------------------------------------------------------

    def _ask(self, t: int) -> Delivery | None:
        """Draw this round's public samples and name them to every client."""
        stream = child(self._seed, self.card.name, "samples", t)
        index = request(len(self._public), self._public_batch, stream)
        return self._wire.send("server", list(self._clients), "proxy_indices", index, inputs=[])

    def _mean(self, answers: Collection[Delivery]) -> dict[str, Tensor]:
        """Return the mean of the clients' answers as a message."""
        return self._fused(average(answers, len(self._public), self._classes), answers)

    def _fused(self, consensus: Mapping[str, Tensor], answers: Collection[Delivery]) -> dict[str, Tensor]:
        """Return predictions that were made from the clients' answers as a message.

        Votes on no class leave samples out, and which these are depends on private data: votes always name samples.
        """
        whole = all("index" not in answer and answer["values"].dim() == 2 for answer in answers)
        return told(consensus["index"], consensus["values"], len(self._public), whole=whole)

    def _send_labels(self, labels: Mapping[str, Tensor], answers: Mapping[str, Delivery]) -> Delivery | None:
        """Send every client labels that were made from these answers."""
        inputs = [message.seq for message in answers.values()]
        return self._wire.send("server", list(self._clients), "ensemble_labels", labels, inputs=inputs)

    # -- the clients ----------------------------------------------------------------------------------------

    def _answer(self, asked: Delivery | None, share: Share) -> dict[str, Delivery]:
        """Send each client's predictions for the requested samples; omit silent clients."""
        answers = {}
        for k in self._clients:
            request, inputs = None, basis_of(self.state, k)
            if asked is not None:
                request = asked.of(k)
                inputs = joined(inputs, (request.seq,))
            index = existing(request, len(self._public))
            logits = self._predict(k, self._public[index])
            tensors = answer(index, logits, share, len(self._public))
            upload = self._wire.send(k, ["server"], share, tensors, inputs=inputs)
            if upload is not None:
                answers[k] = upload
        return answers

    def _samples(self, consensus: Delivery | None) -> tuple[Tensor, Tensor]:
        """Return the public samples of a consensus and its values, without samples that do not exist."""
        index, values = self._named(consensus)
        return self._public[index], values

    def _named(self, consensus: Delivery | None) -> tuple[Tensor, Tensor]:
        """Return the numbers (n,) of a consensus's samples and its values, without samples that do not exist."""
        if consensus is None:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, self._classes)
        index, values = sample_index(consensus), consensus["values"].cpu()
        valid = (index >= 0) & (index < len(self._public))
        return index[valid], values[valid]


class PublicDistillation(PublicAnswers):
    """The shared steps of FedMD, DS-FL and FedGEMS: clients distil what the server sends back."""

    def __init__(self, config: PublicTraining, setting: Setting) -> None:
        super().__init__(config, setting)
        self._distilling = config

    def _digest(self, t: int, consensus: Delivery | None, objective: Literal["cross-entropy", "l1"]) -> None:
        """Train each client's model towards the consensus on this round's samples, as that client received it."""
        if consensus is None:  # no client answered
            return
        jobs, inputs = [], dict[str, tuple[int, ...]]()
        for k, own in self._models().items():
            received = consensus.of(k)
            x, values = self._samples(received)
            if len(x):
                path = (self.card.name, "distill", t, k)
                jobs.append(self._distilling.distill_job(k, own, x, values, self._seed, *path))
                inputs[k] = (received.seq,)
        self._advance(jobs, self._distilling.distillation(objective), inputs)
