"""Membership from the public samples that a client answered: find the coins that explain its selector."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from ..label_distribution.declined import accepted_samples
from ._accepted import Records, SelectedClass, Selector
from ._chains import Annealing, coins
from ._coins import pairs_of

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.types import Challenge

__all__ = ["AcceptSet", "AcceptSetConfig"]


class AcceptSetConfig(Config):
    """Settings of the attack from accept bits."""

    chains: int = Field(64, ge=1, le=10_000)
    """Markov chains of one client, side by side."""
    sweeps: int = Field(200, ge=2)
    """Steps of each class of a client in every chain."""
    softness: float = Field(0.05, gt=0)
    """Final noise on the logarithm of a density ratio, in nats."""
    others: int = Field(1, ge=0, le=1000)
    """Largest number of a class's records that a client may hold in addition to candidates."""
    library: int = Field(60, ge=2)
    """Largest number of a class's records that show the distribution of those."""
    samples: int = Field(2000, ge=1)
    """Largest number of public samples whose bits are used."""
    paired: bool = True
    """Whether to use that exactly one candidate of each matched pair is a member."""


@reads_forms
class AcceptSet:
    """Finds the candidates that explain which public samples a client's density selector accepts and declines.

    The selector's settings are public and its densities have a closed form. Each guess of the client's records
    therefore predicts the accepted samples. Markov chains draw guesses that agree with the recorded bits: which
    candidates are held, and which of these shape the density or only its threshold. A candidate's score is the share of
    guesses that hold it. The client's answers themselves are not used.
    """

    card = AttackCard(
        name="accept-set",
        work={"once": 8000, "each": 7000, "grows": ("chains", "sweeps")},
        goal="membership",
        needs=("soft_labels", "hard_labels"),
        assumes=("auxiliary", "encode", "public"),
        source="Shao et al. 2023, Eq. 1; Geman & Geman 1984",
        control={"on": "selector"},
        profiles={
            "quick": {"chains": 32, "sweeps": 300},
            "standard": {"chains": 128, "sweeps": 400},
            "full": {"chains": 256, "sweeps": 1500},
        },
    )
    Config: ClassVar[type[AcceptSetConfig]] = AcceptSetConfig

    def __init__(self, config: AcceptSetConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a density selector, and a victim's accept bits in view with some samples declined."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        if Selector.of(view.hyperparameters) is None:
            return Applicability(False, "the protocol's configuration names no density-ratio selector")
        if knowledge.public is None:
            return Applicability(False, "the public samples are not known")
        if _in_features(view) and knowledge.encode is None:
            return Applicability(
                False, "the selector works on features, and the feature extractor is not known"
            )
        bits = [accepted_samples(view, name, len(knowledge.public)) for name in task.challenges]
        bits = [(requested, accepted) for requested, accepted in bits if requested.any()]
        if not bits:
            return Applicability(
                False, "which samples a victim was asked about, and answered for, is not in view"
            )
        if all(bool((accepted == requested).all()) for requested, accepted in bits):
            return Applicability(False, "no victim declined a sample that it was asked about")
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim; a victim that was never asked has equal scores."""
        if knowledge.public is None:
            raise ValueError("accept-set: no public samples. Ask `applicable` first.")
        space = _Space(view, knowledge, task, generator)
        cfg = self.config
        how = Annealing(chains=cfg.chains, sweeps=cfg.sweeps, softness=cfg.softness)
        guesses = []
        for challenge in task.challenges.values():
            requested, accepted = accepted_samples(view, challenge.target, len(space.public))
            samples = requested.nonzero().squeeze(1)
            if len(samples) > cfg.samples:
                samples = samples[torch.randperm(len(samples), generator=generator)[: cfg.samples]]
            classes = list[SelectedClass]()
            rows = list[Tensor]()
            for of, records in self._by_class(space, challenge):
                if len(records.sites) + records.others > 1:
                    selected = SelectedClass(
                        space.selector, records, space.public[samples], space.uniform, generator=generator
                    )
                    classes.append(selected)
                    rows.append(of)
            probabilities = coins(classes, accepted[samples] > 0, how, generator)
            scores = torch.full((len(challenge.y),), 0.5, dtype=torch.float64)
            for of, probability in zip(rows, probabilities, strict=True):
                scores[of] = probability.double()
            guesses.append(Membership(target=challenge.target, scores=scores))
        return tuple(guesses)

    def _by_class(self, space: _Space, challenge: Challenge) -> list[tuple[Tensor, Records]]:
        """Return for each class the rows of its candidates, and its records; classes and pairs are the challenge's."""
        pairs = pairs_of(challenge) if self.config.paired else None
        sites = torch.arange(len(challenge.y))[:, None] if pairs is None else pairs
        points = space.points(challenge.x)
        by_class = []
        for label in challenge.y.unique().tolist():
            of = sites[challenge.y[sites[:, 0]] == label]
            if not len(of):
                continue
            rows, local = of.flatten().unique(return_inverse=True)
            library = space.library(challenge.target, label)[: self.config.library]
            if len(library) < 2:
                library = points[rows]
            records = Records(
                candidates=points[rows],
                sites=local.reshape(of.shape),
                library=library,
                others=self.config.others if len(rows) > 1 else 0,
            )
            by_class.append((rows, records))
        return by_class


class _Space:
    """The space of the densities, and the adversary's knowledge of it.

    Attributes:
        selector: the public settings.
        public: (m, d).
        uniform: (n_u, d) uniform samples of the adversary's own on the protocol's box.
    """

    def __init__(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> None:
        selector = Selector.of(view.hyperparameters)
        if selector is None or knowledge.public is None:
            raise ValueError("accept-set: no density selector or no public samples. Ask `applicable` first.")
        self.selector, self._encode = selector, knowledge.encode if _in_features(view) else None
        self.public = self.points(knowledge.public)
        samples = torch.rand(selector.uniform, self.public.shape[1], generator=generator)
        low = torch.zeros(1)
        high = torch.ones(1)
        if self._encode is not None:
            low = self.public.amin(0)
            high = self.public.amax(0)
        self.uniform = low + (high - low) * samples
        sources = [] if knowledge.auxiliary is None else [("", *knowledge.auxiliary)]
        for name, challenge in task.challenges.items():
            sources.append((name, challenge.x, challenge.y))
        self._known: list[tuple[str, Tensor, Tensor]] = []
        for name, x, y in sources:
            if len(y):
                self._known.append((name, self.points(x), y))

    def points(self, x: Tensor) -> Tensor:
        """Return images (n, c, h, w) as points (n, d)."""
        if self._encode is None:
            return x.flatten(1).cpu().float()
        features = list[Tensor]()
        for part in x.split(1024):
            features.append(self._encode(part).flatten(1).cpu().float())
        return torch.cat(features)

    def library(self, target: str, label: int) -> Tensor:
        """Return records (l, d) of a class that are not this target's candidates: auxiliary ones, other targets'."""
        parts = []
        for name, points, y in self._known:
            if name != target:
                parts.append(points[y == label])
        return torch.cat(parts) if parts else self.public[:0]


def _in_features(view: View) -> bool:
    return view.hyperparameters.get("space") == "features"
