"""Averages of clients' answers in view: their inputs, their weights, and the known shares.

Answers are about public samples, or about those that the server generated in the same round and step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from fdaudit.rng import child_seed
from fdaudit.transcript.samples import sample_index
from fdaudit.types import AttackTask

from .._shadows import stacked_logits
from .._uploads import clients_of, with_payload
from ._answers import evenly_spread, treatment_of
from ._derived import Reading
from ._rounds import followed, lesson_of
from ._study import told_counts

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

    from ._study import Study

__all__ = ["Ensemble", "Form", "answered_as", "averages", "ensembles_of", "weights_of", "with_selectors"]

Form = Literal["logits", "soft_labels", "hard_labels"]
_SHARPENED = "era"
_FLOOR = 1e-30
"""Smallest probability before a logarithm: the smallest that a softmax in float32 gives."""
_SELECTED: Mapping[Any, Form] = {"soft": "soft_labels", "hard": "hard_labels"}
_LEAST_VARIANCE = 1e-4
"""Least variance of an answer's probabilities."""
_MOST_UNKNOWN = 10
"""Clients of which it is guessed who is in an average."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ensemble:
    """One average of all clients' answers, minus the contribution of the adversary's own members.

    Attributes:
        x: (n, c, h, w) the samples.
        values: (n, C) the average, less the answers that the view holds, each times its weight.
        form: the averaged values: logits, probabilities or one-hot votes.
        weights: (C,) weight of each class's values, by client whose answers are not in view; or (n, C) by sample.
        noise: variance of a defence's noise on each value.
        round: its round.
        selects: the clients decide which samples they answer; `weights` are then unknown, and `values` the average.
        known: by client, its answers (n, C) in view, if clients select; NaN where it declined.
        voters: (n,) how many clients answered each sample, if clients select and a count of votes says so.
    """

    x: Tensor
    values: Tensor
    form: Form
    weights: Mapping[str, Tensor]
    noise: float
    round: int
    selects: bool = False
    known: Mapping[str, Tensor] = field(default_factory=dict)
    voters: Tensor | None = None


def averages(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    shadows: Mapping[str, Study],
    *,
    rounds: int,
    samples: int,
    most_steps: int,
    seed: int,
) -> list[Reading]:
    """Return the averages of clients' answers in the first rounds of a view.

    Shadows learn what their client was sent between two averages. The first average that cannot be followed is the
    last that counts.

    Args:
        view: the adversary's view.
        knowledge: with the public samples and a training core.
        task: with the challenges.
        shadows: shadows of every client whose answers are not in view, as they answer first.
        rounds: averages that count, at most.
        samples: of one average that count, at most.
        most_steps: of one shadow and round on its own records.
        seed: of batches.
    """
    if knowledge.train is None:
        return []
    readings = list[Reading]()
    now = dict(shadows)
    before = None
    for ensemble in ensembles_of(view, knowledge, task, rounds, samples):
        if before is None:
            before = ensemble.round
        for number in range(before, ensemble.round):
            lessons = {}
            for client in now:
                lesson = lesson_of(view, knowledge, client, number)
                if lesson is None:
                    return readings
                lessons[client] = lesson
            for client, lesson in lessons.items():
                now[client] = followed(
                    knowledge, now[client], [lesson],
                    training=view.hyperparameters, most_steps=most_steps, seed=child_seed(seed, client),
                )  # fmt: skip
        before = ensemble.round
        answers = {}
        for client, one in now.items():
            if client in ensemble.weights:
                z = stacked_logits(knowledge.train, one.models, ensemble.x)
                answers[client] = answered_as(z.double(), ensemble.form)
        if ensemble.selects:
            ensemble = with_selectors(ensemble, answers)
        readings.append(
            Reading(
                seen=ensemble.values.flatten(),
                parts={k: (z * ensemble.weights[k]).flatten(1) for k, z in answers.items()},
                noise=ensemble.noise,
            )
        )
    return readings


def answered_as(z: Tensor, form: Form) -> Tensor:
    """Return logits z (..., C) in the form of clients' answers."""
    if form == "logits":
        return z
    if form == "soft_labels":
        return z.softmax(-1)
    return torch.nn.functional.one_hot(z.argmax(-1), z.shape[-1]).to(z.dtype)


def ensembles_of(
    view: View, knowledge: Knowledge, task: AttackTask, rounds: int, most: int
) -> list[Ensemble]:
    """Return the averages in view of clients' answers, of the first rounds with one.

    Clients whose samples are generated answer with models that no longer learn: one average then holds votes of steps
    that are spread over all rounds.

    Args:
        view: the adversary's view.
        knowledge: with the public samples, if there are any.
        task: with the challenges.
        rounds: averages, at most.
        most: samples of one, at most; evenly spread.
    """
    form = _form(view.hyperparameters)
    messages: list[Message] = []
    for m in view.messages:
        if m.kind in ("ensemble_labels", "vote_counts") and m.payload:
            messages.append(m)
    if form is None:
        return []
    if any(m.kind == "generated_samples" for m in view.messages):
        return _on_generated(view, knowledge, task, messages, form, most)
    if knowledge.public is None:
        return []
    by_round: dict[int, Ensemble] = {}
    for message in messages:
        if message.round not in by_round and len(by_round) < rounds:
            if not len(sample_index(view.tensors(message))):
                continue  # every sample was dropped: clients learn nothing
            one = _ensemble(view, knowledge, task, message, form, most, knowledge.public)
            if one is None:
                break
            by_round[message.round] = one
    return list(by_round.values())


def _on_generated(
    view: View, knowledge: Knowledge, task: AttackTask, messages: Sequence[Message], form: Form, most: int
) -> list[Ensemble]:
    """Return one average of answers on generated samples, of steps spread evenly over all; none if none can be read."""
    generated = {(m.round, m.step): m for m in with_payload(view.select(kind="generated_samples"))}
    messages = [m for m in messages if (m.round, m.step) in generated]
    if not messages:
        return []
    each = max(1, len(view.tensors(generated[messages[0].round, messages[0].step])["samples"]))
    steps = evenly_spread(len(messages), max(1, most // each))
    ensembles = list[Ensemble]()
    for k in steps.tolist():
        message = messages[k]
        samples = view.tensors(generated[message.round, message.step])["samples"].cpu()
        one = _ensemble(view, knowledge, task, message, form, most, samples)
        if one is not None and (not ensembles or one.weights.keys() == ensembles[0].weights.keys()):
            ensembles.append(one)
    if not ensembles:
        return []
    x = torch.cat([one.x for one in ensembles])[:most]
    values = torch.cat([one.values for one in ensembles])[:most]
    return [replace(ensembles[0], x=x, values=values)]


def _ensemble(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    message: Message,
    form: Form,
    most: int,
    samples: Tensor,
) -> Ensemble | None:
    """Return a message's average of answers on `samples`, less those that are in view; None if it cannot be read."""
    clients = clients_of(view)
    tensors = view.tensors(message)
    index = sample_index(tensors)
    values = _values(tensors, view.hyperparameters, len(clients))
    if not len(index) or int(index.max()) >= len(samples):
        return None
    some = evenly_spread(len(index), most)
    index = index[some]
    values = values[some]
    sent = tensors["counts"] if "counts" in tensors else tensors["values"]
    variance = treatment_of(message.kind, view.defenses_of(message), sent).variance
    counted = "counts" in tensors
    noise = variance / len(clients) ** 2 if counted else variance  # of a count, on its share of the clients
    # Noisy counts do not tell how many clients answered: each is then taken to vote for every sample.
    selects = view.hyperparameters.get("selector") not in (None, "none") and not (counted and noise)
    voters = None
    if selects and counted:
        share = values.sum(1, keepdim=True)
        voters = (share[:, 0] * len(clients)).round()
        values = values / share.clamp_min(_FLOOR)
    weights = weights_of(view, task, clients, knowledge.classes)
    own_answers = dict[str, Tensor]()
    for client in clients:
        mine = _answer(view, client, message, index, form, knowledge.classes, selects)
        if mine is not None and selects:
            weights.pop(client)
            own_answers[client] = mine
        elif mine is not None:
            values = values - weights.pop(client) * mine
    return Ensemble(
        x=samples[index], values=values, form=form, weights=weights, noise=noise,
        round=message.round, selects=selects, known=own_answers, voters=voters,
    )  # fmt: skip


def with_selectors(ensemble: Ensemble, answers: Mapping[str, Tensor]) -> Ensemble:
    """Return an average over clients that chose their samples, with the likeliest set of clients behind each sample.

    Of all sets of clients that may have answered, the one counts whose shadows' mean is closest to the average, by the
    shadows' own variance. Where a count of votes tells how many answered, only sets of that size are compared.

    Args:
        ensemble: the average.
        answers: (m, n, C) of each client's shadows; of more than ten clients none is read.
    """
    names, (n, classes) = list(ensemble.weights), ensemble.values.shape
    if len(names) > _MOST_UNKNOWN:
        return replace(ensemble, weights=dict.fromkeys(names, torch.zeros(n, classes).double()))
    nobody = torch.full((n, classes), torch.nan)
    in_view = torch.stack(list(ensemble.known.values()) or [nobody]).double()
    count = (~in_view[:, :, 0].isnan()).sum(0)
    sum_in_view = in_view.nan_to_num().sum(0)  # (n, C) the sum of the answers in view
    mean = torch.stack([answers[k].mean(0) for k in names])
    variance = torch.stack([answers[k].var(0) for k in names])
    best = torch.full((n,), -torch.inf, dtype=torch.float64)
    chosen = torch.zeros(n, len(names), dtype=torch.float64)
    for number in range(1 << len(names)):
        inside = torch.tensor([number >> k & 1 for k in range(len(names))], dtype=torch.float64)
        total = (inside.sum() + count).clamp_min(1)[:, None]
        expected = (torch.einsum("k,knc->nc", inside, mean) + sum_in_view) / total
        spread = (
            torch.einsum("k,knc->nc", inside, variance) / total.square() + _LEAST_VARIANCE + ensemble.noise
        )
        # The log density of a Gaussian with the mean and variance of this set's shadows, up to a constant.
        fit = -((ensemble.values - expected).square() / spread + spread.log()).sum(1) / 2
        fit = fit.masked_fill(inside.sum() + count == 0, -torch.inf)
        if ensemble.voters is not None:
            fit = fit.masked_fill(inside.sum() + count != ensemble.voters, -torch.inf)
        better = fit > best
        best, chosen[better] = torch.where(better, fit, best), inside
    total = (chosen.sum(1) + count).clamp_min(1)
    shares = (chosen / total[:, None])[:, :, None].expand(-1, -1, classes)  # (n, K, C)
    weights = dict(zip(names, shares.unbind(1), strict=True))
    return replace(ensemble, values=ensemble.values - sum_in_view / total[:, None], weights=weights)


def _form(public: Mapping[str, Any]) -> Form | None:
    """Return the form of the averaged values, from the public configuration."""
    if public.get("share") in ("logits", "soft_labels", "hard_labels"):
        form: Form = public["share"]
        return form
    if "selector" in public:
        return _SELECTED.get(public.get("labels"))
    ways: Mapping[Any, Form] = {"logits": "logits", "votes": "hard_labels"}
    return ways.get(public.get("ensemble") or public.get("outputs"))


def _values(tensors: Mapping[str, Tensor], public: Mapping[str, Any], clients: int) -> Tensor:
    """Return the average (n, C), float64: counts as shares, ERA's softmax(p / T) undone."""
    if "counts" in tensors:
        return tensors["counts"].double().cpu() / clients
    values = tensors["values"].double().cpu()
    if public.get("aggregation") == _SHARPENED:
        values = values.clamp_min(_FLOOR).log() * float(public["temperature"])
        values = values - values.mean(1, keepdim=True) + 1 / values.shape[1]
    return values


def weights_of(view: View, task: AttackTask, clients: list[str], classes: int) -> dict[str, Tensor]:
    """Return ω (C,) of each client: its share of each class's records (Gong et al. 2022, Eq. 1), or 1/K.

    Class counts that are not in view are estimated: from the candidates, half of which a victim holds, or for other
    clients from the mean of the known counts.
    """
    if view.hyperparameters.get("weights") != "class-counts":
        equal = {}
        for client in clients:
            equal[client] = torch.full((classes,), 1 / len(clients), dtype=torch.float64)
        return equal
    counts = {}
    for client in clients:
        reported, _ = told_counts(view, client)
        if reported is not None:
            counts[client] = reported
        elif client in view.own_data:
            counts[client] = view.own_data[client][1].bincount(minlength=classes).double()
        elif client in task.challenges:
            counts[client] = task.challenges[client].y.bincount(minlength=classes).double() / 2
    mean = torch.stack(list(counts.values())).mean(0) if counts else torch.ones(classes).double()
    records = {k: counts.get(k, mean.mean().expand(classes)) for k in clients}
    by_client = torch.stack(list(records.values()))
    total = by_client.sum(0)
    shares = by_client / total.clamp_min(1e-12)
    weights = torch.where(total > 0, shares, torch.full_like(shares, 1 / len(clients)))
    return dict(zip(records, weights.unbind(0), strict=True))


def _answer(
    view: View, client: str, ensemble: Message, index: Tensor, form: Form, classes: int, selects: bool
) -> Tensor | None:
    """Return a client's own answers (n, C) in an average, if the view holds them for all its samples.

    If clients select, those that it declined are NaN.
    """
    messages = with_payload(view.select(kind=form, sender=client, round=ensemble.round))
    messages = [m for m in messages if m.seq < ensemble.seq]
    if not messages:
        return None
    tensors = view.tensors(messages[-1])
    values = tensors["values"].cpu()
    if form == "hard_labels":
        values = values.long()
        valid = (values >= 0) & (values < classes)
        if selects:  # a ballot on every sample has -1 where the client declined
            tensors = {**tensors, "index": sample_index(tensors)[valid]}
            values = values[valid]
            valid = valid[valid]
        values = torch.nn.functional.one_hot(values.clamp(0, classes - 1), classes) * valid[:, None]
    place = {int(name): row for row, name in enumerate(sample_index(tensors).tolist())}
    if selects:
        rows = torch.tensor([place.get(int(name), -1) for name in index])
        answers = torch.zeros(len(index), classes).double()
        if len(values):
            answers = values[rows.clamp_min(0)].double()
        return answers.masked_fill(rows[:, None] < 0, torch.nan)
    if any(int(name) not in place for name in index):
        return None
    return values[[place[int(name)] for name in index]].double()
