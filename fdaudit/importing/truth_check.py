"""Checks of the brought records against the models on record: an update of one step, and what a model has learnt.

Images of another scale, classes that count from 1, records under wrong numbers and exchanged sites all leave a record
that is intact. Attacks then look for the wrong data and find nothing, so what cannot be explained is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.errors import TrainingDivergedError
from fdaudit.importing.frozen_check import ModelsOnRecord
from fdaudit.limits import MOST_TABLE
from fdaudit.models.network import trainable_parameters
from fdaudit.training.objectives import ClientStep
from fdaudit.training.optimizers import rate_in
from fdaudit.training.trainer import Fit, Job
from fdaudit.transcript.messages import Message, role

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


def refuted_rates(models: ModelsOnRecord, uses: Uses) -> list[str]:
    """Return a sentence for each update of one step that another learning rate than the card's explains.

    Only a card that states the loss is refuted: otherwise another loss, or clipping, may explain the update as well.
    """
    if models.case.settings.get("loss") is None:
        return []
    sentences = []
    for message, rate, shown in _steps(models, uses):
        if shown is not None and abs(shown / rate - 1) > _TOLERANCE:
            update = f"message {message.seq} of {message.sender} is an update of one step"
            sentences.append(f"{update} at a learning rate of {shown:.3g}, and the card states {rate:g}")
    return sentences


def doubts(models: ModelsOnRecord, uses: Uses) -> list[str]:
    """Return what in the models on record the brought records do not explain, one sentence each."""
    card = models.case.system.card
    sentences = list[str]()
    if not card.defenses and not card.attested:
        sentences += _mistaken_kinds(models)
        rates = []
        for message, rate, shown in _steps(models, uses):
            if shown is None:
                problem = f"Message {message.seq} of {message.sender}, an update of one step, does not follow"
                sentences.append(f"{problem} from its records. {_LOOK}.{_unsaid(models.case)}")
            elif abs(shown / rate - 1) > _TOLERANCE:
                rates.append(f"{shown:.3g} of message {message.seq}")
        if rates:
            sentences.append(
                "Updates of one step do not follow from the card's loss and learning rate: rates that fit best are"
                f" {', '.join(rates)}."
                " Label smoothing, class weights, a summed loss, clipped or accumulated gradients would explain it:"
                " state `training.loss`, `training.clip` and `training.accumulate`. Inversion assumes what it says."
            )
    return [*sentences, *_learnt_nothing(models)]


def _mistaken_kinds(models: ModelsOnRecord) -> Iterator[str]:
    """Yield a sentence for the first upload whose values look like the other kind: weights, or what they moved by.

    Weights after training are near those before. A difference is small beside them, and points elsewhere.
    """
    compared = 0
    for message in models.messages:
        start = models.start(message)
        if role(message.sender) != "client" or message.kind not in ("model_update", "model_parameters"):
            continue
        if not models.is_readable(message) or not models.is_readable(start):
            continue
        before, upload = models.weights(start), models.weights(message)
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
        compared += 1
        if compared == _MOST_STEPS:
            return


def _unsaid(case: Case) -> str:
    """Return what the card leaves open of the inputs of networks, as a sentence; empty if it states that."""
    if case.system.card.preprocess is not None:
        return ""
    return " State `preprocess` in the card if clients normalise images."


def _steps(models: ModelsOnRecord, uses: Uses) -> Iterator[tuple[Message, float, float | None]]:
    """Yield the first updates of one step, with the stated rate and the one that explains it, None if none does."""
    case, settings = models.case, models.case.settings
    is_plain = not case.missing("architecture", "images") and settings.get("optimizer") in (None, "sgd")
    if not is_plain or settings.get("local_steps") != 1:
        return
    computed = 0
    for seq, records in uses.items():
        message = models.messages[seq]
        start = models.start(message)
        rate = rate_in(settings, message.round)
        if message.kind not in ("model_update", "model_parameters") or not records or rate is None:
            continue
        if not models.is_readable(message) or not models.is_readable(start):
            continue
        if not len(case.numbered(message.sender)):
            continue
        yield message, rate, _rate_shown(models, message, start, records)
        computed += 1
        if computed == _MOST_STEPS:
            return


def _rate_shown(
    models: ModelsOnRecord, message: Message, start: Message, records: Sequence[int]
) -> float | None:
    """Return the learning rate that explains an update of one step; None if it is no multiple of the gradient."""
    case = models.case
    before, upload = models.weights(start), models.weights(message)
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


def _learnt_nothing(models: ModelsOnRecord) -> Iterator[str]:
    """Yield a sentence if the last shared model knows the clients' records no better than the most common class."""
    case = models.case
    most = min(_MOST_RECORDS, max(1, MOST_TABLE // case.dataset.classes))
    rows = torch.cat([client.train for client in case.splits.clients])[:most]
    one_class = case.dataset.task.labels.one_class
    if case.missing("architecture", "images") or not one_class or not len(rows):
        return
    last = None
    for message in models.messages:
        is_shared = message.kind == "model_parameters" and role(message.sender) != "client"
        if is_shared and models.is_readable(message):
            last = message
    if last is None:
        return
    parameters = models.weights(last)
    if parameters.keys() != case.initial().keys():
        return
    y = case.dataset.y[rows]
    answers = case.trainer().predict(parameters, case.dataset.x[rows]).argmax(1)
    right = float((answers == y).double().mean())
    common = float(torch.bincount(y).max()) / len(y)
    if right <= common:
        accuracy = f"The last model, message {last.seq}, gets {right:.0%} of the clients' records right"
        guessing = f"always naming one class gets {common:.0%}. {_LOOK}, if it has learnt more."
        yield f"{accuracy}; {guessing}{_unsaid(case)}"
