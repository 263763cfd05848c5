"""The density selector of one class of a client, evaluated for many guesses of its records at once.

A guess names the client's records and their roles. A *known* record shapes the density, a *validation* record the
threshold. Some records may not be candidates; records of a library stand in for these.

Guarantees:
  * if all records are candidates, the bits of a guess equal those of the selector that the protocol fits;
  * a guess has as many known records as the protocol's split leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.models.density_ratio import KuLSIF, known_records

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KNOWN", "OUT", "VALIDATION", "Guesses", "Records", "SelectedClass", "Selector"]

OUT, KNOWN, VALIDATION = 0, 1, 2
"""Roles of a record."""
_STEP = 0.01
"""Relative step between two distinct bandwidths."""
_MOST_LEVELS = 24
_MOST_ENTRIES = 1 << 23
"""Entries of the tables of one class."""
_PRIOR_DRAWS = 64
_SMALL = 64
"""Largest class whose bandwidth depends on its held records; in larger classes the median hardly changes."""
_LEAST = 1e-37
"""Smallest ratio before a logarithm; float32 reaches that far."""
_REACHED = 0.05
"""A public sample is near if at least this share of prior draws accepts it."""


@dataclass(frozen=True, kw_only=True)
class Selector:
    """The public settings of a client's density selector; fields are named as in the protocol."""

    tau: float
    validation: float
    known: int
    uniform: int
    bandwidth: float | None
    beta: float

    @classmethod
    def of(cls, public: Mapping[str, Any]) -> Selector | None:
        """Return the settings from a protocol's public configuration, or None if it has no density selector."""
        if public.get("selector") != "density-ratio":
            return None
        uniform = int(public["uniform"])
        beta = public.get("beta")
        if beta is None:
            beta = uniform**-0.5
        return cls(
            tau=float(public["tau_client"]),
            validation=float(public["validation"]),
            known=int(public["known"]),
            uniform=uniform,
            bandwidth=public.get("bandwidth"),
            beta=float(beta),
        )

    def known_of(self, records: int) -> int:
        """Return the number of known records among a class's; 0 if the class is too small for an estimate."""
        return known_records(records, validation=self.validation, most=self.known) if records > 1 else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Points of one class.

    Attributes:
        candidates: (n, d).
        sites: (s, 2) candidates of each pair, of which one is held; or (s, 1) single candidates.
        library: (l, d) records of the class that may stand in for non-candidates.
        others: largest number of non-candidates that the client may hold.
    """

    candidates: Tensor
    sites: Tensor
    library: Tensor
    others: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Guesses:
    """b guesses about one class. The last sites hold non-candidates.

    Attributes:
        record: (b, s) numbers of records, candidates first, then the library's.
        role: (b, s).
    """

    record: Tensor
    role: Tensor


class SelectedClass:
    """Tables from which sums give the accept bits of any guess.

    Args:
        settings: of the selector.
        records: of the class.
        public: (m, d) the samples that were asked about.
        uniform: (n_u, d) auxiliary samples of the adversary's own.
        generator: of the prior draws that give the range of bandwidths.

    Attributes:
        settings, records: as given.
        near: (q,) numbers of the public samples that this class may accept.
    """

    def __init__(
        self,
        settings: Selector,
        records: Records,
        public: Tensor,
        uniform: Tensor,
        generator: torch.Generator,
    ) -> None:
        self.settings, self.records = settings, records
        self._points = torch.cat([records.candidates, records.library])
        self._squared = torch.cdist(self._points, self._points).square()
        self._uniform = uniform
        size = len(records.sites) + records.others
        counts = list[int]()
        ways = list[float]()
        for n in range(size + 1):
            counts.append(settings.known_of(n))
            ways.append(math.log(math.comb(n, counts[n])))
        self._known = torch.tensor(counts)
        self._ways = torch.tensor(ways)
        self._small = size <= _SMALL
        draws = self.prior(_PRIOR_DRAWS if self._small else 8, generator)
        sigmas = self._bandwidths(draws)
        middle = torch.tensor([float(sigmas.log().mean().exp())])
        self._levels = middle
        self.near = torch.arange(len(public))
        self._build(public)
        reached = (self._log_ratio(draws)[0] > 0).float().mean(0)
        self.near = (reached >= _REACHED).nonzero().squeeze(1)
        if self._small:
            # Levels of bandwidth that cover those of the prior draws, evenly spaced in logarithm.
            low = float(sigmas.min())
            high = float(sigmas.max())
            rows = len(self._points)
            affordable = max(_MOST_ENTRIES // (rows * (rows + len(self.near))), 1)
            levels = min(math.ceil(math.log(high / low) / _STEP) + 1, affordable, _MOST_LEVELS)
            self._levels = torch.logspace(math.log10(low), math.log10(high), levels)
        self._build(public[self.near])

    # -- guesses ------------------------------------------------------------------------------------------------

    def prior(self, count: int, generator: torch.Generator) -> Guesses:
        """Draw guesses from the coins' and the roles' prior distribution, without using the bits."""
        sites, others = self.records.sites, self.records.others
        side = torch.randint(2, (count, len(sites)), generator=generator)
        record = sites[torch.arange(len(sites)), side.clamp_max(sites.shape[1] - 1)]
        members = torch.ones_like(side, dtype=torch.bool) if sites.shape[1] == 2 else side == 1
        if others:
            library = len(self.records.library)
            more = torch.randint(library, (count, others), generator=generator)
            record = torch.cat([record, more + len(self.records.candidates)], 1)
            members = torch.cat([members, torch.rand(count, others, generator=generator) < 0.5], 1)
        # Random keys rank the held records before all others; the first of them are known.
        keys = torch.rand(members.shape, generator=generator).masked_fill(~members, 2)
        rank = keys.argsort(1).argsort(1)
        is_known = rank < self._known[members.sum(1)][:, None]
        role = torch.where(is_known, KNOWN, VALIDATION).masked_fill(~members, OUT)
        return Guesses(record=record, role=role)

    def log_prior(self, guesses: Guesses) -> Tensor:
        """Return (b,) the log prior of guesses from coins and roles, up to a constant; -inf if impossible."""
        size = (guesses.role != OUT).sum(1)
        possible = (guesses.role == KNOWN).sum(1) == self._known[size]
        return -self._ways[size].masked_fill(~possible, torch.inf)

    # -- bits ---------------------------------------------------------------------------------------------------

    def declined(self, guesses: Guesses, softness: float) -> Tensor:
        """Return the probability (b, q) that the class declines each near sample.

        Args:
            guesses: b of them.
            softness: scale of the logistic noise on the logarithm of the ratio, in nats.
        """
        z, threshold, level = self._log_ratio(guesses)
        probability = torch.sigmoid(z.mul_(-1 / softness))
        others = self.records.others
        if others:
            more = (guesses.role[:, -others:] == KNOWN).sum(1)
            some = more.nonzero().squeeze(1)
            if probability.numel() and len(some):
                # Such a record's position is unknown: it accepts as often as a library record does.
                at = level[some]
                reach = (self._mean[at] - threshold[some, None]) / self._scale[at]
                probability[some] *= torch.sigmoid(-reach).pow(more[some, None])
        return probability

    def _log_ratio(self, guesses: Guesses) -> tuple[Tensor, Tensor, Tensor]:
        """Return log w/τ (b, q) from candidates alone, log τ (b,), and levels of bandwidths (b,)."""
        record, role = guesses.record, guesses.role
        if len(self._levels) == 1:
            level = torch.zeros(len(guesses.role), dtype=torch.long)
        else:
            borders = (self._levels[1:] * self._levels[:-1]).sqrt().contiguous()
            level = torch.bucketize(self._bandwidths(guesses), borders)
        index = level[:, None] * len(self._points) + record
        weight = (role == KNOWN).float()
        among = F.embedding_bag(index, self._among, mode="sum", per_sample_weights=weight)
        if self.records.others:
            weight = weight.clone()
            weight[:, -self.records.others :] = 0
        ratio = F.embedding_bag(index, self._at_public, mode="sum", per_sample_weights=weight)
        validation = among.gather(1, record).masked_fill(role != VALIDATION, torch.inf).sort(1).values
        count = (role == VALIDATION).sum(1)
        place = self.settings.tau * (count - 1).clamp_min(0)
        low = place.floor().long()
        high = torch.minimum(low + 1, (count - 1).clamp_min(0))
        # τ is a quantile of the validation records' ratios, interpolated between the two nearest.
        a = validation.gather(1, low[:, None]).squeeze(1)
        b = validation.gather(1, high[:, None]).squeeze(1)
        quantile = torch.lerp(a, b, (place - low).to(a)).where(count > 0, torch.inf)
        threshold = quantile.clamp(_LEAST, 1e37).log()
        return ratio.clamp_min(_LEAST).log() - threshold[:, None], threshold, level

    # -- tables -------------------------------------------------------------------------------------------------

    def _build(self, public: Tensor) -> None:
        """Compute each record's influence on each near sample and on each other record, for each level of bandwidth."""
        at_public, among, mean, scale = [], [], [], []
        at = torch.cat([public, self._points])
        for sigma in self._levels.tolist():
            influence = KuLSIF(sigma, self.settings.beta).influence(self._points, self._uniform, at)
            near = influence[:, : len(public)]
            logs = near[len(self.records.candidates) :].clamp_min(_LEAST).log()
            at_public.append(near.float())
            among.append(influence[:, len(public) :].float())
            if logs.numel() and len(logs) > 1:
                mean.append(logs.mean(0).float())
                scale.append(logs.std(0).float().clamp_min(1e-3) * (math.sqrt(3) / math.pi))
        self._at_public, self._among = torch.cat(at_public), torch.cat(among)
        if mean:
            self._mean, self._scale = torch.stack(mean), torch.stack(scale)

    def _bandwidths(self, guesses: Guesses) -> Tensor:
        """Return σ of each guess (b,)."""
        if self.settings.bandwidth is not None:
            return torch.full((len(guesses.role),), self.settings.bandwidth)
        members = guesses.role != OUT
        a, b = torch.triu_indices(members.shape[1], members.shape[1], 1)
        both = members[:, a] & members[:, b]
        squared = self._squared[guesses.record[:, a], guesses.record[:, b]].masked_fill(~both, torch.inf)
        middle = ((both.sum(1) - 1) // 2).clamp_min(0)
        median = squared.sort(1).values.gather(1, middle[:, None]).squeeze(1)
        return (median.where(both.any(1), 1.0).sqrt() / 6).clamp_min(1e-6)
