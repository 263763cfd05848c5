"""Cards: what protocols, attacks and defences state of themselves, as data. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Self, TypeAlias, get_args, get_origin, get_type_hints

from fdaudit.errors import FdauditError, nearest
from fdaudit.goals import GOALS
from fdaudit.kinds import KINDS, is_kind
from fdaudit.tasks import ONLY_SINGLE_LABEL

__all__ = [
    "AttackCard",
    "CardError",
    "DefenseCard",
    "DeviationCard",
    "ExtensionCard",
    "ProtocolCard",
    "SimpleProtocolCard",
]

Texts: TypeAlias = tuple[str, ...]
Settings: TypeAlias = Mapping[str, Any]
Records: TypeAlias = tuple[Mapping[str, Any], ...]

_WORDS: Mapping[object, str] = {
    str: "text",
    bool: "true or false",
    Texts: "a tuple of texts",
    Records: "a tuple of mappings",
    Settings: "a mapping",
    NoneType: "None",
}
"""The types of fields in words."""

_PROFILES = ("quick", "standard", "full")


class CardError(FdauditError):
    """A card lacks a field, or a field has a value that it cannot have. The text continues the card's name."""


@dataclass(frozen=True, kw_only=True)
class ExtensionCard:
    """The fields of every card.

    A class states its card once, as `card = AttackCard(name="…", …)`. Every value is a plain literal, in which a name
    may stand for a literal at the top of a module. `list` and `explain` read it from the source without running code.

    Raises:
        CardError: a field has another type, or a word of a closed vocabulary is unknown.
    """

    name: str
    """Public name: the one in the registry. For `import:module:Class`, small letters, digits and hyphens."""
    page: str = ""
    """Address of a page about the class, which `explain` prints."""

    def __post_init__(self) -> None:
        for name, annotation in _types(type(self)).items():
            value = getattr(self, name)
            if not _is(annotation, value):
                raise CardError(f"has {name} {value!r:.60}, which is not {_in_words(annotation)}")

    @classmethod
    def required(cls) -> dict[str, str]:
        """Return the fields without a default, each with its type in words."""
        types = _types(cls)
        in_words: dict[str, str] = {}
        for f in fields(cls):
            if f.default is MISSING and f.default_factory is MISSING:
                in_words[f.name] = _in_words(types[f.name])
        return in_words

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> Self:
        """Return the card with these fields.

        Raises:
            CardError: a field is missing, unknown, or has a value that it cannot have.
        """
        for name, words in cls.required().items():
            if name not in stated:
                raise CardError(f"has no {name}, which is {words}")
        types = _types(cls)
        for name in stated:
            if name not in types:
                raise CardError(f"has the unknown field {name!r} in its card. {nearest(name, types)}")
        return cls(**stated)


@dataclass(frozen=True, kw_only=True)
class AttackCard(ExtensionCard):
    """The card of an attack.

    A private kind of message that no attack needs or reads leaves a view "not tested".
    """

    goal: str
    """Goal of its guesses, one of `fdaudit.goals.GOALS`."""
    goals: Settings = field(default_factory=dict)
    """By task, another goal that its guesses have on that task."""
    source: str
    """Paper and equation, or what else it is taken from."""
    needs: Texts
    """Kinds of messages, or oracles, of which it needs one. Kinds that attacks read as one of these are added."""
    assumes: Texts
    """What the adversary is assumed to know beside its view."""
    profiles: Mapping[str, Any]
    """Its settings under each of `quick`, `standard` and `full`."""
    reads: Texts = ()
    """Kinds that it also reads where they are in view. Kinds that attacks read as one of these are added."""
    oracle: str | None = None
    """Answers that it asks an oracle for: `soft`, `hard`, or None if it asks none."""
    tasks: Texts = ONLY_SINGLE_LABEL
    """Tasks that it can attack."""
    control: Settings = field(default_factory=lambda: {"on": "model"})
    """What its positive control is tried `on`, a name of `fdaudit.evaluation.controls.CONTROLS` or `nothing`, with the
    control's settings.
    """
    work: Settings | None = None
    """What the estimate of the attack stage reads, see `fdaudit.evaluation.steps.Work`. None: it is not counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("needs", "reads"):
            kinds = dict[str, None]()  # each followed by those that attacks read as it
            for name in getattr(self, setting):
                kinds[name] = None
                for kind in KINDS.values():
                    if kind.read_as == name:
                        kinds[kind.name] = None
            object.__setattr__(self, setting, tuple(kinds))
        for goal in (self.goal, *self.goals.values()):
            if goal not in GOALS:
                raise CardError(f"has the unknown goal {goal!r}. {nearest(str(goal), GOALS)}")
        missing = []
        for profile in _PROFILES:
            if not isinstance(self.profiles.get(profile), Mapping):
                missing.append(profile)
        if missing:
            raise CardError(f"has no settings in profiles for {', '.join(missing)}")
        if not isinstance(self.control.get("on"), str):
            raise CardError("has a control that does not say on what: {'on': 'model'} is the usual one")

    def goal_on(self, task: str) -> str:
        """Return the goal of its guesses on a task."""
        return str(self.goals.get(task, self.goal))


@dataclass(frozen=True, kw_only=True)
class ProtocolCard(ExtensionCard):
    """The card of a protocol.

    An entry of `messages` has `kind`, `from`, `to` and `what`, and these optional keys:

    * `when`: settings, by name with the required value, under which the message is sent;
    * `reveals`: the part of the message that is raw data even if the values are noised;
    * `made_of`: another kind of message; only a defence makes this message, from that kind;
    * `"index": "public"`: a promise that, with these settings and before defences, private data decide neither the
      samples that `index` names nor the number of rows. A silent client leaves out a message, never a row. A defence
      with `public_index: true` is refused without this promise.

    Messages of one sender whose `when` names the same settings replace each other: every reader of one reads the other,
    and a defence may turn one into the other.

    An oracle named `released-model` answers from the message that published the model, or by `released()` if no message
    did. Any other oracle answers from clients' models, to the receivers of the messages in which clients answer
    samples.
    """

    source: str
    """Paper and algorithm box."""
    roles: Texts
    """Roles that take part, `server` and `client` among them, without `world`."""
    trust: Texts
    """Assumptions on the parties, one sentence each."""
    oracles: Records
    """Models that adversaries may query, each with `name`, `available_to` and `answers`."""
    differences: Texts
    """Choices where the paper is unclear or not followed."""
    withholdable: Texts
    """Kinds that the protocol can run without."""
    pools_data: bool
    """Whether one party holds everybody's records."""
    heterogeneous: bool
    """Whether clients may train different networks."""
    needs_public: bool
    """Whether it uses the public samples."""
    messages: Records | None = None
    """Every message that it can send; None: a rehearsal before each run finds them."""
    needs_labels: bool = False
    """Whether every party also knows the public samples' classes; otherwise no party does."""
    roles_when: Settings = field(default_factory=dict)
    """By role, the settings under which it takes part; every other role always does."""
    settings: Settings = field(default_factory=dict)
    """By preset, `paper` or `authors-code`, what they state of the protocol's settings."""
    privacy: Settings = field(default_factory=dict)
    """What the paper `claims`; by view, what the ledger `finds`: the kind of the first message that leaves no ε to
    claim with the default settings; and the `private` combination of settings that gives one, with those that are
    `tuned` for it and left to the spec. Empty: nothing is stated.
    """
    starts: Settings = field(default_factory=dict)
    """The initial `weights` that clients train from, `own` or `broadcast` by the server, and the `source` of that.
    Empty: their own, which no adversary knows.
    """
    tasks: Texts = ONLY_SINGLE_LABEL
    """Tasks that it can run."""
    trains: Settings = field(default_factory=dict)
    """Networks that clients train on their own records through `Setting.local`, each with the setting for the number
    of records in a step. Empty: no training defence can act.
    """
    averages: Settings = field(default_factory=dict)
    """Further objects that a training defence can act on, as in `trains`: clients average gradients themselves."""
    copies: Settings = field(default_factory=dict)
    """Kinds of messages, by sending role, of which each receiver reads its own copy. A sender may deviate in these."""
    generator: Settings | None = None
    """How to build the generator in messages of kind `generator_parameters`, see `fdaudit/models/declared.py`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for message in self.declared_messages:
            _refuse_incomplete("messages", message, ("from", "kind", "to"))
        for oracle in self.oracles:
            _refuse_incomplete("oracles", oracle, ("available_to", "name"))
        for message in self.declared_messages:
            kind = message["kind"]
            if not is_kind(kind):
                problem = f"has messages of the unknown kind {kind!r}"
                raise CardError(f"{problem}. Give it a namespace, as in acme/bank. {nearest(kind, KINDS)}")

    @property
    def declared_messages(self) -> Records:
        """Return the messages; none if they are not declared."""
        return () if self.messages is None else self.messages


@dataclass(frozen=True, kw_only=True)
class SimpleProtocolCard(ProtocolCard):
    """The card of a protocol below `SimpleProtocol`: its defaults say what that class does."""

    source: str = "not stated"
    roles: Texts = ("server", "client")
    trust: Texts = ("Parties follow the protocol and are curious (honest-but-curious).",)
    oracles: Records = field(
        default_factory=lambda: (
            {"name": "released-model", "available_to": ("world",), "answers": ("soft", "hard")},
        )
    )
    differences: Texts = ()
    withholdable: Texts = ()
    pools_data: bool = False
    heterogeneous: bool = False
    needs_public: bool = False
    copies: Settings = field(
        default_factory=lambda: {
            "server": ("model_parameters",),
            "client": ("model_parameters", "model_update"),
        }
    )
    trains: Settings = field(default_factory=lambda: {"model": "batch_size"})
    starts: Settings = field(
        default_factory=lambda: {
            "weights": "broadcast",
            "source": "`fit` starts from a model that the server sent.",
        }
    )


@dataclass(frozen=True, kw_only=True)
class DeviationCard(ExtensionCard):
    """The card of a deviation: what a party sends against its protocol."""

    source: str
    """Paper and section."""
    roles: Texts
    """Who can deviate so."""
    changes: Texts
    """Kinds of messages that it changes."""
    read_by: Texts
    """Attacks that read more because of it."""
    noticed: str
    """What an honest receiver could notice, in a sentence."""
    knows: Texts = ()
    """What the party must know besides its role: `candidates`, the records whose membership is in question."""
    detectors: Texts = ()
    """What receivers could notice it by: names of `fdaudit.twin.detectors.DETECTORS`."""


@dataclass(frozen=True, kw_only=True)
class DefenseCard(ExtensionCard):
    """The card of a defence."""

    source: str = ""
    """Paper and equation."""
    protects: str = ""
    """What it protects, in words."""
    at: str = "message"
    """Where it acts: on a `message` as it is sent, in `training`, or on `receipt` of a message."""
    accepts: Texts = ()
    """Kinds of messages that it can treat; empty: every kind."""
    makes: str | None = None
    """Kind of message that it makes of them; None: the same kind."""
    fixed_size: bool = False
    """Whether messages of one shape have one size, for any values."""
    tasks: Texts = ()
    """Tasks that it can act in; empty: every task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at not in ("message", "training", "receipt"):
            raise CardError(f"acts at {self.at!r}, which is none of 'message', 'training' and 'receipt'")


def _refuse_incomplete(name: str, record: Mapping[str, Any], keys: Texts) -> None:
    missing = [key for key in keys if key not in record]
    if missing:
        raise CardError(f"has an entry of {name} without {', '.join(missing)}")


_evaluated: dict[type[ExtensionCard], Mapping[str, Any]] = {}


def _types(cls: type[ExtensionCard]) -> Mapping[str, Any]:
    """Return the annotations of a card's fields, by name in the order of the fields; they are evaluated once."""
    if cls not in _evaluated:
        hints = get_type_hints(cls)
        _evaluated[cls] = {f.name: hints[f.name] for f in fields(cls)}
    return _evaluated[cls]


def _in_words(annotation: Any) -> str:
    options = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return " or ".join(_WORDS[option] for option in options)


def _is(annotation: Any, value: object) -> bool:
    """Return whether a value has the type of an annotation, and its parts if it is a tuple."""
    if isinstance(annotation, UnionType):
        return any(_is(option, value) for option in get_args(annotation))
    if not isinstance(value, get_origin(annotation) or annotation):
        return False
    parts = value if isinstance(value, tuple) else ()
    return all(_is(get_args(annotation)[0], part) for part in parts)
