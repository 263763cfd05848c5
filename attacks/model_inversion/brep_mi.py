"""BREP-MI: find the latent vector of a GAN that is furthest inside a class, from hard answers alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.registry import AttackCard
from fdaudit.types import AttackTask

from .._reading import reads_forms
from .gan import GanConfig, GanPrior, gan_prior, learnable
from .model_attack import QueriesConfig, QueryAttack
from .priors import centres
from .victims import Askable, as_probabilities, of_classes, wanted

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

__all__ = ["BREPMI", "BREPMIConfig"]


class BREPMIConfig(QueriesConfig, GanConfig):
    """Settings of boundary repulsion."""

    starts: float = Field(0.2, gt=0, lt=1)
    """Share of the queries that search for a first latent vector of each class."""
    widest: float = Field(3.0, ge=1)
    """Standard deviation of the last of these vectors; the first has 1, the GAN's own."""
    points: int = Field(32, ge=1)
    """N: points on a sphere."""
    radius: float = Field(2.0, gt=0)
    """R of the first sphere."""
    growth: float = Field(1.3, gt=1)
    """γ: a sphere inside the class is followed by one that is larger by this factor."""
    largest: float = Field(64.0, gt=0)
    """A class whose sphere is larger than this is done."""
    patience: int = Field(1000, ge=1)
    """A class is done when its sphere has not grown for this number of steps."""


@reads_forms
class BREPMI(QueryAttack):
    """Moves a GAN's latent vectors away from points that the model assigns to another class.

    All classes advance together, with N queries a class in each step, until each class is done or the budget is spent.
    Each victim's own model is queried if clients answer, else the released one. If no start was assigned to a class,
    the guess is the mean auxiliary image of the class, or of all classes.

    Four points differ from the paper. A class starts at the mean of all latent vectors assigned to it, not at one of
    them. Some of these vectors are longer than the GAN's own, which reaches rare classes. A step's direction has length
    1, because the mean over few points in many dimensions is short. Latent vectors stay within √d, the usual length of
    the GAN's own d-dimensional ones.
    """

    card = AttackCard(
        name="brep-mi",
        work={"once": 4000, "each": 1400, "grows": ("gan_steps",)},
        goal="reconstruction",
        needs=("oracle (hard labels)", "model_parameters"),
        assumes=("architecture", "auxiliary"),
        oracle="hard",
        source="Kahla, Chen, Just & Jia 2022",
        tasks=("single-label",),
        profiles={
            "quick": {"gan_steps": 100, "queries": 4_000},
            "standard": {"gan_steps": 5000, "width": 16},
            "full": {"gan_steps": 15_000, "width": 16, "queries": 1_000_000, "points": 64},
        },
        control={"on": "classes", "through": "oracle"},
    )
    Config: ClassVar[type[BREPMIConfig]] = BREPMIConfig

    def __init__(self, config: BREPMIConfig) -> None:
        self.config: BREPMIConfig = config

    def missing(self, knowledge: Knowledge) -> str:
        """Return a reason if there are no auxiliary images large enough for a GAN."""
        return learnable(knowledge).reason

    def invert(
        self, model: Askable, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> list[Reconstruction]:
        """Return one image of every class for each victim of the model."""
        if knowledge.auxiliary is None:
            raise ValueError("brep-mi: no auxiliary images. Ask `applicable` first.")
        device, classes = knowledge.device, wanted(knowledge, task)
        x = knowledge.auxiliary[0]
        prior = gan_prior(x, self.config, device)
        expected = centres(knowledge.auxiliary, knowledge.classes, tuple(x.shape[1:])).to(device)

        def ask(images: Tensor) -> Tensor:
            answers = as_probabilities(model.model(images), knowledge.classes)
            return answers.argmax(1).to(images.device)

        search = _BoundarySearch(prior, ask, expected, classes, self.config)
        invert = partial(search.invert, model.queries)
        tensors = [x, expected, classes]
        inversion = model.once("brep-mi", self.config, knowledge, tensors, generator, invert)
        return of_classes(model.targets, inversion["images"], classes)


@dataclass(frozen=True, eq=False)
class _BoundarySearch:
    """Boundary repulsion against one model; `ask` maps images (n, c, h, w) to classes (n,)."""

    prior: GanPrior
    ask: Callable[[Tensor], Tensor]
    expected: Tensor
    shown: Tensor
    config: BREPMIConfig

    def invert(self, queries: int, draws: torch.Generator) -> dict[str, Tensor]:
        """Return as `images` one image (k, c, h, w) of each class to reconstruct, with at most `queries` queries."""
        first = max(1, int(self.config.starts * queries))
        c, z = self.start(first, draws)
        z = self.repel(c, z, queries - first, draws)
        images = self.expected.clone()
        images[c] = self._image(z)
        return {"images": images[self.shown]}

    def start(self, n: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return wanted classes (k,) among the answers to n random images, and each one's mean latent vector (k, d)."""
        scale = torch.linspace(1, self.config.widest, n)[:, None]
        z = (scale * torch.randn(n, self.prior.latent, generator=draws)).to(self.expected.device)
        answers = self._answers(z)
        c = answers.unique()
        c = c[torch.isin(c, self.shown.to(c.device))]
        if not len(c):
            return c, z[:0]
        return c, torch.stack([z[answers == label].mean(0) for label in c])

    def repel(self, c: Tensor, z: Tensor, queries: int, draws: torch.Generator) -> Tensor:
        """Return the latent vectors (k, d) with the largest spheres inside the classes c (k,) (Algorithm 1)."""
        config, N, d = self.config, self.config.points, self.prior.latent
        R = torch.full((len(c),), config.radius, device=z.device)
        since = torch.zeros(len(c), dtype=torch.int64, device=z.device)
        best = z.clone()
        best_rank = torch.full_like(R, -torch.inf)
        while True:
            on = ((since < config.patience) & (config.largest >= R)).nonzero().flatten()
            queries -= len(on) * N
            if not len(on) or queries < 0:
                return best
            # N points on the sphere, and which of them are answered with the class: Φ is 0 inside, -1 outside.
            u = torch.randn(len(on), N, d, generator=draws).to(z)
            u = u / u.norm(dim=2, keepdim=True)
            answers = self._answers((z[on, None] + R[on, None, None] * u).flatten(0, 1)).view(-1, N)
            phi = (answers == c[on, None]).to(z) - 1
            inside = 1 + phi.mean(1)
            # The best point so far: first by its sphere's radius, then by the share of it inside the class.
            rank = R[on].log() / torch.tensor(config.growth).log() + inside
            better = rank > best_rank[on]
            best_rank[on[better]] = rank[better]
            best[on[better]] = z[on[better]]
            # M(z, R) = 1/N Σ Φ(z + R u_i) u_i, and z <- z + α_R M / |M| with α_R = min(R / 3, 3).
            M = F.normalize((phi[..., None] * u).mean(1), dim=1)
            moved = z[on] + (R[on] / 3).clamp_max(3)[:, None] * M
            z[on] = moved * (d**0.5 / moved.norm(dim=1, keepdim=True)).clamp_max(1)
            grown = inside == 1
            since[on] = torch.where(grown, 0, since[on] + 1)
            R[on] = torch.where(grown, config.growth * R[on], R[on])

    @torch.no_grad()
    def _image(self, z: Tensor) -> Tensor:
        images: Tensor = self.prior.generator(z)
        return images

    def _answers(self, z: Tensor) -> Tensor:
        """Return classes (n,) of the images of latent vectors (n, d), computed in small batches."""
        answers = []
        for part in z.split(1024):
            images = self._image(part)
            answers.append(self.ask(images))
        return torch.cat(answers)
