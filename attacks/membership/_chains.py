"""Markov chains over guesses of the records behind a client's density selectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._accepted import KNOWN, OUT, VALIDATION, Guesses, SelectedClass

__all__ = ["Annealing", "coins"]

_HOT = 2.0
"""Initial softness of chains, in nats."""
_WRONG = 0.01
"""Share of bits that follow no selector: the smallest probability of a bit."""


@dataclass(frozen=True, kw_only=True)
class Annealing:
    """Settings of the chains.

    Attributes:
        chains: number of chains of one client, side by side.
        sweeps: steps of each class.
        softness: final scale of the noise on log ratios, in nats.
        cooling: share of the sweeps that lower the noise; the others count coins.
    """

    chains: int
    sweeps: int
    softness: float
    cooling: float = 0.6


def coins(
    classes: list[SelectedClass], accepted: Tensor, annealing: Annealing, generator: torch.Generator
) -> list[Tensor]:
    """Return the probability that each candidate of each class is a member, given one client's accept bits.

    A sample is accepted if any class accepts it. Each step draws two sites of a class, given all other sites and
    classes (Geman & Geman 1984). The noise on log ratios is lowered step by step. Chains are weighted by their
    agreement with the bits at the new noise.

    Args:
        classes: of the client.
        accepted: (m,) bool, the public samples that it answered.
        annealing: the settings of the chains.
        generator: of the chains.

    Returns:
        For each class (n,) shares of chains and sweeps in which the candidate was held.
    """
    states = [c.prior(annealing.chains, generator) for c in classes]
    members = [torch.zeros(len(c.records.candidates)) for c in classes]
    cooling = max(round(annealing.cooling * annealing.sweeps), 1)
    counted = max(annealing.sweeps - cooling, 1)
    declined = torch.ones(len(classes), annealing.chains, len(accepted))
    weight = torch.zeros(annealing.chains)
    for sweep in range(cooling + counted):
        progress = min(sweep / cooling, 1.0)
        # Geometric cooling: equal steps on the logarithm of the noise.
        softness = _HOT ** (1 - progress) * annealing.softness**progress
        if sweep <= cooling:
            before = _bits(declined.prod(0), accepted) if sweep else torch.zeros(annealing.chains)
            for k, c in enumerate(classes):
                declined[k][:, c.near] = c.declined(states[k], softness)
            weight += _bits(declined.prod(0), accepted) - before
            survivors, weight = _resampled(weight, generator)
            states = [Guesses(record=s.record[survivors], role=s.role[survivors]) for s in states]
            declined = declined[:, survivors]
        for k, c in enumerate(classes):
            others = torch.cat([declined[:k], declined[k + 1 :]])[:, :, c.near].prod(0)
            states[k], now = _step(c, states[k], others, accepted[c.near], softness, sweep, generator)
            declined[k][:, c.near] = now
            if sweep >= cooling:
                members[k] += _held(c, states[k], weight.softmax(0))
    return [h / counted for h in members]


def _resampled(weight: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the numbers of the chains that continue, and their log weights (b,).

    Chains are redrawn once half of them carry little weight (Del Moral, Doucet & Jasra 2006, "Sequential Monte Carlo
    samplers", section 3.1.2; systematic draws).
    """
    b = len(weight)
    share = weight.double().softmax(0)
    if 1 / float(share.square().sum()) > b / 2:
        return torch.arange(b), weight
    places = (torch.arange(b) + torch.rand(1, generator=generator).double()) / b
    return torch.searchsorted(share.cumsum(0), places).clamp_max(b - 1), torch.zeros(b)


def _held(c: SelectedClass, state: Guesses, share: Tensor) -> Tensor:
    """Return the weighted share (n,) of guesses that hold each candidate; `share` (b,) are the weights."""
    sites = len(c.records.sites)
    weights = (state.role[:, :sites] != OUT) * share[:, None]
    totals = torch.zeros(len(c.records.candidates))
    return totals.index_add_(0, state.record[:, :sites].flatten(), weights.flatten())


def _step(
    c: SelectedClass,
    state: Guesses,
    others: Tensor,
    accepted: Tensor,
    softness: float,
    sweep: int,
    generator: torch.Generator,
) -> tuple[Guesses, Tensor]:
    """Draw two sites; return the new state, and the probability (b, q) that the class then declines."""
    b, size = state.role.shape
    a_site, b_site, hidden = _sites(c, b, sweep, generator)
    first = _options(c, state, a_site, hidden, generator)
    second = _options(c, state, b_site, False, generator)
    rows = torch.arange(b)
    wide = first[0].shape[1]
    tall = second[0].shape[1]
    record = state.record[:, None, None].repeat(1, wide, tall, 1)
    role = state.role[:, None, None].repeat(1, wide, tall, 1)
    for site, (records, roles), shape in ((a_site, first, (b, wide, 1)), (b_site, second, (b, 1, tall))):
        at = site[:, None, None, None].expand(b, wide, tall, 1)
        record.scatter_(3, at, records.reshape(*shape, 1).expand(b, wide, tall, 1))
        role.scatter_(3, at, roles.reshape(*shape, 1).expand(b, wide, tall, 1))
    every = Guesses(record=record.reshape(-1, size), role=role.reshape(-1, size))
    prior = c.log_prior(every)
    possible = prior.isfinite().nonzero().squeeze(1)
    tried = Guesses(record=every.record[possible], role=every.role[possible])
    declined = c.declined(tried, softness)
    owner = possible // (wide * tall)
    score = torch.full((b * wide * tall,), -torch.inf)
    score[possible] = prior[possible].float() + _bits(others[owner] * declined, accepted)
    # Gumbel noise: the largest of score + noise is a draw with probabilities proportional to exp(score).
    uniform = torch.rand(b, wide * tall, generator=generator).clamp_min(1e-30)
    noise = -(-uniform.log()).clamp_min(1e-30).log()
    chosen = rows * (wide * tall) + (score.reshape(b, -1) + noise).argmax(1)
    place = torch.searchsorted(possible, chosen)
    return Guesses(record=every.record[chosen], role=every.role[chosen]), declined[place]


def _bits(declined: Tensor, accepted: Tensor) -> Tensor:
    """Return the log likelihood (r,) of accept bits (q,) at probabilities of declining (r, q)."""
    sign = 1 - 2 * accepted.float()
    # The probability of the recorded bit: 1 - p where the sample was accepted, and p where it was declined.
    right = torch.addcmul(accepted.float(), declined, sign)
    # A small share of bits follows no selector, so that one wrong bit does not rule a guess out.
    return right.mul_(1 - 2 * _WRONG).add_(_WRONG).log_().sum(1)


def _sites(
    c: SelectedClass, chains: int, sweep: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, bool]:
    """Draw two sites for each chain; in every third step the first one holds a non-candidate."""
    sites = len(c.records.sites)
    others = c.records.others
    b = torch.randint(sites, (chains,), generator=generator)
    if others and (sweep % 3 == 2 or sites == 1):
        return torch.randint(others, (chains,), generator=generator) + sites, b, True
    shift = torch.randint(1, sites, (chains,), generator=generator)
    return (b + shift) % sites, b, False


def _options(
    c: SelectedClass, state: Guesses, site: Tensor, hidden: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the options of a site (b,) of each chain: records (b, o) and roles (b, o)."""
    if hidden:
        library = len(c.records.library)
        now = state.record.gather(1, site[:, None])
        new = torch.randint(library, now.shape, generator=generator) + len(c.records.candidates)
        records = torch.cat([now, new], 1).repeat_interleave(3, 1)
        roles = [OUT, KNOWN, VALIDATION] * 2
    elif c.records.sites.shape[1] == 2:
        records = c.records.sites[site].repeat_interleave(2, 1)
        roles = [KNOWN, VALIDATION] * 2
    else:
        records = c.records.sites[site].expand(-1, 3)
        roles = [OUT, KNOWN, VALIDATION]
    return records, torch.tensor(roles).expand(len(site), len(roles))
