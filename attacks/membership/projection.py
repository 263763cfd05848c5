"""Membership from a client's own uploads: find the candidates whose gradients make up each upload."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.kinds import MODELS
from fdaudit.models.network import moved
from fdaudit.registry import AttackCard
from fdaudit.storage.cache import computed_once
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import after, broadcasts, uploads_of
from ..gradient_inversion.gradients import GradientMap, flatten
from ..gradient_inversion.training_mode import separable_network
from ._coins import against_its_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message
    from fdaudit.types import Challenge

__all__ = ["Projected", "UpdateProjection", "UpdateProjectionConfig", "projected"]

_RIDGES = 10.0 ** torch.arange(-8, 3.5, 0.5, dtype=torch.float64)
"""λ over the mean square norm of the candidates' gradients, from almost no prior to almost the prior alone."""
_ZERO = 1e-12
"""Eigenvalues below this share of the largest are rounding."""
_TINY = 1e-300
_BATCH = 64
"""Candidates whose gradients are taken at once, in networks that are not large."""
_MOST_AT_ONCE = 1 << 26
"""Entries of gradients taken at once. With 64 candidates of a ResNet-18 at once a process took 15 GB."""
_MOST_VALUES = 1 << 27
"""Gradient entries held at once; for larger networks a random part of the parameters is used."""
_MOST_OWN = 1000
"""Own records of the adversary, at most: the regression's work grows with their cube."""


class UpdateProjectionConfig(Config):
    """Settings of the projection of uploads."""

    uploads: int = Field(30, ge=1)
    """Largest number of uploads of each victim: the first ones."""
    rounds: int = Field(60, ge=1)
    """Largest number of explained rounds, if the broadcast model's change is explained: the first ones."""
    score: str = Field("projection", pattern="^(projection|cosine)$")
    """`projection`: the candidate's share in the upload. `cosine`: the angle between its gradient and the upload."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Projected:
    """Shares of candidates in uploads, each with its uncertainty.

    Attributes:
        share: (r, n) posterior mean of each candidate's weight in each of r uploads.
        variance: (r, n) of the posterior.
        ridge: (r,) λ over the mean square norm of the candidates' gradients.
    """

    share: Tensor
    variance: Tensor
    ridge: Tensor


def projected(gram: Tensor, products: Tensor, norm: Tensor, values: int) -> Projected:
    """Regress uploads u (P,) on the candidates' gradients G (n, P) by ridge regression, with λ from the evidence.

    u = Gᵀ w + e with w ~ N(0, τ²) and e ~ N(0, σ²). λ = σ²/τ² maximises the likelihood of u (MacKay, "Bayesian
    interpolation", Neural Computation 4 (1992), Eq. 4.2). A defence's noise and the client's other records thus set λ
    for each upload.

    Args:
        gram: (r, n, n) G Gᵀ of each upload's model.
        products: (r, n) G u.
        norm: (r,) ‖u‖².
        values: P.
    """
    k, basis = torch.linalg.eigh(gram.double())
    spanned = k > _ZERO * k.amax(1, keepdim=True).clamp_min(_TINY)
    k = torch.where(spanned, k, 1.0)
    a = (basis.mT @ products.double().unsqueeze(2)).squeeze(2)
    energy = torch.where(spanned, a.square() / k, 0.0)
    outside = (norm.double() - energy.sum(1)).clamp_min(0)
    mean = torch.diagonal(gram.double(), dim1=1, dim2=2).mean(1).clamp_min(_TINY)
    lam = _RIDGES[:, None].to(mean) * mean  # (l, r)
    ratio = k / lam[..., None]  # (l, r, n)
    spread = ((energy / (1 + ratio)).sum(2) + outside) / values  # σ²
    # The log likelihood of u with its best σ² put in: -½ (log |I + G Gᵀ/λ| + P log σ²), up to a constant.
    volume = (torch.log1p(ratio) * spanned).sum(2)
    evidence = -0.5 * (volume + values * spread.clamp_min(_TINY).log())
    best = evidence.argmax(0)
    rows = torch.arange(len(best), device=best.device)
    lam_ = lam[best, rows][:, None]
    spread_ = spread[best, rows][:, None]
    shrunk = torch.where(spanned, 1 / (k + lam_), 1 / lam_)
    share = (basis @ (torch.where(spanned, a, 0.0) * shrunk).unsqueeze(2)).squeeze(2)
    variance = spread_ * (basis.square() * shrunk.unsqueeze(1)).sum(2)
    return Projected(share=share, variance=variance, ridge=_RIDGES.to(mean)[best])


@reads_forms
class UpdateProjection:
    """Explains each upload of a victim as a sum of candidates' gradients at the model that it started from.

    A client's upload is a weighted sum of its records' gradients. A candidate is called a member if its gradient is
    needed to explain uploads in addition to all other candidates' gradients. Shares of several uploads are averaged by
    their precision. For an update over several local steps, gradients are the mean of those at its two ends. Gradients
    of the adversary's own records stand for those of the client's other records.

    An adversary that sees no upload of a victim explains each round's change of the broadcast model as a sum of
    gradients of all victims' candidates and of its own records.
    """

    card = AttackCard(
        name="update-projection",
        work={"once": 2500, "each": 2600, "grows": ("uploads", "rounds")},
        goal="membership",
        needs=("gradient", "model_update", "model_parameters"),
        assumes=("architecture",),
        source="Gauss least squares; ridge by the evidence, MacKay 1992, Eq. 4.2",
        control={"on": "uploads"},
        tasks=("single-label", "text", "table"),
        profiles={
            "quick": {"uploads": 30, "rounds": 30},
            "standard": {"uploads": 100, "rounds": 300},
            "full": {"uploads": 1000, "rounds": 1000},
        },
    )
    Config: ClassVar[type[UpdateProjectionConfig]] = UpdateProjectionConfig

    def __init__(self, config: UpdateProjectionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a victim's uploads in view, or two broadcast models, and the network."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        module = separable_network(knowledge)
        if isinstance(module, str):
            return Applicability(False, module)
        reasons = list[str]()
        for name in task.challenges:
            if reason := _missing(view, name, module):
                reasons.append(reason)
        if len(reasons) < len(task.challenges) or _changes(view, module):
            return Applicability(True)
        return Applicability(False, "; ".join(dict.fromkeys(reasons)))

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim whose uploads are in view, or for all from the broadcast models."""
        module = separable_network(knowledge)
        if isinstance(module, str):
            raise ValueError(f"update-projection: run on a view to which it does not apply: {module}.")
        module = module.to(knowledge.device)
        guesses: list[Membership] = []
        unseen: list[Challenge] = []
        for name, challenge in task.challenges.items():
            if _missing(view, name, module):
                unseen.append(challenge)
                continue
            pairs = uploads_of(view, name)[: self.config.uploads]
            uploads = [partial(_upload, view, *pair) for pair in pairs]
            x, y = _with_own(view, [challenge])
            scores = self._scores(uploads, module, x, y, knowledge)[: len(challenge.y)]
            guesses.append(Membership(target=name, scores=against_its_pair(scores, challenge)))
        changes = _changes(view, module)[: self.config.rounds] if unseen else []
        if changes:
            # Each round's change of the broadcast model is explained by all victims' candidates and own records.
            x, y = _with_own(view, unseen)
            uploads = [partial(_upload, view, end, start) for start, end in changes]
            scores = self._scores(uploads, module, x, y, knowledge)
            counts = [len(challenge.y) for challenge in unseen]
            parts = scores[: sum(counts)].split(counts)
            for challenge, part in zip(unseen, parts, strict=True):
                guesses.append(Membership(target=challenge.target, scores=against_its_pair(part, challenge)))
        return tuple(guesses)

    def _scores(
        self,
        uploads: Sequence[Callable[[], _ProjectedUpload]],
        module: nn.Module,
        x: Tensor,
        y: Tensor,
        knowledge: Knowledge,
    ) -> Tensor:
        """Return scores (n,) of records (x, y), before pairs are compared: once for equal uploads.

        One upload is read at a time: those of a large network do not fit in memory together.
        """
        card = {"attack": self.card.name, "score": self.config.score, "values": _MOST_VALUES}
        card |= knowledge.described
        sent = chain.from_iterable(
            (upload.descent, *upload.models) for upload in (read() for read in uploads)
        )
        tensors: Iterable[Tensor | Mapping[str, Tensor]] = chain((x, y), sent)

        def explained(generator: torch.Generator) -> dict[str, Tensor]:
            return {"scores": self._explained(uploads, module, x, y, generator)}

        return computed_once(card, tensors, explained)["scores"]

    def _explained(
        self,
        uploads: Sequence[Callable[[], _ProjectedUpload]],
        module: nn.Module,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        count = sum(p.numel() for p in module.parameters())
        most = _MOST_VALUES // len(y)
        looked_at = None  # every parameter
        if count > most:
            looked_at = torch.randperm(count, generator=generator)[:most].sort().values
        simulate = GradientMap(module, uploads[0]().models[0])
        device = next(module.parameters()).device
        records, labels = x.to(device)[:, None], y.to(device)[:, None]
        gram = list[Tensor]()
        products = list[Tensor]()
        norm = list[Tensor]()
        for read in uploads:
            gradients, change = read().on(simulate, records, labels, looked_at)
            if not bool(change.any()):  # nothing was changed, and so nothing is to be explained
                continue
            gram.append(gradients @ gradients.T)
            products.append(gradients @ change)
            norm.append(change.square().sum())
        if not norm:
            return torch.zeros(len(y), dtype=torch.float64)
        if self.config.score == "cosine":
            lengths = torch.stack([g.diagonal().sqrt() for g in gram]) * torch.stack(norm).sqrt()[:, None]
            return (torch.stack(products) / lengths.clamp_min(_TINY)).mean(0).cpu()
        projection = projected(torch.stack(gram), torch.stack(products), torch.stack(norm), len(change))
        weights = 1 / projection.variance.clamp_min(_TINY)
        return ((projection.share * weights).sum(0) / weights.sum(0)).cpu()


@dataclass(frozen=True, kw_only=True, eq=False)
class _ProjectedUpload:
    """One upload as a descent direction, and the models where gradients are computed."""

    descent: Mapping[str, Tensor]
    models: tuple[Mapping[str, Tensor], ...]

    def on(
        self, simulate: GradientMap, x: Tensor, y: Tensor, looked_at: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients (n, P) of records x (n, 1, ...) and the upload (P,), float64, at selected parameters."""
        if not self.models:
            raise ValueError("an upload needs a model that it started from")
        device = x.device
        descent = flatten(self.descent, simulate.names).to(device).double()
        at_once = max(1, min(_BATCH, _MOST_AT_ONCE // len(descent)))
        if looked_at is not None:
            descent = descent[looked_at]
        total = descent.new_zeros(len(y), len(descent))
        for model in self.models:
            at = simulate.at(moved(model, device))
            for rows in torch.arange(len(y), device=device).split(at_once):
                gradients = at(x[rows], y[rows])
                total[rows] += (gradients if looked_at is None else gradients[:, looked_at]).double()
        return total.div_(len(self.models)), descent


def _upload(view: View, message: Message, origin: Message) -> _ProjectedUpload:
    start = view.tensors(origin)
    if message.kind == "gradient":
        return _ProjectedUpload(descent=view.tensors(message), models=(start,))
    end = after(view, message, start)
    one_step = view.hyperparameters.get("local_steps") == 1
    descent = {name: start[name] - value for name, value in end.items()}
    return _ProjectedUpload(descent=descent, models=(start,) if one_step else (start, end))


def _with_own(view: View, challenges: Sequence[Challenge]) -> tuple[Tensor, Tensor]:
    """Return all candidates (x, y), then the adversary's own records: they stand for others that clients hold.

    Of many records of its own it takes some, evenly spread.
    """
    x, y = torch.cat([c.x for c in challenges]), torch.cat([c.y for c in challenges])
    if not view.own_data:
        return x, y
    own_x = torch.cat([x.cpu() for x, _ in view.own_data.values()])
    own_y = torch.cat([y.cpu() for _, y in view.own_data.values()])
    every = max(1, -(-len(own_y) // _MOST_OWN))
    return torch.cat([x, own_x[::every]]), torch.cat([y, own_y[::every]])


def _changes(view: View, module: nn.Module) -> list[tuple[Message, Message]]:
    """Return each broadcast model with the next one, if they fit the network."""
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}

    def fits(message: Message) -> bool:
        sizes = {name: tuple(info.shape) for name, info in message.tensors.items()}
        return all(sizes.get(name) == shape for name, shape in shapes.items())

    models = [m for m in broadcasts(view) if fits(m)]
    return list(pairwise(models))


def _missing(view: View, target: str, module: nn.Module) -> str:
    """Return why there is no upload of a client to explain; empty if there is one."""
    uploads = uploads_of(view, target)
    if not uploads:
        return f"no {', '.join(MODELS[:-1])} or {MODELS[-1]} of {target} in view, with the model that it started from"
    start = uploads[0][1].tensors
    for name, parameter in module.named_parameters():
        if name not in start or tuple(start[name].shape) != tuple(parameter.shape):
            return f"the model that {target} started from is of another network"
    return ""
