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

from ._ensemble import answered_as, ensembles_of, with_selectors
from ._followed import followed, lesson_of

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
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
    draws, width = child(0, "joined"), sum(len(r.seen) for r in readings)
    seen, noise = list[Tensor](), 0.0
    parts: dict[str, list[Tensor]] = {client: [] for client in rows}
    residual, rehearsed = list[Tensor](), list[Tensor]()
    for one in readings:
        spread = sum(
            ((part - part.mean(0)).square().sum(1).mean() for part in one.parts.values()), torch.zeros(())
        )
        scale = float((spread + one.noise * len(one.seen)).sqrt().clamp_min(_FLOOR))
        seen.append(one.seen / scale)
        noise += one.noise / scale**2 * len(one.seen) / width
        for client, of in rows.items():
            part = one.parts.get(client)
            parts[client].append(torch.zeros(of, len(one.seen)) if part is None else part / scale)
        if count and one.residual is not None and one.rehearsed is not None:
            residual.append(one.residual[:count] / scale)
            rehearsed.append(one.rehearsed[:count] / scale)
        elif count:
            noisy = one.noise**0.5 * torch.randn(count, len(one.seen), generator=draws, dtype=torch.float64)
            residual.append(noisy / scale)
            rehearsed.append((noisy + sum(part[:count] for part in one.parts.values())) / scale)
    return Reading(
        seen=torch.cat(seen),
        parts={client: torch.cat(found, 1) for client, found in parts.items()},
        noise=noise,
        residual=torch.cat(residual, 1) if count else None,
        rehearsed=torch.cat(rehearsed, 1) if count else None,
    )


# -- averages ---------------------------------------------------------------------------------------------------------


def averages(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    made: Mapping[str, Matched],
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
        made: shadows of every client whose answers are not in view, as they answer first.
        rounds: averages that count, at most.
        samples: of one average that count, at most.
        most_steps: of one shadow and round on its own records.
        seed: of batches.
    """
    if knowledge.train is None:
        return []
    found, now, before = list[Reading](), dict(made), None
    for ensemble in ensembles_of(view, knowledge, task, rounds, samples):
        for number in range(ensemble.round if before is None else before, ensemble.round):
            lessons = {client: lesson_of(view, knowledge, client, number) for client in now}
            if any(lesson is None for lesson in lessons.values()):
                return found
            now = {
                client: followed(
                    knowledge, one, [lesson],
                    training=view.hyperparameters, most_steps=most_steps, seed=child_seed(seed, client),
                )
                for client, one in now.items()
                if (lesson := lessons[client]) is not None
            }  # fmt: skip
        before = ensemble.round
        answers = {
            client: answered_as(_asked(knowledge, one, ensemble.x), ensemble.form)
            for client, one in now.items()
            if client in ensemble.weights
        }
        if ensemble.selects:
            ensemble = with_selectors(ensemble, answers)
        found.append(
            Reading(
                seen=ensemble.values.flatten(),
                parts={k: (z * ensemble.weights[k]).flatten(1) for k, z in answers.items()},
                noise=ensemble.noise,
            )
        )
    return found


def _asked(knowledge: Knowledge, made: Matched, x: Tensor) -> Tensor:
    """Return the logits (m, s, C) of shadows, float64."""
    if knowledge.train is None:
        raise ValueError("no training core to ask shadows with.")
    return torch.stack([knowledge.train.predict(model, x) for model in made.models]).double()


# -- mixtures ---------------------------------------------------------------------------------------------------------


def mixtures(
    view: View, knowledge: Knowledge, made: Mapping[str, Matched], *, samples: int, seed: int
) -> Reading | None:
    """Return the mixture of all clients' answers that FedIOD's cotangents tell one client; None if they tell none.

    The server sends client 0 the gradient at its logits of conf · L_conf + unique · L_unique - mimic · L_mimic (Gong et
    al. 2023, Eq. 3-10). With q_k = softmax(z_k) and the mixture m = Σ_k π_k q_k, entry c times the number of samples is

        π_0 q_0c (unique · (log m_c - Σ_j q_0j log m_j) - (conf + unique) · (log q_0c + H(q_0)))

    and the part of L_mimic, which is zero for a class that Eq. 8 gives client 0 no weight for: one of which it has no
    record. The client knows q_0, and π_0 from the weight of L_gan that comes with the cotangent. For each sample that
    leaves log m_c of its missing classes, up to a constant.
    """
    public, members = view.hyperparameters, [p for p in view.members if role(p) == "client"]
    unique, conf = float(public.get("unique") or 0), float(public.get("conf") or 0)
    sent = [m for m in view.select(kind="logit_cotangents") if m.payload is not None and len(members) == 1]
    if not sent or not unique or public.get("weights") != "eq8" or knowledge.train is None:
        return None
    own = view.own_data[members[0]][1].bincount(minlength=knowledge.classes) == 0
    share, x, answers, told = _cotangents(view, members[0], samples)
    if not bool(own.any()) or not len(x) or not share:
        return None
    log_q = answers.log_softmax(1)
    entropy = -(log_q.exp() * log_q).sum(1, keepdim=True)
    log_m = (told / (share * log_q.exp()) + (conf + unique) * (log_q + entropy)) / unique
    lacked, read = own.nonzero().squeeze(1), log_q[:, own] > _RAREST

    def centred(values: Tensor) -> Tensor:
        """Values (..., s, c) without each sample's constant, flat; zero where they cannot be read."""
        values = values.where(read, torch.zeros(()))
        mean = values.sum(-1, keepdim=True) / read.sum(-1, keepdim=True).clamp_min(1)
        return (values - mean).where(read, torch.zeros(())).flatten(-2)

    records = {k: float(one.held[0].sum()) for k, one in made.items()}
    theirs = {
        k: (1 - share)
        * records[k]
        / sum(records.values())
        * _asked(knowledge, one, x).softmax(2)[..., lacked]
        for k, one in made.items()
    }
    parts, rest, whole = _main_effects(share * log_q[:, lacked].exp(), theirs, centred, seed)
    return Reading(seen=centred(log_m[:, lacked]), parts=parts, residual=rest, rehearsed=whole)


def _cotangents(view: View, client: str, most: int) -> tuple[float, Tensor, Tensor, Tensor]:
    """Return π of a client, samples (s, c, h, w), its logits (s, C) and cotangents times their batch's size (s, C)."""
    by_step = {
        kind: {(m.round, m.step): m for m in messages if m.payload is not None}
        for kind, messages in (
            ("logit_cotangents", view.select(kind="logit_cotangents")),
            ("generated_samples", view.select(kind="generated_samples")),
            ("logits", view.select(kind="logits", sender=client)),
        )
    }
    steps = sorted(set.intersection(*(set(found) for found in by_step.values())))
    each = -(-most // max(len(steps), 1))
    share, gan = 0.0, float(view.hyperparameters.get("gan") or 0)
    x, z, told = list[Tensor](), list[Tensor](), list[Tensor]()
    draws = child(0, "cotangents", client)
    for step in steps:
        cotangent = view.tensors(by_step["logit_cotangents"][step])
        samples = view.tensors(by_step["generated_samples"][step])["samples"].cpu()
        if "values" not in cotangent:
            continue
        share = float(cotangent["gan_weight"]) / gan if gan and "gan_weight" in cotangent else 0.0
        kept = torch.randperm(len(samples), generator=draws)[:each]
        x.append(samples[kept])
        z.append(view.tensors(by_step["logits"][step])["values"].cpu().double()[kept])
        told.append(cotangent["values"].cpu().double()[kept] * len(samples))
    if view.hyperparameters.get("gan_total") == "sum" or not share:
        share = 1 / sum(role(p) == "client" for p in view.parties)
    if not x:
        return 0.0, torch.zeros(0), torch.zeros(0), torch.zeros(0)
    return share, torch.cat(x), torch.cat(z), torch.cat(told)


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
        rest = [drawn([k for k in theirs if k != client]) for _ in range(_OTHERS)]
        parts[client] = torch.stack([read((adds + one).log()) for one in rest]).mean(0)
    count = min(_FEDERATIONS, *(len(adds) for adds in theirs.values()))
    mixed = own + torch.stack([adds[:count] for adds in theirs.values()]).sum(0)
    values = read(mixed.log())
    return parts, values - torch.stack([part[:count] for part in parts.values()]).sum(0), values
