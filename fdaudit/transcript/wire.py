"""The wire: the only way anything reaches a party, and the place where it is recorded.

Guarantees:
  * a receiver is handed the decoded record, so nothing it uses is missing from the transcript;
  * defences act on the sender's side, before the message is recorded, in the order of the spec;
  * a party the protocol did not declare, or a kind it did not list, cannot be sent or received;
  * a message that a silent party owes is on record as a `silence`, once a round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from fdaudit.errors import ProtocolError, nearest
from fdaudit.events import Event, NoGuarantee
from fdaudit.rng import SecretStream
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.messages import ALL, DATA, Inputs, Message, role
from fdaudit.transcript.transcript import Transcript
from fdaudit.types import KINDS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fdaudit.types import GradientRule, Trained

__all__ = ["Defense", "Delivery", "Meter", "Outage", "Released", "Wire"]


class Delivery(dict[str, "Tensor"]):
    """What a receiver is handed: the recorded tensors by name, and the `seq` to declare them by."""

    def __init__(self, tensors: Mapping[str, Tensor], seq: int) -> None:
        super().__init__(tensors)
        self.seq = seq


@dataclass(frozen=True, kw_only=True)
class Released:
    """What a defence hands to the wire: the tensors to send, under which kind, and the event; None: no defence."""

    kind: str
    tensors: Mapping[str, Tensor]
    event: Event | None
    bytes_on_wire: int = 0


class Meter(Protocol):
    """What stands between a message and the record: a budget, for example."""

    def admit(self, message: Message) -> None:
        """Counts a message, or raises."""
        ...


class Defense(Protocol):
    """A message defence: maps tensors to tensors on the sender's side and says what it did."""

    name: str

    def describe(self) -> Mapping[str, Any]:
        """Name and parameters, as recorded beside the message; an adaptive attacker reads them."""
        ...

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """The tensors to send; `noise` is drawn from the run's key in the vault, never from the run's seed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A party that goes silent: from round `first` to `last`, after `after` messages of each round."""

    party: str
    first: int
    last: int
    after: int = 0

    def holds(self, round: int, sent: int) -> bool:
        """Whether the party is silent in `round`, once it has sent so many messages of it."""
        return self.first <= round <= self.last and sent >= self.after


class Wire:
    """Carries the messages of one run.

    Args:
        transcript: where every message is recorded.
        parties: every party of the federation.
        kinds: the message kinds that the protocol declares.
        device: where delivered tensors are put.
        secret: the run's key (`Secrets.for_run`), for defence noise and training coins; no other run has it.
        defenses: by (kind, sender role), in the order in which they act.
        withheld: kinds that the spec withholds; sending one returns None and records nothing.
        withholdable: the kinds that the protocol can live without.
        outages: who goes silent when.
        meter: looks at every message before it is recorded, and may refuse it.
        training: the training defences of clients, by what is trained.

    Attributes:
        training: the same.
    """

    def __init__(
        self,
        transcript: Transcript,
        *,
        parties: Sequence[str],
        kinds: Sequence[str],
        device: torch.device,
        secret: bytes,
        defenses: Mapping[tuple[str, str], Sequence[Defense]] | None = None,
        withheld: Sequence[str] = (),
        withholdable: Sequence[str] = (),
        outages: Sequence[Outage] = (),
        meter: Meter | None = None,
        training: Mapping[Trained, GradientRule] | None = None,
    ) -> None:
        unknown = set(kinds) - KINDS.keys()
        if unknown:
            raise ProtocolError(
                f"kinds {sorted(unknown)} are not in the vocabulary. {nearest(min(unknown), KINDS)}"
            )
        self._transcript, self._device, self._secret = transcript, device, secret
        self._parties, self._kinds = frozenset(parties), frozenset(kinds)
        self._defenses, self._withheld = dict(defenses or {}), frozenset(withheld)
        self._withholdable, self._outages = frozenset(withholdable), tuple(outages)
        self._meter = meter
        self.training: Mapping[Trained, GradientRule] = dict(training or {})
        self._round, self._step = 0, 0
        self._sent, self._silent = Counter[str](), set[str]()

    def begin(self, round: int, step: int = 0) -> None:
        """Sets the round and step of the messages that follow; neither ever goes back."""
        if (round, step) < (self._round, self._step):
            raise ProtocolError(f"wire: round {round} step {step} lies before {self._round}, {self._step}")
        if round != self._round:
            self._sent, self._silent = Counter[str](), set[str]()
        self._round, self._step = round, step

    def send(
        self,
        sender: str,
        receivers: Sequence[str],
        kind: str,
        tensors: Mapping[str, Tensor],
        *,
        inputs: Inputs | Sequence[str | int] = ALL,
        fields: Mapping[str, Any] | None = None,
    ) -> Delivery | None:
        """Sends one message and returns what its receivers get.

        Args:
            sender: the sending party.
            receivers: the receiving parties.
            kind: one of the kinds that the protocol declares.
            tensors: what is sent, by name.
            inputs: what it was computed from: `"data"` for the sender's raw private data and the `seq` of
                messages that it holds. Left out, everything the sender holds, which is always sound.
            fields: further public scalars.

        Returns:
            The recorded tensors on the run's device, or None when the message does not arrive: the spec
            withholds its kind, or the sender has gone silent. A protocol does without it.

        Raises:
            ProtocolError: the kind or a party is not declared, or the protocol cannot live without a kind
                that is withheld.
        """
        self._check(sender, receivers, kind, inputs)
        if kind in self._withheld:
            if kind not in self._withholdable:
                raise ProtocolError(f"wire: the protocol cannot live without {kind}. Do not withhold it.")
            return None
        if any(o.party == sender and o.holds(self._round, self._sent[sender]) for o in self._outages):
            self._note_silence(sender, receivers)
            return None
        self._sent[sender] += 1
        released, described = self._defend(sender, kind, tensors)
        draft = Message(
            seq=0,
            round=self._round,
            step=self._step,
            sender=sender,
            receivers=tuple(receivers),
            kind=released.kind,
            fields=dict(fields or {}),
            inputs=tuple(inputs) if inputs != ALL else ALL,
            defenses=described,
            event=released.event,
            bytes_on_wire=released.bytes_on_wire,
        )
        seq, decoded = self._record(draft, released.tensors)
        return Delivery({n: t.to(self._device) for n, t in readable(decoded).items()}, seq)

    def release(
        self,
        party: str,
        event: Event,
        *,
        inputs: Inputs | Sequence[str | int] = ALL,
        described: Mapping[str, Any] | None = None,
    ) -> int:
        """Puts on record what happened inside a party: a model trained under a privacy guarantee, for example.

        The message has no receiver and no tensors: what it stands for never leaves the party as it is. Messages that
        were computed from it name it among their inputs, and so the record shows what stands between them and data.

        Args:
            party: whose it is.
            event: what the training or selection guarantees.
            inputs: what went into it, `"data"` and earlier messages.
            described: name and parameters of the defence.

        Returns:
            Its `seq`.
        """
        self._check(party, (), "release", inputs)
        draft = Message(
            seq=0,
            round=self._round,
            step=self._step,
            sender=party,
            receivers=(),
            kind="release",
            inputs=tuple(inputs) if inputs != ALL else ALL,
            defenses=() if described is None else (described,),
            event=event,
        )
        return self._record(draft, {})[0]

    def coins(self, of: str, party: str) -> SecretStream:
        """Secret randomness inside a party, for what is named, new after each message or release on record.

        A chance that a guarantee counts on must come from here: whoever knows the run's seed knows all else.
        """
        return SecretStream(self._secret, "training", of, self._transcript.seq, party)

    def _defend(
        self, sender: str, kind: str, tensors: Mapping[str, Tensor]
    ) -> tuple[Released, tuple[Mapping[str, Any], ...]]:
        """What the sender's defences release, with the event that speaks for it, and how each describes itself.

        The event is the first guarantee in the order in which defences act: what came before it happened to its input,
        what comes after works on its output alone. Where none gives a guarantee, the last one's reason stands.
        """
        # Defences draw noise tensor by tensor: in the order of names, whatever order a sender holds them in.
        released = Released(kind=kind, tensors=dict(sorted(tensors.items())), event=None)
        attached = self._defenses.get((kind, role(sender)), ())
        guarantee: Event | None = None
        for number, defense in enumerate(attached):
            noise = SecretStream(self._secret, "defense", self._transcript.seq, number)
            released = defense.release(released.kind, readable(released.tensors), noise)
            if guarantee is None and not isinstance(released.event, NoGuarantee):
                guarantee = released.event
        released = replace(released, event=guarantee or released.event)
        if released.kind not in KINDS:
            problem = f"wire: a defence made a message of kind {released.kind!r}"
            raise ProtocolError(f"{problem}. {nearest(released.kind, KINDS)}")
        return released, tuple(defense.describe() for defense in attached)

    def _note_silence(self, sender: str, receivers: Sequence[str]) -> None:
        """On record once a round: who did not answer whom. When a party goes silent is no secret of its data."""
        if sender not in self._silent:
            self._silent.add(sender)
            draft = Message(
                seq=0,
                round=self._round,
                step=self._step,
                sender=sender,
                receivers=tuple(receivers),
                kind="silence",
                inputs=(),
            )
            self._record(draft, {})

    def _record(self, draft: Message, tensors: Mapping[str, Tensor]) -> tuple[int, Mapping[str, Tensor]]:
        """Puts a message on record, unless it would pass the budget."""
        if self._meter is not None:
            self._meter.admit(draft)
        return self._transcript.append(draft, tensors)

    def _check(self, sender: str, receivers: Sequence[str], kind: str, inputs: Sequence[str | int]) -> None:
        if kind not in self._kinds:
            raise ProtocolError(
                f"wire: kind {kind!r} is not declared by the protocol. {nearest(kind, self._kinds)}"
            )
        for party in (sender, *receivers):
            if party not in self._parties:
                raise ProtocolError(f"wire: party {party!r} is not declared. {nearest(party, self._parties)}")
        if inputs != ALL:
            seq = self._transcript.seq
            wrong = [i for i in inputs if i != DATA and not (isinstance(i, int) and 0 <= i < seq)]
            if wrong:
                raise ProtocolError(
                    f"wire: inputs {wrong} of a {kind} from {sender} are not earlier messages."
                )
