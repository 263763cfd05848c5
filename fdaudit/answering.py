"""Who answers an active adversary: the released model, or clients to whom the server sends samples of its choosing.

Guarantees:
  * a client answers an oracle as it answers in the protocol: in the kind of message that it sends under the run's
    settings, through the defences that stand on that message;
  * noise is drawn afresh for each question, from the run's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.encoding import readable
from fdaudit.errors import FdauditError
from fdaudit.federation import applies
from fdaudit.oracle import Oracle, answer
from fdaudit.rehearsal import set_up
from fdaudit.rng import SecretStream
from fdaudit.trainers import Trainers

if TYPE_CHECKING:
    from fdaudit.plan import Plan
    from fdaudit.training import Parameters
    from fdaudit.vault import Vault

__all__ = ["Answering"]

_ANSWERS = ("logits", "soft_labels", "hard_labels")
"""Kinds of message in which clients answer samples."""


class Answering:
    """The models of one finished federation, as far as somebody may ask them.

    Args:
        plan: the run's plan.
        vault: the run's vault.
    """

    def __init__(self, plan: Plan, vault: Vault) -> None:
        self._plan, self._vault = plan, vault
        self._trainers = Trainers(plan.networks, plan.execution, ("server", *plan.clients))

    def oracle(self, members: Sequence[str], wanted: str | None) -> Oracle | None:
        """A handle for an adversary, to clients' models before the released one; None where there is neither.

        Args:
            members: the adversary's parties.
            wanted: the answers that the attack asks for, `soft` or `hard`.
        """
        if wanted is None:
            return None
        for declared in sorted(self._plan.protocol.oracles, key=lambda o: o["name"] == "released-model"):
            if not set(members) & set(declared["available_to"]):
                continue
            if declared["name"] == "released-model":
                if wanted in declared["answers"] and self._released is not None:
                    return Oracle(wanted, self._plan.spec.query_budget)
            elif self.kind is not None and (wanted == "hard" or self.kind != "hard_labels"):
                asked = tuple(k for k in self._plan.clients if k not in members and self._has(k))
                return Oracle(wanted, self._plan.spec.query_budget, asked)
        return None

    @cached_property
    def kind(self) -> str | None:
        """The kind of message in which clients answer samples under the run's settings."""
        for message in self._plan.protocol.messages:
            conditions = message.get("when", {})
            mine = message["from"] == "client" and message["kind"] in _ANSWERS
            if mine and applies(conditions, self._plan.protocol_config):
                return str(message["kind"])
        return None

    def reply(self, wanted: str, x: Tensor, of: str | None, noise: SecretStream) -> Tensor:
        """What is answered to samples (n, c, h, w): probabilities (n, C), or classes (n,).

        Args:
            wanted: `soft` or `hard`.
            x: the samples.
            of: whose model is asked; None: the released one.
            noise: for the defences of a client.
        """
        if of is None:
            if self._released is None:
                raise FdauditError("oracle: the protocol released no model.")
            return answer(
                wanted, self._trainers["server"].predict(self._released, x), self._plan.dataset.task
            )
        logits = self._trainers[of].predict(self._vault.load(_where(of)), x)
        values = self._defended(logits, noise)
        if wanted == "soft" or values.ndim == 1:
            return values
        return values.argmax(1)

    def _defended(self, logits: Tensor, noise: SecretStream) -> Tensor:
        """A client's answer as it leaves the client: probabilities (n, C), or classes (n,)."""
        kind = str(self.kind)
        values = {"logits": logits, "soft_labels": logits.softmax(1), "hard_labels": logits.argmax(1)}[kind]
        tensors: Mapping[str, Tensor] = {"index": torch.arange(len(logits)), "values": values}
        for defense in self._plan.defenses.get((kind, "client"), ()):
            released = defense.release(kind, tensors, noise)
            kind, tensors = released.kind, readable(released.tensors)
        released_values: Tensor = tensors["values"]
        return released_values.float().softmax(1) if kind == "logits" else released_values

    def _has(self, party: str) -> bool:
        return self._vault.has(_where(party))

    @cached_property
    def _released(self) -> Parameters | None:
        """What the protocol releases, from the state it ended in."""
        checkpoint = self._vault.load_round()
        if checkpoint is None:
            return None
        plan = self._plan
        protocol = set_up(plan.protocol, plan.protocol_config, plan.common, plan.clients, plan.seed)
        protocol.state = self._vault.load(checkpoint["state"])
        released: Parameters | None = protocol.released()
        return released


def _where(party: str) -> str:
    """Where the vault keeps a party's last model."""
    return f"models/{party.replace('/', '-')}"
