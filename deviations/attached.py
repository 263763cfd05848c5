"""Attachment of a spec's deviations to the parties that depart from the protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.config import validate
from fdaudit.errors import ProtocolError, SpecError, nearest
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child
from fdaudit.spec.schema import DeviationEntry
from fdaudit.transcript.messages import role
from fdaudit.transcript.wire import Deviation, Outgoing

from . import REGISTRY

__all__ = ["DeviatingParty", "attach_deviations"]


@dataclass(frozen=True, eq=False)
class DeviatingParty:
    """A party that departs from the protocol.

    Attributes:
        party: its name.
        name: the deviation's name.
        deviation: what it sends.
        seed: of its draws, for a generator of each message.
        kinds: kinds of its messages that receivers read by themselves; others it sends as they are.
    """

    party: str
    name: str
    deviation: Deviation
    seed: int
    kinds: Collection[str]

    def sends(self, draft: Outgoing, seq: int) -> tuple[Outgoing, ...]:
        """Return what the party sends in place of a message.

        Raises:
            ProtocolError: not every receiver gets one message of the same kind with the same tensors. It may name
                other samples, more or fewer. A client may send nothing.
        """
        if draft.kind not in self.kinds:
            return (draft,)
        draws = child(self.seed, "deviation", self.party, seq)
        messages = tuple(self.deviation.sends(draft, draws))
        if not messages and role(self.party) == "client":
            return ()
        receivers: list[str] = []
        for message in messages:
            receivers += message.receivers
            if (message.kind, _forms(message)) != (draft.kind, _forms(draft)):
                raise ProtocolError(f"deviation {self.name}: a {draft.kind} became something else")
        if sorted(receivers) != sorted(draft.receivers):
            raise ProtocolError(f"deviation {self.name}: not every receiver of a {draft.kind} gets one")
        return messages

    def hands_out(self, public: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the public samples (n, ...) and classes (n,) that the party hands out before the run.

        Raises:
            ProtocolError: their shapes changed.
        """
        if not hasattr(self.deviation, "hands_out"):
            return public, labels
        own_labels = None if labels is None else labels.clone()
        x, y = self.deviation.hands_out(public.clone(), own_labels)
        fits = y is None or len(y) == len(x)
        if x.shape != public.shape or (y is None) != (labels is None) or not fits:
            raise ProtocolError(f"deviation {self.name}: the public samples became of another shape")
        return x, y

    def trains_on(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the records (n, ...) and classes (n,) that the party trains on in place of its own.

        Raises:
            ProtocolError: their shapes changed.
        """
        if not hasattr(self.deviation, "trains_on"):
            return x, y
        draws = child(self.seed, "deviation", self.party, "records")
        new_x, new_y = self.deviation.trains_on(x.clone(), y.clone(), draws)
        if new_x.shape != x.shape or new_y.shape != y.shape:
            raise ProtocolError(f"deviation {self.name}: the records became of another shape")
        return new_x, new_y


def _forms(message: Outgoing) -> dict[str, object]:
    """Return the type and shape of each tensor of a message, but for its number of samples and their names."""
    forms: dict[str, object] = {name: (t.shape[1:], t.dtype) for name, t in message.tensors.items()}
    forms.pop("index", None)
    return forms


def attach_deviations(
    asked: Sequence[DeviationEntry],
    protocol: ProtocolCard,
    declared: Sequence[Mapping[str, Any]],
    parties: Sequence[str],
    knowledge: Knowledge,
    seed: int,
) -> Mapping[str, DeviatingParty]:
    """Return the deviating parties of a spec, by name.

    Args:
        asked: the spec's deviations.
        protocol: the protocol's card, which says what each receiver reads by itself.
        declared: its messages with the spec's settings.
        parties: every party of the run.
        knowledge: what an adversary is assumed to know.
        seed: of the draws of deviating parties.

    Raises:
        SpecError: a party or a deviation is unknown, or the deviation does not go with the party, the protocol or the
            network.
    """
    attached: dict[str, DeviatingParty] = {}
    for number, entry in enumerate(asked):
        where = f"deviations.{number}"
        cls = REGISTRY.load(entry.name, f"{where}.name")
        REGISTRY.called(entry.name, f"{where}.name")
        party, own_role = entry.party, role(entry.party)
        if party not in parties:
            raise SpecError(f"{where}.party", party, "is no party of this run", nearest(party, parties))
        if party in attached:
            raise SpecError(f"{where}.party", party, "deviates already", "Keep one deviation a party.")
        if own_role not in cls.card.roles:
            problem, able = f"cannot deviate by {entry.name}", ", ".join(cls.card.roles)
            raise SpecError(f"{where}.party", party, problem, f"These can: {able}.")
        kinds = {message["kind"] for message in declared if message["from"] == own_role}
        read_kinds = protocol.copies.get(own_role, ())
        if not kinds.intersection(cls.card.changes, read_kinds):
            problem = f"changes {', '.join(cls.card.changes)}, which nobody reads in {protocol.name}"
            raise SpecError(f"{where}.name", entry.name, problem, "Choose another deviation or protocol.")
        config = validate(cls.Config, entry.params, f"{where}.params")
        own = knowledge
        if "candidates" not in cls.card.knows:
            own = replace(knowledge, candidates=None)
        attached[party] = DeviatingParty(party, entry.name, cls(config, own), seed, read_kinds)
    return attached
