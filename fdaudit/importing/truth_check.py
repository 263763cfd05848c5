"""Checks of the brought records against the models on record: an update of one step, and what a model has learnt.

Images of another scale, classes that count from 1, records under wrong numbers and exchanged sites all leave a record
that is intact. Attacks then look for the wrong data and find nothing, so what cannot be explained is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fdaudit.errors import TrainingDivergedError
from fdaudit.limits import MOST_TABLE
from fdaudit.storage.files import decode
from fdaudit.training.trainer import Fit, Job
from fdaudit.transcript.encoding import weights_of
from fdaudit.transcript.messages import Message, role
from fdaudit.transcript.payloads import read_payload

if TYPE_CHECKING:
    from fdaudit.planning.recorded import RecordedPlan

__all__ = ["doubts", "refuted_rates"]

Uses = Mapping[int, Sequence[int]]

_ALIKE = 0.98
"""Least cosine of a one-step update and the gradient of its records, if the card's network and records are right."""
_TOLERANCE = 0.05
"""Largest relative error of a learning rate that an update of one step shows."""
_MOST_STEPS = 4
"""Updates of one step that are computed again."""
_MOST_RECORDS = 2000
"""Records that the last model is asked about."""
_LOOK = "Check the network, the scale of images, the classes, the numbers of records and which site is which client"


def refuted_rates(plan: RecordedPlan, transcript: Path, messages: Sequence[Message], uses: Uses) -> list[str]:
    """Return a sentence for each update of one step that another learning rate than the card's explains."""
    rate = plan.settings.get("lr")
    return [
        f"message {message.seq} of {message.sender} is an update of one step at a learning rate of {shown:.3g}, and the"
        f" card states {rate:g}"
        for message, shown in _steps(plan, transcript, messages, uses)
        if rate is not None and shown is not None and abs(shown / rate - 1) > _TOLERANCE
    ]


def doubts(plan: RecordedPlan, transcript: Path, messages: Sequence[Message], uses: Uses | None) -> list[str]:
    """Return what in the models on record the brought records do not explain, one sentence each."""
    found = []
    if not plan.card.defenses and not plan.card.attested:
        found = [
            f"Message {m.seq} of {m.sender}, an update of one step, does not follow from its records. {_LOOK}."
            for m, shown in _steps(plan, transcript, messages, uses or {})
            if shown is None
        ]
    return [*found, *_learnt_nothing(plan, transcript, messages)]


def _steps(
    plan: RecordedPlan, transcript: Path, messages: Sequence[Message], uses: Uses
) -> Iterator[tuple[Message, float | None]]:
    """Yield the first updates of one step, each with the learning rate that explains it, or None if none does."""
    settings = plan.settings
    known = not {"architecture", "images"} & plan.lacks.keys() and settings.get("optimizer") in (None, "sgd")
    if not known or settings.get("lr") is None or settings.get("local_steps") != 1:
        return
    tried, starts = 0, _starts(messages)
    for seq, records in uses.items():
        message, start = messages[seq], starts.get(seq)
        if message.kind not in ("model_update", "model_parameters") or start is None or not records:
            continue
        if message.payload is None or start.payload is None or not len(plan.numbered(message.sender)):
            continue
        yield message, _rate_shown(plan, transcript, message, start, records)
        tried += 1
        if tried == _MOST_STEPS:
            return


def _starts(messages: Sequence[Message]) -> dict[int, Message]:
    """Return by number of a message the model that its sender had received last before it."""
    held: dict[str, Message] = {}
    found: dict[int, Message] = {}
    for message in messages:
        if message.sender in held:
            found[message.seq] = held[message.sender]
        if message.kind == "model_parameters":
            held |= dict.fromkeys(message.receivers, message)
    return found


def _rate_shown(
    plan: RecordedPlan, transcript: Path, message: Message, start: Message, records: Sequence[int]
) -> float | None:
    """Return the learning rate that explains an update of one step; None if it is no multiple of the gradient."""
    before, sent = (weights_of(decode(read_payload(transcript, m))) for m in (start, message))
    rows = plan.numbered(message.sender)[torch.tensor(list(records), dtype=torch.int64)]
    network = plan.networks.initial([message.sender], 0)[message.sender]
    if before.keys() != network.keys():
        return None
    x, y = plan.dataset.x[rows], plan.dataset.y[rows]
    job = Job(party=message.sender, parameters=before, x=x, targets=y, batches=[torch.arange(len(y))])
    try:
        (fitted,) = plan.trainer().gradients([job], Fit(lr=1.0))
    except TrainingDivergedError:  # the model on record had diverged, or its network is another
        return None
    absolute = message.kind == "model_parameters"
    update = {n: sent[n] - before[n] if absolute else sent[n] for n in fitted.parameters if n in sent}
    g = torch.cat([fitted.parameters[n].flatten() for n in update]).double()
    u = torch.cat([update[n].flatten() for n in update]).double()
    norms = float(g.norm() * u.norm())
    if not norms > 0 or float(-(g @ u)) / norms < _ALIKE:
        return None
    return float(-(g @ u) / (g @ g))


def _learnt_nothing(plan: RecordedPlan, transcript: Path, messages: Sequence[Message]) -> Iterator[str]:
    """Yield a sentence if the last shared model knows the clients' records no better than the most common class."""
    most = min(_MOST_RECORDS, max(1, MOST_TABLE // plan.dataset.classes))
    rows = torch.cat([client.train for client in plan.splits.clients])[:most]
    lacking = {"architecture", "images"} & plan.lacks.keys()
    if lacking or plan.dataset.task != "single-label" or not len(rows):
        return
    sent = [m for m in messages if m.kind == "model_parameters" and role(m.sender) != "client" and m.payload]
    parameters = weights_of(decode(read_payload(transcript, sent[-1]))) if sent else {}
    if parameters.keys() != plan.initial().keys():
        return
    y = plan.dataset.y[rows]
    right = float((plan.trainer().predict(parameters, plan.dataset.x[rows]).argmax(1) == y).double().mean())
    common = float(torch.bincount(y).max()) / len(y)
    if right <= common:
        said = f"The last model, message {sent[-1].seq}, gets {right:.0%} of the clients' records right"
        yield f"{said}; always naming one class gets {common:.0%}. {_LOOK}, if it has learnt more."
