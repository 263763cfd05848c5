"""The wire: the only way in which a message reaches a party, and the place where it is recorded.

Guarantees:
  * a receiver gets the decoded record, so everything it uses is in the transcript;
  * defences act on the sender's side, before the message is recorded, in the order of the spec;
  * a deviation of a party changes what it sends before that is recorded, and is marked on the record;
  * a client that refuses what it got, by a defence on receipt, is silent for the rest of the round;
  * a party or a kind that the protocol did not declare cannot be used;
  * a missing message of a silent party is recorded as a `silence`, once a round; a deviating party's is marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeGuard, overload

from fdaudit.errors import ProtocolError, SpecError, nearest
from fdaudit.events import Event, NoGuarantee
from fdaudit.kinds import KINDS, is_kind
from fdaudit.rng import SecretStream
from fdaudit.storage.files import decode
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.messages import ALL, DATA, DEVIATION, Inputs, Message, role
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import Transcript, read_messages

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fdaudit import config as settings
    from fdaudit.registry import DefenseCard, DeviationCard
    from fdaudit.types import GradientRule, Trained

__all__ = [
    "Defense",
    "Delivery",
    "Deviant",
    "Deviation",
    "Earlier",
    "Meter",
    "Outage",
    "Outgoing",
    "ReceiptCheck",
    "Released",
    "Wire",
    "acts_in_training",
]


def _as_inputs(inputs: Inputs | Sequence[str | int]) -> Inputs:
    return ALL if inputs == ALL else tuple(inputs)


def _unmarked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's fields without the mark that its sender deviated."""
    unmarked = dict(fields)
    unmarked.pop(DEVIATION, None)
    return unmarked


class Delivery(dict[str, "Tensor"]):
    """A delivered message: the recorded tensors by name, and the `seq` to declare them by.

    A receiver of several reads its copy with `of`. What a deviating server holds differs from the copies that it sent.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], seq: int, copies: Mapping[str, Delivery] | None = None
    ) -> None:
        super().__init__(tensors)
        self.seq = seq
        self._copies = copies

    def of(self, receiver: str) -> Delivery:
        """Return what one receiver got."""
        if self._copies is None:
            return self
        return self._copies[receiver]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outgoing:
    """A message as its sender's protocol would send it, before defences.

    Attributes:
        received: for a party that deviates, the messages of this round that it received so far, as on record.
        earlier: for a party that deviates, the messages of earlier rounds that it sent or received, as on record.
    """

    round: int
    step: int
    sender: str
    receivers: tuple[str, ...]
    kind: str
    tensors: Mapping[str, Tensor]
    fields: Mapping[str, Any] = field(default_factory=dict)
    received: tuple[Outgoing, ...] = field(default=(), repr=False)
    earlier: Sequence[Outgoing] = field(default=(), repr=False)


class Earlier(Sequence[Outgoing]):
    """A party's own messages of the rounds before one, in order; each is read from the transcript when it is taken.

    A run that is resumed has the same. Silences, and releases inside the party, are not among them.

    Args:
        transcript: where the messages are recorded.
        party: their sender, or one of their receivers.
        round: the round.
        device: where their tensors are put.
    """

    def __init__(self, transcript: Transcript, party: str, round: int, device: torch.device) -> None:
        self._transcript, self._party, self._round, self._device = transcript, party, round, device

    @cached_property
    def _messages(self) -> list[Message]:
        self._transcript.writer.drain()
        own = []
        for message in read_messages(self._transcript.directory):
            if message.round >= self._round:
                break
            if self._party in message.parties() and message.receivers and message.kind != "silence":
                own.append(message)
        return own

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Outgoing: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Outgoing]: ...
    def __getitem__(self, index: int | slice) -> Outgoing | Sequence[Outgoing]:
        """Return messages.

        Raises:
            SpecError: a message's tensors are not on record.
        """
        if isinstance(index, slice):
            return [self._read(message) for message in self._messages[index]]
        return self._read(self._messages[index])

    def _read(self, message: Message) -> Outgoing:
        if message.payload is None:
            problem = f"is a round that is not kept, and {self._party} reads its messages to deviate"
            raise SpecError("record", message.round, problem, "Set record to 'full', or name the round.")
        tensors = {}
        for name, tensor in readable(decode(read_payload(self._transcript.directory, message))).items():
            tensors[name] = tensor.to(self._device)
        return Outgoing(
            round=message.round,
            step=message.step,
            sender=message.sender,
            receivers=message.receivers,
            kind=message.kind,
            tensors=tensors,
            fields=_unmarked(message.fields),
        )


@dataclass(frozen=True, kw_only=True)
class Released:
    """A defence's output: the tensors to send, their kind, and the event; an event of None means no defence."""

    kind: str
    tensors: Mapping[str, Tensor]
    event: Event | None
    bytes_on_wire: int = 0


class Meter(Protocol):
    """A check between a message and the record, such as a budget."""

    def admit(self, message: Message) -> None:
        """Count a message, or raise."""
        ...


class Defense(Protocol):
    """A message defence: maps tensors to tensors on the sender's side and reports the event."""

    card: ClassVar[DefenseCard]
    Config: ClassVar[type[settings.Config]]

    def __init__(self, config: Any) -> None: ...

    def describe(self) -> Mapping[str, Any]:
        """Return name and parameters, as recorded with the message; an adaptive attacker reads them."""
        ...

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Return the tensors to send; `noise` is drawn from the run's key in the vault, never from the run's seed."""
        ...


class ReceiptCheck(Protocol):
    """A defence at the receivers: they refuse a message, and then stay silent for the rest of the round."""

    card: ClassVar[DefenseCard]
    Config: ClassVar[type[settings.Config]]

    def __init__(self, config: Any) -> None: ...

    def describe(self) -> Mapping[str, Any]:
        """Return name and parameters."""
        ...

    def refuses(self, copies: Mapping[str, Mapping[str, Tensor]]) -> Collection[str]:
        """Return the receivers that refuse what they got.

        Args:
            copies: what each client received, by its name; all messages of one kind pass by here, in order.
        """
        ...


class Deviation(Protocol):
    """What a party sends in place of what the protocol says; it is given what the party may know.

    Two more methods are optional. `hands_out` returns the public samples and classes that a server hands out before the
    run, and `trains_on` the records and classes that a client trains on in place of its own.
    """

    card: ClassVar[DeviationCard]
    Config: ClassVar[type[settings.Config]]

    def __init__(self, config: Any, knowledge: Any) -> None: ...

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return what is sent in place of a message, to each of its receivers one; the message itself changes nothing.

        A client that returns nothing is silent for the rest of the round.

        Args:
            draft: the message that the protocol would send.
            generator: randomness of this message alone.
        """
        ...


class Deviant(Protocol):
    """A party that deviates."""

    @property
    def name(self) -> str:
        """Return the deviation's name."""
        ...

    def sends(self, draft: Outgoing, seq: int) -> tuple[Outgoing, ...]:
        """Return what is sent in place of the message number `seq`."""
        ...

    def trains_on(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the records (n, ...) and labels (n, ...) that the party trains on in place of its own."""
        ...


def acts_in_training(cls: type[Defense]) -> TypeGuard[type[GradientRule]]:
    """Return whether a class is a defence in training, not of messages."""
    return cls.card.at == "training"


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A party's silence: from round `first` to `last`, after `after` messages of each round."""

    party: str
    first: int
    last: int
    after: int = 0

    def holds(self, round: int, sent: int) -> bool:
        """Return whether the party is silent in `round` after it has sent `sent` messages in it."""
        return self.first <= round <= self.last and sent >= self.after


class Wire:
    """Carries the messages of one run.

    Args:
        transcript: where every message is recorded.
        parties: every party of the federation.
        kinds: the message kinds that the protocol declares; None allows every kind, for a rehearsal that finds out.
        device: where delivered tensors are put.
        secret: the run's key (`Secrets.for_run`), for defence noise and training coins; no other run has it.
        defenses: by (kind, sender role), in the order in which they act.
        withheld: kinds that the spec withholds; sending one returns None and records nothing.
        withholdable: the kinds that the protocol can run without.
        outages: when parties go silent.
        meter: checks every message before it is recorded, and may refuse it.
        training: the training defences of clients, by the network that is trained.
        deviants: the parties that deviate, by name.
        checks: what clients check of messages that they receive, by (kind, sender role).

    Attributes:
        training: the same.
    """

    def __init__(
        self,
        transcript: Transcript,
        *,
        parties: Sequence[str],
        kinds: Sequence[str] | None,
        device: torch.device,
        secret: bytes,
        defenses: Mapping[tuple[str, str], Sequence[Defense]] | None = None,
        withheld: Sequence[str] = (),
        withholdable: Sequence[str] = (),
        outages: Sequence[Outage] = (),
        meter: Meter | None = None,
        training: Mapping[Trained, GradientRule] | None = None,
        deviants: Mapping[str, Deviant] | None = None,
        checks: Mapping[tuple[str, str], Sequence[ReceiptCheck]] | None = None,
    ) -> None:
        unknown = {kind for kind in kinds or () if not is_kind(kind)}
        if unknown:
            raise ProtocolError(
                f"kinds {sorted(unknown)} are not in the vocabulary, and have no namespace as in acme/bank. "
                f"{nearest(min(unknown), KINDS)}"
            )
        self._transcript, self._device, self._secret = transcript, device, secret
        self._parties = frozenset(parties)
        self._kinds = None if kinds is None else frozenset(kinds)
        self._defenses, self._withheld = dict(defenses or {}), frozenset(withheld)
        self._withholdable, self._outages = frozenset(withholdable), tuple(outages)
        self._meter, self._deviants = meter, dict(deviants or {})
        self.training: Mapping[Trained, GradientRule] = dict(training or {})
        self._round, self._step = 0, 0
        self._sent, self._silent = Counter[str](), set[str]()
        self._received: dict[str, list[Outgoing]] = {name: [] for name in self._deviants}
        # Checks remember what they saw, and the case may be run again.
        self._checks = {key: deepcopy(tuple(attached)) for key, attached in (checks or {}).items()}
        self._refused = dict[str, int]()
        self._recall()

    def _recall(self) -> None:
        """Show the checks what is on record already, in a run that is resumed."""
        if not self._checks:
            return
        directory = self._transcript.directory
        for message in read_messages(directory):
            if (message.kind, role(message.sender)) in self._checks and message.payload is not None:
                tensors = readable(decode(read_payload(directory, message)))
                copies = dict.fromkeys(message.receivers, tensors)
                self._refusals(message.kind, message.sender, copies)

    def begin(self, round: int, step: int = 0) -> None:
        """Set the round and step of the messages that follow; neither ever decreases."""
        if (round, step) < (self._round, self._step):
            raise ProtocolError(f"wire: round {round} step {step} lies before {self._round}, {self._step}")
        if round != self._round:
            self._sent, self._silent = Counter[str](), set[str]()
            self._received = {name: [] for name in self._deviants}
            self._refused.clear()
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
        """Send one message and return what its receivers get.

        Args:
            sender: the sending party.
            receivers: the receiving parties.
            kind: one of the kinds that the protocol declares.
            tensors: the tensors to send, by name.
            inputs: the inputs of the computation: `"data"` for the sender's raw private data and the `seq` of
                messages that it holds. Default: everything the sender holds, which is always sound.
            fields: further public scalars.

        Returns:
            The recorded tensors on the run's device, or None if the message does not arrive: the spec
            withholds its kind, or the sender has gone silent. The protocol must then continue without it.

        Raises:
            ProtocolError: the kind or a party is not declared, or the protocol needs a kind that is withheld.
        """
        self._check(sender, receivers, kind, inputs)
        if kind in self._withheld:
            if kind not in self._withholdable:
                raise ProtocolError(f"wire: the protocol cannot live without {kind}. Do not withhold it.")
            return None
        if any(o.party == sender and o.holds(self._round, self._sent[sender]) for o in self._outages):
            self._note_silence(sender, receivers, ())
            return None
        if sender in self._refused:
            self._note_silence(sender, receivers, (self._refused[sender],))
            return None
        if sender in self._silent:  # by its deviation: once silent, silent for the rest of the round
            return None
        self._sent[sender] += 1
        draft = Outgoing(
            round=self._round,
            step=self._step,
            sender=sender,
            receivers=tuple(receivers),
            kind=kind,
            tensors=tensors,
            fields=dict(fields or {}),
        )
        if sender in self._deviants:
            earlier = Earlier(self._transcript, sender, self._round, self._device)
            draft = replace(draft, received=tuple(self._received[sender]), earlier=earlier)
            sent = self._deviants[sender].sends(draft, self._transcript.seq)
            if sent != (draft,):
                return self._examined(draft, self._deviate(draft, sent))
        released, described = self._defend(sender, kind, tensors)
        return self._examined(draft, self._carry(draft, released, described, inputs))

    def _examined(self, draft: Outgoing, delivery: Delivery | None) -> Delivery | None:
        """Return a delivery after its receivers checked it; those that refuse it are silent until the round's end."""
        if delivery is None:
            return None
        copies = {receiver: delivery.of(receiver) for receiver in draft.receivers}
        for refusing in self._refusals(draft.kind, draft.sender, copies):
            self._refused.setdefault(refusing, copies[refusing].seq)
        return delivery

    def _refusals(self, kind: str, sender: str, copies: Mapping[str, Mapping[str, Tensor]]) -> set[str]:
        """Return the clients that refuse what they got."""
        checks = self._checks.get((kind, role(sender)), ())
        clients = {}
        for name in copies:
            if role(name) == "client":
                clients[name] = copies[name]
        refusing = set[str]()
        for check in checks:
            refusing.update(check.refuses(clients))
        return refusing

    def _deviate(self, draft: Outgoing, sent: Sequence[Outgoing]) -> Delivery | None:
        """Record what a deviating party sends in place of a message; it depends on anything that the party holds.

        The party goes on from the message that it held back, and its own defences do not act. A server uses what comes
        back from the wire, and its clients read their copies; from other senders only the receiver uses it.
        """
        mark = {DEVIATION: self._deviants[draft.sender].name}
        if not sent:
            self._note_silence(draft.sender, draft.receivers, ALL, mark)
            return None
        copies: dict[str, Delivery] = {}
        for one in sent:
            marked = replace(one, fields={**one.fields, **mark})
            plain = Released(kind=one.kind, tensors=dict(sorted(one.tensors.items())), event=None)
            copies |= dict.fromkeys(one.receivers, self._carry(marked, plain, (), ALL))
        if role(draft.sender) != "server" and len(copies) == 1:
            return copies[draft.receivers[0]]
        own = {}
        for name, tensor in draft.tensors.items():
            own[name] = tensor.to(self._device, copy=True)
        return Delivery(own, copies[draft.receivers[0]].seq, copies)

    def _carry(
        self,
        draft: Outgoing,
        released: Released,
        described: tuple[Mapping[str, Any], ...],
        inputs: Inputs | Sequence[str | int],
    ) -> Delivery:
        """Record one message and return what its receivers get."""
        message = Message(
            seq=0,
            round=draft.round,
            step=draft.step,
            sender=draft.sender,
            receivers=draft.receivers,
            kind=released.kind,
            fields=draft.fields,
            inputs=_as_inputs(inputs),
            defenses=described,
            event=released.event,
            bytes_on_wire=released.bytes_on_wire,
        )
        seq, decoded = self._record(message, released.tensors)
        tensors = {name: tensor.to(self._device) for name, tensor in readable(decoded).items()}
        delivery = Delivery(tensors, seq)
        arrived = replace(
            draft,
            kind=released.kind,
            tensors=delivery,
            fields=_unmarked(draft.fields),
            received=(),
            earlier=(),
        )
        for receiver in self._received.keys() & set(draft.receivers):
            self._received[receiver].append(arrived)
        return delivery

    def release(
        self,
        party: str,
        event: Event,
        *,
        inputs: Inputs | Sequence[str | int] = ALL,
        described: Mapping[str, Any] | None = None,
    ) -> int:
        """Record an event inside a party, such as a model trained under a privacy guarantee.

        The record has no receiver and no tensors, because the event's result never leaves the party directly. Messages
        computed from it name it among their inputs. The record thus shows which guarantee protects the data behind
        them.

        Args:
            party: where it happened.
            event: the guarantee of the training or selection.
            inputs: its inputs: `"data"` and earlier messages.
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
            inputs=_as_inputs(inputs),
            defenses=() if described is None else (described,),
            event=event,
        )
        return self._record(draft, {})[0]

    def coins(self, of: str, party: str) -> SecretStream:
        """Return secret randomness inside a party for the purpose `of`, new after each recorded message or release.

        Randomness that a guarantee relies on must come from here. The run's seed determines all other randomness.
        """
        return SecretStream(self._secret, "training", of, self._transcript.seq, party)

    def _defend(
        self, sender: str, kind: str, tensors: Mapping[str, Tensor]
    ) -> tuple[Released, tuple[Mapping[str, Any], ...]]:
        """Return the output of the sender's defences, with its event, and each defence's description.

        The event is the first guarantee in the order in which defences act. Earlier defences only change its input, and
        later ones only process its output. If none gives a guarantee, the last one's reason is used.
        """
        # Defences draw noise tensor by tensor: sort by name, independent of the sender's order.
        released = Released(kind=kind, tensors=dict(sorted(tensors.items())), event=None)
        attached = self._defenses.get((kind, role(sender)), ())
        guarantee: Event | None = None
        for number, defense in enumerate(attached):
            noise = SecretStream(self._secret, "defense", self._transcript.seq, number)
            released = defense.release(released.kind, readable(released.tensors), noise)
            if guarantee is None and not isinstance(released.event, NoGuarantee):
                guarantee = released.event
        released = replace(released, event=guarantee or released.event)
        if not is_kind(released.kind):
            problem = f"wire: a defence made a message of kind {released.kind!r}"
            raise ProtocolError(f"{problem}. {nearest(released.kind, KINDS)}")
        return released, tuple(defense.describe() for defense in attached)

    def _note_silence(
        self, sender: str, receivers: Sequence[str], inputs: Inputs, mark: Mapping[str, Any] | None = None
    ) -> None:
        """Record once a round which sender was silent towards whom, and why: its `inputs` are what it refused.

        The time of an outage does not depend on the sender's data; that of a deviating party's silence, marked, may.
        """
        if sender not in self._silent:
            self._silent.add(sender)
            draft = Message(
                seq=0,
                round=self._round,
                step=self._step,
                sender=sender,
                receivers=tuple(receivers),
                kind="silence",
                fields=mark or {},
                inputs=inputs,
            )
            self._record(draft, {})

    def _record(self, draft: Message, tensors: Mapping[str, Tensor]) -> tuple[int, Mapping[str, Tensor]]:
        """Record a message, unless it would exceed the budget."""
        if self._meter is not None:
            self._meter.admit(draft)
        return self._transcript.append(draft, tensors)

    def _check(self, sender: str, receivers: Sequence[str], kind: str, inputs: Sequence[str | int]) -> None:
        allowed = KINDS if self._kinds is None else self._kinds
        if kind not in allowed and not (self._kinds is None and is_kind(kind)):
            raise ProtocolError(
                f"wire: kind {kind!r} is not declared by the protocol. {nearest(kind, allowed)}"
            )
        for party in (sender, *receivers):
            if party not in self._parties:
                raise ProtocolError(f"wire: party {party!r} is not declared. {nearest(party, self._parties)}")
        if inputs != ALL:
            seq = self._transcript.seq
            wrong = []
            for i in inputs:
                if i == DATA or (isinstance(i, int) and 0 <= i < seq):
                    continue
                wrong.append(i)
            if wrong:
                raise ProtocolError(
                    f"wire: inputs {wrong} of a {kind} from {sender} are not earlier messages."
                )
