"""Random federations of Gaussian releases, and what a view of one truly learns, worked out by linear algebra alone.

Every message is given one concrete content that its declaration allows: rows of numbers, each a linear form in the
clients' data (one number a client) and in independent standard normal noises. A message without a guarantee hands on
all that it was computed from. A release adds noise to the data that it covers and hands on what it does not cover. A
sum adds up. A message that the spec withholds has no row; its content may still be asked for.
A view that knows rows learns of a victim's number, which moves by 1, a Gaussian of mean μ: μ² = aᵀ Σ⁺ a, with a the
rows' coefficients of that number and Σ the covariance of their noise; everything, where a combination has no noise.
No ledger may print less than that costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from fdaudit.accounting.charging import SUM
from fdaudit.accounting.ledger import OracleAnswers
from fdaudit.events import Gaussian, NoGuarantee
from fdaudit.transcript.messages import Message

from ..helpers.ledger_cases import Log, gaussian

__all__ = ["PARTIES", "Federation", "federation"]

PARTIES = ("server", "aggregator", "client/0", "client/1", "client/2", "world")
CLIENTS = PARTIES[2:5]
VARYING = ("hard_labels",)
Row = dict[str, float]


@dataclass
class Federation:
    """A record, what may be asked, and each message's content.

    Attributes:
        log: the record.
        oracles: what may be asked of models.
        rows: by `seq`, the content of each message and of each oracle's answers.
        fixed_sizes: kinds by role whose size tells nothing.
    """

    log: Log = field(default_factory=Log)
    oracles: list[OracleAnswers] = field(default_factory=list)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    fixed_sizes: frozenset[tuple[str, str]] = frozenset()

    def truth(self, members: Collection[str], transport: str, victim: str) -> float:
        """Return μ of what a view learns of a victim, or infinity."""
        rows = [row for seq in self._known(members, transport) for row in self.rows[seq]]
        noises = sorted({name for row in rows for name in row if name.startswith("noise")})
        a = np.array([row.get(victim, 0.0) for row in rows])
        N = np.array([[row.get(name, 0.0) for name in noises] for row in rows]).reshape(
            len(rows), len(noises)
        )
        if not a.any():
            return 0.0
        covariance = N @ N.T
        inverse = np.linalg.pinv(covariance, rcond=1e-9, hermitian=True)
        left = a - covariance @ (inverse @ a)  # the part of the signal that no noise covers
        return math.inf if np.linalg.norm(left) > 1e-6 else math.sqrt(float(a @ inverse @ a))

    def _known(self, members: Collection[str], transport: str) -> list[int]:
        """Whose content reaches a view; of an encrypted message only a size that the content decides."""
        hears = "eavesdropper" in members
        found = []
        for m in self.log:
            readable = transport == "plain" or m.kind in VARYING
            overheard = hears and readable and any(r != m.sender for r in m.receivers)
            if set(members) & set(m.parties()) or overheard:
                found.append(m.seq)
        roles = {p.partition("/")[0] for p in members}
        for o in self.oracles:
            heard = roles & o.heard_by or (hears and transport == "plain")
            if roles & o.asked_by and heard:
                found.append(o.message.seq)
        return found


def federation(g: Generator) -> Federation:
    """Draw a federation of up to 16 messages: plain ones, releases, sums, silence, and answers of oracles."""
    made = Federation()
    kinds = ("model_update", "hard_labels")
    made.fixed_sizes = frozenset(
        (kind, role) for kind in kinds[:1] for role in ("server", "aggregator", "client")
    )
    if g.random() < 0.4:
        _add_shares(made, g)
    for _ in range(int(g.integers(2, 11))):
        what = g.choice(["plain", "plain", "plain", "noisy", "noisy", "noisy", "sum", "sum", "silence"])
        if what == "sum":
            _add_sum(made, g)
        elif what == "silence":
            seq = made.log.add(str(g.choice(CLIENTS)), "server", "silence", [])
            made.rows[seq] = []
        else:
            _add_message(made, g, str(g.choice(kinds)), noisy=what == "noisy")
    for _ in range(int(g.integers(0, 3))):
        _add_oracle(made, g)
    return made


def _add_shares(made: Federation, g: Generator) -> None:
    """Add each client's noisy data for an aggregator, sometimes overheard by the server, and sums of some of them."""
    for client in CLIENTS:
        event = gaussian(float(g.choice([0.5, 1.0, 4.0])))
        to = "aggregator server" if g.random() < 0.2 else "aggregator"
        seq = made.log.add(client, to, "model_update", ["data"], event)
        made.rows[seq] = _content(made, made.log[seq])
    for _ in range(int(g.integers(1, 4))):
        _add_sum(made, g)


def _add_message(made: Federation, g: Generator, kind: str, *, noisy: bool) -> None:
    log = made.log
    sender = str(g.choice(PARTIES[:5]))
    to = str(
        g.choice(
            ["server", "client/0 client/1", "aggregator", "aggregator", "aggregator server", "world", ""]
        )
    )
    event = None
    if noisy and sender in CLIENTS:
        covers = [("data", "messages"), ("data", "messages"), ("data",), ("messages",)][int(g.integers(4))]
        event = gaussian(float(g.choice([0.5, 1.0, 2.0, 4.0])), covers=covers)
    elif noisy:
        event = NoGuarantee(reason="none")
    inputs = _inputs(log, sender, g)
    seq = log.add(sender, to, kind, inputs, event)
    made.rows[seq] = _content(made, log[seq])


def _inputs(log: Log, sender: str, g: Generator) -> object:
    choices: list[object] = [m.seq for m in log if sender in m.parties()]
    if sender in CLIENTS:
        choices = ["data", *choices]
    if g.random() < 0.15:
        return "all"
    return [c for c in choices if g.random() < (0.7 if c == "data" else 0.25)]


def _content(made: Federation, message: Message) -> list[Row]:
    """The rows of a message: noisy data where its event covers data, and all else that it was computed from."""
    event, own = message.event, message.sender in CLIENTS
    sources: list[object] = list(message.inputs)
    if message.inputs == "all":
        held = [m.seq for m in made.log[: message.seq] if message.sender in m.parties()]
        sources = [*(["data"] if own else []), *held]
    covers = event.covers if isinstance(event, Gaussian) else ()
    rows: list[Row] = []
    for source in sources:
        if source == "data" and "data" not in covers:
            rows.append({message.sender: 1.0})
        elif source != "data" and "messages" not in covers:
            rows += made.rows[int(source)]  # type: ignore[call-overload]
    if isinstance(event, Gaussian) and "data" in covers and "data" in sources:
        rows.append({message.sender: event.sensitivity, f"noise {message.seq}": event.scale})
    return rows


def _add_sum(made: Federation, g: Generator) -> None:
    """Add an exact sum, by the aggregator, of single noisy messages that it holds, one a client."""
    log = made.log
    single = [m.seq for m in log if "aggregator" in m.receivers and isinstance(m.event, Gaussian)]
    single = [s for s in single if len(made.rows[s]) == 1 and f"noise {s}" in made.rows[s][0]]
    by_sender = {log[s].sender: s for s in single if g.random() < 0.8}
    if not by_sender:
        return
    seq = log.add(
        "aggregator",
        str(g.choice(["server", "world"])),
        "model_update",
        sorted(by_sender.values()),
        **{SUM: True},
    )
    total: Row = {}
    for part in by_sender.values():
        for name, value in made.rows[part][0].items():
            total[name] = total.get(name, 0.0) + value
    made.rows[seq] = [total]


def _add_oracle(made: Federation, g: Generator) -> None:
    """Add answers that follow the record: of a message, or of all that a party holds; some with noise of their own."""
    sender = str(g.choice(PARTIES[:5]))
    held = [m.seq for m in made.log if sender in m.parties()]
    inputs: object = "all"
    if held and g.random() < 0.5:
        inputs = [int(g.choice(held))]
    event = gaussian(2.0, count=9) if sender in CLIENTS and g.random() < 0.3 else None
    log = Log(made.log)
    log.extend(o.message for o in made.oracles)
    seq = log.add(sender, "", "oracle_answer", inputs, event)
    made.rows[seq] = _oracle_content(made, log[seq])
    asked = frozenset({str(g.choice(["server", "world", "aggregator"]))})
    heard = asked if g.random() < 0.5 else frozenset({"aggregator"})
    made.oracles.append(OracleAnswers(message=log[seq], asked_by=asked, heard_by=heard, queries=9))


def _oracle_content(made: Federation, message: Message) -> list[Row]:
    """Nine answers; with noise, each of the sender's data with noise of its own."""
    event = message.event
    if not isinstance(event, Gaussian):
        return _content(made, message)
    data = message.inputs == "all"
    count = event.count if data else 0
    noise = {f"noise {message.seq} {n}": event.scale for n in range(count)}
    return [{message.sender: event.sensitivity, name: scale} for name, scale in noise.items()]
