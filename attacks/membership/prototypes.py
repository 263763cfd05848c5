"""Membership from mean predictions by class: the coins that decided about records, by regression on shadows' tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.rng import child_seed
from fdaudit.training.class_means import known
from fdaudit.transcript.messages import role
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import clients_of, with_payload
from ._answers import treatment_of
from ._coins import scores_of
from ._queried import centred_logs
from ._ridge import Regressed, regressed_in_parts, regressed_sum, stacked
from ._rounds import tables_of_shadows, tables_sent, teachers_of
from ._study import Study, drawn, drawn_of_stranger, missing

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.types import Challenge

__all__ = ["PrototypeRegression", "PrototypeRegressionConfig", "averages"]

_KIND = "class_prototypes"
_FLOOR = 1e-6
"""Smallest probability before a logarithm."""


class PrototypeRegressionConfig(Config):
    """Settings of the regression on class means."""

    shadows: int = Field(200, ge=8)
    """Shadow models of each victim."""
    rounds: int = Field(100, ge=1)
    """Rounds that are looked at, at most: the first ones."""
    most_steps: int = Field(2000, ge=1)
    """Training steps of one shadow model in one round, at most."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Of coins, other records, initial weights and batches."""


@reads_forms
class PrototypeRegression:
    """Learns from shadow clients how each candidate moves class means, and reads the coins off a client's real ones.

    FKD's and PLS's clients send, each round, the mean prediction for their own records of each class. Shadows have one
    candidate of each matched pair and train as the victim does, towards the teachers that it was sent. In each round
    the attack regresses the coins on the shadows' tables, and it joins the rounds by their error on left-out shadows.
    A client sees only means over other clients: there it predicts the coins of all victims from each mean together.
    """

    card = AttackCard(
        name="prototype-regression",
        work={"once": 30000, "each": 20000, "grows": ("shadows", "rounds"), "victims": "shadows"},
        goal="membership",
        needs=("class_prototypes",),
        reads=("class_counts", "sample_count"),
        assumes=("architecture", "auxiliary"),
        oracle=None,
        source="Hoerl & Kennard 1970 on shadow models (Shokri et al. 2017); stacked after Wolpert 1992",
        control={"on": "tables"},
        tasks=("single-label", "text", "table"),
        profiles={
            "quick": {"shadows": 180, "rounds": 50},
            "standard": {"shadows": 500, "rounds": 100},
            "full": {"shadows": 2000, "rounds": 500},
        },
    )
    Config: ClassVar[type[PrototypeRegressionConfig]] = PrototypeRegressionConfig

    def __init__(self, config: PrototypeRegressionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a victim's class means or a mean of them in view, and for what shadow models need."""
        if not (lacking := missing(knowledge, task)):
            return lacking
        if any(tables_sent(view, name) for name in task.challenges) or averages(view):
            return Applicability(True)
        return Applicability(False, "no class means of a victim, nor a mean of clients' class means, in view")

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim; `seed` decides what is random."""
        guesses: list[Membership] = []
        unseen: list[Challenge] = []
        for name, challenge in task.challenges.items():
            tables = dict[int, Tensor]()
            for now, table in tables_sent(view, name).items():
                if now < self.config.rounds:
                    tables[now] = table
            if not tables:
                unseen.append(challenge)
                continue
            study = self._drawn(view, knowledge, challenge)
            theirs = self._tables(view, knowledge, name, study, tables)
            last = view.select(kind=_KIND, sender=name)[-1]
            treatment = treatment_of("soft_labels", view.defenses_of(last), view.tensors(last)["values"])
            plain = treatment.noisy or view.hyperparameters.get("share") == "hard"
            floor = max(treatment.floor, _FLOOR)
            parts = []
            for now, table in sorted(tables.items()):
                shadows = theirs[:, now].double()
                mine = table
                if not plain:
                    shadows = centred_logs(shadows, floor)  # rows of classes without records are zero
                    mine = centred_logs(mine, floor)
                parts.append((shadows.flatten(1), mine.flatten(), treatment.variance))
            regression = regressed_in_parts(parts, study.coins, stack=True)
            guesses.append(_membership(challenge, regression, len(parts)))
        mean = averages(view) if unseen else None
        if mean is not None:
            guesses += self._guesses(view, knowledge, unseen, *mean)
        return tuple(guesses)

    def _guesses(
        self,
        view: View,
        knowledge: Knowledge,
        challenges: Sequence[Challenge],
        means: Mapping[int, Tensor],
        within: Sequence[str],
    ) -> list[Membership]:
        """Guess about victims whose tables are in view as part of a mean alone, over the clients `within`."""
        cfg = self.config
        means = {now: table for now, table in means.items() if now < cfg.rounds}
        by_name = {c.target: c for c in challenges}
        own = {}
        records = max(len(c.y) for c in challenges) // 2
        studies: dict[str, Study] = {}
        for client in within:
            own[client] = tables_sent(view, client)
            if client in by_name:
                studies[client] = self._drawn(view, knowledge, by_name[client])
            elif not own[client]:
                studies[client] = drawn_of_stranger(
                    view, knowledge, client, cfg.shadows, records=records, seed=cfg.seed
                )
        shadows = {}
        for client, study in studies.items():
            shadows[client] = self._tables(view, knowledge, client, study, means)
        regressions: dict[str, list[Regressed]] = {name: [] for name in by_name}
        for now, table in sorted(means.items()):
            theirs = [tables[:, now].double() for tables in shadows.values()]
            mine = [tables[now] for tables in own.values() if now in tables]
            share = _share(theirs, mine)
            rest = table - torch.stack([*(share * t for t in mine), torch.zeros_like(table)]).sum(0)
            clients = []
            for tables_of_client, study in zip(theirs, studies.values(), strict=True):
                clients.append(((tables_of_client * share).flatten(1), study.coins))
            predicted = regressed_sum(clients, rest.flatten())
            for name, one in zip(shadows, predicted, strict=True):
                if name in by_name:
                    regressions[name].append(one)
        guesses = []
        for challenge in challenges:
            if challenge.target in shadows:
                regression = stacked(regressions[challenge.target], studies[challenge.target].coins)
                guesses.append(_membership(challenge, regression, len(means)))
        return guesses

    def _drawn(self, view: View, knowledge: Knowledge, challenge: Challenge) -> Study:
        cfg = self.config
        return drawn(view, knowledge, challenge, cfg.shadows, paired=True, seed=cfg.seed)

    def _tables(
        self, view: View, knowledge: Knowledge, client: str, study: Study, sent: Mapping[int, Tensor]
    ) -> Tensor:
        """Return the tables (m, R, C, C) of a client's shadows, in all rounds up to the last of those in view."""
        return tables_of_shadows(
            knowledge,
            study,
            teachers_of(view, client, max(sent) + 1, knowledge.classes),
            training=view.hyperparameters,
            only_right=_only_right(sent),
            most_steps=self.config.most_steps,
            seed=child_seed(self.config.seed, client),
        )


def averages(view: View) -> tuple[dict[int, Tensor], tuple[str, ...]] | None:
    """Return a party's mean tables (C, C) in view by round, and the clients within: those that it was sent to or not.

    A mean for one client alone is over the others, as in FKD. A mean for several is over all clients, as in PLS. Among
    means for single clients those of the view's first member count. None if there is no mean in view.
    """
    first = None
    tables = {}
    for message in with_payload(view.select(kind=_KIND)):
        if role(message.sender) == "client":
            continue
        if first is None:
            first = message.receivers
        if message.receivers == first:
            tables[message.round] = view.tensors(message)["values"].double().cpu()
    if first is None:
        return None
    within = clients_of(view)
    if len(first) == 1:
        within = [client for client in within if client not in first]
    return tables, tuple(within)


def _share(theirs: Sequence[Tensor], mine: Sequence[Tensor]) -> Tensor:
    """Return the weight (C, 1) of one client's row in a mean: 1 over the expected number of clients with the class.

    Args:
        theirs: tables (m, C, C) of the shadows of each client whose own is not in view.
        mine: the tables (C, C) in view.
    """
    filled = list[Tensor]()
    for tables in theirs:
        filled.append(known(tables.flatten(0, 1)).double().view(len(tables), -1).mean(0))
    for table in mine:
        filled.append(known(table).double())
    return 1 / torch.stack(filled).sum(0).clamp_min(1)[:, None]


def _only_right(tables: Mapping[int, Tensor]) -> bool:
    """Return whether tables are means of correct predictions, as in PLS: each row then ranks its own class first."""
    for table in tables.values():
        rows = known(table).nonzero().squeeze(1)
        if not torch.equal(table[rows].argmax(1), rows):
            return False
    return True


def _membership(challenge: Challenge, regression: Regressed, rounds: int) -> Membership:
    note = f"class means of {rounds} {'round' if rounds == 1 else 'rounds'}"
    return Membership(
        target=challenge.target,
        scores=scores_of(regression.coins, challenge, paired=True),
        note=note,
        rehearsed=regression.right,
    )
