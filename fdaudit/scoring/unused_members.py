"""Members that no message used: records that a client is said to train on, and that stand behind nothing it sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fdaudit.result import UnusedMembers
from fdaudit.transcript.messages import ALL, DATA, Message

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = ["unused_members"]


def unused_members(
    case: Case, messages: Sequence[Message], uses: Mapping[int, Sequence[int]] | None
) -> tuple[UnusedMembers, ...]:
    """Return the clients with members that no message used, with counts.

    A client counts only if the truth names the records behind each of its messages that depends on its data: a message
    without such a list may have used any record.

    Args:
        case: the case of the recording.
        messages: the record's messages.
        uses: by message the client's own numbers of the records behind it; None if they were not brought.
    """
    unused_by_client = []
    for number, client in enumerate(case.clients):
        numbered = case.numbered(client)
        # Messages that depend on its records by themselves, not through others of its messages.
        mine = list[int]()
        for message in messages:
            if message.sender == client and (message.inputs == ALL or DATA in message.inputs):
                mine.append(message.seq)
        if uses is None or not mine or not len(numbered) or any(seq not in uses for seq in mine):
            continue
        behind = set[int]()
        for seq in mine:
            behind.update(uses[seq])
        used = numbered[torch.tensor(sorted(behind), dtype=torch.int64)]
        split = case.splits.clients[number]
        trained = numbered[~torch.isin(numbered, split.non_members)]
        unused = UnusedMembers(
            party=client,
            unused=_outside(trained, used),
            of=len(trained),
            unused_candidates=_outside(split.members, used),
            candidates=len(split.members),
        )
        if unused.unused:
            unused_by_client.append(unused)
    return tuple(unused_by_client)


def _outside(rows: torch.Tensor, used: torch.Tensor) -> int:
    return int((~torch.isin(rows, used)).sum())
