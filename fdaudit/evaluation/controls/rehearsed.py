"""The power control: every membership attack on a rehearsal of the run, with newly tossed coins.

The rehearsal has the run's records, networks, settings, defences and initial weights, so an attack has the same task
as in the run. Its result there is the result to expect in the run; the report prints both. An attack that finds
nothing in the rehearsal cannot find anything in the run, and its silence proves nothing.

A rehearsal leaves out silent clients and the early end by a privacy budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.adversary.view import View
from fdaudit.federation.rehearsal import rehearse
from fdaudit.goals.membership import Membership
from fdaudit.handout.rehearsals import stand_in_of
from fdaudit.isolation.attacker import AttackFailedError
from fdaudit.isolation.schema import Trial
from fdaudit.isolation.trials import attack as run_attack
from fdaudit.metrics import auc_figure
from fdaudit.result import Control
from fdaudit.rng import SecretStream, child_seed
from fdaudit.scoring.evidence import draws_of
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.storage.files import save_json
from fdaudit.storage.locks import writing
from fdaudit.storage.vault import Vault
from fdaudit.types import AttackTask, Challenge, Figure

if TYPE_CHECKING:
    import numpy as np

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.planning.case import Case
    from fdaudit.training.trainer import Parameters

__all__ = ["FOUND", "Rehearsed", "pooled_auc", "tossed_anew"]

FOUND = 0.05
"""Largest p-value at which an attack has found members in the rehearsal."""


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """A run's rehearsal, stored in the run's vault and made on first use.

    Attributes:
        run: the run, whose truth says the order of candidates.
    """

    run: RunDirectory

    @property
    def case(self) -> Case:
        """Return the run's case."""
        return self.run.case

    @property
    def directory(self) -> Path:
        """Return the rehearsal's directory: `transcript/`, and `vault/` with the models that oracles serve."""
        return self.run.vault.directory / "rehearsal"

    def control(self, attack: AttackPlan, adversary: str, knowledge: Knowledge, task: AttackTask) -> Control:
        """Return the power control of an attack: passed if it finds members in the rehearsal.

        Args:
            attack: the attack.
            adversary: the attacking adversary.
            knowledge: the attack's knowledge in the run.
            task: the attack's task in the run; its challenges are asked again, its oracle is replaced by the
                rehearsal's.
        """
        try:
            auc = self._auc(attack, adversary, knowledge, task)
        except AttackFailedError as error:
            auc = Figure(name="auc", value=None, unavailable=f"the attack failed in the rehearsal: {error}")
        return Control(
            what="a rehearsal of this run, with the same records and coins tossed anew, which says what the attack "
            f"should reach here: AUC above 0.5, by chance with p of at most {FOUND:g}",
            passed=auc.p is not None and auc.p <= FOUND,
            figures=(auc,),
        )

    def _auc(self, attack: AttackPlan, adversary: str, knowledge: Knowledge, task: AttackTask) -> Figure:
        view = self.view(adversary)
        answering = RunDirectory(self.directory, self.case).answering
        oracle = answering.oracle(adversary.split("+"), attack.card.oracle)
        name = ("power", adversary, attack.name)
        noise = SecretStream(self.case.secrets.secret, *name)

        def reply(x: Tensor, of: str | None) -> Tensor:
            return answering.reply("soft" if oracle is None else oracle.answers, x, of, noise)

        trial = Trial(
            knowledge=knowledge,
            task=replace(task, oracle=oracle),
            seed=child_seed(self.case.seed, *name),
        )
        guesses = run_attack(attack, view, trial, None if oracle is None else reply)
        if isinstance(guesses, str):
            return Figure(name="auc", value=None, unavailable=f"does not apply to the rehearsal: {guesses}")
        scores = {}
        members = {}
        for guess in guesses:
            if isinstance(guess, Membership):
                scores[guess.target] = guess.scores
                members[guess.target] = self.members(guess.target)
        draws = draws_of(self.case.seed, "power", sorted(scores))
        return pooled_auc(scores, members, task.challenges, draws)

    def view(self, adversary: str) -> View:
        """Return an adversary's view of the rehearsal, which is made if it does not exist yet."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        case = self.case
        protocol, config = stand_in_of(case)
        models: dict[str, Parameters] = {}
        data = []
        for client in case.clients:
            train = self._train(client)
            data.append((case.dataset.x[train], case.dataset.y[train]))
        with writing(self.directory, wait=True):  # another process may run another cell of this run
            exists = (self.directory / "transcript").is_dir()
            view = rehearse(
                self.directory / "transcript",
                protocol=protocol,
                config=config,
                common=case.common,
                data=data,
                seed=case.seed,
                adversary=adversary,
                defenses=case.defenses,
                training=case.training,
                withheld=tuple(case.spec.withhold),
                transport=case.spec.transport,
                deviants=case.deviants,
                checks=case.checks,
                models=models,
            )
            if not exists:
                vault = Vault(self.directory / "vault")
                for party, parameters in models.items():
                    vault.save(f"models/{party.replace('/', '-')}", parameters)
                save_json(self.directory / "rehearsed.json", {"parties": sorted(models)})
        return view

    def members(self, client: str) -> Tensor:
        """Return which candidates (n,) of a client are its training records in the rehearsal."""
        return self.run.truth.challenge_on(client, self._train(client))[1]

    def _train(self, client: str) -> Tensor:
        split = self.case.splits.clients[int(client.partition("/")[2])]
        stream = self.case.secrets.truth("power", client)
        return tossed_anew(split.train, split.members, split.non_members, stream)


def tossed_anew(train: Tensor, members: Tensor, non_members: Tensor, stream: SecretStream) -> Tensor:
    """Return a client's training records (n,) with a new fair coin for each matched pair, in the same places.

    Args:
        train: (n,) its records in the run.
        members: (p,) of these, one half of each pair.
        non_members: (p,) the other half.
        stream: randomness of the coins.
    """
    swapped = torch.from_numpy(stream.uniform(len(members)) < 0.5) if len(members) else torch.zeros(0).bool()
    other = dict(zip(members[swapped].tolist(), non_members[swapped].tolist(), strict=True))
    return torch.tensor([other.get(r, r) for r in train.tolist()], dtype=train.dtype)


def pooled_auc(
    scores: Mapping[str, Tensor],
    members: Mapping[str, Tensor],
    challenges: Mapping[str, Challenge],
    generator: np.random.Generator,
) -> Figure:
    """Return the AUC over the candidates of all victims, with its interval and its exact p-value."""
    names = sorted(scores)
    pair, first = [], 0
    for name in names:
        pair.append(challenges[name].pair + first)
        first += int(challenges[name].pair.max()) + 1 if len(challenges[name].pair) else 0
    together = torch.cat([scores[name].double() for name in names])
    return auc_figure(together, torch.cat([members[name] for name in names]), generator, pair=torch.cat(pair))
