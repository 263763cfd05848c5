"""A data protection impact assessment (Art. 35 GDPR), filled in where a run knows the answer, with lines for the rest.

It is made from the public variant of a result: it may be handed to a data protection officer or an authority.

Guarantees:
  * it states nothing that the public report does not state;
  * the same result gives the same bytes;
  * what no run can know is a line to fill in, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from fdaudit.kinds import KINDS
from fdaudit.result import FinalUtility, Result
from fdaudit.transcript.messages import role

from ..grouping import grouped
from ..page import render
from ..public import public
from ..text import clip, joined
from .front import front
from .sign_off import Provenance, sign_off

__all__ = ["Flow", "render_dpia"]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Messages of one kind that one role receives.

    Attributes:
        receiver: the role of the receivers.
        senders: the roles of the senders.
        kind: of the messages.
        what: what such a message holds.
        private: whether they depend on personal data.
        defences: the defences that acted on them.
    """

    receiver: str
    senders: str
    kind: str
    what: str
    private: bool
    defences: str


def render_dpia(result: Result, provenance: Provenance) -> str:
    """Return the assessment as HTML text.

    Args:
        result: the result of the run, not its public variant.
        provenance: the day of the result.
    """
    shown = public(result)
    kinds: dict[str, dict[str, None]] = {}
    for row in shown.exposure:
        for name in row.defenses:
            kinds.setdefault(clip(name, 60), {})[clip(row.kind, 60)] = None
    final = list[FinalUtility]()
    for entry in shown.utility.final:
        if entry.figure.value is not None:
            final.append(entry)
    return render(
        "dpia.html.j2",
        {
            "result": shown,
            "run": shown.run,
            "front": front(shown),
            "flows": tuple(_flows(shown)),
            "defences": [f"`{name}` on {joined(acted_on)}" for name, acted_on in kinds.items()],
            "final": tuple(final),
            "sign_off": sign_off(shown, provenance),
        },
    )


def _flows(result: Result) -> Iterator[Flow]:
    """Yield what each role receives, a row for each kind of message."""
    received = [row for row in result.exposure if row.direction == "received"]
    for (receiver, kind), same in grouped(received, lambda row: (role(row.party), row.kind)).items():
        senders = map(role, chain.from_iterable(row.senders for row in same))
        defences = chain.from_iterable(row.defenses for row in same)
        yield Flow(
            receiver=receiver,
            senders=joined(dict.fromkeys(senders)) or "not on record",
            kind=kind,
            what=KINDS[kind].text if kind in KINDS else "",
            private=any(row.private for row in same),
            defences=joined(dict.fromkeys(clip(name, 60) for name in defences)) or "none",
        )
