"""Membership from recorded answers: the coins that decided about records, by regression on answers of shadows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import TrainingDivergedError
from fdaudit.goals.membership import Membership
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._target_model import asked
from .._uploads import WEIGHTS, after, updates_without_broadcast, uploads_of
from ._answers import Recorded, recorded
from ._case import probabilities
from ._coins import pairs_of, scores_of
from ._followed import Answered, answered_in_rounds, followed
from ._matched import Matched, before_answers, initial_weights, matched
from ._references import missing
from ._ridge import Own, Regressed, regressed, regressed_in_parts, unexplained
from ._statistics import confidence
from ._treatment import Treatment, treatments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters
    from fdaudit.transcript.messages import Message
    from fdaudit.types import Challenge

__all__ = ["CoinRegression", "CoinRegressionConfig"]

_MOST_PARAMETERS = 100_000
_FLOOR = 1e-6
"""Smallest probability before a logarithm."""
_MORE_STRANGE = 2.0
"""How much worse than a client's first answers shadows may explain others of it that are read with them."""
_LESSONS = ("ensemble_labels", "hard_labels", "model_parameters", "soft_labels", "vote_counts")
"""Kinds of messages from which a client learns."""
_REPEATS = 4
"""Questions about the same candidate, if answers have noise."""


class CoinRegressionConfig(Config):
    """Settings of coin regression."""

    shadows: int = Field(200, ge=8)
    """Shadow models of each victim."""
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
class _Told:
    """Evidence of one upload, or of one round of answers, about a client's model.

    Attributes:
        values: (s, C) answers of the client's model, (P,) what training has changed in it, or (1,) its largest logit.
        kind: `logits`, `soft_labels`, `change` or `logit_range`.
        x: (s, c, h, w) the samples that are answered.
        floor: smallest probability before a logarithm.
        start: what the model was trained from, if it is in view.
        noise: variance of the noise on each value.
    """

    values: Tensor
    kind: str
    x: Tensor | None = None
    floor: float = _FLOOR
    start: Parameters | None = None
    noise: float = 0.0


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

    name: ClassVar[str] = "coin-regression"
    work: ClassVar[dict[str, Any]] = {"once": 38000, "each": 3000, "grows": ("shadows", "uploads", "rounds")}
    goal: ClassVar[str] = "membership"
    needs: ClassVar[tuple[str, ...]] = (
        "logits",
        "soft_labels",
        "model_update",
        "model_parameters",
        "oracle (soft labels)",
    )
    oracle: ClassVar[str | None] = "soft"
    reads: ClassVar[tuple[str, ...]] = ("class_counts", "logit_range", "sample_count")
    assumes: ClassVar[tuple[str, ...]] = ("architecture", "auxiliary", "initial", "public")
    source: ClassVar[str] = "Hoerl & Kennard 1970 on shadow models (Shokri et al. 2017)"
    control: ClassVar[dict[str, str]] = {"on": "federation"}
    tasks: ClassVar[tuple[str, ...]] = ("single-label", "text")
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"shadows": 144, "uploads": 8, "rounds": 1},
        "standard": {"shadows": 500, "uploads": 16, "rounds": 4},
        "full": {"shadows": 2000, "uploads": 100, "rounds": 8},
    }
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
        found: list[Membership] = []
        for name, challenge in task.challenges.items():
            heard, sent = answers.get(name, []), self._uploaded(view, knowledge, name)
            if heard or sent:
                found.append(self._guess(view, knowledge, task, challenge, heard, sent))
        return tuple(found)

    def _uploaded(self, view: View, knowledge: Knowledge, target: str) -> list[_Told]:
        """What a client's uploads changed in the models that it had received, spread over all that it sent."""
        sent = _uploads(view, knowledge, target)
        chosen = torch.linspace(0, len(sent) - 1, min(self.config.uploads, len(sent))).round().long().tolist()
        found = []
        for message, start in (sent[k] for k in chosen):
            changed = _change(after(view, message, start), start)
            found.append(_Told(values=changed, kind="change", start=start))
        return found

    def _guess(
        self,
        view: View,
        knowledge: Knowledge,
        task: AttackTask,
        challenge: Challenge,
        heard: list[Answered],
        sent: list[_Told],
    ) -> Membership:
        parts, rounds, own = list[tuple[Tensor, Tensor, float]](), 0, list[Own]()
        for made, one in self._shown(view, knowledge, challenge, heard, sent):
            coins, rounds = made.coins, rounds + (one.kind in ("logits", "soft_labels"))
            theirs, mine = _read(_answers(knowledge, made, one), coins, one)
            # What else trains beside the records, as FedGEN's generated features do, is noise to the shadows.
            noise = unexplained([theirs], mine) if one.kind == "change" else one.noise
            parts.append((theirs, mine, noise))
        if not sent and len(heard) == 1:
            first = parts[0]
            if (later := self._later(view, knowledge, challenge, made, first)) is not None:
                parts[0], rounds = later, 0
            own = self._asked(view, knowledge, task, challenge, made, parts[0])
        # On DaFKD's uploads joining reads more coins right, although stacking promises more.
        return self._membership(challenge, regressed_in_parts(parts, coins, stack=not sent, own=own), rounds)

    def _later(
        self,
        view: View,
        knowledge: Knowledge,
        challenge: Challenge,
        made: Matched,
        first: tuple[Tensor, Tensor, float],
    ) -> tuple[Tensor, Tensor, float] | None:
        """Return a client's answers spread over all rounds, if the shadows explain these as well as its first ones.

        They do where clients do not learn after their first answers. None if there are none, they do not, or the client
        was sent something to learn from before its last answers.
        """
        sent = [m.seq for m in view.select(sender=challenge.target) if m.kind in ("logits", "soft_labels")]
        if any(
            challenge.target in m.receivers and m.kind in _LESSONS and m.seq < sent[-1] for m in view.messages
        ):
            return None
        spread = recorded(view, knowledge, self.config.samples, spread=True).get(challenge.target)
        if spread is None or not len(spread.samples):
            return None
        told = _answered(spread)
        found = (*_read(_answers(knowledge, made, told), made.coins, told), told.noise)
        return found if _strangeness(*found) <= _MORE_STRANGE * _strangeness(*first) else None

    def _asked(
        self,
        view: View,
        knowledge: Knowledge,
        task: AttackTask,
        challenge: Challenge,
        made: Matched,
        first: tuple[Tensor, Tensor, float],
    ) -> list[Own]:
        """Return what a client's model answers about its candidates, if it can be asked and is the one that answered.

        Both the logits of each candidate and its confidence count.
        """
        target, _ = asked("soft", view, knowledge, task, challenge.target, own=False)
        if target is None or target.of is None or target.remaining < len(task.challenges) * len(challenge.y):
            return []
        treated = treatments(view, challenge.target)
        times = max(
            1,
            min(
                _REPEATS if treated.noisy else 1, target.remaining // len(challenge.y) // len(task.challenges)
            ),
        )
        heard = torch.stack([target(challenge.x).double() for _ in range(times)]).mean(0)
        mine = treated.probabilities(heard) if treated != Treatment() else heard
        theirs = torch.stack([probabilities(knowledge, model, challenge.x).double() for model in made.models])
        floor = max(treated.floor, _FLOOR)
        found = []
        for how in (_centred_logs, lambda p, floor: _confidence(p, challenge.y, floor)):
            a, b = how(theirs, floor), how(mine, floor)
            if _strangeness(a.flatten(1), b.flatten(), 0.0) > _MORE_STRANGE * _strangeness(*first):
                return []
            found.append(
                Own(
                    theirs=_by_coin(a, challenge, self.config.paired),
                    mine=_by_coin(b[None], challenge, self.config.paired)[0],
                )
            )
        return found

    def _shown(
        self, view: View, knowledge: Knowledge, challenge: Challenge, heard: list[Answered], sent: list[_Told]
    ) -> Iterator[tuple[Matched, _Told]]:
        """Yield all that the view tells of a client's model, each with the shadows to compare it with."""
        if heard:
            made = self._shadows(view, knowledge, challenge, None)
        for number, one in enumerate(heard):
            try:
                made = followed(
                    knowledge, made, one.lessons,
                    training=view.hyperparameters, most_steps=self.config.most_steps, seed=self.config.seed,
                )  # fmt: skip
            except TrainingDivergedError:
                if number:
                    break
            yield made, _answered(one.answers)
            if not number and (ranged := _ranged(view, knowledge, challenge.target)) is not None:
                yield made, ranged
        for told in sent:
            yield self._shadows(view, knowledge, challenge, told.start), told

    def _shadows(
        self, view: View, knowledge: Knowledge, challenge: Challenge, start: Parameters | None
    ) -> Matched:
        return matched(
            view,
            knowledge,
            challenge,
            self.config.shadows,
            training=before_answers(view.hyperparameters, from_upload=start is not None),
            start=start,
            paired=self.config.paired,
            most_steps=self.config.most_steps,
            seed=self.config.seed,
        )

    def _membership(self, challenge: Challenge, found: Regressed, rounds: int = 0) -> Membership:
        told = f"answers of {rounds} {'round' if rounds == 1 else 'rounds'}" if rounds else ""
        return Membership(
            target=challenge.target,
            scores=scores_of(found.coins, challenge, paired=self.config.paired),
            note=told,
            rehearsed=found.right,
        )


def _uploads(view: View, knowledge: Knowledge, target: str) -> list[tuple[Message, Parameters]]:
    """Return a client's uploads, each with the model that it was trained from."""
    received = [(m, view.tensors(before)) for m, before in uploads_of(view, target, WEIGHTS)]
    initial = initial_weights(knowledge)
    if received or initial is None:
        return received
    return updates_without_broadcast(view, target, initial)


def _strangeness(theirs: Tensor, mine: Tensor, noise: float) -> float:
    """Return how far answers (d,) are from those of shadows (m, d), in the variance of these; about 1 if alike."""
    centre = theirs.double().mean(0)
    spread = (theirs.double() - centre).square().sum() / max(len(theirs) - 1, 1)
    return float((mine.double() - centre).square().sum() / (spread + noise * len(mine)).clamp_min(1e-300))


def _centred_logs(p: Tensor, floor: float) -> Tensor:
    """Return the logarithms (..., n, C) of probabilities, less their mean."""
    found = p.clamp_min(floor).log()
    return found - found.mean(-1, keepdim=True)


def _confidence(p: Tensor, y: Tensor, floor: float) -> Tensor:
    """Return the logit-scaled confidence (..., n, 1) of probabilities (..., n, C)."""
    rows = [confidence(one, y, floor) for one in p.reshape(-1, *p.shape[-2:])]
    return torch.stack(rows).reshape(*p.shape[:-1], 1)


def _by_coin(values: Tensor, challenge: Challenge, paired: bool) -> Tensor:
    """Return by coin (m, k, e) what answers (m, n, e) say of its candidates: both of a pair, or one."""
    pairs = pairs_of(challenge) if paired else None
    return values if pairs is None else values[:, pairs].flatten(2)


def _answered(heard: Recorded) -> _Told:
    floor = max(heard.treatment.floor, _FLOOR)
    return _Told(x=heard.x, values=heard.values, kind=heard.kind, floor=floor, noise=heard.noise)


def _ranged(view: View, knowledge: Knowledge, client: str) -> _Told | None:
    """A client's largest absolute logit on the public samples, as it was before quantisation; None if not in view."""
    sent = [m for m in view.select(kind="logit_range", sender=client) if m.payload is not None]
    if not sent or knowledge.public is None or "max_abs" not in sent[0].tensors:
        return None
    value = view.tensors(sent[0])["max_abs"].cpu().float().reshape(1)
    return _Told(values=value, kind="logit_range", x=knowledge.public)


def _answers(knowledge: Knowledge, made: Matched, told: _Told) -> Tensor:
    """What the victim's values are, of shadows: (m, s, C), (m, P) or (m, 1)."""
    if knowledge.train is None:
        raise ValueError("coin-regression: no training core to ask shadows with.")
    if told.x is None:
        return torch.stack([_change(model, told.start or {}) for model in made.models])
    z = torch.stack([knowledge.train.predict(model, told.x) for model in made.models])
    if told.kind == "logit_range":
        return z.abs().amax((1, 2))[:, None]
    return z - z.mean(2, keepdim=True) if told.kind == "logits" else z.softmax(2)


def _change(model: Parameters, start: Parameters) -> Tensor:
    """What training has changed (P,), in float32; of a large network every so many parameters are looked at."""
    found = torch.cat([(model[name] - start[name]).flatten().float() for name in sorted(start)])
    return found[:: -(-len(found) // _MOST_PARAMETERS)]


def _read(theirs: Tensor, coins: Tensor, told: _Told) -> tuple[Tensor, Tensor]:
    """Answers of shadows (m, d) and of the victim (d,); probabilities as logits, where these say more."""
    plain = theirs.flatten(1), told.values.flatten()
    if told.kind != "soft_labels" or told.noise:
        return plain

    def logits(answers: Tensor) -> Tensor:
        found = answers.clamp_min(told.floor).log()
        return found - found.mean(-1, keepdim=True)

    undone = logits(theirs).flatten(1), logits(told.values).flatten()
    return min((undone, plain), key=lambda pair: regressed(pair[0], coins, pair[1]).error)
