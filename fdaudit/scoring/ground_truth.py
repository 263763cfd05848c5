"""The truth that guesses are compared with: members, class shares, records behind messages. It computes no figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.data import class_counts
from fdaudit.errors import FdauditError
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.transcript.messages import ALL, SUM
from fdaudit.types import Challenge, Design

if TYPE_CHECKING:
    from fdaudit.data.splits import ClientSplit
    from fdaudit.planning.case import Case
    from fdaudit.storage.vault import Vault
    from fdaudit.transcript.messages import Message

__all__ = ["Truth", "class_shares"]


class Truth:
    """The auditor's side of every challenge.

    Args:
        case: the run's case, data and splits included.
        vault: the run's vault.
        log: reads the run's messages, for the records behind a sum of several clients' messages.

    Attributes:
        case: the run's case.
    """

    def __init__(self, case: Case, vault: Vault, log: Callable[[], Sequence[Message]] = lambda: ()) -> None:
        self.case, self._vault, self._log = case, vault, log
        self._known_behind: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def challenge(self, client: str) -> tuple[Challenge, Tensor]:
        """Return a client's candidates in random order and, for the auditor, which of them are members (n,)."""
        return self.challenge_on(client, self._split(client).train)

    def challenge_on(self, client: str, train: Tensor) -> tuple[Challenge, Tensor]:
        """Return the same candidates, and which of them (n,) are in another set of training records."""
        split = self._split(client)
        index = torch.cat([split.members, split.non_members])
        member = torch.isin(index, train)
        return self._shuffled(client, index, member, self.case.design, "challenge")

    def canaries(self, client: str) -> tuple[Challenge, Tensor]:
        """Return a client's canaries, if any, in random order, and which of them were trained on (m,)."""
        split, spec = self._split(client), self.case.spec.canaries
        member = torch.isin(split.canaries, split.train)
        design = "coin-flips" if spec is None else spec.design
        return self._shuffled(client, split.canaries, member, design, "canary-challenge")

    def _split(self, client: str) -> ClientSplit:
        return self.case.splits.clients[int(client.partition("/")[2])]

    @property
    def with_canaries(self) -> tuple[str, ...]:
        """Return the clients that have canaries."""
        splits = self.case.splits.clients
        clients = list[str]()
        for client, split in zip(self.case.clients, splits, strict=True):
            if len(split.canaries):
                clients.append(client)
        return tuple(clients)

    def _shuffled(
        self,
        client: str,
        index: Tensor,
        member: Tensor,
        design: Design,
        purpose: str,
    ) -> tuple[Challenge, Tensor]:
        """Return a challenge with shuffled candidates and renumbered coins, so that order and number reveal nothing.

        In a challenge of matched pairs the second halves follow the first.
        """
        halves = 2 if design == "matched-pairs" else 1
        coins = len(index) // halves
        stream, data = self.case.secrets.truth(purpose, client), self.case.dataset
        order = torch.from_numpy(stream.permutation(len(index)))
        new_numbers = torch.from_numpy(stream.permutation(coins)).repeat(halves)
        rows = index[order]
        challenge = Challenge(
            target=client, x=data.x[rows], y=data.y[rows], pair=new_numbers[order], design=design
        )
        return challenge, member[order]

    def label_shares(self, client: str) -> Tensor:
        """Return a client's class shares (C,), float64: of its training records or, multi-label, of all occurrences.

        Raises:
            FdauditError: no class occurs in its records.
        """
        return class_shares(self.case.records(client)[1], self.case.dataset.classes, client)

    def behind(self, client: str, messages: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) behind some messages of one client, each once, in order of first use."""
        rows = self._behind(client, tuple(messages))
        return self.case.dataset.x[rows], self.case.dataset.y[rows]

    def _behind(self, client: str, messages: tuple[int, ...]) -> Tensor:
        """Return the dataset numbers of the records behind some messages of one client."""
        key = (client, messages)
        if key in self._known_behind:
            return self._known_behind[key]
        log, parts = self._log(), list[int]()
        for number in messages:
            if number >= len(log) or not log[number].fields.get(SUM):
                continue
            total = log[number]
            if total.inputs == ALL:  # the sender deviates: what it got in the round may be in it
                for message in log:
                    if message.round == total.round and total.sender in message.receivers:
                        parts.append(message.seq)
            else:
                for part in total.inputs:
                    if isinstance(part, int):
                        parts.append(part)
        missing = set(messages)
        for seq in parts:  # of a sum the client's own messages count
            if log[seq].sender == client:
                missing.add(seq)
        local: dict[int, None] = {}  # in order of first use
        for name in self._vault.names("truth"):
            batches = self._vault.load(name)
            for seq in sorted(missing.intersection(map(int, batches))):
                local |= dict.fromkeys(batches[str(seq)].tolist())
                missing.discard(seq)
            if not missing:
                break
        self._known_behind[key] = self.case.numbered(client)[torch.tensor(list(local), dtype=torch.int64)]
        return self._known_behind[key]

    def rows(self, guess: Reconstruction) -> Tensor:
        """Return the dataset numbers of the records that a guess is about."""
        if not guess.by_class:
            return self._behind(guess.target, guess.messages)
        return self._split(guess.target).train

    def records(self, guess: Reconstruction) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) that a guess is about: behind its messages, or all of its target's."""
        rows = self.rows(guess)
        return self.case.dataset.x[rows], self.case.dataset.y[rows]


def class_shares(y: Tensor, classes: int, whose: str) -> Tensor:
    """Return the shares (C,), float64, of the classes in labels.

    Args:
        y: labels (n,), or (n, C) in the multi-label task.
        classes: number of classes.
        whose: names the records in an error.

    Raises:
        FdauditError: no class occurs.
    """
    counts = class_counts(y, classes).double()
    if not counts.sum():
        raise FdauditError(
            f"{whose}: no class occurs in its records, so they have no class shares to be guessed."
        )
    return counts / counts.sum()
