"""The mixture of all clients' answers that FedIOD's cotangents tell one client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.rng import child
from fdaudit.transcript.messages import role

from .._shadows import stacked_logits
from .._uploads import clients_of, with_payload
from ._derived import Reading

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

    from ._study import Study

__all__ = ["mixtures"]

_OTHERS = 16
"""Draws of the other clients' shadows over which a client's part in a mixture is averaged."""
_FEDERATIONS = 48
"""Federations of one shadow of each client, for what is no client's own part in a mixture."""
_RAREST = -14.0
"""Least log-probability of the own answer at which a cotangent in float32 still tells the mixture."""


def mixtures(
    view: View, knowledge: Knowledge, shadows: Mapping[str, Study], *, samples: int, seed: int
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
        z = stacked_logits(knowledge.train, one.models, x)
        theirs[client] = weight * z.double().softmax(2)[..., lacked]
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
        rows = list[Tensor]()
        for k in clients:
            rows.append(theirs[k][int(torch.randint(len(theirs[k]), (), generator=draws))])
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
