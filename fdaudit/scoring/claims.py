"""Check a claimed ε from below: compare what attacks achieved with what the ledger claims, view by view.

Guarantees:
  * if every claim of a run holds, the probability that any of them is contradicted is at most 1 - `CONFIDENCE`. The
    level is shared (Bonferroni) by all planned attacks on all designs in all views, and by the two tests of each:
    of (ε, δ), and of Gaussian DP. An attack does not count in a view that by declaration never gets what it needs: its
    card, the protocol's and the spec decide this before the run;
  * the two tests claim different things. The first bounds the mechanism's ε at δ. The second bounds the least μ of a
    Gaussian mechanism that explains the guesses. Only the first can contradict a claim of ε, only the second a
    claim of μ;
  * only tossed coins count: each canary's own, one of each matched pair, or one of a client, which decides what it
    holds. Bounds from pairs of replaced records or clients are converted to the claim's neighbouring relation;
  * a claim that even a perfect attack could not contradict is `inconclusive`, never `consistent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from fdaudit.events import Relation
from fdaudit.goals import GOALS
from fdaudit.handout.declared_views import may_apply
from fdaudit.metrics import (
    epsilon_lower_bound,
    epsilon_p_value,
    gdp_epsilon,
    guesses_needed,
    mu_lower_bound,
    mu_p_value,
)
from fdaudit.result import Check, ClaimVerdict, Evidence
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.scoring.scoring import Part, kept_scores
from fdaudit.spec.privacy import CanarySpec

if TYPE_CHECKING:
    from fdaudit.accounting.ledger import Ledger

__all__ = ["CONFIDENCE", "Claimed", "by_client", "check_claims", "judge"]

CONFIDENCE = 0.95
"""Probability that no true claim of a run is contradicted."""

_TESTS = 2
"""Tests of each attack on each kind of coins: of (ε, δ), and of Gaussian DP."""


class _Coins(TypedDict):
    """The coins' design, as both tests take it."""

    design: Literal["matched-pairs", "coin-flips"]
    relation: Relation
    pair: Tensor | None
    guesses: int | None


class _CoinScores(NamedTuple):
    """An attack's scores, and the coins that they are about.

    Attributes:
        scores: (n,), higher for "member".
        member: (n,) booleans.
        pair: (n,) the number of each pair, if coins decide about pairs.
        guesses: the number of guesses that the spec fixes, if it does.
    """

    scores: np.ndarray[Any, Any]
    member: Tensor
    pair: Tensor | None
    guesses: int | None


@dataclass(frozen=True)
class Claimed:
    """A claim that a recorded system makes for itself, in the ledger's terms, and where it makes it."""

    entry: Ledger
    source: str


def check_claims(
    run: RunDirectory, ledgers: Sequence[Ledger], claims: Sequence[Claimed] = ()
) -> tuple[Check, ...]:
    """Check claims with the scores that the run's membership attacks left in the vault.

    Args:
        run: the run.
        ledgers: what the ledger claims, view by view.
        claims: what a recorded system claims for itself.
    """
    entries = [*((entry, "") for entry in ledgers), *((c.entry, c.source) for c in claims)]
    planned = [list(_planned(run, entry)) for entry, _ in entries]
    confidence = 1 - (1 - CONFIDENCE) / max(1, _TESTS * sum(map(len, planned)))
    checks = []
    for (entry, source), tests in zip(entries, planned, strict=True):
        evidence = []
        for attack, part in tests:
            scored = _scored(run, entry.view, attack, part)
            if scored is not None:
                evidence.append(_evidence(entry, attack, part, scored, confidence))
        checks.append(judge(entry, evidence, confidence).model_copy(update={"source": source}))
    return tuple(checks)


def judge(entry: Ledger, evidence: Sequence[Evidence], confidence: float) -> Check:
    """Return the verdict on one claim, from bounds with confidence `confidence` each."""
    blank = Check(
        adversary=entry.view,
        claimed=float(entry.epsilon) if entry.finite else None,
        gdp=entry.gdp if entry.finite else None,
        delta=entry.delta,
        unit=entry.unit,
        relation=entry.relation,
        verdict="not-checked",
        confidence=CONFIDENCE,
        reason="",
    )
    if blank.claimed is None:
        why = "No finite ε is claimed: there is nothing to check."
        return blank.model_copy(update={"verdict": "nothing-claimed", "reason": why})
    if not entry.victim:
        return blank.model_copy(update={"reason": "No client is left whom the claim could protect."})
    tested: dict[str, Any] = {
        "confidence": confidence,
        "needed": guesses_needed(blank.claimed, entry.delta, confidence),
        "evidence": tuple(evidence),
    }
    if evidence:
        mu = max(e.mu for e in evidence)
        tested |= {
            "bound": max(e.bound for e in evidence),
            "power": max(e.power for e in evidence),
            "mu": mu,
            "gaussian": gdp_epsilon(mu, entry.delta),
            "p": min(1.0, min(e.p for e in evidence) * (1 - CONFIDENCE) / (1 - confidence)),
        }
    check = blank.model_copy(update=tested)
    verdict, reason = _verdict(check)
    return check.model_copy(update={"verdict": verdict, "reason": reason})


def _verdict(check: Check) -> tuple[ClaimVerdict, str]:
    """Return the verdict on a finite claim, and a sentence that explains it."""
    claimed = check.claimed or 0.0
    more = "no number of guesses would do at this δ"
    if check.needed:
        more = f"some {check.needed:,} perfect guesses would be needed"
    if check.bound is None or check.power is None or check.mu is None:
        reason = f"No membership attack gave scores that its coins support; {more} to contradict it."
        return "inconclusive", reason
    shown = f"The attacks show ε of at least {check.bound:.3g}"
    if check.bound > claimed:
        return "contradicted", f"{shown}, more than the {claimed:.4g} claimed."
    if check.gdp is not None and check.mu > check.gdp:
        shown = f"The attacks show μ of Gaussian DP of at least {check.mu:.3g}"
        return "contradicted", f"{shown}, more than the {check.gdp:.4g} claimed."
    mu_power = max(e.mu_power for e in check.evidence)
    could = f"a perfect attack could have shown up to {check.power:.3g}"
    if check.power <= claimed and (check.gdp is None or mu_power <= check.gdp):
        coins = max(e.coins for e in check.evidence)
        could = f"With {coins:,} coins even a perfect attack could have shown ε of at most {check.power:.3g}"
        return "inconclusive", f"{could}; {more} to contradict {claimed:.4g}."
    if check.power <= claimed:
        could = f"a perfect attack could have shown μ of up to {mu_power:.3g}, and {check.gdp:.4g} is claimed"
    return "consistent", f"{shown}, no more than the {claimed:.4g} claimed; {could}."


# -- details ------------------------------------------------------------------------------------------------------


def _planned(run: RunDirectory, entry: Ledger) -> Iterator[tuple[str, Part]]:
    """Yield the attacks that count in this view, with each kind of coins that tests its claim."""
    if not entry.finite or not entry.victim:
        return
    case, truth = run.case, run.truth
    members = entry.view.split("+")
    parts: list[Part] = []
    victims = case.victims(entry.view)
    if case.design != "observational" and any(len(truth.challenge(k)[1]) for k in victims):
        parts.append("candidates")
    tested = case.spec.canaries is not None and _tests(case.spec.canaries, entry)
    if tested and any(k not in members for k in truth.with_canaries):
        parts.append("canaries")
    for attack in case.attacks:
        runs = attack.params is not None and entry.view in attack.adversaries
        if runs and GOALS[attack.card.goal].challenged and may_apply(case, attack, members):
            for part in parts:
                yield attack.name, part


def _tests(canaries: CanarySpec, entry: Ledger) -> bool:
    """Return whether the coins of canaries test a claim.

    Replacing a record changes what its client holds, so pairs of either unit test a claim about whole clients. Adding a
    record does not add a client. A claim about groups holds for each record of a group.
    """
    if canaries.design == "matched-pairs":
        return entry.unit == "client" or canaries.unit == "record"
    return entry.unit != "client" and entry.relation == "add-or-remove"


def _scored(run: RunDirectory, view: str, attack: str, part: Part) -> _CoinScores | None:
    """Return an attack's scores on one kind of coins, of all victims; None if it left none.

    For single coins they are ranks, with ties broken by position. Challenges are shuffled, so a candidate's position
    reveals nothing about its coin.
    """
    by_victim = kept_scores(run.path, f"{view}/{attack}", part)
    if not by_victim:
        return None
    canaries, issue = None, run.truth.challenge
    if part == "canaries":
        canaries, issue = run.case.spec.canaries, run.truth.canaries
    guesses = None if canaries is None else canaries.guesses
    values, members, pairs, coins = dict[str, Tensor](), dict[str, Tensor](), [], 0
    for client in sorted(by_victim):
        challenge, members[client] = issue(client)
        values[client] = by_victim[client]
        pairs.append(challenge.pair + coins)
        coins += len(challenge.y) // 2
    if canaries is not None and canaries.unit == "client":
        of_sets, is_held, pair = by_client(values, members)
        return _CoinScores(of_sets.numpy(), is_held, pair, guesses)
    scores, member = torch.cat(list(values.values())).numpy(), torch.cat(list(members.values()))
    if challenge.design == "matched-pairs":
        return _CoinScores(scores, member, torch.cat(pairs), guesses)
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(len(scores))
    return _CoinScores(ranks, member, None, guesses)


def _evidence(entry: Ledger, attack: str, part: Part, scored: _CoinScores, confidence: float) -> Evidence:
    """Return what an attack's scores show about a claim, and what those of a perfect attack would show."""
    scores, member, pair, guesses = scored
    coin: _Coins = {
        "design": "matched-pairs",
        "relation": entry.relation,
        "pair": pair,
        "guesses": guesses,
    }
    coins = len(scores) // 2
    if pair is None:
        coin["design"], coins = "coin-flips", len(scores)
    if guesses is not None:
        coin["guesses"] = min(guesses, coins)
    perfect = member.double().numpy()  # scores of an attack that knows every coin
    mu = mu_lower_bound(scores, member, confidence, **coin)
    p = epsilon_p_value(scores, member, float(entry.epsilon), entry.delta, **coin)
    if entry.gdp is not None:
        p = min(p, mu_p_value(scores, member, entry.gdp, **coin))
    return Evidence(
        attack=attack,
        on=part,
        design=coin["design"],
        coins=coins,
        bound=epsilon_lower_bound(scores, member, entry.delta, confidence, **coin),
        power=epsilon_lower_bound(perfect, member, entry.delta, confidence, **coin),
        mu=mu,
        mu_power=mu_lower_bound(perfect, member, confidence, **coin),
        gaussian=gdp_epsilon(mu, entry.delta),
        p=p,
    )


def by_client(scores: Mapping[str, Tensor], member: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return one matched pair a client: the set that it holds, and the set that its coin rejected.

    An attack scores single records. The guess for a client is the set with the higher mean score. Its strength is the
    difference of the means in units of the scores' spread, so that clients can be ranked.

    Args:
        scores: (n,) by client, of the records of both sets.
        member: (n,) booleans by client: which records it holds.

    Returns:
        Scores (2 K,) of both sets, which set is held (2 K,), and the number of the client (2 K,).
    """
    values = []
    for client, of_records in scores.items():
        score, inside = of_records.double(), member[client]
        spread = float(score.std(correction=0)) or 1.0
        apart = float(score[inside].mean() - score[~inside].mean()) / spread
        values += [apart / 2, -apart / 2]
    is_held = torch.tensor([True, False]).repeat(len(scores))
    pair = torch.arange(len(scores)).repeat_interleave(2)
    return torch.tensor(values, dtype=torch.float64), is_held, pair
