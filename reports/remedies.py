"""Remedies for findings: a table by goal, and by the way on which the data reached the adversary.

Guarantees:
  * a remedy speaks only of messages that the adversary received and that the attack can start from;
  * nothing in the table was tested in the run: it names what the literature and fdaudit's own defences offer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fdaudit.kinds import KINDS, WAYS
from fdaudit.result import Result
from fdaudit.transcript.messages import role

from .text import clip, joined
from .verdict import Finding

__all__ = ["ENCRYPT", "REMEDIES", "Carried", "Remedy", "carried", "remedy", "way", "without_epsilon"]


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One thing to do and why; `{kinds}` stands for the kinds of messages behind the finding."""

    do: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Carried:
    """The kinds of messages that brought data to an adversary, and the ways they belong to; `oracle` is a way too."""

    kinds: tuple[str, ...]
    ways: tuple[str, ...]


_DECLINED = ("accept-set", "label-declined")
"""Attacks that read which samples a client answered, whatever kind of message says so."""

_FROM_RECORDS = frozenset([("discriminator_scores", "fediod")])
"""Kinds that a protocol computes from records with a network that `dp-sgd` does not train, and the protocol's name."""

_FROM_SERVER = {"updates": "model", "answers": "ensemble", "declined": "ensemble", "prototypes": "ensemble"}
"""The way of the same kinds if the server sends them: the sum or the choice of all clients."""

_HIDE_CLIENTS = (
    "Clip each client's {kinds} and add `gaussian-noise` for whole clients, or sum updates securely if only the sum is "
    "needed."
)
_LABELS_NO_REMEDY = "Answering with labels only is no remedy: label-only attacks exist (Choquette-Choo 2021)."
_NOT_BY_THE_RECEIVER = (
    "Noise that the receiver of the answers adds (`gnmax`) hides nothing from the receiver."
)
_ONLY_A_BOUND = "Only a stated ε bounds what any attack can tell about a record."

REMEDIES: Mapping[tuple[str, str], Remedy] = MappingProxyType(
    {
        ("reconstruction", "updates"): Remedy(
            do=_HIDE_CLIENTS,
            why="Larger batches and more local steps make the attack harder, and guarantee nothing.",
        ),
        ("text-reconstruction", "updates"): Remedy(
            do=_HIDE_CLIENTS,
            why="Every word that occurs changes its row of the embedding, in batches of any size.",
        ),
        ("reconstruction", "model"): Remedy(
            do="Limit who gets the model and who may ask it: either shows what its classes look like.",
            why="`dp-sgd` protects single records, and not what a class looks like.",
        ),
        ("reconstruction", "answers"): Remedy(
            do="Clip each client's {kinds} and add `gaussian-noise`.",
            why=f"The attack inverts the values of the answers. {_LABELS_NO_REMEDY}",
        ),
        ("reconstruction", "ensemble"): Remedy(
            do="Publish noisy votes (`gnmax`) instead of {kinds}.", why="The attack inverts exact values."
        ),
        ("reconstruction", "prototypes"): Remedy(
            do="Sum each client's {kinds} securely, or add `gaussian-noise` to them.",
            why="A mean over few records is close to each of them.",
        ),
        ("reconstruction", "generator"): Remedy(
            do="Clip and noise what trains the generator: `sanitized-gradients`.",
            why="A generator repeats records that it was fitted to.",
        ),
        ("reconstruction", "oracle"): Remedy(
            do="Limit and log the questions that are answered.",
            why=f"Each answer tells more of the model. {_LABELS_NO_REMEDY}",
        ),
        ("membership", "updates"): Remedy(
            do="Train every network that is sent with `dp-sgd` at a stated ε before sending {kinds}.",
            why=f"{_ONLY_A_BOUND} A secure sum, where the protocol needs only the sum, hides whose record it is.",
        ),
        ("membership", "model"): Remedy(
            do="Train with `dp-sgd` at a stated ε before a model is sent out.", why=_ONLY_A_BOUND
        ),
        ("membership", "answers"): Remedy(
            do="Train with `dp-sgd` at a stated ε before answering.",
            why=f"{_LABELS_NO_REMEDY} {_NOT_BY_THE_RECEIVER}",
        ),
        ("membership", "ensemble"): Remedy(
            do="Publish noisy votes (`gnmax`) instead of {kinds}, at a stated ε.", why=_LABELS_NO_REMEDY
        ),
        ("membership", "declined"): Remedy(
            do="Answer every public sample, and train with `dp-sgd` at a stated ε.",
            why="Which samples a client declines depends on each of its records; `dp-sgd` alone does not cover that.",
        ),
        ("membership", "prototypes"): Remedy(
            do="Sum each client's {kinds} securely, with `gaussian-noise` at a stated ε.",
            why="A mean over few records shows who is among them.",
        ),
        ("membership", "generator"): Remedy(
            do="Train generator and discriminator with noise at a stated ε: `sanitized-gradients`.",
            why="Generated samples and a discriminator's scores are closest to what was trained on.",
        ),
        ("membership", "cotangents"): Remedy(
            do="Train with `dp-sgd` at a stated ε before answering.",
            why="{kinds} follow from every client's answers. Noise on gradients at samples hides nothing of these.",
        ),
        ("membership", "oracle"): Remedy(
            do="Train everything that answers questions with `dp-sgd` at a stated ε.",
            why=_LABELS_NO_REMEDY,
        ),
        ("label-distribution", "counts"): Remedy(
            do="Do not send {kinds} to a single party: sum them securely, or leave them out.",
            why="They are the class shares.",
        ),
        ("label-distribution", "labels"): Remedy(
            do="Do not send {kinds}: draw the labels that the generator is given without looking at records.",
            why="They are the labels of single records, in clear.",
        ),
        ("label-distribution", "declined"): Remedy(
            do="Answer every public sample, or choose those to answer without looking at private records.",
            why="Which samples a client declines shows which classes it holds.",
        ),
        ("label-distribution", "updates"): Remedy(
            do=_HIDE_CLIENTS,
            why="Noise that hides one record does not hide a client's class shares.",
        ),
        ("label-distribution", "model"): Remedy(
            do="Add noise for whole clients before the model is summed: `dp-fedavg`.",
            why="An ε for clients covers their class shares; an ε for records does not.",
        ),
        ("label-distribution", "answers"): Remedy(
            do="Let a secure aggregation count votes and publish noisy ones (`gnmax`): nobody gets a client's {kinds}.",
            why=f"A client is surest about the classes that it holds. {_NOT_BY_THE_RECEIVER}",
        ),
        ("label-distribution", "ensemble"): Remedy(
            do="Publish noisy votes (`gnmax`) instead of {kinds}.",
            why="Whoever knows the other clients can take their part away.",
        ),
        ("label-distribution", "prototypes"): Remedy(
            do="Send {kinds} for every class, or sum them securely.",
            why="A missing class, or a noisy one, shows how many records a client has of it.",
        ),
        ("label-distribution", "generator"): Remedy(
            do="Draw as many generated samples of each class, whatever a client holds.",
            why="Their shares follow the client's own.",
        ),
        ("label-distribution", "oracle"): Remedy(
            do="Limit and log the questions that are answered.",
            why="Answers on public samples show the classes that were learnt.",
        ),
        ("model-extraction", "updates"): Remedy(
            do="Treat each client's model as known to whoever receives its {kinds}.",
            why="The model can be computed from them.",
        ),
        ("model-extraction", "answers"): Remedy(
            do="Treat each client's model as known to whoever receives its {kinds}; or let a secure aggregation count "
            "votes (`gnmax`).",
            why="Every attack on a white box can be tried on the copy.",
        ),
        ("model-extraction", "ensemble"): Remedy(
            do="Treat the ensemble as known to whoever receives {kinds}.",
            why="Every attack on a white box can be tried on the copy.",
        ),
        ("model-extraction", "oracle"): Remedy(
            do="Limit and log questions, and treat the model as known to whoever may ask.",
            why="Every attack on a white box can be tried on the copy.",
        ),
    }
)
"""By goal and way."""

ENCRYPT = Remedy(
    do="Encrypt the transport: this stops listening in, not what receivers and the world can do.",
    why="Then an eavesdropper sees sizes and times. Receivers of the messages see as much as before.",
)

_GENERAL: Mapping[str, Remedy] = MappingProxyType(
    {
        "reconstruction": Remedy(
            do="Keep {kinds} from this adversary, or add noise before they are sent.",
            why="Inputs were reconstructed from its view.",
        ),
        "text-reconstruction": Remedy(
            do="Keep {kinds} from this adversary, or add noise before they are sent.",
            why="Words of texts were recovered from its view.",
        ),
        "membership": Remedy(do="Train with `dp-sgd` at a stated ε.", why=_ONLY_A_BOUND),
        "label-distribution": Remedy(
            do="Keep {kinds} from single parties: sum them securely.",
            why="Class shares were guessed from them.",
        ),
        "model-extraction": Remedy(
            do="Treat the copied model as known to this adversary.",
            why="Every attack on a white box can be tried on the copy.",
        ),
    }
)
"""For ways that the table does not list, such as a recorded system's own kinds of messages."""


def way(kind: str, sender: str) -> str:
    """Return the way that messages of a kind from a sender belong to; `other` for kinds without one."""
    known = KINDS.get(kind)
    found = (known.way if known else None) or "other"
    return found if role(sender) == "client" else _FROM_SERVER.get(found, found)


def carried(result: Result, finding: Finding) -> Carried:
    """Return what brought the data of a finding to its adversary.

    These are the messages with private data that the adversary received and that the attack can start from, with those
    that it reads besides. All such messages count if it starts from none of them: guesses from outside do not say, and
    a server attacks the model that it fitted to what it received.
    """
    members, needs = finding.cell.adversary.split("+"), finding.cell.needs
    started = _received(result, members, needs)
    found = _received(result, members, (*needs, *finding.cell.reads)) if started.ways else started
    if finding.cell.attack in _DECLINED:
        return Carried(kinds=found.kinds, ways=("declined",))
    if found.ways:
        return found
    may_ask = any(set(oracle.available_to) & set(members) for oracle in result.oracles)
    if may_ask and any(need.startswith("oracle") for need in needs):
        return Carried(kinds=(), ways=("oracle",))
    return _received(result, members, ())


def _received(result: Result, members: Sequence[str], needs: Sequence[str]) -> Carried:
    """Return what members received of these kinds that depends on private data; of all kinds, if none are named."""
    kinds, ways = dict[str, None](), dict[str, None]()
    for row in result.exposure:
        fits = not needs or row.kind in needs
        if row.party in members and row.direction != "sent" and row.private and fits:
            kinds[row.kind] = None
            ways.update(
                dict.fromkeys(way(row.kind, sender) for sender in row.senders if sender not in members)
            )
    return Carried(kinds=tuple(kinds), ways=tuple(ways))


def remedy(result: Result, finding: Finding) -> Remedy:
    """Return the remedy for a finding: for the first way of `WAYS` that the table knows for its goal.

    An eavesdropper's remedy is encryption: what the message's receiver can do has a finding of its own.
    """
    if "eavesdropper" in finding.cell.adversary.split("+"):
        return ENCRYPT
    goal, found = finding.cell.goal, carried(result, finding)
    order = [*WAYS, "model", "oracle"]
    ways = sorted((w for w in found.ways if (goal, w) in REMEDIES), key=order.index)
    chosen = REMEDIES[goal, ways[0]] if ways else _GENERAL.get(goal)
    if chosen is None:
        return Remedy(do="Find out what this adversary needs to receive.", why="Its goal has no rule here.")
    behind = [k for k in found.kinds if not ways or k in _kinds(ways[0])] or list(found.kinds)
    named = joined(f"`{clip(kind, 60)}`" for kind in behind) or "its messages"
    also = _beside_epsilon(result, chosen.do) if "a stated ε" in chosen.do else ""
    return Remedy(do=chosen.do.replace("{kinds}", named) + also, why=chosen.why.replace("{kinds}", named))


def _beside_epsilon(result: Result, do: str) -> str:
    """Return what else has to be done before an ε can be stated, in sentences."""
    aside = [f"`{kind}`" for kind in without_epsilon(result)]
    also = (
        f" Withhold {joined(aside)} too: no ε covers {'it' if len(aside) == 1 else 'them'}." if aside else ""
    )
    declines = any(cell.attack in _DECLINED and cell.status == "run" for cell in result.cells)
    if declines and "Answer every" not in do:
        also += " Answer every public sample too: no ε covers which are declined."
    return also


def without_epsilon(result: Result) -> list[str]:
    """Return the kinds that a party received without a defence, and that an ε of `dp-sgd` does not cover."""
    protocol = result.run.protocol
    bare = {
        row.kind for row in result.exposure if row.private and row.direction != "sent" and not row.defenses
    }
    return [k for k in KINDS if k in bare and (KINDS[k].direct or (k, protocol) in _FROM_RECORDS)]


def _kinds(way: str) -> tuple[str, ...]:
    """Return the kinds of messages that can take a way."""
    return tuple(
        kind for kind, known in KINDS.items() if way in (known.way, _FROM_SERVER.get(known.way or ""))
    )
