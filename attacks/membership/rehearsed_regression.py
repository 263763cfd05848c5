"""Membership from what follows from all clients together: averages, mixtures, and models distilled from these."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._target_model import asked
from .._uploads import clients_of, with_payload
from ._answers import evenly_spread
from ._averages import averages, ensembles_of, weights_of
from ._coins import scores_of
from ._derived import broadcast_changes, changes_of, joined
from ._distilled import distilled, distilled_broadcasts, readings_of_distilled, rounds_of
from ._mixtures import mixtures
from ._ridge import Regressed, regressed_rehearsed, regressed_sum
from ._study import Study, before_answers, drawn, drawn_of_stranger, missing, trained

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters

    from ._derived import Reading

__all__ = ["RehearsedRegression", "RehearsedRegressionConfig"]


class RehearsedRegressionConfig(Config):
    """Settings of rehearsed regression."""

    shadows: int = Field(200, ge=8)
    """Shadow models of each client; as many as `coin-regression` has, so that they are trained once."""
    most_steps: int = Field(2000, ge=1)
    """Training steps of one shadow model, at most."""
    rounds: int = Field(4, ge=1)
    """Averages that are looked at, at most: those of the first rounds."""
    broadcasts: int = Field(8, ge=0)
    """Changes of the broadcast model that are looked at, at most: the first ones."""
    samples: int = Field(1000, ge=1)
    """Samples of one average that are looked at, at most."""
    rehearsals: int = Field(24, ge=4)
    """Federations that are rehearsed for what a distilled model has of its teachers."""
    rehearsed_rounds: int = Field(20, ge=0)
    """Rounds of a protocol that is rehearsed, at most; longer ones are not."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Of coins, records other than the candidates, batches and rehearsals."""


@reads_forms
class RehearsedRegression:
    """Reads the coins of clients whose messages it does not see off what was made of all clients' messages.

    What is in view is a sum of what every client adds, and a residual: an average of answers of any round, the change
    of a broadcast model that averages clients' models, the mixture of all answers that FedIOD's cotangents tell a
    client, or the answers of a model that was distilled from an average, be it released or broadcast.
    Study shadows show what each client adds, with and without each candidate. Where a model was distilled, the
    protocol runs on a few federations of the adversary's own, and what their models answer beyond the average of their
    teachers is the residual. All that is in view is read together, if left-out shadows show that this tells more.
    """

    card = AttackCard(
        name="rehearsed-regression",
        work={"once": 38000, "each": 3000, "grows": ("shadows", "rehearsals"), "victims": "shadows"},
        goal="membership",
        needs=(
            "ensemble_labels",
            "vote_counts",
            "logit_cotangents",
            "model_parameters",
            "oracle (soft labels)",
        ),
        oracle="soft",
        assumes=("architecture", "auxiliary", "initial", "public", "rehearse"),
        source="Hoerl & Kennard 1970 on shadow models (Shokri et al. 2017), of rehearsed federations",
        control={"on": "average"},
        tasks=("single-label", "text", "table"),
        profiles={
            "quick": {"shadows": 180, "rounds": 1, "broadcasts": 3, "rehearsals": 16, "rehearsed_rounds": 2},
            "standard": {"shadows": 500, "rounds": 8, "rehearsals": 48},
            "full": {"shadows": 2000, "rounds": 20, "broadcasts": 20, "rehearsals": 100},
        },
    )
    Config: ClassVar[type[RehearsedRegressionConfig]] = RehearsedRegressionConfig

    def __init__(self, config: RehearsedRegressionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Yes with an average, a mixture or a distilled model of clients whose own messages are not in view."""
        if not (lacking := missing(knowledge, task)):
            return lacking
        hidden = _hidden(view, task)
        if not hidden:
            return Applicability(False, "every victim's own answers or model are in view, which tell more")
        ensembles = ensembles_of(view, knowledge, task, 1, 1)
        if any(set(one.weights) & hidden for one in ensembles):
            return Applicability(True)
        cotangents = with_payload(view.select(kind="logit_cotangents"))
        if cotangents and view.hyperparameters.get("weights") == "eq8":  # these tell a mixture of answers
            return Applicability(True)
        if self._distils(view, knowledge, task):
            return Applicability(True)
        if self.config.broadcasts and (broadcast_changes(view) or distilled_broadcasts(view)):
            return Applicability(True)
        return Applicability(
            False,
            "neither an average of answers or of models, nor a mixture of answers, nor a model of a short protocol "
            "that can be rehearsed in view",
        )

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim whose own messages are not in view; `seed` decides what is random."""
        shadows = self._shadows(view, knowledge, task)
        readings = self._readings(view, knowledge, task, shadows)
        if not readings:
            return ()
        hidden = _hidden(view, task)
        tried: dict[str, dict[str, Regressed]] = {}
        for what, reading in readings.items():
            clients = [(part, shadows[client].coins) for client, part in reading.parts.items()]
            if reading.residual is not None and reading.rehearsed is not None:
                regressions = regressed_rehearsed(clients, reading.seen, reading.residual, reading.rehearsed)
            else:
                regressions = regressed_sum(clients, reading.seen, reading.noise)
            tried[what] = dict(zip(reading.parts, regressions, strict=True))
        what = min(tried, key=lambda one: sum(tried[one][k].error for k in sorted(hidden)))
        guesses = []
        for name, regression in tried[what].items():
            if name in hidden:
                guess = Membership(
                    target=name,
                    scores=scores_of(regression.coins, task.challenges[name], paired=True),
                    note=f"from {what}",
                    rehearsed=regression.right,
                )
                guesses.append(guess)
        return tuple(guesses)

    def _shadows(
        self, view: View, knowledge: Knowledge, task: AttackTask, start: Parameters | None = None
    ) -> dict[str, Study]:
        """Return shadows of every client whose answers are not in view.

        They are as the clients are before their first answers, or after training from a model that was broadcast.
        """
        cfg = self.config
        training = before_answers(view.hyperparameters, from_upload=start is not None)
        records = max(len(c.y) for c in task.challenges.values()) // 2
        shadows = {}
        for client in clients_of(view):
            if client in view.members:
                continue
            if client in task.challenges:
                challenge = task.challenges[client]
                study = drawn(view, knowledge, challenge, cfg.shadows, paired=True, seed=cfg.seed)
            else:
                study = drawn_of_stranger(
                    view, knowledge, client, cfg.shadows, records=records, seed=cfg.seed
                )
            shadows[client] = trained(
                knowledge, study, training=training, start=start, most_steps=cfg.most_steps
            )
        return shadows

    def _readings(
        self, view: View, knowledge: Knowledge, task: AttackTask, shadows: dict[str, Study]
    ) -> dict[str, Reading]:
        """Return what can be read, by what it is; several things together come last."""
        cfg = self.config
        rounds = averages(
            view, knowledge, task, shadows,
            rounds=cfg.rounds, samples=cfg.samples, most_steps=cfg.most_steps, seed=cfg.seed,
        )  # fmt: skip

        def shadows_from(start: Parameters) -> dict[str, Study]:
            return self._shadows(view, knowledge, task, start)

        changes = changes_of(view, cfg.broadcasts, shadows_from)
        candidates = torch.cat([c.x for c in task.challenges.values()])
        taught = readings_of_distilled(
            view, knowledge, candidates, shadows_from,
            most=cfg.broadcasts, rehearsals=cfg.rehearsals, seed=cfg.seed,
        )  # fmt: skip
        readings: dict[str, Reading] = {}
        for series, first, several in (
            (rounds, "the first average", "averages"),
            (changes, "the broadcast model's first change", "changes of the broadcast model"),
            (taught, "the first distilled broadcast", "distilled broadcasts"),
        ):
            if series:
                readings[first] = series[0]
            if len(series) > 1:
                readings[f"{len(series)} {several}"] = joined(series)
        mixture = mixtures(view, knowledge, shadows, samples=2 * cfg.samples, seed=cfg.seed)
        if mixture is not None:
            readings["mixtures of answers"] = mixture
        model = self._model(view, knowledge, task, shadows)
        if model is not None:
            readings["the distilled model"] = model
        if model is not None and len(readings) > 1:
            readings["all of these"] = joined([*readings.values()][-2:])
        return readings

    def _distils(self, view: View, knowledge: Knowledge, task: AttackTask) -> bool:
        """Return whether a model that was made of all clients' answers can be asked, and its making rehearsed."""
        if knowledge.rehearse is None or rounds_of(view) > self.config.rehearsed_rounds:
            return False
        target = next(iter(task.challenges))
        model, _ = asked("soft", view, knowledge, task, target, own=False)
        return model is not None and model.of is None

    def _model(
        self, view: View, knowledge: Knowledge, task: AttackTask, shadows: dict[str, Study]
    ) -> Reading | None:
        """Return what the released model answers about public samples and candidates, as a sum over its teachers."""
        if not self._distils(view, knowledge, task):
            return None
        model, _ = asked("soft", view, knowledge, task, next(iter(task.challenges)), own=False)
        samples = [c.x for c in task.challenges.values()]
        if knowledge.public is not None:
            samples.append(knowledge.public[evenly_spread(len(knowledge.public), self.config.samples)])
        x = torch.cat(samples)
        if model is None or len(x) > model.remaining:
            return None
        clients = clients_of(view)
        return distilled(
            view, knowledge, shadows, weights_of(view, task, clients, knowledge.classes), x, model(x),
            rehearsals=self.config.rehearsals, seed=self.config.seed,
        )  # fmt: skip


def _hidden(view: View, task: AttackTask) -> set[str]:
    """Return the victims that sent nothing in view which is about their own model."""
    kinds = {"logits", "soft_labels", "hard_labels", "model_parameters", "model_update", "gradient"}
    senders = set[str]()
    for m in with_payload(view.messages):
        if m.kind in kinds:
            senders.add(m.sender)
    return {name for name in task.challenges if name not in senders}
