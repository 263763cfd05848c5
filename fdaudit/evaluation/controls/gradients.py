"""Controls of attacks on gradients: bare uploads of auxiliary records, and the same uploads drowned in noise.

The records are images, texts or rows of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fdaudit import defenses
from fdaudit.adversary.view import View
from fdaudit.config import validate
from fdaudit.evaluation.controls._membership import attack_seed, knowing, on_protocol
from fdaudit.goals import Guess
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.goals.row_reconstruction import RowReconstruction
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.handout.auxiliary import groups_of
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Trial
from fdaudit.metrics import score_reconstruction
from fdaudit.metrics.rows.recovery import RecoveredRows, score_rows
from fdaudit.metrics.texts.overlap import bag
from fdaudit.metrics.texts.recovery import Recovered, score_texts
from fdaudit.protocols.fedavg import FedAvg
from fdaudit.result import Control
from fdaudit.rng import child, child_numpy
from fdaudit.storage.scratch import scratch
from fdaudit.tasks.columns import cells_of, plain_columns
from fdaudit.training.optimizers import rate_in
from fdaudit.transcript.messages import role
from fdaudit.types import AttackTask, Figure

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case
    from fdaudit.protocols._fedavg_settings import FedAvgConfig
    from fdaudit.transcript.wire import Defense

__all__ = ["LEAST_GAIN_DB", "bare_gradients"]

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


def bare_gradients(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls of an attack on gradients, undefended, with the run's network, batch size and local steps.

    The card may give under `drowned` the settings that the negative control replaces.
    """
    x, y = case.auxiliary
    fedavg, records = _as_in_the_run(case, len(y) // 2)
    enough = max(_LEAST_CLIENTS, math.ceil(_LEAST_RECORDS / records))
    clients = max(1, min(enough, len(y) // (2 * records)))
    order = torch.randperm(len(y), generator=child(case.seed, "control", attack.name, "victims"))
    victims, known = order[: clients * records], order[clients * records :]
    groups = groups_of(case, y)
    of = (None, None) if groups is None else (groups[victims], groups[known])
    synthetic = _SyntheticRound(attack, case, fedavg, clients, (x[known], y[known]), *of)
    what = (
        f"{fedavg.upload.replace('_', ' ')} of {clients} clients with {records} auxiliary records each, "
        f"untrained {case.architecture.name}"
    )
    found = {
        name: synthetic.figures(x[victims], y[victims], drown=name == "negative")
        for name in ("positive", "negative")
    }
    works, silent, shown = _ASKED[case.dataset.task.inputs.shown]
    return {
        "positive": Control(
            what=f"{what}: {works.what}",
            passed=works.passed(found["positive"]),
            figures=_shown(found["positive"], shown),
        ),
        "negative": Control(
            what=f"the same under Gaussian noise {_DROWNING:g} times the upload: {silent.what}",
            passed=silent.passed(found["negative"]),
            figures=_shown(found["negative"], shown),
        ),
    }


class _Expectation(NamedTuple):
    """What a control asks of the figures, in words and as a test."""

    what: str
    passed: Callable[[Mapping[str, Figure]], bool]


def _gain(figures: Mapping[str, Figure]) -> float | None:
    return figures["psnr_gain"].value


def _closer(figures: Mapping[str, Figure]) -> bool:
    """Return whether images are closer than the prior by the least gain, with an interval above no gain."""
    gain = figures["psnr_gain"]
    return gain.value is not None and gain.value >= LEAST_GAIN_DB and (gain.low is None or gain.low > 0)


def _beats(figures: Mapping[str, Figure]) -> bool:
    """Return whether recovered words fit the texts better than guessing, and better than they fit other texts."""
    gain = figures["token_gain"]
    return (gain.value or 0.0) > 0 and gain.p is not None and gain.p <= _LEVEL


def _recovers(figures: Mapping[str, Figure]) -> bool:
    """Return whether more cells are recovered than by guessing, and more than of other rows by the same guess."""
    gain = figures["cells_gain"]
    return (gain.value or 0.0) >= LEAST_GAIN_CELLS and gain.p is not None and gain.p <= _LEVEL


_IMAGES = (
    _Expectation(
        f"mean gain over the prior at least {LEAST_GAIN_DB:g} dB, with an interval above 0",
        _closer,
    ),
    _Expectation(
        f"gain below {LEAST_GAIN_DB:g} dB",
        lambda found: (value := _gain(found)) is not None and value < LEAST_GAIN_DB,
    ),
    ("psnr", "psnr_prior", "psnr_gain"),
)
_TEXTS = (
    _Expectation(f"words fit their texts better than a guess does, with p of at most {_LEVEL:g}", _beats),
    _Expectation(
        f"they do not, with p above {_LEVEL:g}",
        lambda found: found["token_gain"].value is not None and not _beats(found),
    ),
    ("token_f1", "token_f1_prior", "token_gain", "rouge_l"),
)
_ROWS = (
    _Expectation(
        f"gain in recovered cells at least {LEAST_GAIN_CELLS:.0%}, with p of at most {_LEVEL:g}", _recovers
    ),
    _Expectation(
        f"a lower gain, or p above {_LEVEL:g}",
        lambda found: found["cells_gain"].value is not None and not _recovers(found),
    ),
    ("cells_right", "cells_right_prior", "cells_gain", "categories_right", "numbers_error"),
)
_ASKED = {"images": _IMAGES, "rows": _ROWS, "texts": _TEXTS}
"""What the controls ask of figures, and which figures they show, by the records that guesses show."""


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
    given = {name: config[name] for name in local if config.get(name) is not None}
    if (loss := config.get("loss")) is not None and loss.get("function") is None:
        given["loss"] = loss  # one of the user's own is not FedAvg's to run
    sent = {m["kind"] for m in case.declared_messages if m["from"] == "client"}
    if upload != "gradient" and _STATE in sent:
        given["send_state"] = config.get("optimizer") in ("adam", "adamw") or bool(config.get("momentum"))
    if (lr := rate_in(config, 0)) is not None:
        given["lr"] = lr
    weighting = "samples" if "sample_count" in sent else "uniform"
    fedavg = validate(FedAvg.Config, {"rounds": 1, "upload": upload, "weighting": weighting, **given})
    one_batch = upload == "gradient" or config.get("local_steps") == 1
    held = sum(len(case.records(k)[1]) for k in case.clients) // len(case.clients)
    records = min(fedavg.batch_size, held) if one_batch else held
    return fedavg, max(1, min(records, most))


def _shown(figures: Mapping[str, Figure], names: Sequence[str]) -> tuple[Figure, ...]:
    return tuple(figures[n] for n in names if n in figures)


@dataclass(frozen=True, eq=False)
class _SyntheticRound:
    """An attack on one round of FedAvg whose clients hold auxiliary records."""

    attack: AttackPlan
    case: Case
    fedavg: FedAvgConfig
    clients: int
    auxiliary: tuple[Tensor, Tensor]
    groups: Tensor | None
    auxiliary_groups: Tensor | None

    def figures(self, x: Tensor, y: Tensor, drown: bool) -> Mapping[str, Figure]:
        """Return the attack's scores on the records (x, y), bare or drowned in noise."""
        with scratch("control") as clean:
            view = self._rehearsed(clean, x, y, {})
            if not drown:
                return self._attacked(view, x, y, {})
            spreads: dict[str, float] = {self.fedavg.upload: self._spread(view)}
            if self.fedavg.send_state:
                spreads[_STATE] = _spread_of_states(view)
        noise = defenses.REGISTRY.load("gaussian-noise")
        attached: dict[tuple[str, str], Sequence[Defense]] = {}
        for kind, spread in spreads.items():
            attached[kind, "client"] = [noise(validate(noise.Config, {"sigma": _DROWNING * spread}))]
        with scratch("control") as noisy:
            replaced = dict(self.attack.card.control.get("drowned", {}))
            return self._attacked(self._rehearsed(noisy, x, y, attached), x, y, replaced)

    def _spread(self, view: View) -> float:
        """Return the standard deviation of gradient or update entries, also if clients send whole models."""
        sent = [view.tensors(m) for m in view.select(kind=self.fedavg.upload) if role(m.sender) == "client"]
        start = view.tensors(view.select(kind="model_parameters", sender="server")[0])
        whole = self.fedavg.upload == "model_parameters"
        return float(
            torch.cat([(t - start[n] if whole else t).flatten() for u in sent for n, t in u.items()]).std()
        )

    def _rehearsed(
        self, folder: Path, x: Tensor, y: Tensor, attached: Mapping[tuple[str, str], Sequence[Defense]]
    ) -> View:
        data = list(zip(x.chunk(self.clients), y.chunk(self.clients), strict=True))
        return on_protocol("fedavg", self.attack, self.case, folder, self.fedavg, data, attached)

    def _attacked(
        self, view: View, x: Tensor, y: Tensor, replaced: Mapping[str, Any]
    ) -> Mapping[str, Figure]:
        knowledge = knowing(self.case, auxiliary=self.auxiliary)
        targets = tuple(f"client/{k}" for k in range(self.clients))
        task = AttackTask(targets=targets)
        attack = replace(self.attack, params={**(self.attack.params or {}), "round": 0, **replaced})
        xs = x.chunk(self.clients)
        trial = Trial(knowledge=knowledge, task=task, seed=attack_seed(self.case, attack))
        made = run_attack(attack, view, trial)
        if isinstance(made, str):
            reason = f"the attack does not apply to its own control: {made}"
            names = ("psnr_gain", "token_gain", "cells_gain")
            return {name: Figure(name=name, value=None, unavailable=reason) for name in names}
        if isinstance(made[0], TextReconstruction):
            return self._texts(made, x, y)
        if isinstance(made[0], RowReconstruction):
            return self._rows(made, x, y)
        guesses = [g for g in made if isinstance(g, Reconstruction)]
        rows = [targets.index(g.target) for g in guesses]
        own = None if self.groups is None else self.groups.chunk(self.clients)
        return score_reconstruction(
            [g.images for g in guesses],
            [xs[k] for k in rows],
            self.auxiliary[0],
            child_numpy(self.case.seed, "control", self.attack.name, "score"),
            true_labels=None if own is None else [own[k] for k in rows],
            auxiliary_labels=self.auxiliary_groups,
        ).figures

    def _texts(self, made: Sequence[Guess], x: Tensor, y: Tensor) -> Mapping[str, Figure]:
        """Return the scores of recovered words; the adversary's own texts are those that nobody trained on."""
        xs, ys = x.chunk(self.clients), y.chunk(self.clients)
        found = []
        for guess in made:
            if isinstance(guess, TextReconstruction):
                k = int(guess.target.partition("/")[2])
                texts = None if guess.texts is None else guess.texts.numpy()
                words = bag(guess.words.numpy())
                found.append(Recovered(words=words, texts=texts, truth=xs[k].numpy(), labels=ys[k].numpy()))
        others = self.auxiliary[0].numpy(), self.auxiliary[1].numpy()
        draws = child_numpy(self.case.seed, "control", self.attack.name, "score")
        return score_texts(found, others[0], others, draws)

    def _rows(self, made: Sequence[Guess], x: Tensor, y: Tensor) -> Mapping[str, Figure]:
        """Return the scores of recovered rows; the adversary's own rows are those that nobody trained on."""
        columns = self.case.dataset.columns or plain_columns(x.shape[1])
        xs, ys = x.chunk(self.clients), y.chunk(self.clients)
        found = []
        for guess in made:
            if isinstance(guess, RowReconstruction):
                k = int(guess.target.partition("/")[2])
                labels = None if guess.labels is None else guess.labels.numpy()
                found.append(
                    RecoveredRows(
                        guess=cells_of(guess.rows, columns).numpy(),
                        guess_labels=labels,
                        truth=cells_of(xs[k], columns).numpy(),
                        labels=ys[k].numpy(),
                    )
                )
        others = cells_of(self.auxiliary[0], columns).numpy(), self.auxiliary[1].numpy()
        draws = child_numpy(self.case.seed, "control", self.attack.name, "score")
        return score_rows(found, columns, others, others, draws)


def _spread_of_states(view: View) -> float:
    """Return the standard deviation of the entries of first moments, or buffers, in a view."""
    states = [view.tensors(m) for m in view.select(kind=_STATE)]
    first = [
        t.flatten() for s in states for n, t in s.items() if n.startswith(("exp_avg/", "momentum_buffer/"))
    ]
    return float(torch.cat(first).std())
