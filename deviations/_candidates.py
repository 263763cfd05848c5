"""What deviations share that have clients answer the candidates of membership."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import SpecError
from fdaudit.tasks import Task
from fdaudit.transcript.wire import Outgoing

from ._rounds import SomeRounds

__all__ = ["CandidateQuestions", "by_turns"]


def by_turns(knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return the candidates (n, ...) of all clients by turns, and their classes (n,).

    Raises:
        SpecError: no client has candidates, or they are not labelled with one class each.
    """
    pairs = [pair for pair in (knowledge.candidates or {}).values() if len(pair[1])]
    if not pairs:
        raise SpecError("splits.candidates", 0, "leave nobody to ask about", "Set it to 1 or more.")
    if pairs[0][1].ndim != 1:
        problem = "has records with more than one class, which this deviation does not handle"
        raise SpecError("dataset.name", knowledge.task.name, problem, "Choose another deviation.")
    numbers = [torch.arange(len(y)) for _, y in pairs]
    turns = torch.cat(numbers).argsort(stable=True)  # every client's first candidate, then every second one
    x = torch.cat([x for x, _ in pairs])
    y = torch.cat([y for _, y in pairs])
    return x[turns], y[turns]


class CandidateQuestions:
    """A server that puts the candidates among the samples that clients answer.

    Public samples are handed out before the run: as many of them as there are candidates are replaced. A request
    then names candidates before others. Samples that the server generates are replaced in the first steps of a round.

    Args:
        config: in which rounds.
        knowledge: the candidates, and the public samples.

    Attributes:
        x: (n, ...) the candidates of all clients by turns, at most as many as there are public samples; each is
            followed by its probes, if a deviation has any.
        y: (n,) the candidates' classes.
        places: (n,) their numbers among the public samples; empty if the protocol has none.

    Raises:
        SpecError: no client has candidates, or they are not labelled with one class each.
    """

    def __init__(self, config: SomeRounds, knowledge: Knowledge) -> None:
        x, y = by_turns(knowledge)
        samples = 0 if knowledge.public is None else len(knowledge.public)
        self.config, self.classes = config, knowledge.classes
        # Anybody who knows the seed could find the places; parties who follow the protocol do not look.
        draws = torch.Generator().manual_seed(0)
        places = torch.randperm(samples, generator=draws)
        planted = self.planted(x, y.long(), knowledge.task, draws)
        each = planted.shape[1]
        count = len(x)
        if samples:
            count = min(samples // each, count)
        if not count:
            problem = f"leaves no candidate a place: there are {samples} public samples"
            raise SpecError("deviations.params.each", each - 1, problem, "Set it lower.")
        self.x = planted[:count].flatten(0, 1)
        self.y = y[:count].long().repeat_interleave(each)
        self.places = places[: len(self.x)]

    def planted(self, x: Tensor, y: Tensor, task: Task, generator: torch.Generator) -> Tensor:
        """Return the samples (n, m, ...) that are planted for each candidate (n, ...): itself alone."""
        return x[:, None]

    def hands_out(self, public: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Put the candidates among the public samples (n, ...), and their classes among these (n,)."""
        if not len(self.places) or self.config.rounds == ():
            return public, labels
        public[self.places] = self.x.to(public.dtype)
        if labels is not None:
            labels[self.places] = self.y.to(labels.dtype)
        return public, labels

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return a request or generated samples with candidates in them; everything else as it is."""
        if not self.config.within(draft.round):
            return (draft,)
        if draft.kind == "proxy_indices" and len(self.places):
            # Candidates, by turns if they are too many, and then other samples.
            index = draft.tensors["index"]
            size, count = len(index), len(self.places)
            turn = (torch.arange(count) + draft.round * size) % count
            others = index[~torch.isin(index.long(), self.places)].long()
            request = torch.cat([self.places[turn], others])[:size].sort().values
            return (replace(draft, tensors={"index": request.to(index.dtype)}),)
        if draft.kind != "generated_samples":
            return (draft,)
        samples = draft.tensors["samples"].clone()
        # The first samples of this step are candidates, if any are left in the round.
        part = self.x[draft.step * len(samples) : (draft.step + 1) * len(samples)]
        samples[: len(part)] = part.to(samples)
        return (replace(draft, tensors={"samples": samples}),)
