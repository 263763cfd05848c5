"""Losses of local training and distillation: batch means over logits (n, C) and targets, in nats.

For segmentation logits are (n, C, h, w). Every loss is a mean over the records of a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.errors import SpecError, one_line, plugin_line
from fdaudit.models.network import trainable_parameters
from fdaudit.parallel.randomness import forked_randomness
from fdaudit.registry.registry import loaded
from fdaudit.spec.code import imported_digest
from fdaudit.spec.trust import IMPORT, refuse_untrusted
from fdaudit.tasks.labels import Distance, Divergence, Supervised

if TYPE_CHECKING:
    from fdaudit.models import Architecture

__all__ = [
    "ClientStep",
    "Model",
    "Objective",
    "loss_digest",
    "loss_function",
    "named_loss",
    "refuse_unusable",
]

Objective = Supervised | Divergence | Distance | Literal["l1"]

Model = Callable[[Tensor], Tensor]
"""Maps records (n, ...) to logits (n, C)."""
OwnLoss = Callable[[Model, Tensor, Tensor], Tensor]
"""The loss () of one step on records (n, ...) with labels (n,). It is code: the user names it, and no card does."""

_TRIED = 4
"""Records of a trial."""
_WRITE = "Write `def loss(model, x, y)`, which returns one number."
_EPSILON = 1e-6
"""ε of the soft Dice coefficient."""


def loss_function(objective: Objective, temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the batch mean of (binary) cross-entropy, (binary) KL at τ (scaled by τ²), or a distance of logits.

    The distances are the squared ℓ2 norm and the mean absolute error. For segmentation these losses are means over
    pixels. There, `cross-entropy-dice` adds 1 minus the soft Dice coefficient to the cross-entropy, and `dice` is minus
    the soft Dice coefficient of given probabilities and the logits' softmax (Gong 2022, Eq. 10).
    """
    tau = temperature
    if objective == "cross-entropy":
        return F.cross_entropy
    if objective == "binary-cross-entropy":
        return _binary_cross_entropy
    if objective == "cross-entropy-dice":
        return _cross_entropy_dice
    if objective == "dice":
        return lambda z, p: -_soft_dice(z.softmax(1), p).mean()
    if objective == "kl":
        return lambda z, p: _kl(z / tau, p) * tau**2
    if objective == "binary-kl":
        return lambda z, p: _binary_kl(z / tau, p) * tau**2
    if objective == "l1":
        return F.l1_loss
    return lambda z, t: (z - t).square().sum(1).mean()


def _kl(z: Tensor, p: Tensor) -> Tensor:
    """Return the mean KL(p || softmax(z)) over the batch, or over all of its pixels."""
    if z.dim() == 2:
        return F.kl_div(F.log_softmax(z, 1), p, reduction="batchmean")
    return F.kl_div(F.log_softmax(z, 1), p, reduction="none").sum(1).mean()


def _soft_dice(q: Tensor, p: Tensor) -> Tensor:
    """Return the soft Dice coefficient (n,) of two answers (n, C, h, w): a mean over all classes but background, 0.

    Sums go over the pixels of one record, so that the gradient of a batch is the mean of its records' gradients.
    """
    pixels = (-2, -1)
    total = p.square().sum(pixels) + q.square().sum(pixels) + _EPSILON
    return (2 * (p * q).sum(pixels) / total)[:, 1:].mean(1)


def _cross_entropy_dice(z: Tensor, y: Tensor) -> Tensor:
    """Return cross-entropy plus 1 less the soft Dice coefficient, of logits (n, C, h, w) and masks (n, h, w)."""
    classes = torch.arange(z.shape[1], device=z.device).view(-1, 1, 1)
    one_hot = (y.unsqueeze(1) == classes).to(z.dtype)
    return F.cross_entropy(z, y) + 1 - _soft_dice(z.softmax(1), one_hot).mean()


def _binary_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """Return the mean over all entries (n, C) of the batch. An unknown label, -1, adds nothing.

    Every record has the same weight, however many of its labels are known. The gradient of a batch is therefore the
    mean of its records' gradients.
    """
    labelled = (y >= 0).to(z.dtype)
    return F.binary_cross_entropy_with_logits(z, y.clamp_min(0).to(z.dtype), weight=labelled)


def _binary_kl(z: Tensor, p: Tensor) -> Tensor:
    """Return the mean over the batch of Σ_c KL(Bernoulli(p_c) || Bernoulli(σ(z_c)))."""
    entropy = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))
    return (F.binary_cross_entropy_with_logits(z, p, reduction="none") - entropy).sum(1).mean()


@dataclass(frozen=True, kw_only=True)
class ClientStep:
    """How another system's client makes a step's gradient of its records, as the system's card states it.

    Its loss is PyTorch's cross-entropy, or a function of the user's. Gradients are clipped as by `clip_grad_norm_` and
    `clip_grad_value_`.

    Attributes:
        label_smoothing: share of the target that all classes divide.
        class_weights: one for each class; none weigh all alike.
        function: the name of a loss of the user's own, `import:module:function`, in place of cross-entropy.
        source: a digest of its code.
        summed: whether the loss is a sum over the batch in place of a mean.
        micro_batch: records of each batch whose mean gradient is the step's; None if a step is one batch.
        clip_norm: largest ℓ2 norm of a step's gradient.
        clip_value: largest absolute value of its entries.
    """

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()
    function: str | None = None
    source: str = ""
    summed: bool = False
    micro_batch: int | None = None
    clip_norm: float | None = None
    clip_value: float | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, own: bool = True) -> ClientStep:
        """Return the step that public settings state under `loss` and `clip`; plain cross-entropy by default.

        Args:
            settings: the public settings.
            own: whether a loss of the user's own is used, where they name one; else cross-entropy.
        """
        loss, clip = settings.get("loss") or {}, settings.get("clip") or {}
        function = loss.get("function") if own else None
        return cls(
            function=function,
            source="" if function is None else loss_digest(function),
            label_smoothing=loss.get("label_smoothing") or 0.0,
            class_weights=tuple(loss.get("class_weights") or ()),
            summed=loss.get("reduction") == "sum",
            micro_batch=settings.get("micro_batch"),
            clip_norm=clip.get("norm"),
            clip_value=clip.get("value"),
        )

    @property
    def plain(self) -> bool:
        """Return whether labels are the targets of the loss, as they are."""
        if self.function is not None:
            return True
        return not (self.label_smoothing or self.class_weights or self.summed or self.micro_batch)

    def loss(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss () of one step on its records.

        Args:
            model: maps records to logits (B, C).
            x: (B, ...) records.
            y: (B,) classes, or targets (B, C) of the cross-entropy.
        """
        if self.function is None:
            z = model(x)
            if not self.plain and not y.is_floating_point():
                y = self.targets(y, z.shape[1])
            return F.cross_entropy(z, y)
        own = named_loss(self.function)
        size = self.micro_batch or len(x)
        losses: list[Tensor] = []
        for records, labels in zip(x.split(size), y.split(size), strict=True):
            losses.append(own(model, records, labels))
        return torch.stack(losses).mean()

    def losses(self, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the user's own loss (n,) of each record x (n, ...) with logits z (n, C) and label y (n, ...)."""
        if self.function is None:
            raise ValueError("losses: the step has no function of the user's own.")
        own = named_loss(self.function)
        losses = []
        for logits, record, label in zip(z.split(1), x.split(1), y.split(1), strict=True):
            loss = own(lambda _, logits=logits: logits, record, label)  # type: ignore[misc]
            losses.append(loss.detach())
        return torch.stack(losses)

    def targets(self, y: Tensor, classes: int) -> Tensor:
        """Return targets (..., B, C) whose mean cross-entropy over a batch of B is this loss.

        Args:
            y: (..., B) classes, or (..., B, C) probabilities.
            classes: C.
        """
        q = y
        if not y.is_floating_point():  # `one_hot` has no `vmap`
            marked = y.unsqueeze(-1) == torch.arange(classes, device=y.device)
            q = marked.to(torch.get_default_dtype())
        records = q.shape[-2]
        batches = q.split(self.micro_batch or records, dim=-2)
        targets = []
        for batch in batches:
            # Each batch counts alike, however many records it holds: a mean over them is one over all records.
            share = records / (len(batches) * batch.shape[-2])
            targets.append(self._of_batch(batch) * share)
        return torch.cat(targets, -2)

    def _of_batch(self, q: Tensor) -> Tensor:
        """Return targets (..., B, C) of one batch with probabilities q (..., B, C)."""
        records, classes = q.shape[-2:]
        weights = torch.ones(classes, device=q.device)
        if self.class_weights:
            weights = torch.tensor(self.class_weights, device=q.device)
        weighted = q * weights.to(q)
        smoothed = (1 - self.label_smoothing) * weighted + self.label_smoothing / classes * weights.to(q)
        if self.summed:
            return smoothed * records
        # PyTorch divides a weighted mean by the weights of the true classes, not by the number of records.
        total = weighted.sum((-2, -1), keepdim=True)
        return smoothed * (records / total)

    def clipped(self, gradients: Tensor) -> Tensor:
        """Return gradients (..., P) as the optimiser gets them."""
        if self.clip_value is not None:
            gradients = gradients.clamp(-self.clip_value, self.clip_value)
        if self.clip_norm is not None:
            norm = gradients.norm(dim=-1, keepdim=True)
            gradients = gradients * (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        return gradients

    @property
    def clips(self) -> bool:
        """Return whether it clips gradients."""
        return self.clip_norm is not None or self.clip_value is not None


# -- a loss of the user's own ---------------------------------------------------------------------------------------


def named_loss(name: str) -> OwnLoss:
    """Return the function of a name.

    Raises:
        SpecError: it is not trusted, cannot be imported, or is no function.
    """
    refuse_untrusted(name, "loss")
    path, colon, attribute = name.removeprefix(IMPORT).partition(":")
    if not (name.startswith(IMPORT) and colon and path and attribute):
        raise SpecError("loss", name, "is no import path", "Write import:module:function.")
    try:
        loss: OwnLoss = loaded(f"{path}:{attribute}")
    except (Exception, SystemExit) as error:  # of foreign code
        problem = f"cannot be imported ({_line(error)})"
        remedy = "Put its folder on PYTHONPATH, and correct the name."
        raise SpecError("loss", name, problem, remedy) from error
    if not callable(loss) or isinstance(loss, type):
        raise SpecError("loss", name, "is no function", _WRITE)
    return loss


def loss_digest(name: str) -> str:
    """Return the SHA-256 of a named function's module and of all that it imports."""
    refuse_untrusted(name, "loss")
    return imported_digest(name.removeprefix(IMPORT).partition(":")[0])


def refuse_unusable(name: str, network: Architecture, *, one_class: bool) -> None:
    """Refuse a loss that no attack can use, after trials on random records.

    Args:
        name: the function.
        network: the network that clients train.
        one_class: whether a record has one class; otherwise labels are (n, C), 0 or 1.

    Raises:
        SpecError: it fails, is no finite number, is not repeatable, or cannot be differentiated twice.
    """
    own = named_loss(name)
    generator = torch.Generator().manual_seed(0)
    x = network.random_inputs(_TRIED, generator)
    y = torch.arange(_TRIED) % network.classes
    if not one_class:
        y = torch.randint(2, (_TRIED, network.classes), generator=generator)
    with forked_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of foreign code
        module = network.build(torch.Generator().manual_seed(0)).eval()
        try:
            first = own(module, x.clone().requires_grad_(), y)
            second = own(module, x.clone().requires_grad_(), y)
        except Exception as error:  # of foreign code
            raise SpecError("loss", name, f"fails on {_TRIED} records ({_line(error)})", _WRITE) from error
        if not isinstance(first, Tensor) or first.dim() or not first.is_floating_point():
            shown = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
            raise SpecError("loss", name, f"returns {shown}, not one number", _WRITE)
        if not bool(first.isfinite()):
            problem = f"is {float(first):g} on random records"
            raise SpecError("loss", name, problem, "Make it finite for every network and record.")
        if not torch.equal(first, second):
            problem = "differs in two calls on the same records"
            raise SpecError("loss", name, problem, "Let it draw no numbers and keep nothing.")
        missing = _not_differentiable(own, module, x, y)
        if missing is not None:
            remedy = "Compute it by differentiable operations of PyTorch, from `model(x)`."
            raise SpecError("loss", name, missing, remedy)


def _not_differentiable(own: OwnLoss, module: torch.nn.Module, x: Tensor, y: Tensor) -> str | None:
    """Return why a loss has no gradient in the parameters, or that gradient none in the records, or None."""
    free = list(trainable_parameters(module).values())
    x = x.clone().requires_grad_()
    try:
        loss = own(module, x, y)
        gradients = torch.autograd.grad(loss, free, create_graph=True, allow_unused=True)
    except Exception as error:  # of foreign code
        return f"has no gradient ({_line(error)})"
    used = [g for g in gradients if g is not None]
    if not used or not all(bool(g.isfinite().all()) for g in used) or not any(bool(g.any()) for g in used):
        return "has no finite gradient other than zero in the network's parameters"
    try:
        squared = torch.stack([g.square().sum() for g in used]).sum()
        (second,) = torch.autograd.grad(squared, x)
    except Exception as error:  # of foreign code
        return f"cannot be differentiated twice ({_line(error)})"
    return None if bool(second.isfinite().all()) else "has a second derivative that is not finite"


def _line(error: BaseException) -> str:
    """Return an error in one line, with the place in foreign code."""
    return one_line(error) + plugin_line(error)
