"""Knowledge: what an adversary is assumed to have in addition to its view; set by the audit and recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from fdaudit.types import Task

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.view import View
    from fdaudit.models import Architecture
    from fdaudit.models.declared import GeneratorCard
    from fdaudit.training.trainer import Trainer

__all__ = ["Knowledge"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """The assumed knowledge of an adversary. A field that is None is unknown to it.

    Attributes:
        architecture: builds the network that the federation trains; no weights.
        auxiliary: records (x, y) from the same distribution as the clients', disjoint from theirs.
        train: a training core of the adversary's own, for shadow models.
        encode: a feature extractor (n, c, h, w) -> (n, d), trained on `auxiliary` only.
        rehearse: runs the protocol on data that the adversary chooses, (x, y) per client, with a seed of its own, and
            returns the adversary's view of that shadow run. A dict as third argument receives each party's last model.
        public: (n, c, h, w) the samples that every party holds, in the order of the messages' `index`.
        public_labels: (n,) their classes, if the protocol's parties know them.
        initial: seed of the initial weights that the server broadcasts, which all clients with the federation's network
            start from: `architecture.build(torch.Generator().manual_seed(initial))`. Every participant receives them.
            None where each client draws its own: no other party knows them.
        classes: number of classes, C.
        generator: how to build the protocol's generator, as its class declares it.
        task: the models' task: one class per record, or a yes or no for each class.
    """

    architecture: Architecture | None = None
    auxiliary: tuple[Tensor, Tensor] | None = None
    train: Trainer | None = None
    encode: Callable[[Tensor], Tensor] | None = None
    rehearse: Callable[..., View] | None = None
    public: Tensor | None = None
    public_labels: Tensor | None = None
    initial: int | None = None
    classes: int = 0
    generator: GeneratorCard | None = None
    task: Task = "single-label"

    def declared(self) -> tuple[str, ...]:
        """Return the names of the fields that the adversary is assumed to have."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) not in (None, 0))
