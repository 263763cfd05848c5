"""The spec: a frozen, validated document of everything a run depends on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, create_model, model_validator

from fdaudit.config import Config, validate
from fdaudit.errors import SpecError, nearest
from fdaudit.goals import GOALS, Threshold
from fdaudit.kinds import KINDS, is_kind
from fdaudit.limits import MOST_CANDIDATES, MOST_CLIENTS, MOST_QUERIES, MOST_TEXT
from fdaudit.spec.audit import AuditSpec
from fdaudit.spec.documents import read_yaml
from fdaudit.spec.privacy import CanarySpec, PresetSpec, PrivacySpec
from fdaudit.storage.digests import canonical

__all__ = [
    "AttackSpec",
    "AuxiliarySpec",
    "ColumnSpec",
    "DatasetSpec",
    "DefenseEntry",
    "DeviationEntry",
    "GateSpec",
    "LimitSpec",
    "ModelSpec",
    "OutageSpec",
    "PartitionSpec",
    "ProtocolSpec",
    "RecordRounds",
    "Spec",
    "SplitSpec",
    "load_spec",
]

Params = dict[str, Any]
Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]


class ColumnSpec(Config):
    """A column of a table."""

    kind: Literal["number", "category", "ignored"] | None = None
    """What it holds; `ignored` leaves it out. Default: a number if every value is one, else a category."""
    categories: tuple[str | int | float | bool, ...] = Field((), max_length=1000)
    """All categories that it may have. Default: those that occur in public and auxiliary rows, and `(other)`."""
    mean: float | None = Field(None, ge=-1e30, le=1e30)
    """What is subtracted from a number, in the column's own units. Default: the mean of public and auxiliary rows."""
    scale: float | None = Field(None, gt=1e-30, le=1e30)
    """What the difference is divided by. Default: the standard deviation of public and auxiliary rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the stated categories as texts."""
        return tuple(map(str, self.categories))

    @property
    def kind_stated(self) -> Literal["number", "category", "ignored"] | None:
        """Return the kind, which stated categories or a stated scale tell as well; None if nothing does."""
        if self.kind is None and self.categories:
            return "category"
        if self.kind is None and self.scale is not None:
            return "number"
        return self.kind

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.mean is None) != (self.scale is None):
            raise SpecError("dataset.columns.scale", self.scale, "is not given with mean", "Give both.")
        if self.categories and (self.kind_stated != "category" or self.scale is not None):
            problem = "are given for a column that holds no categories"
            raise SpecError("dataset.columns.categories", list(self.categories), problem, "Remove them.")
        if self.scale is not None and self.kind_stated != "number":
            problem = "is given for a column that holds no numbers"
            raise SpecError("dataset.columns.scale", self.scale, problem, "Remove it.")
        if len(set(self.names)) < len(self.names):
            problem = "name a category twice"
            raise SpecError("dataset.columns.categories", list(self.categories), problem, "Remove one.")
        return self


class DatasetSpec(Config):
    """The dataset of the run."""

    name: Text = "digits"
    """A known dataset, `npz:FILE`, `folder:DIR`, `masks:FILE` (segmentation), `text:FILE` or `table:FILE` (rows)."""
    root: str | None = None
    """The folder of datasets. Default: the environment variable FDAUDIT_DATA, then the user's cache."""
    download: bool = False
    """Whether an absent dataset may be downloaded."""
    image_size: int | None = Field(None, ge=4, le=512)
    """Side of the square that images are padded or resized to. Default: keep their size."""
    threshold: float | None = Field(None, ge=0, lt=1)
    """Images: pixels above it become 1, all others 0. Default: keep them as they are."""
    limit: int | None = Field(None, ge=10)
    """At most this many training records, drawn class by class (multi-label and masks: at random)."""
    length: int | None = Field(None, ge=1, le=512)
    """Texts: number of words, or word pieces, that are read of each. Default: 32."""
    vocabulary: int | None = Field(None, ge=3, le=1_000_000)
    """Texts: most words that the vocabulary of public and auxiliary texts holds, padding and the unknown word included.
    Default: 8192."""
    wordpieces: Text | None = None
    """Texts: a public vocabulary of BERT's word pieces, a `vocab.txt` or its folder below the folder of datasets. Texts
    are cut into its pieces, and no vocabulary is made. `pretrained` needs it. Default: whole words."""
    label: Text | None = None
    """Tables: the column of the class. Default: `label`."""
    columns: dict[Text, ColumnSpec] | None = None
    """Tables: what is known of single columns, by their names. Other columns are described by their values."""

    @model_validator(mode="after")
    def _one_vocabulary(self) -> Self:
        if self.vocabulary is not None and self.wordpieces is not None:
            problem = "does not go with `dataset.wordpieces`, which fixes the vocabulary"
            raise SpecError("dataset.vocabulary", self.vocabulary, problem, "Remove one of them.")
        return self


class PartitionSpec(Config):
    """The distribution of records over clients."""

    name: Literal["iid", "by-class", "by-site", "dirichlet"] = "iid"
    """`iid`, `by-class` (a fixed number of classes a client; not multi-label), `by-site` (client k holds the k-th
    largest site of a dataset with sites) or `dirichlet` (class shares drawn). Masks: `iid` or `by-site`."""
    classes_per_client: int | None = Field(None, ge=1)
    """`by-class`: 1 is the strong non-IID setting, 2 the weak."""
    alpha: float | None = Field(None, gt=0)
    """`dirichlet`: concentration; smaller is more uneven."""
    capped: bool = False
    """`dirichlet`: a client that holds its even share of all records already gets none of the classes that follow."""
    least: int | None = Field(None, ge=1)
    """`dirichlet`: shares are drawn anew until each client has so many records."""

    @model_validator(mode="after")
    def _own_parameters(self) -> Self:
        for field in ("capped", "least"):
            value = getattr(self, field)
            if value and self.name != "dirichlet":
                problem = f"does not belong to partition {self.name!r}"
                raise SpecError(
                    f"partition.{field}", value, problem, "Remove it, or set name to 'dirichlet'."
                )
        for field, owner in (("classes_per_client", "by-class"), ("alpha", "dirichlet")):
            value = getattr(self, field)
            if value is not None and self.name != owner:
                problem = f"does not belong to partition {self.name!r}"
                raise SpecError(f"partition.{field}", value, problem, f"Remove it, or set name to {owner!r}.")
            if value is None and self.name == owner:
                raise SpecError(f"partition.{field}", value, f"is missing for {owner!r}", f"Add {field}.")
        return self


class SplitSpec(Config):
    """Records set aside before the clients share the rest. Fractions are of all training records."""

    test: float = Field(0.2, ge=0, lt=1)
    """Held out to measure accuracy, mAUC or Dice; ignored when the dataset has a test split of its own."""
    proxy: float = Field(0.1, ge=0, lt=1)
    """The public set that clients distil on. Its labels are used only by protocols that need them."""
    auxiliary: float = Field(0.1, ge=0, lt=1)
    """Records from the same distribution that the adversary is assumed to hold."""
    candidates: int = Field(40, ge=0, le=MOST_CANDIDATES)
    """Largest number of matched pairs in each client. A fair coin decides which half of a pair is trained on."""

    @model_validator(mode="after")
    def _something_left(self) -> Self:
        total = round(self.test + self.proxy + self.auxiliary, 6)
        if total >= 1:
            raise SpecError(
                "splits", total, "leaves the clients nothing", "Let the three sum to less than 1."
            )
        return self


class AuxiliarySpec(Config):
    """Records that adversaries are assumed to hold, taken from those that `splits.auxiliary` sets aside."""

    inversion: Literal["class-disjoint", "same", "shifted", "none"] = "class-disjoint"
    """For attacks that reconstruct classes. `class-disjoint`: an adversary lacks half of the classes, and only its
    guesses of these count. Each half is withheld in turn."""
    others: Literal["same", "shifted", "none"] = "same"
    """For all other attacks. `same`: as they are; `shifted`: turned, blurred and paler; `none`: no records."""


class ModelSpec(Config):
    """The network that the clients train."""

    name: Text = "cnn-strided"
    """A model of the zoo, or `import:package.module:Class`."""
    params: Params = Field(default_factory=dict)
    """The model's own parameters."""


class ProtocolSpec(Config):
    """The protocol, with its settings under `params`."""

    name: Text = "fedavg"
    """A known protocol, as `fdaudit list` names them, or `import:package.module:Class`."""
    params: Params = Field(default_factory=dict)
    """The protocol's own settings."""


class OutageSpec(Config):
    """A client that fails or goes silent. Its messages do not arrive, and the run continues without it."""

    client: int = Field(ge=0)
    """The client's number."""
    round: int = Field(ge=0)
    """The first round in which it is silent, counted from 0."""
    last: int | None = Field(None, ge=0)
    """The last round in which it is silent. Default: the same round."""
    after: int = Field(0, ge=0)
    """Number of messages that it still sends in each of these rounds."""

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.last is not None and self.last < self.round:
            problem = f"lies before round {self.round}"
            raise SpecError("outages.last", self.last, problem, "Give a later round, or leave it out.")
        return self


class AttackSpec(Config):
    """An attack to run against every adversary to which it applies."""

    name: Text
    """A known attack, as `fdaudit list` names them, or `import:package.module:Class`."""
    params: Params = Field(default_factory=dict)
    """The attack's own settings; they override the profile's."""
    adversaries: tuple[Text, ...] | None = None
    """Default: the spec's `adversaries`."""


class DefenseEntry(Config):
    """A defence attached to the messages of one kind from one role, or to what clients train on their records."""

    at: Literal["message", "training", "receipt"] = "message"
    """Where it acts: on messages as they leave the sender, in the training of a client's own model, or at the clients
    that receive messages.
    """
    kind: Text | None = None
    """The kind of messages; the sender must send it under the protocol's settings. Not for `at: training`."""
    sender: Literal["client", "server", "aggregator"] = "client"
    """The role that sends these messages; at training it is the client."""
    of: Text | None = None
    """The network whose training is defended. Default: the model. Only for `at: training`."""
    name: Text
    """A known defence, as `fdaudit list` names them, or `import:package.module:Class`."""
    params: Params = Field(default_factory=dict)
    """The defence's own settings."""

    @model_validator(mode="after")
    def _one_point(self) -> Self:
        if self.at == "training":
            if self.kind is not None:
                problem = "names messages, which a defence at training does not act on"
                raise SpecError("defenses.kind", self.kind, problem, "Remove kind, or set at to 'message'.")
            if self.sender != "client":
                problem = "trains on no private records"
                raise SpecError("defenses.sender", self.sender, problem, "Remove sender: it is the client.")
            return self
        if self.of is not None:
            problem = "names what is trained, which a defence on messages does not act on"
            raise SpecError("defenses.of", self.of, problem, "Remove of, or set at to 'training'.")
        if self.kind is None:
            problem, remedy = "is missing", "Name the kind of message, or set at to 'training'."
            raise SpecError("defenses.kind", None, problem, remedy)
        if not is_kind(self.kind):
            raise SpecError("defenses.kind", self.kind, "is not a message kind", nearest(self.kind, KINDS))
        return self


class DeviationEntry(Config):
    """A party that departs from the protocol, and how."""

    party: Text
    """The party."""
    name: Text
    """A known deviation, as `fdaudit list` names them, or `import:package.module:Class`."""
    params: Params = Field(default_factory=dict)
    """The deviation's own settings."""


class RecordRounds(Config):
    """Keep the payloads of these rounds, and only digests of the others."""

    rounds: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """Rounds, counted from 0, whose payloads are kept."""


def _gate(gate: Threshold) -> Any:
    """Return the definition of a gate's field."""
    return float | None, Field(None, ge=gate.least, le=gate.most, description=gate.explained)


_GATES_OF_GOALS: Any = create_model(
    "_GatesOfGoals",
    __base__=Config,
    **{name: _gate(gate) for goal in GOALS.values() for name, gate in goal.gates.items()},
)


class GateSpec(_GATES_OF_GOALS):
    """Thresholds fixed in advance. A run that exceeds one, or cannot measure it, exits with code 1."""

    epsilon: float | None = Field(None, gt=0)
    """Largest ε of any adversary's view in the ledger, at `privacy.delta`; an infinite ε fails."""
    utility: float | None = Field(None, ge=0, le=1)
    """Least test accuracy (several labels: mAUC; masks: Dice) of the server's model, else of the worst client's."""
    utility_drop: float | None = Field(None, ge=-1, le=1)
    """Largest loss of accuracy, mAUC or Dice against clients that learn alone; needs `standalone` in `references`."""


class LimitSpec(Config):
    """Limits on attacks. They end an attack that does not end by itself, and change no result of another."""

    seconds_per_cell: int | None = Field(None, ge=1)
    """Seconds that all attacks of one cell may take together, controls included; then the cell has failed.

    Default by profile: 21,600, 86,400 or 604,800 (6 hours, a day or a week)."""
    first: tuple[Text, ...] = Field((), exclude_if=lambda value: not value)
    """Attacks that a budget of time keeps, and runs, before all others."""


class Spec(Config):
    """A run."""

    fdaudit: Literal[1] = 1
    """Version of this format."""
    name: Text = "audit"
    """A name for people; free text."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """The run's seed; drawn at random if omitted. The vault keeps it; the run shows a salted commitment. The same
    records need the same seed and the same secret (`--seed-from`)."""
    profile: Literal["quick", "standard", "full"] = "standard"
    """Size of the attacks' budgets."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Where models are trained and attacks optimise; `auto` is CUDA where there is one, except for small networks."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads; default: the processor count, at most 8. Part of the result: it changes bits."""
    strategy: Literal["auto", "loop", "stacked"] = "auto"
    """How several models are trained: one after another, or stacked and trained together. Default: by rule."""
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """Memory layout of images. Default, by rule: `channels_last` for convolutions trained one after another."""
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    """Precision of training; default: float32. `tf32` lets CUDA round what it multiplies, in attacks too. `bfloat16` is
    mixed precision: weights and losses stay float32."""
    compile: bool = False
    """Train through `torch.compile`, one model at a time; the first step of each network takes long."""
    record: Literal["full", "digest"] | RecordRounds = "full"
    """The payloads that the transcript keeps."""
    transport: Literal["plain", "encrypted"] = "plain"
    """With `encrypted`, an eavesdropper sees sizes and order only."""
    clients: int = Field(5, ge=1, le=MOST_CLIENTS)
    """Number of clients."""
    dataset: DatasetSpec = DatasetSpec()
    """The images."""
    partition: PartitionSpec = PartitionSpec()
    """The distribution of records over clients."""
    splits: SplitSpec = SplitSpec()
    """Records set aside before the clients share the rest."""
    auxiliary: AuxiliarySpec = AuxiliarySpec()
    """Records that adversaries are assumed to hold."""
    canaries: CanarySpec | None = None
    """Records inserted by secret coins, to check a claimed ε."""
    model: ModelSpec = ModelSpec()
    """The network of the server and the clients."""
    loss: Text | None = None
    """Of an import: the clients' loss, `import:module:function`, a function of network, images and labels."""
    client_models: tuple[ModelSpec, ...] = ()
    """One network for each client, in order, if the protocol allows different ones; `model` is then the server's."""
    public_dataset: DatasetSpec | None = None
    """Another dataset whose images are the public samples. Default: `splits.proxy` of the clients' own.

    Its labels are used only by protocols that need them."""
    public_copies: int = Field(1, ge=1, le=1000)
    """How often each public image occurs: once as it is, then as copies shifted at random by up to an eighth of its
    side, which every party knows. FedKD's Table 2 has 50."""
    protocol: ProtocolSpec = ProtocolSpec()
    """The protocol."""
    preset: PresetSpec | None = None
    """A ready combination of defences."""
    defenses: tuple[DefenseEntry, ...] = ()
    """Defences, in the order in which they act."""
    deviations: tuple[DeviationEntry, ...] = Field((), exclude_if=lambda value: not value)
    """Parties that depart from the protocol; all others follow it."""
    withhold: tuple[Text, ...] = ()
    """Message kinds that are not sent. The protocol must be able to run without them."""
    outages: tuple[OutageSpec, ...] = ()
    """Clients that fail or go silent, and when."""
    references: tuple[Literal["standalone", "centralized"], ...] = ("standalone", "centralized")
    """Reference lines of the utility curve."""
    evaluate_every: int = Field(1, ge=1)
    """Rounds between two points of the utility curve."""
    adversaries: tuple[Text, ...] = ("server", "client/0", "eavesdropper", "world")
    """The adversaries whose views are attacked; `server+client/0` means both colluding."""
    victims: int = Field(2, ge=1)
    """Number of attacked clients: the first ones, fixed before the run."""
    queries: int | None = Field(None, ge=1, le=MOST_QUERIES)
    """Number of oracle queries that each attack may spend; the ledger charges them all.

    Default by profile: 20,000, 500,000 or 10,000,000."""
    oracles: bool = True
    """Whether adversaries may query the models that the protocol's card allows. False: they only listen."""
    attacks: Literal["all"] | tuple[AttackSpec, ...] = "all"
    """`all`, or a list; every attack not listed is shown as not requested."""
    power: bool | None = None
    """Whether each membership attack is also run on a rehearsal of the run with new coins, to measure the attack's
    expected strength.

    Default by profile: not in `quick`, because it repeats the protocol and the attacks."""
    limits: LimitSpec = LimitSpec()
    """How long attacks may take. Not part of the spec's digest."""
    gates: GateSpec = GateSpec()
    """Thresholds that make a run fail."""
    release: Literal["internal", "api", "public-weights"] | None = None
    """Where the trained model goes: it stays with the parties, answers queries through an API, or is published."""
    privacy: PrivacySpec = PrivacySpec()
    """The terms in which ε is stated."""
    audit: AuditSpec | None = Field(None, exclude_if=lambda value: value is None)
    """For the front page of the report: who asked for the audit, of what. Not part of the spec's digest."""

    @model_validator(mode="after")
    def _parties(self) -> Self:
        if self.victims > self.clients:
            raise SpecError(
                "victims", self.victims, f"is more than the {self.clients} clients", "Ask for fewer victims."
            )
        if self.client_models and len(self.client_models) != self.clients:
            problem = f"names {len(self.client_models)} networks for {self.clients} clients"
            raise SpecError("client_models", len(self.client_models), problem, "Give one a client, or none.")
        for number, outage in enumerate(self.outages):
            if outage.client >= self.clients:
                field, problem = f"outages.{number}.client", f"is none of the {self.clients} clients"
                raise SpecError(field, outage.client, problem, f"Clients count from 0 to {self.clients - 1}.")
        for number, client in enumerate(() if self.canaries is None else self.canaries.clients):
            if client >= self.clients:
                field, problem = f"canaries.clients.{number}", f"is none of the {self.clients} clients"
                raise SpecError(field, client, problem, f"Clients count from 0 to {self.clients - 1}.")
        return self

    @property
    def asked_adversaries(self) -> tuple[tuple[str, str], ...]:
        """Return every adversary that the spec names, with its field."""
        names = [("adversaries", name) for name in self.adversaries]
        if self.privacy.budget is not None:
            names.append(("privacy.budget.adversary", self.privacy.budget.adversary))
        for number, attack in enumerate(() if self.attacks == "all" else self.attacks):
            names += [(f"attacks.{number}.adversaries", name) for name in attack.adversaries or ()]
        return tuple(names)

    @property
    def rehearses(self) -> bool:
        """Return whether membership attacks are also run on a rehearsal with known coins."""
        return self.profile != "quick" if self.power is None else self.power

    @property
    def query_budget(self) -> int:
        """Return the number of oracle queries that each attack may spend."""
        return self.queries or {"quick": 20_000, "standard": 500_000, "full": 10_000_000}[self.profile]

    @property
    def seconds_per_cell(self) -> int:
        """Return the number of seconds that all attacks of one cell may take together."""
        limit = self.limits.seconds_per_cell
        return limit or {"quick": 21_600, "standard": 86_400, "full": 604_800}[self.profile]

    def public(self, seed_commitment: str) -> dict[str, Any]:
        """Return the resolved spec for the run directory, with a salted commitment in place of the seed."""
        return {**self.model_dump(mode="json"), "seed": {"commitment": seed_commitment}}

    def digest(self) -> str:
        """Return the SHA-256 of the spec's canonical bytes, without the seed, the limits on time and `audit`."""
        described = self.model_dump(mode="json", exclude={"seed", "limits", "audit"})
        return hashlib.sha256(canonical(described)).hexdigest()


def load_spec(source: Spec | Path | str | dict[str, Any]) -> Spec:
    """Return a spec from a spec, a mapping, or a YAML file.

    Raises:
        SpecError: the file is missing or not YAML, or a field is wrong.
    """
    if isinstance(source, Spec):
        return source
    if isinstance(source, dict):
        return validate(Spec, source)
    value = read_yaml(Path(source), "spec")
    where = str(source)
    if value is None:
        raise SpecError(
            "spec", where, "is empty", "Write `key: value` lines; `protocol` and `dataset` first."
        )
    if isinstance(value, dict) and "sweep" in value and "base" in value:
        raise SpecError("spec", where, "is the grid of a sweep", "Give it to `fdaudit sweep`.")
    if isinstance(value, dict) and isinstance(value.get("seed"), dict):
        value = {**value, "seed": None}  # a run's own spec.yaml: the vault holds its seed
    return validate(Spec, value)
