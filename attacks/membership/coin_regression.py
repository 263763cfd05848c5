"""Membership from recorded answers: the coins that decided about records, by regression on answers of shadows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import TrainingDivergedError
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._shadows import parts_of
from .._uploads import WEIGHTS, after, updates_without_broadcast, uploads_of, with_payload
from ._answers import RecordedAnswers, Treatment, evenly_spread, recorded
from ._coins import scores_of
from ._derived import MOST_PARAMETERS, change_in
from ._queried import FLOOR, centred_logs, own_answers, stranger
from ._ridge import Own, Regressed, regressed, regressed_in_parts, unexplained
from ._rounds import FollowedAnswers, answered_in_rounds, followed
from ._study import Study, before_answers, drawn, initial_weights, missing, trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters
    from fdaudit.transcript.messages import Message
    from fdaudit.types import Challenge

__all__ = ["CoinRegression", "CoinRegressionConfig"]

_SURE = 0.92
"""Share of left-out coins read right above which shadows end: under Gaussian errors an AUC of 0.976."""
_DEVIATIONS = 3.0
"""Standard deviations of a mean over shadows: then two early looks together err in less than 1 of 100 cases."""
_LESSONS = ("ensemble_labels", "hard_labels", "model_parameters", "soft_labels", "vote_counts")
"""Kinds of messages from which a client learns."""


class CoinRegressionConfig(Config):
    """Settings of coin regression."""

    shadows: int = Field(200, ge=8)
    """Shadow models of each victim, at most: no more are trained once left-out coins are read surely."""
    most_steps: int = Field(2000, ge=1)
    """Training steps of one shadow model, at most."""
    uploads: int = Field(4, ge=1)
    """Models of a victim that are looked at, at most: spread over all that it sent."""
    rounds: int = Field(4, ge=1)
    """Rounds of a victim's answers that are looked at, at most: the first ones."""
    samples: int = Field(1000, ge=1)
    """Samples of one round whose answers are looked at, at most."""
    paired: bool = True
    """Whether it is used that one candidate of each matched pair is a member."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Of coins, records besides the candidates and batches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _CoinEvidence:
    """Evidence of one upload, or of one round of answers, about a client's model.

    Attributes:
        values: (s, C) answers of the client's model, (P,) what training has changed in it, or (1,) its largest logit.
        kind: `logits`, `soft_labels`, `change` or `logit_range`.
        x: (s, c, h, w) the samples that are answered.
        floor: smallest probability before a logarithm.
        start: what the model was trained from, if it is in view.
        noise: variance of the noise on each value.
        treatment: the effects of defences on the values.
    """

    values: Tensor
    kind: str
    x: Tensor | None = None
    floor: float = FLOOR
    start: Parameters | None = None
    noise: float = 0.0
    treatment: Treatment = field(default_factory=Treatment)


@reads_forms
class CoinRegression:
    """Learns from shadow models how each candidate moves a client's answers, and reads the coins off its real ones.

    Shadows have the victim's number of records and classes, and train as it does. Of a matched pair one candidate is
    in each. The attack regresses the coins on what shadows answer to the samples that the victim answered. Where
    the victim learns from ensembles in view, its shadows learn from the same ones, and its answers of several rounds
    count. Where the victim sent its model, the attack regresses the coins on what training changes in the model that
    it had received. Where only the average of all clients' answers is in view, it predicts the coins of all victims
    from that average together. Left-out shadows say beforehand how well that will do.
    """

    card = AttackCard(
        name="coin-regression",
        work={"once": 60000, "each": 3000, "grows": ("shadows", "uploads", "rounds"), "victims": "shadows"},
        goal="membership",
        needs=(
            "logits",
            "soft_labels",
            "model_update",
            "model_parameters",
            "oracle (soft labels)",
        ),
        oracle="soft",
        reads=("class_counts", "logit_range", "sample_count"),
        assumes=("architecture", "auxiliary", "initial", "public"),
        source="Hoerl & Kennard 1970 on shadow models (Shokri et al. 2017)",
        control={"on": "federation"},
        tasks=("single-label", "text", "table"),
        profiles={
            "quick": {"shadows": 300, "uploads": 8, "rounds": 1},
            "standard": {"shadows": 500, "uploads": 16, "rounds": 4},
            "full": {"shadows": 2000, "uploads": 100, "rounds": 8},
        },
    )
    Config: ClassVar[type[CoinRegressionConfig]] = CoinRegressionConfig

    def __init__(self, config: CoinRegressionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Yes with answers or models of a victim in view, and what shadow models need."""
        if not (lacking := missing(knowledge, task)):
            return lacking
        if set(recorded(view, knowledge, 1)) & set(task.challenges):
            return Applicability(True)
        if any(_uploads(view, knowledge, name) for name in task.challenges):
            return Applicability(True)
        return Applicability(
            False, "neither a victim's answers on known samples nor its model with the one before it in view"
        )

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim of whose model the view tells; `seed` decides what is random."""
        answers = answered_in_rounds(view, knowledge, self.config.samples, self.config.rounds)
        guesses: list[Membership] = []
        for name, challenge in task.challenges.items():
            heard = answers.get(name, [])
            sent = _uploads(view, knowledge, name)
            uploads = list[_CoinEvidence]()
            for k in evenly_spread(len(sent), self.config.uploads).tolist():
                message, start = sent[k]
                change = change_in(after(view, message, start), start, MOST_PARAMETERS)
                uploads.append(_CoinEvidence(values=change, kind="change", start=start))
            if not heard and not uploads:
                continue
            for count in _looks(self.config.shadows):
                regression, note = self._regressed(view, knowledge, task, challenge, heard, uploads, count)
                if _sure(regression):
                    break
            guess = Membership(
                target=name,
                scores=scores_of(regression.coins, challenge, paired=self.config.paired),
                note=note,
                rehearsed=regression.right,
            )
            guesses.append(guess)
        return tuple(guesses)

    def _regressed(
        self,
        view: View,
        knowledge: Knowledge,
        task: AttackTask,
        challenge: Challenge,
        heard: list[FollowedAnswers],
        uploads: list[_CoinEvidence],
        count: int,
    ) -> tuple[Regressed, str]:
        """Return a victim's coins as `count` shadows tell them, and a note on what they were read from."""
        parts = list[tuple[Tensor, Tensor, float]]()
        rounds = 0
        own = list[Own]()
        for study, one in self._shown(view, knowledge, challenge, heard, uploads, count):
            coins = study.coins
            rounds = rounds + (one.kind in ("logits", "soft_labels"))
            theirs, mine = _read(_answers(knowledge, study, one), coins, one)
            # What else trains beside the records, as FedGEN's generated features do, is noise to the shadows.
            noise = unexplained([theirs], mine) if one.kind == "change" else one.noise
            parts.append((theirs, mine, noise))
        if not uploads and len(heard) == 1:
            first = parts[0]
            if (later := self._later(view, knowledge, challenge, study, first)) is not None:
                parts[0], rounds = later, 0
            own = own_answers(view, knowledge, task, challenge, study, parts[0], paired=self.config.paired)
        # On DaFKD's uploads joining reads more coins right, although stacking promises more.
        regression = regressed_in_parts(parts, coins, stack=not uploads, own=own)
        note = f"{count} shadows"
        if rounds:
            note = f"{note}, answers of {rounds} {'round' if rounds == 1 else 'rounds'}"
        return regression, note

    def _later(
        self,
        view: View,
        knowledge: Knowledge,
        challenge: Challenge,
        study: Study,
        first: tuple[Tensor, Tensor, float],
    ) -> tuple[Tensor, Tensor, float] | None:
        """Return a client's answers spread over all rounds, if the shadows explain these as well as its first ones.

        They do where clients do not learn after their first answers. None if there are none, they do not, or the client
        was sent something to learn from before its last answers.
        """
        numbers = list[int]()
        for m in view.select(sender=challenge.target):
            if m.kind in ("logits", "soft_labels"):
                numbers.append(m.seq)
        if any(
            challenge.target in m.receivers and m.kind in _LESSONS and m.seq < numbers[-1]
            for m in view.messages
        ):
            return None
        spread = recorded(view, knowledge, self.config.samples, spread=True).get(challenge.target)
        if spread is None or not len(spread.samples):
            return None
        evidence = _answered(spread)
        later = (*_read(_answers(knowledge, study, evidence), study.coins, evidence), evidence.noise)
        return None if stranger(later, first) else later

    def _shown(
        self,
        view: View,
        knowledge: Knowledge,
        challenge: Challenge,
        heard: list[FollowedAnswers],
        uploads: list[_CoinEvidence],
        count: int,
    ) -> Iterator[tuple[Study, _CoinEvidence]]:
        """Yield all that the view tells of a client's model, each with the `count` shadows to compare it with."""
        if heard:
            study = self._trained(view, knowledge, challenge, None, count)
        for number, one in enumerate(heard):
            try:
                study = followed(
                    knowledge, study, one.lessons,
                    training=view.hyperparameters, most_steps=self.config.most_steps, seed=self.config.seed,
                )  # fmt: skip
            except TrainingDivergedError:
                if number:
                    break
            yield study, _answered(one.answers)
            if not number and (ranged := _ranged(view, knowledge, challenge.target)) is not None:
                yield study, ranged
        for upload in uploads:
            yield self._trained(view, knowledge, challenge, upload.start, count), upload

    def _trained(
        self,
        view: View,
        knowledge: Knowledge,
        challenge: Challenge,
        start: Parameters | None,
        count: int,
    ) -> Study:
        cfg = self.config
        study = drawn(view, knowledge, challenge, count, paired=cfg.paired, seed=cfg.seed)
        training = before_answers(view.hyperparameters, from_upload=start is not None)
        return trained(knowledge, study, training=training, start=start, most_steps=cfg.most_steps)


def _looks(shadows: int) -> list[int]:
    """Return after how many shadows coins are read: a quarter, half and all, up to blocks that are trained together."""
    looks = set[int]()
    for share in (4, 2, 1):
        for block in parts_of(shadows):
            if share * block.stop >= shadows:
                looks.add(block.stop)
                break
    return sorted(looks)


def _sure(regression: Regressed) -> bool:
    """Return whether surely more than `_SURE` of left-out coins are read right: a one-sided test over shadows."""
    shares = regression.right_by_shadow
    by_chance = math.sqrt(_SURE * (1 - _SURE) / regression.coins.numel())
    error = max(float(shares.std()), by_chance) / math.sqrt(len(shares))
    return float(shares.mean()) - _DEVIATIONS * error > _SURE


def _uploads(view: View, knowledge: Knowledge, target: str) -> list[tuple[Message, Parameters]]:
    """Return a client's uploads, each with the model that it was trained from."""
    received = [(m, view.tensors(before)) for m, before in uploads_of(view, target, WEIGHTS)]
    initial = initial_weights(knowledge)
    if received or initial is None:
        return received
    return updates_without_broadcast(view, target, initial)


def _answered(heard: RecordedAnswers) -> _CoinEvidence:
    floor = max(heard.treatment.floor, FLOOR)
    return _CoinEvidence(
        x=heard.x,
        values=heard.values,
        kind=heard.kind,
        floor=floor,
        noise=heard.noise,
        treatment=heard.treatment,
    )


def _ranged(view: View, knowledge: Knowledge, client: str) -> _CoinEvidence | None:
    """A client's largest absolute logit on the public samples, as it was before quantisation; None if not in view."""
    messages = with_payload(view.select(kind="logit_range", sender=client))
    if not messages or knowledge.public is None or "max_abs" not in messages[0].tensors:
        return None
    value = view.tensors(messages[0])["max_abs"].cpu().float().reshape(1)
    return _CoinEvidence(values=value, kind="logit_range", x=knowledge.public)


def _answers(knowledge: Knowledge, study: Study, evidence: _CoinEvidence) -> Tensor:
    """Return for shadows what the victim's values are: (m, s, C), (m, P) or (m, 1)."""
    if evidence.x is None:
        start = evidence.start or {}
        return torch.stack([change_in(model, start, MOST_PARAMETERS) for model in study.models])
    z = study.logits(knowledge, evidence.x)
    if evidence.kind == "logit_range":
        return z.abs().amax((1, 2))[:, None]
    answers = z - z.mean(2, keepdim=True) if evidence.kind == "logits" else z.softmax(2)
    if not evidence.treatment.top:
        return answers
    return torch.stack([evidence.treatment.as_sent(one) for one in answers])


def _read(theirs: Tensor, coins: Tensor, evidence: _CoinEvidence) -> tuple[Tensor, Tensor]:
    """Answers of shadows (m, d) and of the victim (d,); probabilities as logits, where these say more."""
    plain = theirs.flatten(1), evidence.values.flatten()
    if evidence.kind != "soft_labels" or evidence.noise:
        return plain

    logits = centred_logs(theirs, evidence.floor).flatten(1)
    undone = logits, centred_logs(evidence.values, evidence.floor).flatten()
    return min((undone, plain), key=lambda pair: regressed(pair[0], coins, pair[1]).error)
