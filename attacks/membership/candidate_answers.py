"""Membership from clients' answers about the candidates themselves, where a server deviates to get them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask, Challenge

from .._reading import reads_forms
from ._answers import RecordedAnswers, recorded
from ._coins import against_its_pair
from ._statistics import confidence

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["CandidateAnswers", "CandidateAnswersConfig"]

_KINDS = ("logits", "soft_labels", "hard_labels")
_CHUNK = 4096
"""Answers that are compared with the candidates at a time."""
_ROUNDING = 1e-6
"""Rounding error of a distance between samples."""
_LEAST = 1e-7
"""The least probability and the least slope that are told from 0."""
_PARALLEL = 1e-3
"""Share of the longest direction below which rounding alone tells directions of probes apart."""
_DECLINED = -10.0
"""The logit-scaled confidence that an answer left out stands for; any value far below most answers' does."""


class CandidateAnswersConfig(Config):
    """Settings of `candidate-answers`."""

    rounds: int = Field(10_000, ge=1)
    """Most rounds that are read, the last ones."""
    most: int = Field(100_000, ge=1)
    """Most answers of a client in one round that are read, the last ones."""
    reach: float = Field(0.0, ge=0)
    """Distance within which votes on other samples count as probes of a candidate, root-mean-square over the values."""
    slopes: bool = False
    """Whether a candidate is scored by how flat the loss is around it, as the answers within `reach` show."""


@reads_forms
class CandidateAnswers:
    """Scores a candidate by how surely the victim answers its class, compared with the other clients.

    It reads answers about samples that equal a candidate, pixel by pixel. An honest run has none: a server that
    deviates by `planted-candidates` or `crafted-consensus` asks for them. The other clients never hold the candidate,
    so the mean of their logit-scaled confidences shows how hard it is, and what the consensus taught about it. A client
    that declines to answer counts as sure that the class is another. The difference is averaged over the rounds. With
    `reach`, votes on samples near a candidate count as well. With `slopes`, the gradient of the loss at a candidate is
    estimated from answers on samples near it, and a small norm speaks for a member. No model is trained.
    """

    card = AttackCard(
        name="candidate-answers",
        work={"once": 50, "each": 20},
        goal="membership",
        needs=_KINDS,
        assumes=("public",),
        tasks=("single-label",),
        source=(
            "ours; calibration by others' models: Watson, Guo, Cormode & Sablayrolles 2022; slopes: Rezaei & Liu "
            "2021"
        ),
        profiles={"quick": {}, "standard": {}, "full": {}},
        control={"on": "candidates"},
    )
    Config: ClassVar[type[CandidateAnswersConfig]] = CandidateAnswersConfig

    def __init__(self, config: CandidateAnswersConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for answers of a challenged victim about one of its candidates."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        for answers in self._rounds(view, knowledge):
            for name, challenge in task.challenges.items():
                if name in answers and bool(_compared(answers, name, challenge, self.config)[0].any()):
                    return Applicability(True)
        about = "a candidate"
        if self.config.slopes:
            about += f" and for samples within {self.config.reach:g} of it"
        return Applicability(
            False, f"no client in view answered for {about}: no party deviated to ask for one"
        )

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim with answers about its candidates; the attack is deterministic."""
        total = {}
        count = {}
        for name, challenge in task.challenges.items():
            total[name] = torch.zeros(len(challenge.y), dtype=torch.float64)
            count[name] = torch.zeros_like(total[name])
        for answers in self._rounds(view, knowledge):
            for name, challenge in task.challenges.items():
                if name in answers:
                    asked, difference = _compared(answers, name, challenge, self.config)
                    total[name][asked] += difference[asked]
                    count[name][asked] += 1
        guesses = []
        for name, challenge in task.challenges.items():
            if bool(count[name].any()):
                scores = total[name] / count[name].clamp_min(1)
                guesses.append(Membership(target=name, scores=against_its_pair(scores, challenge)))
        return tuple(guesses)

    def _rounds(self, view: View, knowledge: Knowledge) -> Iterator[Mapping[str, RecordedAnswers]]:
        """Yield each client's answers of one round after the other."""
        rounds = set[int]()
        for m in view.messages:
            if m.kind in _KINDS:
                rounds.add(m.round)
        for number in sorted(rounds)[-self.config.rounds :]:
            yield recorded(view, knowledge, self.config.most, round=number, kinds=_KINDS)


def _probed(answers: RecordedAnswers, challenge: Challenge, reach: float) -> tuple[Tensor, Tensor]:
    """Return pairs of a candidate (k,) and the row (k,) of an answer about it or about a probe of it.

    A sample is a probe of the candidate that it is nearest to.
    """
    x = answers.x.cpu().flatten(1).double()
    candidates = challenge.x.cpu().flatten(1).double()
    found, rows = list[Tensor](), list[Tensor]()
    for start in range(0, len(x), _CHUNK):
        distance = torch.cdist(x[start : start + _CHUNK], candidates) / x.shape[1] ** 0.5
        nearest, candidate = distance.min(1)
        near = (nearest <= reach + _ROUNDING).nonzero().flatten()
        found.append(candidate[near])
        rows.append(start + near)
    return torch.cat(found), torch.cat(rows)


def _confidences(answers: RecordedAnswers, challenge: Challenge, reach: float) -> Tensor:
    """Return a client's logit-scaled confidence φ (n,) in the candidates' classes; NaN without an answer.

    Votes say little each, so those on probes of a candidate may count as those on itself. A probability of the
    candidate says more than those around it.
    """
    if answers.kind == "hard_labels" and reach > 0:
        candidates, rows = _probed(answers, challenge, reach)
    else:
        row_of: dict[bytes, int] = {}
        for row, image in enumerate(answers.x.cpu().contiguous()):
            row_of[image.numpy().tobytes()] = row
        places = list[int]()
        for image in challenge.x.cpu().contiguous():
            places.append(row_of.get(image.numpy().tobytes(), -1))
        place = torch.tensor(places, dtype=torch.int64)
        candidates = (place >= 0).nonzero().flatten()
        rows = place[candidates]
    values = answers.values[rows].double()
    probabilities = values.softmax(1) if answers.kind == "logits" else values
    phi = confidence(probabilities, challenge.y[candidates].cpu())
    total = torch.zeros(len(challenge.y), dtype=torch.float64).index_add_(0, candidates, phi)
    return total / candidates.bincount(minlength=len(total))  # 0 / 0 is NaN


def _flatness(answers: RecordedAnswers, challenge: Challenge, reach: float) -> Tensor:
    """Return how flat a client's loss is around the candidates (n,), -log of the gradient's norm; NaN without a probe.

    The gradient is the shortest one that fits the differences of the loss between a candidate and its probes, by least
    squares. Of probes in pairs on both sides of a candidate, the loss's curvature cancels.
    """
    candidates, rows = _probed(answers, challenge, reach)
    y = challenge.y[candidates].cpu()
    values = answers.values[rows].double()
    logs = values.log_softmax(1) if answers.kind == "logits" else values.clamp_min(_LEAST).log()
    loss = -logs.gather(1, y[:, None])[:, 0]
    x = answers.x[rows].cpu().flatten(1).double()
    flatness = torch.full((len(challenge.y),), torch.nan, dtype=torch.float64)
    for candidate in candidates.unique().tolist():
        steps = x[candidates == candidate] - challenge.x[candidate].cpu().flatten().double()
        own = steps.norm(dim=1) / steps.shape[1] ** 0.5 <= _ROUNDING
        if own.any() and not own.all():
            losses = loss[candidates == candidate]
            gradient = torch.linalg.pinv(steps[~own], rtol=_PARALLEL) @ (losses[~own] - losses[own][0])
            flatness[candidate] = -gradient.norm().clamp_min(_LEAST).log()
    return flatness


def _compared(
    answers: Mapping[str, RecordedAnswers],
    victim: str,
    challenge: Challenge,
    config: CandidateAnswersConfig,
) -> tuple[Tensor, Tensor]:
    """Return which candidates (n,) a client answered for, and the victim's φ (n,) less the mean of the others'."""
    scored = _flatness if config.slopes else _confidences
    phi = {client: scored(one, challenge, config.reach) for client, one in answers.items()}
    asked = torch.stack([*phi.values()]).isfinite().any(0)
    own = phi.pop(victim).nan_to_num(_DECLINED)
    if not phi:
        return asked, own
    return asked, own - torch.stack([*phi.values()]).nan_to_num(_DECLINED).mean(0)
