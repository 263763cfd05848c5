"""Message diagram: one lifeline a role, one arrow a kind of message, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from fdaudit.result import Exposure
from fdaudit.transcript.messages import role

from ..text import clip, kilobytes, visible

__all__ = ["Arrow", "arrows", "diagram"]

_ORDER = ("client", "aggregator", "server", "world")
_ROW, _TOP, _GAP, _MARGIN, _LOOP = 44, 48, 158, 62, 46


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """Traffic of one kind from one role to another: messages and bytes received, summed over the receivers.

    `shared`: the counts cover several senders' roles together, because the result does not separate them.
    """

    sender: str
    receiver: str
    kind: str
    messages: int
    bytes: int
    defended: bool
    shared: bool


def arrows(exposure: Sequence[Exposure]) -> tuple[Arrow, ...]:
    """Return the arrows of the receivers' rows; listeners (eavesdropper, coalition) have none."""
    sums: dict[tuple[str, str, str], Arrow] = {}
    for row in exposure:
        receiver = role(row.party)
        if row.direction != "received" or receiver == "eavesdropper" or "+" in row.party:
            continue
        senders = tuple(dict.fromkeys(map(role, row.senders)))
        for sender in senders:
            key = (sender, receiver, row.kind)
            none = Arrow(
                sender=sender,
                receiver=receiver,
                kind=row.kind,
                messages=0,
                bytes=0,
                defended=True,
                shared=len(senders) > 1,
            )
            arrow = sums.get(key, none)
            sums[key] = replace(
                arrow,
                messages=arrow.messages + row.count,
                bytes=arrow.bytes + row.bytes,
                defended=arrow.defended and bool(row.defenses),
                shared=arrow.shared or len(senders) > 1,
            )
    return tuple(sums.values())


def diagram(exposure: Sequence[Exposure], clients: int) -> Markup:
    """Return the diagram as an `svg` element, or an empty text if no message was received."""
    rows = arrows(exposure)
    roles = sorted({*(arrow.sender for arrow in rows), *(arrow.receiver for arrow in rows)}, key=_place)
    if not rows:
        return Markup("")
    x = {r: float(_MARGIN + i * _GAP) for i, r in enumerate(roles)}
    width = 2 * _MARGIN + _GAP * max(1, len(roles) - 1)
    rows = tuple(sorted(rows, key=lambda a: (_place(a.sender), _place(a.receiver), a.kind)))
    height = _TOP + _ROW * len(rows) + 12
    says = "; ".join(f"{a.sender} to {a.receiver}: {a.kind}, {a.messages} received" for a in rows)
    title = escape(visible(clip("Who sends what to whom. " + says, 2000)))
    parts = [
        f'<svg class="chart wires" viewBox="0 0 {width} {height}" style="min-width: {0.75 * width:.0f}px" ',
        f'role="img" aria-labelledby="wires-title"><title id="wires-title">{title}</title>',
    ]
    for r in roles:
        name = f"{clients} clients" if r == "client" else clip(r, 16)
        parts.append(
            f'<line class="life" x1="{x[r]:.1f}" y1="34" x2="{x[r]:.1f}" y2="{height - 4}"/>'
            f'<rect class="role" x="{x[r] - 48:.1f}" y="8" width="96" height="26" rx="4"/>'
            f'<text class="role" x="{x[r]:.1f}" y="25.5">{escape(visible(name))}</text>'
        )
    for i, arrow in enumerate(rows):
        parts.append(_arrow(arrow, x[arrow.sender], x[arrow.receiver], _TOP + _ROW * i + 24))
    return Markup("".join(parts) + "</svg>")  # noqa: S704 - every text in it is escaped above


def _arrow(arrow: Arrow, start: float, end: float, y: float) -> str:
    """Return one arrow with its label; a role that sends to itself gets a loop to the right."""
    reach = start + _LOOP if start == end else end
    sign = 1 if reach > start else -1
    tip = reach - 2 * sign
    head = f"{tip:.1f},{y:.1f} {tip - 8 * sign:.1f},{y - 4:.1f} {tip - 8 * sign:.1f},{y + 4:.1f}"
    name = clip(arrow.kind, 28)
    most = "up to " if arrow.shared else ""
    detail = f"{most}{arrow.messages:,} received, {kilobytes(arrow.bytes)}"
    shield = "defended" if arrow.defended else "bare"
    middle = (start + reach) / 2
    return (
        f'<g class="{shield}"><line x1="{start:.1f}" y1="{y}" x2="{tip - 6 * sign:.1f}" y2="{y}"/>'
        f'<polygon points="{head}"/>'
        f'<text class="kind" x="{middle:.1f}" y="{y - 5}">{escape(visible(name))}</text>'
        f'<text class="detail" x="{middle:.1f}" y="{y + 13}">{escape(detail)}</text></g>'
    )


def _place(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)
