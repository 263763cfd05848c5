"""Message graphs written down by hand, and an independent search for the cheapest way to charge them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from fdaudit.accounting.charges import converted, parts_of
from fdaudit.accounting.costs import epsilon
from fdaudit.events import Gaussian, Laplace, NoGuarantee, PureDP, SampledGaussian
from fdaudit.transcript.messages import Message

__all__ = ["RECORD", "Log", "brute_force", "dp_sgd", "gaussian", "laplace", "pure"]

RECORD: dict[str, Any] = {"unit": "record", "relation": "add-or-remove", "covers": ("data",)}
CLIENT: dict[str, Any] = {"unit": "client", "relation": "replace-one", "covers": ("data", "messages")}


def dp_sgd(scale: float = 1.0, rate: float = 0.1, count: int = 10) -> SampledGaussian:
    return SampledGaussian(sensitivity=1.0, scale=scale, sample_rate=rate, count=count, **RECORD)


def gaussian(scale: float = 1.0, **changes: Any) -> Gaussian:
    return Gaussian(sensitivity=1.0, scale=scale, **{**CLIENT, **changes})


def laplace(scale: float = 1.0, **changes: Any) -> Laplace:
    return Laplace(sensitivity=1.0, scale=scale, **{**CLIENT, **changes})


def pure(eps: float, **changes: Any) -> PureDP:
    return PureDP(epsilon=eps, **{**CLIENT, **changes})


class Log(list[Message]):
    """A transcript in the making: `add` returns the `seq` by which later messages name it."""

    def add(self, sender: str, to: str, kind: str, inputs: Any, event: Any = None, **fields: Any) -> int:
        receivers = tuple(part for part in to.split() if part)
        self.append(
            Message(
                seq=len(self),
                round=fields.pop("round", 0),
                step=fields.pop("step", 0),
                sender=sender,
                receivers=receivers,
                kind=kind,
                inputs=inputs if inputs == "all" else tuple(inputs),
                event=event,
                fields=fields,
            )
        )
        return len(self) - 1

    def change(self, seq: int, **changes: Any) -> None:
        """Write a message otherwise."""
        self[seq] = replace(self[seq], **changes)


def brute_force(log: Log, seen: list[int], victim: str, delta: float, unit: str, relation: str) -> float:
    """The least Rényi or pure ε over all sets of charged messages that leave no path to the victim's data."""
    worth: dict[int, Any] = {
        m.seq: converted(m.event, unit, relation)  # type: ignore[arg-type]
        for m in log
        if m.event is not None and not isinstance(m.event, NoGuarantee)
    }
    gates = [seq for seq, event in worth.items() if not isinstance(event, NoGuarantee)]
    best = float("inf")
    for size in range(len(gates) + 1):
        for charged in itertools.combinations(gates, size):
            if not any(_leaks(log, seq, victim, set(charged), worth) for seq in seen):
                charges: dict[Any, int] = {}
                for seq in charged:
                    for part in parts_of(worth[seq]):
                        charges[part] = charges.get(part, 0) + 1
                best = min(best, epsilon(charges, delta, pld=False).value)
    return best


def _leaks(log: Log, seq: int, victim: str, charged: set[int], worth: dict[int, Any]) -> bool:
    """Whether the victim's data reaches a message on a path that no charge covers; by plain recursion."""
    message = log[seq]
    covers = worth[seq].covers if seq in charged else ()
    if message.inputs == "all":
        sources: list[Any] = ["data", *(m.seq for m in log[:seq] if message.sender in m.parties())]
    else:
        sources = list(message.inputs)
    for source in sources:
        if source == "data":
            if message.sender == victim and "data" not in covers:
                return True
        elif "messages" in covers or ("each-client" in covers and log[source].sender == victim):
            continue
        elif _leaks(log, source, victim, charged, worth):
            return True
    return False
