"""The oracle server: the released model, or clients to which the server sends samples of its choosing.

Guarantees:
  * the released model answers with the tensors of the message that published it, after all defences;
  * a client answers an oracle as it answers in the protocol: in the same kind of message, through the defences on that
    message;
  * noise is drawn afresh for each question, from the run's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from fdaudit.adversary.oracle import Oracle, answer
from fdaudit.errors import FdauditError
from fdaudit.federation.networks import Trainers
from fdaudit.federation.rehearsal import set_up
from fdaudit.handout.oracle_access import accesses, answered_by, defended_answers, finished, published
from fdaudit.rng import SecretStream
from fdaudit.storage.files import decode
from fdaudit.transcript.encoding import Naming, weights_of
from fdaudit.transcript.log import read_log
from fdaudit.transcript.payloads import read_payload

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.planning.case import Case
    from fdaudit.storage.vault import Vault
    from fdaudit.training.trainer import Parameters

__all__ = ["Answering", "answers_of"]


class Answering:
    """The models of one finished federation that adversaries may ask.

    Args:
        case: the run's case.
        vault: the run's vault.
    """

    def __init__(self, case: Case, vault: Vault) -> None:
        self._case, self._vault, self._run = case, vault, vault.directory.parent

    @cached_property
    def _trainers(self) -> Trainers:
        """Return the training cores that answer with the parties' models."""
        return Trainers(self._case.named_networks, self._case.execution, ("server", *self._case.clients))

    def oracle(self, members: Sequence[str], wanted: str | None) -> Oracle | None:
        """Return a handle to clients' models if they may be asked, else to the released model; None without access.

        Args:
            members: the adversary's parties.
            wanted: the answers that the attack asks for, `soft` or `hard`.
        """
        if wanted is None:
            return None
        budget = self._case.spec.query_budget
        for access in accesses(self._case):
            if not access.open_to(members, self._case.spec.transport):
                continue
            if access.kind is None:
                if wanted in access.answers and self._released is not None:
                    return Oracle(wanted, budget)
            elif wanted == "hard" or access.kind != "hard_labels":
                others: list[str] = []
                for client in self._case.clients:
                    if client not in members and self._has(client):
                        others.append(client)
                if others:  # of a recorded system, no client's own model is at hand
                    return Oracle(wanted, budget, tuple(others))
        return None

    def reply(self, wanted: str, x: Tensor, of: str | None, noise: SecretStream) -> Tensor:
        """Return the answers to samples (n, c, h, w): probabilities (n, C), or classes (n,).

        Args:
            wanted: `soft` or `hard`.
            x: the samples.
            of: the party whose model is asked; None for the released model.
            noise: randomness of a client's defences.

        Raises:
            FdauditError: there is no such model to ask.
        """
        if of is None:
            if self._released is None:
                raise FdauditError("oracle: the protocol released no model.")
            logits = self._trainers["server"].predict(self._released, x)
            return answer(wanted, logits, self._case.dataset.task.labels)
        heard = answered_by(self._case)
        if heard is None:
            raise FdauditError(f"oracle: {of} answers no samples with these settings.")
        logits = self._trainers[of].predict(self._vault.load(_where(of)), x)
        return answers_of(self._case, wanted, heard[0], logits, noise)

    def predictions(self, of: str, x: Tensor) -> Tensor:
        """Return the logits (n, C) of a party's final model on samples, before any defence; for the auditor only.

        Args:
            of: a client, or `server` for the released model as it was published.
            x: (n, c, h, w).

        Raises:
            FdauditError: the run keeps no such model.
        """
        if of == "server" and self._released is not None:
            return self._trainers[of].predict(self._released, x)
        if not self._has(of):
            raise FdauditError(f"{of}: the run keeps no final model of this party.")
        return self._trainers[of].predict(self._vault.load(_where(of)), x)

    def knows(self, of: str) -> bool:
        """Return whether the run keeps a party's final model, or for `server` published one."""
        return (of == "server" and self._released is not None) or self._has(of)

    def _has(self, party: str) -> bool:
        return self._vault.has(_where(party))

    @cached_property
    def _released(self) -> Parameters | None:
        """Return the model that the released-model oracle serves: the recorded message's tensors, after all defences.

        If the settings publish a model but no message did (it was withheld, or its sender was silent), return the model
        itself. Return None if the settings publish none, if the record kept only a digest, or if the run's budget ended
        it.
        """
        transcript = self._run / "transcript"
        message = published(read_log(transcript).messages, self._case.forms)
        case = self._case
        if message is not None:
            if message.payload is None:
                return None
            payload = decode(read_payload(transcript, message))
            return weights_of(payload, Naming.of(case.settings))
        checkpoint = self._vault.load_round()
        if checkpoint is None or not finished(case, self._vault):
            return None
        protocol = set_up(case.protocol, case.protocol_config, case.common, case.clients, case.seed)
        protocol.state = self._vault.load(checkpoint["state"])
        released: Parameters | None = protocol.released()
        return released


def answers_of(case: Case, wanted: str, kind: str, logits: Tensor, noise: SecretStream) -> Tensor:
    """Return a client's answers to an oracle: probabilities (n, C), or classes (n,).

    Args:
        case: the run's case.
        wanted: `soft` or `hard`.
        kind: the kind of message in which clients answer.
        logits: (n, C) of the client's model.
        noise: randomness of the defences on its messages.
    """
    values, _ = defended_answers(case, kind, logits, noise)
    return values if wanted == "soft" or values.ndim == 1 else values.argmax(1)


def _where(party: str) -> str:
    """Return the vault's name for a party's last model."""
    return f"models/{party.replace('/', '-')}"
