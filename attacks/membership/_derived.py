"""What a view holds of all clients together: averages of their answers, mixtures, and models distilled from them.

Each is read as a sum of what every client adds to it, and a residual that belongs to no client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.rng import child, child_seed
from fdaudit.transcript.messages import role

from .._shadows import stacked_logits
from .._uploads import clients_of, with_payload
from ._ensemble import answered_as, ensembles_of, with_selectors
from ._followed import followed, lesson_of

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message
    from fdaudit.types import AttackTask

    from ._matched import Matched

__all__ = ["Reading", "averages", "joined", "mixtures"]

_OTHERS = 16
"""Draws of the other clients' shadows over which a client's part in a mixture is averaged."""
_FEDERATIONS = 48
"""Federations of one shadow of each client, for what is no client's own part in a mixture."""
_RAREST = -14.0
"""Least log-probability of the own answer at which a cotangent in float32 still tells the mixture."""
_FLOOR = 1e-6
"""Smallest scale of an answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """Values in view that follow from all clients' models.

    Attributes:
        seen: (d,) the values.
        parts: by client, (m, d) what each of its shadows adds to them.
        noise: variance of a defence's noise on each value.
        residual: (r, d) what no client's part explains of r federations; None if nothing is left.
        rehearsed: (r, d) the values of these; in federation i each client holds the records of its shadow i.
    """

    seen: Tensor
    parts: Mapping[str, Tensor]
    noise: float = 0.0
    residual: Tensor | None = None
    rehearsed: Tensor | None = None


def joined(readings: Sequence[Reading]) -> Reading:
    """Join readings of the same shadows, each scaled by how much these and a defence's noise differ in it.

    Where some have rehearsed federations and others none, those of the others follow from their shadows and noise.
    """
    rows = {client: len(part) for one in readings for client, part in one.parts.items()}
    count = min((len(one.rehearsed) for one in readings if one.rehearsed is not None), default=0)
    draws = child(0, "joined")
    width = sum(len(r.seen) for r in readings)
    values = list[Tensor]()
    noise = 0.0
    parts: dict[str, list[Tensor]] = {client: [] for client in rows}
    residual = list[Tensor]()
    rehearsed = list[Tensor]()
    for one in readings:
        spread = sum(
            ((part - part.mean(0)).square().sum(1).mean() for part in one.parts.values()), torch.zeros(())
        )
        scale = float((spread + one.noise * len(one.seen)).sqrt().clamp_min(_FLOOR))
        values.append(one.seen / scale)
        noise += one.noise / scale**2 * len(one.seen) / width
        for client, count_of_shadows in rows.items():
            if client in one.parts:
                parts[client].append(one.parts[client] / scale)
            else:
                parts[client].append(torch.zeros(count_of_shadows, len(one.seen)))
        if count and one.residual is not None and one.rehearsed is not None:
            residual.append(one.residual[:count] / scale)
            rehearsed.append(one.rehearsed[:count] / scale)
        elif count:
            noisy = one.noise**0.5 * torch.randn(count, len(one.seen), generator=draws, dtype=torch.float64)
            residual.append(noisy / scale)
            rehearsed.append((noisy + sum(part[:count] for part in one.parts.values())) / scale)
    return Reading(
        seen=torch.cat(values),
        parts={client: torch.cat(pieces, 1) for client, pieces in parts.items()},
        noise=noise,
        residual=torch.cat(residual, 1) if count else None,
        rehearsed=torch.cat(rehearsed, 1) if count else None,
    )


# -- averages ---------------------------------------------------------------------------------------------------------


def averages(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    shadows: Mapping[str, Matched],
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
                answers[client] = answered_as(_asked(knowledge, one, ensemble.x), ensemble.form)
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


def _asked(knowledge: Knowledge, shadows: Matched, x: Tensor) -> Tensor:
    """Return the logits (m, s, C) of shadows, float64."""
    if knowledge.train is None:
        raise ValueError("no training core to ask shadows with.")
    return stacked_logits(knowledge.train, shadows.models, x).double()


# -- mixtures ---------------------------------------------------------------------------------------------------------


def mixtures(
    view: View, knowledge: Knowledge, shadows: Mapping[str, Matched], *, samples: int, seed: int
) -> Reading | None:
    """Return the mixture of all clients' answers that FedIOD's cotangents tell one client; None if they tell none.

    The server sends client 0 the gradient at its logits of conf · L_conf + unique · L_unique - mimic · L_mimic (Gong et
    al. 2023, Eq. 3-10). With q_k = softmax(z_k) and the mixture m = Σ_k π_k q_k, entry c times the number of samples is

        π_0 q_0c (unique · (log m_c - Σ_j q_0j log m_j) - (conf + unique) · (log q_0c + H(q_0)))

    and the part of L_mimic, which is zero for a class that Eq. 8 gives client 0 no weight for: one of which it has no
    record. The client knows q_0, and π_0 from the weight of L_gan that comes with the cotangent. For each sample that
    leaves log m_c of its missing classes, up to a constant.
    """
    public = view.hyperparameters
    members = [p for p in view.members if role(p) == "client"]
    unique = float(public.get("unique") or 0)
    conf = float(public.get("conf") or 0)
    messages = with_payload(view.select(kind="logit_cotangents"))
    if (
        not messages
        or len(members) != 1
        or not unique
        or public.get("weights") != "eq8"
        or knowledge.train is None
    ):
        return None
    own = view.own_data[members[0]][1].bincount(minlength=knowledge.classes) == 0
    share, x, answers, cotangents = _cotangents(view, members[0], samples)
    if not bool(own.any()) or not len(x) or not share:
        return None
    log_q = answers.log_softmax(1)
    entropy = -(log_q.exp() * log_q).sum(1, keepdim=True)
    # The equation above, solved for log m up to the term Σ_j q_0j log m_j, which is the same for all classes.
    log_m = (cotangents / (share * log_q.exp()) + (conf + unique) * (log_q + entropy)) / unique
    lacked = own.nonzero().squeeze(1)
    readable = log_q[:, own] > _RAREST

    def centred(values: Tensor) -> Tensor:
        """Values (..., s, c) without each sample's constant, flat; zero where they cannot be read."""
        values = values.where(readable, torch.zeros(()))
        mean = values.sum(-1, keepdim=True) / readable.sum(-1, keepdim=True).clamp_min(1)
        return (values - mean).where(readable, torch.zeros(())).flatten(-2)

    records = {k: float(one.held[0].sum()) for k, one in shadows.items()}
    theirs = {}
    for client, one in shadows.items():
        weight = (1 - share) * records[client] / sum(records.values())
        theirs[client] = weight * _asked(knowledge, one, x).softmax(2)[..., lacked]
    parts, rest, whole = _main_effects(share * log_q[:, lacked].exp(), theirs, centred, seed)
    return Reading(seen=centred(log_m[:, lacked]), parts=parts, residual=rest, rehearsed=whole)


def _cotangents(view: View, client: str, most: int) -> tuple[float, Tensor, Tensor, Tensor]:
    """Return π of a client, samples (s, c, h, w), its logits (s, C) and cotangents times their batch's size (s, C)."""
    cotangents_sent = _by_step(view.select(kind="logit_cotangents"))
    samples_sent = _by_step(view.select(kind="generated_samples"))
    logits_sent = _by_step(view.select(kind="logits", sender=client))
    steps = sorted(cotangents_sent.keys() & samples_sent.keys() & logits_sent.keys())
    each = -(-most // max(len(steps), 1))
    share = 0.0
    gan = float(view.hyperparameters.get("gan") or 0)
    x = list[Tensor]()
    z = list[Tensor]()
    cotangents = list[Tensor]()
    draws = child(0, "cotangents", client)
    for step in steps:
        cotangent = view.tensors(cotangents_sent[step])
        samples = view.tensors(samples_sent[step])["samples"].cpu()
        if "values" not in cotangent:
            continue
        share = float(cotangent["gan_weight"]) / gan if gan and "gan_weight" in cotangent else 0.0
        rows = torch.randperm(len(samples), generator=draws)[:each]
        x.append(samples[rows])
        z.append(view.tensors(logits_sent[step])["values"].cpu().double()[rows])
        cotangents.append(cotangent["values"].cpu().double()[rows] * len(samples))
    if view.hyperparameters.get("gan_total") == "sum" or not share:
        share = 1 / len(clients_of(view))
    if not x:
        return 0.0, torch.zeros(0), torch.zeros(0), torch.zeros(0)
    return share, torch.cat(x), torch.cat(z), torch.cat(cotangents)


def _by_step(messages: Sequence[Message]) -> dict[tuple[int, int], Message]:
    """Return the messages with a payload by round and step."""
    return {(m.round, m.step): m for m in with_payload(messages)}


def _main_effects(
    own: Tensor, theirs: Mapping[str, Tensor], read: Callable[[Tensor], Tensor], seed: int
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return each client's part (m, d) in the logarithm of a mixture, and of federations (r, d) the rest and the whole.

    A client's part is the mean over draws of the other clients' shadows; what is left are interactions.

    Args:
        own: (s, c) what is known of the mixture.
        theirs: by client, (m, s, c) what its shadows add to it.
        read: the values (..., d) that are read off logarithms (..., s, c).
        seed: of the draws.
    """
    draws = child(seed, "mixtures")

    def drawn(clients: Sequence[str]) -> Tensor:
        rows = [theirs[k][int(torch.randint(len(theirs[k]), (), generator=draws))] for k in clients]
        return torch.stack([own, *rows]).sum(0)

    parts: dict[str, Tensor] = {}
    for client, adds in theirs.items():
        others = [k for k in theirs if k != client]
        rest = [drawn(others) for _ in range(_OTHERS)]
        parts[client] = torch.stack([read((adds + one).log()) for one in rest]).mean(0)
    count = min(_FEDERATIONS, *map(len, theirs.values()))
    mixed = own + torch.stack([adds[:count] for adds in theirs.values()]).sum(0)
    values = read(mixed.log())
    return parts, values - torch.stack([part[:count] for part in parts.values()]).sum(0), values
