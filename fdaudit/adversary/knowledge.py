"""Knowledge: what an adversary is assumed to have in addition to its view; set by the audit and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fdaudit.tasks import SINGLE_LABEL, Task

if TYPE_CHECKING:
    import torch
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
        task: the learning task: what records are, and what they are labelled with.
        candidates: by client, the records (x, y) whose membership is in question, in random order; only a party that
            deviates may have them before the run.
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
    task: Task = SINGLE_LABEL
    candidates: Mapping[str, tuple[Tensor, Tensor]] | None = None

    @property
    def device(self) -> torch.device:
        """Return the device of the adversary's training core, or the CPU without one."""
        import torch  # takes a second, so import it only when needed

        return torch.device("cpu") if self.train is None else self.train.device

    @property
    def described(self) -> dict[str, Any]:
        """Return the network and its execution, which determine what is computed from tensors; None if unknown."""
        return {
            "network": None if self.architecture is None else self.architecture.described,
            "execution": None if self.train is None else self.train.execution.described,
        }

    def declared(self) -> tuple[str, ...]:
        """Return the names of the fields that the adversary is assumed to have."""
        names: list[str] = []
        for field in fields(self):
            if getattr(self, field.name) not in (None, 0):
                names.append(field.name)
        return tuple(names)
