"""The ε that a recorded system claims for itself, in the ledger's terms, so that attacks can contradict it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fdaudit.accounting.charges import Charge
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.ledger import Ledger
from fdaudit.events import Gaussian, SampledGaussian
from fdaudit.scoring.claims import Claimed

if TYPE_CHECKING:
    from fdaudit.planning.case import Case
    from fdaudit.spec.card import Claim

__all__ = ["claimed_by", "epsilon_claimed"]


def claimed_by(case: Case) -> tuple[Claimed, ...]:
    """Return the claims of a recorded system; none of a simulation, whose ledger claims."""
    claims = []
    for claim in case.claims:
        members = claim.adversary.split("+")
        protected = [client for client in case.clients if client not in members]
        entry = Ledger(
            view=claim.adversary,
            epsilon=epsilon_claimed(claim),
            delta=claim.delta,
            unit=claim.unit,
            relation=claim.relation,
            victim=next(iter(protected), ""),
            accountant=claim.source,
        )
        claims.append(Claimed(entry, claim.source))
    return tuple(claims)


def epsilon_claimed(claim: Claim) -> float:
    """Return ε of a claim at its δ: the stated number, or that of an accountant's history of noisy steps."""
    if claim.epsilon is not None:
        return claim.epsilon
    charges = Counter[Charge]()
    for noise, rate, steps in claim.history:
        # A step's noise is in units of the sensitivity; `rate` is the chance of a record to be in its sample.
        step: Charge = Gaussian(
            unit=claim.unit, relation=claim.relation, covers=("data",), sensitivity=1.0, scale=noise
        )
        if rate != 1:
            step = SampledGaussian(
                unit=claim.unit,
                relation=claim.relation,
                covers=("data",),
                sensitivity=1.0,
                scale=noise,
                sample_rate=rate,
            )
        charges[step] += steps
    return epsilon(charges, claim.delta).value
