"""Checks of the brought records against the models on record: an update of one step, and what a model has learnt.

Images of another scale, classes that count from 1, records under wrong numbers and exchanged sites all leave a record
that is intact. Attacks then look for the wrong data and find nothing, so what cannot be explained is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.errors import TrainingDivergedError
from fdaudit.importing.frozen_check import starts_of
from fdaudit.limits import MOST_TABLE
from fdaudit.models.network import trainable_parameters
from fdaudit.storage.files import decode
from fdaudit.training.objectives import ClientStep
from fdaudit.training.optimizers import rate_in
from fdaudit.training.trainer import Fit, Job
from fdaudit.transcript.encoding import Naming, weights_of
from fdaudit.transcript.messages import Message, role
from fdaudit.transcript.payloads import read_payload

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = ["doubts", "refuted_rates"]

Uses = Mapping[int, Sequence[int]]

_ALIKE = 0.98
"""Least cosine of a one-step update and the gradient of its records, if the card's network and records are right."""
_TOLERANCE = 0.05
"""Largest relative error of a learning rate that an update of one step shows."""
_NEAR = 0.5
"""Part of the norm of weights: trained weights lie nearer to those before, and differences are smaller."""
_MOST_STEPS = 4
"""Updates of one step that are computed again."""
_MOST_RECORDS = 2000
"""Records that the last model is asked about."""
_LOOK = "Check the network, the scale of images, the classes, the numbers of records and which site is which client"


def refuted_rates(case: Case, transcript: Path, messages: Sequence[Message], uses: Uses) -> list[str]:
    """Return a sentence for each update of one step that another learning rate than the card's explains.

    Only a card that states the loss is refuted: otherwise another loss, or clipping, may explain the update as well.
    """
    if case.settings.get("loss") is None:
        return []
    sentences = []
    for message, rate, shown in _steps(case, transcript, messages, uses):
        if shown is not None and abs(shown / rate - 1) > _TOLERANCE:
            update = f"message {message.seq} of {message.sender} is an update of one step"
            sentences.append(f"{update} at a learning rate of {shown:.3g}, and the card states {rate:g}")
    return sentences


def doubts(case: Case, transcript: Path, messages: Sequence[Message], uses: Uses | None) -> list[str]:
    """Return what in the models on record the brought records do not explain, one sentence each."""
    sentences = list[str]()
    if not case.system.card.defenses and not case.system.card.attested:
        sentences += _mistaken_kinds(case, transcript, messages)
        other = []
        for message, rate, shown in _steps(case, transcript, messages, uses or {}):
            if shown is None:
                problem = f"Message {message.seq} of {message.sender}, an update of one step, does not follow"
                sentences.append(f"{problem} from its records. {_LOOK}.{_unsaid(case)}")
            elif abs(shown / rate - 1) > _TOLERANCE:
                other.append(f"{shown:.3g} of message {message.seq}")
        if other:
            rates = f"rates that fit best are {', '.join(other)}"
            sentences.append(
                f"Updates of one step do not follow from the card's loss and learning rate: {rates}."
                " Label smoothing, class weights, a summed loss, clipped or accumulated gradients would explain it:"
                " state `training.loss`, `training.clip` and `training.accumulate`. Inversion assumes what it says."
            )
    return [*sentences, *_learnt_nothing(case, transcript, messages)]


def _mistaken_kinds(case: Case, transcript: Path, messages: Sequence[Message]) -> Iterator[str]:
    """Yield a sentence for the first upload whose values look like the other kind: weights, or what they moved by.

    Weights after training lie near those before. A difference is small beside them, and points elsewhere.
    """
    naming = Naming.of(case.settings)
    tried, starts = 0, starts_of(messages)
    for message in messages:
        start = starts.get(message.seq)
        if role(message.sender) != "client" or message.kind not in ("model_update", "model_parameters"):
            continue
        if start is None or {message.seq, start.seq} & case.system.not_finite:
            continue
        if message.payload is None or start.payload is None:
            continue
        before = weights_of(decode(read_payload(transcript, start)), naming)
        upload = weights_of(decode(read_payload(transcript, message)), naming)
        old_values, new_values = [], []
        for name, values in upload.items():
            if name in before and values.is_floating_point() and values.shape == before[name].shape:
                old_values.append(before[name].flatten().double())
                new_values.append(values.flatten().double())
        if new_values:
            old, new = torch.cat(old_values), torch.cat(new_values)
            near = float((new - old).norm()) < _NEAR * float(old.norm())
            small = float(new.norm()) < _NEAR * float(old.norm())
            what = f"Message {message.seq} of {message.sender}, {message.kind}, looks like"
            if message.kind == "model_parameters" and small:
                yield f"{what} a difference of weights: that is `model_update`. Check what the loop sends."
                return
            if message.kind == "model_update" and near and not small:
                yield f"{what} whole weights: that is `model_parameters`. Check what the loop sends."
                return
        tried += 1
        if tried == _MOST_STEPS:
            return


def _unsaid(case: Case) -> str:
    """Return what the card leaves open of the inputs of networks, as a sentence; empty if it states that."""
    if case.system.card.preprocess is not None:
        return ""
    return " State `preprocess` in the card if clients normalise images."


def _steps(
    case: Case, transcript: Path, messages: Sequence[Message], uses: Uses
) -> Iterator[tuple[Message, float, float | None]]:
    """Yield the first updates of one step, with the stated rate and the one that explains it, None if none does."""
    settings = case.settings
    is_plain = not case.missing("architecture", "images") and settings.get("optimizer") in (None, "sgd")
    if not is_plain or settings.get("local_steps") != 1:
        return
    tried, starts = 0, starts_of(messages)
    for seq, records in uses.items():
        message, start = messages[seq], starts.get(seq)
        rate = rate_in(settings, message.round)
        if message.kind not in ("model_update", "model_parameters") or start is None or not records:
            continue
        if rate is None or {seq, start.seq} & case.system.not_finite:
            continue
        if message.payload is None or start.payload is None or not len(case.numbered(message.sender)):
            continue
        yield message, rate, _rate_shown(case, transcript, message, start, records)
        tried += 1
        if tried == _MOST_STEPS:
            return


def _rate_shown(
    case: Case, transcript: Path, message: Message, start: Message, records: Sequence[int]
) -> float | None:
    """Return the learning rate that explains an update of one step; None if it is no multiple of the gradient."""
    naming = Naming.of(case.settings)
    before = weights_of(decode(read_payload(transcript, start)), naming)
    upload = weights_of(decode(read_payload(transcript, message)), naming)
    rows = case.numbered(message.sender)[torch.tensor(list(records), dtype=torch.int64)]
    network = case.named_networks.initial([message.sender], 0)[message.sender]
    if before.keys() != network.keys():
        return None
    gradient = _gradient(case, message.sender, before, case.dataset.x[rows], case.dataset.y[rows])
    if not gradient:
        return None
    changes, gradients = [], []
    for name in gradient:
        if name not in upload:
            continue
        change = upload[name]
        if message.kind == "model_parameters":
            change = change - before[name]
        changes.append(change.flatten())
        gradients.append(gradient[name].flatten())
    g = ClientStep.of(case.settings).clipped(torch.cat(gradients)).double()
    u = torch.cat(changes).double()
    norms = float(g.norm() * u.norm())
    if not norms > 0 or float(-(g @ u)) / norms < _ALIKE:
        return None
    return float(-(g @ u) / (g @ g))


def _gradient(
    case: Case, party: str, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor
) -> Mapping[str, Tensor]:
    """Return the gradient of the stated loss at these parameters; empty if the loss is not finite there."""
    step, targets, fit = ClientStep.of(case.settings), y, Fit(lr=1.0)
    if step.function is not None:
        return _own_gradient(case, step, parameters, x, y)
    if not step.plain:
        targets = step.targets(y, case.dataset.classes)
    job = Job(party=party, parameters=parameters, x=x, targets=targets, batches=[torch.arange(len(y))])
    try:
        (fitted,) = case.trainer().gradients([job], fit)
    except TrainingDivergedError:  # the model on record had diverged, or its network is another
        return {}
    return fitted.parameters


def _own_gradient(
    case: Case, step: ClientStep, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor
) -> Mapping[str, Tensor]:
    """Return the gradient of a loss of the user's own; empty if it is not finite."""
    trainer = case.trainer()
    network = trainer.network(parameters)
    free = trainable_parameters(network)
    loss = step.loss(network, x.to(trainer.device), y.to(trainer.device))
    values = torch.autograd.grad(loss, list(free.values()), allow_unused=True, materialize_grads=True)
    if not all(bool(value.isfinite().all()) for value in values):
        return {}
    return {name: value.cpu() for name, value in zip(free, values, strict=True)}


def _learnt_nothing(case: Case, transcript: Path, messages: Sequence[Message]) -> Iterator[str]:
    """Yield a sentence if the last shared model knows the clients' records no better than the most common class."""
    most = min(_MOST_RECORDS, max(1, MOST_TABLE // case.dataset.classes))
    rows = torch.cat([client.train for client in case.splits.clients])[:most]
    one_class = case.dataset.task.labels.one_class
    if case.missing("architecture", "images") or not one_class or not len(rows):
        return
    last = None
    for message in messages:
        is_shared = message.kind == "model_parameters" and role(message.sender) != "client"
        if is_shared and message.payload and message.seq not in case.system.not_finite:
            last = message
    if last is None:
        return
    parameters = weights_of(decode(read_payload(transcript, last)), Naming.of(case.settings))
    if parameters.keys() != case.initial().keys():
        return
    y = case.dataset.y[rows]
    right = float((case.trainer().predict(parameters, case.dataset.x[rows]).argmax(1) == y).double().mean())
    common = float(torch.bincount(y).max()) / len(y)
    if right <= common:
        accuracy = f"The last model, message {last.seq}, gets {right:.0%} of the clients' records right"
        guessing = f"always naming one class gets {common:.0%}. {_LOOK}, if it has learnt more."
        yield f"{accuracy}; {guessing}{_unsaid(case)}"
