"""Controls of attacks on gradients: bare uploads of auxiliary records, and the same uploads drowned in noise.

The records are images, texts or rows of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fdaudit import defenses
from fdaudit.config import validate
from fdaudit.evaluation.controls._case import Attempt, Figures, SmallCase, knowing, on_protocol
from fdaudit.goals import Guess
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.goals.row_reconstruction import RowReconstruction
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.handout.auxiliary import groups_of
from fdaudit.metrics import score_reconstruction
from fdaudit.metrics.rows.recovery import RecoveredRows, score_rows
from fdaudit.metrics.texts.overlap import bag
from fdaudit.metrics.texts.recovery import Recovered, score_texts
from fdaudit.protocols.fedavg import FedAvg
from fdaudit.rng import child, child_numpy
from fdaudit.tasks.columns import cells_of, plain_columns
from fdaudit.training.optimizers import rate_in
from fdaudit.transcript.messages import role
from fdaudit.types import AttackTask

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.adversary.view import View
    from fdaudit.planning.case import Case
    from fdaudit.protocols._fedavg_settings import FedAvgConfig
    from fdaudit.transcript.wire import Defense

    Noise = Mapping[tuple[str, str], Sequence[Defense]]

__all__ = ["LEAST_GAIN_DB", "bare_gradients", "closer", "no_closer", "score_images"]

LEAST_GAIN_DB = 1.0
"""Mean gain over the prior baseline from which a control counts as working, as for a run's images."""
LEAST_GAIN_CELLS = 0.05
"""Gain in recovered cells over guessing from which a control counts as working, as for a run's rows."""
_LEVEL = 0.01
"""Largest p-value of recovered words in a control that works."""
_LEAST_CLIENTS = 2
_LEAST_RECORDS = 8
"""Least records of all clients: with four, two images that resist hid an attack that finds all the others."""
_STATE = "optimizer_state"
_DROWNING = 100.0
"""Noise of the negative control, in standard deviations of the gradient's entries."""


def closer(figures: Figures) -> bool:
    """Return whether images are closer than the prior by the least gain, with an interval above no gain."""
    gain = figures["psnr_gain"]
    return gain.value is not None and gain.value >= LEAST_GAIN_DB and (gain.low is None or gain.low > 0)


def no_closer(figures: Figures) -> bool:
    """Return whether the gain is below the least."""
    gain = figures["psnr_gain"].value
    return gain is not None and gain < LEAST_GAIN_DB


def _beats(figures: Figures) -> bool:
    """Return whether recovered words fit the texts better than guessing, and better than they fit other texts."""
    gain = figures["token_gain"]
    return (gain.value or 0.0) > 0 and gain.p is not None and gain.p <= _LEVEL


def _recovers(figures: Figures) -> bool:
    """Return whether more cells are recovered than by guessing, and more than of other rows by the same guess."""
    gain = figures["cells_gain"]
    return (gain.value or 0.0) >= LEAST_GAIN_CELLS and gain.p is not None and gain.p <= _LEVEL


def bare_gradients(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases of an attack on gradients, undefended, with the run's network, batch size and local steps.

    The card may give under `drowned` the settings that the negative control replaces.
    """
    x, y = case.auxiliary
    fedavg, records = _as_in_the_run(case, len(y) // 2)
    enough = max(_LEAST_CLIENTS, math.ceil(_LEAST_RECORDS / records))
    clients = max(1, min(enough, len(y) // (2 * records)))
    order = torch.randperm(len(y), generator=child(case.seed, "control", attack.name, "victims"))
    victims, others = order[: clients * records], order[clients * records :]
    data = [(x[rows], y[rows]) for rows in victims.chunk(clients)]
    settings = fedavg.model_dump()
    what = (
        f"{fedavg.upload.replace('_', ' ')} of {clients} clients with {records} auxiliary records each, "
        f"untrained {case.architecture.name}"
    )
    with on_protocol("fedavg", attack, case, settings, data) as view:
        noise = _drowning(view, fedavg)
    expected = _EXPECTED[case.dataset.task.inputs.shown]
    knowledge = knowing(case, auxiliary=(x[others], y[others]))
    task = AttackTask(targets=tuple(f"client/{k}" for k in range(clients)))
    drowned = f"the same under Gaussian noise {_DROWNING:g} times the upload"
    score = partial(expected.score, attack, case, victims.chunk(clients), others)
    replaced = {"round": 0, **attack.card.control.get("drowned", {})}
    cases = dict[str, SmallCase]()
    for name, words, passes, attached, params in (
        ("positive", f"{what}: {expected.positive}", expected.works, None, {"round": 0}),
        ("negative", f"{drowned}: {expected.negative}", expected.silent, noise, replaced),
    ):
        record = on_protocol("fedavg", attack, case, settings, data, attached)
        cases[name] = SmallCase(
            what=words,
            attempts=(Attempt(record=record, knowledge=knowledge, task=task),),
            score=score,
            passes=passes,
            figures=expected.figures,
            leading=(expected.leading, ""),
            replaced=params,
        )
    return cases


def _as_in_the_run(case: Case, most: int) -> tuple[FedAvgConfig, int]:
    """Return one round of FedAvg with the run's local training, and the number of a client's records in the run.

    Args:
        case: the run's case.
        most: the most records of a client.
    """
    config = case.settings
    upload = str(config.get("upload", "model_parameters"))
    local: tuple[str, ...] = (
        "local_steps",
        "local_epochs",
        "batch_size",
        "optimizer",
        "betas",
        "momentum",
        "weight_decay",
        "mu",
        "clip",
    )
    if upload == "gradient":  # it is of one batch, whatever else a card says of the training
        local = ("batch_size", "clip")
    settings: dict[str, Any] = {}
    for name in local:
        if config.get(name) is not None:
            settings[name] = config[name]
    if (loss := config.get("loss")) is not None and loss.get("function") is None:
        settings["loss"] = loss  # one of the user's own is not FedAvg's to run
    kinds = {m["kind"] for m in case.declared_messages if m["from"] == "client"}
    if upload != "gradient" and _STATE in kinds:
        settings["send_state"] = config.get("optimizer") in ("adam", "adamw") or bool(config.get("momentum"))
    if (lr := rate_in(config, 0)) is not None:
        settings["lr"] = lr
    weighting = "samples" if "sample_count" in kinds else "uniform"
    fedavg = validate(FedAvg.Config, {"rounds": 1, "upload": upload, "weighting": weighting, **settings})
    one_batch = upload == "gradient" or config.get("local_steps") == 1
    records_of_all = 0
    for k in case.clients:
        records_of_all += len(case.records(k)[1])
    size = records_of_all // len(case.clients)
    records = min(fedavg.batch_size, size) if one_batch else size
    return fedavg, max(1, min(records, most))


def _drowning(view: View, fedavg: FedAvgConfig) -> Noise:
    """Return noise on clients' uploads, in proportion to the spread of their entries in a view.

    Of whole models it is the spread of the updates; of an optimizer's state, that of its first moments or buffers.
    """
    start = view.tensors(view.select(kind="model_parameters", sender="server")[0])
    entries: dict[str, list[Tensor]] = {fedavg.upload: []}
    for message in view.select(kind=fedavg.upload):
        if role(message.sender) == "client":
            for name, tensor in view.tensors(message).items():
                change = tensor - start[name] if fedavg.upload == "model_parameters" else tensor
                entries[fedavg.upload].append(change.flatten())
    if fedavg.send_state:
        entries[_STATE] = []
        for message in view.select(kind=_STATE):
            for name, tensor in view.tensors(message).items():
                if name.startswith(("exp_avg/", "momentum_buffer/")):
                    entries[_STATE].append(tensor.flatten())
    noise = defenses.REGISTRY.load("gaussian-noise")
    attached = dict[tuple[str, str], Sequence[Any]]()
    for kind, parts in entries.items():
        sigma = _DROWNING * float(torch.cat(parts).std())
        attached[kind, "client"] = [noise(validate(noise.Config, {"sigma": sigma}))]
    return attached


def score_images(
    attack: AttackPlan,
    case: Case,
    victims: Sequence[Tensor],
    others: Tensor,
    guesses: Sequence[Reconstruction],
) -> Figures:
    """Return the scores of images about clients that hold rows `victims` of the auxiliary records.

    The adversary's own records, rows `others`, are those that no one trained on.
    """
    x, y = case.auxiliary
    rows = [victims[_number(guess)] for guess in guesses]
    groups = groups_of(case, y)
    return score_reconstruction(
        [guess.images for guess in guesses],
        [x[of] for of in rows],
        x[others],
        child_numpy(case.seed, "control", attack.name, "score"),
        true_labels=None if groups is None else [groups[of] for of in rows],
        auxiliary_labels=None if groups is None else groups[others],
    ).figures


def _score_texts(
    attack: AttackPlan,
    case: Case,
    victims: Sequence[Tensor],
    others: Tensor,
    guesses: Sequence[TextReconstruction],
) -> Figures:
    """Return the scores of recovered words, as `score_images`."""
    x, y = (part.numpy() for part in case.auxiliary)
    recovered = list[Recovered]()
    for guess in guesses:
        rows = victims[_number(guess)].numpy()
        texts = None if guess.texts is None else guess.texts.numpy()
        words = bag(guess.words.numpy())
        recovered.append(Recovered(words=words, texts=texts, truth=x[rows], labels=y[rows]))
    auxiliary = x[others.numpy()], y[others.numpy()]
    return score_texts(
        recovered, auxiliary[0], auxiliary, child_numpy(case.seed, "control", attack.name, "score")
    )


def _score_rows(
    attack: AttackPlan,
    case: Case,
    victims: Sequence[Tensor],
    others: Tensor,
    guesses: Sequence[RowReconstruction],
) -> Figures:
    """Return the scores of recovered rows, as `score_images`."""
    x, y = case.auxiliary
    columns = case.dataset.columns or plain_columns(x.shape[1])
    cells, classes = cells_of(x, columns).numpy(), y.numpy()
    recovered = list[RecoveredRows]()
    for guess in guesses:
        rows = victims[_number(guess)].numpy()
        recovered.append(
            RecoveredRows(
                guess=cells_of(guess.rows, columns).numpy(),
                guess_labels=None if guess.labels is None else guess.labels.numpy(),
                truth=cells[rows],
                labels=classes[rows],
            )
        )
    auxiliary = cells[others.numpy()], classes[others.numpy()]
    draws = child_numpy(case.seed, "control", attack.name, "score")
    return score_rows(recovered, columns, auxiliary, auxiliary, draws)


def _number(guess: Guess) -> int:
    """Return the number of the client that a guess is about."""
    return int(guess.target.partition("/")[2])


class _Expected(NamedTuple):
    """What both controls expect of guesses of one kind of record.

    Attributes:
        positive: expected of bare uploads, in words.
        negative: expected of drowned uploads.
        works: whether figures are as expected of bare uploads.
        silent: whether figures are as expected of drowned uploads.
        score: compares guesses with the truth.
        figures: the figures that a result shows.
        leading: the figure that decides.
    """

    positive: str
    negative: str
    works: Callable[[Figures], bool]
    silent: Callable[[Figures], bool]
    score: Callable[..., Figures]
    figures: tuple[str, ...]
    leading: str


_EXPECTED = {
    "images": _Expected(
        f"mean gain over the prior at least {LEAST_GAIN_DB:g} dB, with an interval above 0",
        f"gain below {LEAST_GAIN_DB:g} dB",
        closer,
        no_closer,
        score_images,
        ("psnr", "psnr_prior", "psnr_gain"),
        "psnr_gain",
    ),
    "texts": _Expected(
        f"words fit their texts better than a guess does, with p of at most {_LEVEL:g}",
        f"they do not, with p above {_LEVEL:g}",
        _beats,
        lambda figures: figures["token_gain"].value is not None and not _beats(figures),
        _score_texts,
        ("token_f1", "token_f1_prior", "token_gain", "rouge_l"),
        "token_gain",
    ),
    "rows": _Expected(
        f"gain in recovered cells at least {LEAST_GAIN_CELLS:.0%}, with p of at most {_LEVEL:g}",
        f"a lower gain, or p above {_LEVEL:g}",
        _recovers,
        lambda figures: figures["cells_gain"].value is not None and not _recovers(figures),
        _score_rows,
        ("cells_right", "cells_right_prior", "cells_gain", "categories_right", "numbers_error"),
        "cells_gain",
    ),
}
"""By the records that guesses show."""
