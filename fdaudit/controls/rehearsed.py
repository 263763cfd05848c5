"""The power control: every membership attack on a rehearsal of the run, with coins that were tossed anew.

The rehearsal has the run's records, networks, settings, defences and initial weights, so an attack meets the same task
as in the run. What it reaches there is what it should reach in the run; the report prints both. An attack that finds
nothing in the rehearsal cannot find anything in the run, and its silence proves nothing.

What a rehearsal leaves out: silent clients and a privacy budget's early end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.answering import Answering
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Case
from fdaudit.locks import writing
from fdaudit.metrics import score_membership
from fdaudit.rehearsal import rehearse
from fdaudit.rng import SecretStream, child_numpy, child_seed
from fdaudit.storage import save_json
from fdaudit.truth import Truth
from fdaudit.types import Challenge, Figure, Membership
from fdaudit.vault import Vault
from fdaudit.view import View

if TYPE_CHECKING:
    from fdaudit.plan import AttackPlan, Plan
    from fdaudit.training import Parameters

__all__ = ["Rehearsed", "pooled_auc", "tossed_anew"]


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """A run's rehearsal, which lies in the run's vault and is made on first use.

    Attributes:
        plan: the run's plan.
        directory: where it lies: `transcript/`, and `vault/` with the models that oracles serve.
    """

    plan: Plan
    directory: Path

    @classmethod
    def of(cls, plan: Plan, run: Path) -> Rehearsed:
        """The rehearsal of a run."""
        return cls(plan, run / "vault" / "rehearsal")

    def expected(self, attack: AttackPlan, adversary: str, case: Case) -> Figure:
        """Return the AUC of an attack, all victims pooled, in the rehearsal.

        Args:
            attack: the attack.
            adversary: who attacks.
            case: what the attack was given in the run: knowledge and challenges.

        Raises:
            AttackFailedError: the attack failed in the rehearsal.
        """
        answering = Answering(self.plan, Vault(self.directory / "vault"))
        view = self.view(adversary)
        oracle = answering.oracle(adversary.split("+"), attack.card.get("oracle"))
        task = type(case.task)(targets=case.task.targets, challenges=case.task.challenges, oracle=oracle)
        seed = child_seed(self.plan.seed, "power", adversary, attack.name)
        noise = SecretStream(self.plan.secrets.secret, "power", adversary, attack.name)

        def reply(x: Tensor, of: str | None) -> Tensor:
            return answering.reply(oracle.answers if oracle else "soft", x, of, noise)

        rehearsed = Case(knowledge=case.knowledge, task=task, seed=seed)
        guesses = run_attack(attack, view, rehearsed, None if oracle is None else reply)
        if isinstance(guesses, str):
            return Figure(name="auc", value=None, unavailable=f"does not apply to the rehearsal: {guesses}")
        scores = {g.target: g.scores for g in guesses if isinstance(g, Membership)}
        members = {k: self.members(k) for k in case.task.challenges if k in scores}
        return pooled_auc(
            scores,
            members,
            case.task.challenges,
            child_numpy(self.plan.seed, "power", "score", adversary, attack.name),
        )

    def view(self, adversary: str) -> View:
        """Return an adversary's view of the rehearsal, which is made if it does not lie there yet."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with writing(self.directory, wait=True):  # another process may be at another cell of this run
            return self._run(adversary)

    def members(self, client: str) -> Tensor:
        """Return which of a client's candidates (n,) it trains on in the rehearsal."""
        return Truth(self.plan, Vault(self.directory.parent)).challenge_on(client, self._train(client))[1]

    def _train(self, client: str) -> Tensor:
        split = self.plan.splits.clients[int(client.partition("/")[2])]
        stream = self.plan.secrets.truth("power", client)
        return tossed_anew(split.train, split.members, split.non_members, stream)

    def _records(self, client: str) -> tuple[Tensor, Tensor]:
        train = self._train(client)
        return self.plan.dataset.x[train], self.plan.dataset.y[train]

    def _run(self, adversary: str) -> View:
        plan, models = self.plan, dict[str, Parameters]()
        made = (self.directory / "transcript").is_dir()
        view = rehearse(
            self.directory / "transcript",
            protocol=plan.protocol,
            config=plan.protocol_config,
            common=plan.common,
            data=[self._records(k) for k in plan.clients],
            seed=plan.seed,
            adversary=adversary,
            defenses=plan.defenses,
            training=plan.training,
            withheld=tuple(plan.spec.withhold),
            transport=plan.spec.transport,
            models=models,
        )
        if not made:
            vault = Vault(self.directory / "vault")
            for party, parameters in models.items():
                vault.save(f"models/{party.replace('/', '-')}", parameters)
            save_json(self.directory / "rehearsed.json", {"parties": sorted(models)})
        return view


def tossed_anew(train: Tensor, members: Tensor, non_members: Tensor, stream: SecretStream) -> Tensor:
    """Return a client's training records (n,) with a new fair coin for each matched pair, in the same places.

    Args:
        train: (n,) its records in the run.
        members: (p,) of these, one half of each pair.
        non_members: (p,) the other half.
        stream: of the coins.
    """
    swapped = torch.from_numpy(stream.uniform(len(members)) < 0.5) if len(members) else torch.zeros(0).bool()
    other = dict(zip(members[swapped].tolist(), non_members[swapped].tolist(), strict=True))
    return torch.tensor([other.get(r, r) for r in train.tolist()], dtype=train.dtype)


def pooled_auc(
    scores: Mapping[str, Tensor],
    members: Mapping[str, Tensor],
    challenges: Mapping[str, Challenge],
    generator: object,
) -> Figure:
    """Return the AUC of all victims' candidates together, with its interval and its exact p-value."""
    names = sorted(scores)
    pair, first = [], 0
    for name in names:
        pair.append(challenges[name].pair + first)
        first += int(challenges[name].pair.max()) + 1 if len(challenges[name].pair) else 0
    figures = score_membership(
        torch.cat([scores[n].double() for n in names]).numpy(),
        torch.cat([members[n] for n in names]).numpy(),
        generator=generator,  # type: ignore[arg-type]
        pair=torch.cat(pair).numpy(),
    ).figures
    return figures["auc"]
