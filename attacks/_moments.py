"""Gradients that an optimiser's state shows, where clients send it beside their models.

Adam keeps m = β₁ m' + (1 - β₁) g of each gradient g, and SGD with momentum b = μ b' + g. After one step from a known
state, which is zero at first, the gradient is (m - β₁ m') / (1 - β₁), or b - μ b'. It is exact up to rounding, where
Adam's update shows little more than the gradient's sign.

Guarantees:
  * a state is read only if it follows from the state before by one step, as far as `step` and `exp_avg_sq` show;
  * an undefended upload beside the state has to be the step that the state makes;
  * a state that is not read has a reason.

Sources: Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019; PyTorch's SGD without dampening.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.kinds import MODELS
from fdaudit.training.optimizers import BETAS, OptimizerName, optimizer_in, rate_in

from ._uploads import after, with_payload

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["StateGradient", "state_gradient"]

_KIND = "optimizer_state"
_TOLERANCE = 0.05
"""Largest relative error of what follows from a state."""
_EPSILON = 1e-8
"""PyTorch's default for Adam."""
_LEAST_AGREEMENT = 0.9
"""Least share of Adam's first moment, by absolute value, that the update moves against."""
_ROUNDING = {"F16": 2.0**-11, "BF16": 2.0**-8, "F64": 2.0**-53}
"""Relative rounding error of stored numbers; float32's for other types."""

_Moments = Mapping[str, Mapping[str, Tensor]]
"""Tensors by the name of a state and of a parameter."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StateGradient:
    """The gradient of a client's single step, read off its optimiser's state.

    Attributes:
        gradient: of each trained parameter, after the client's clipping, without weight decay.
        seq: number of the message with the state.
        scale: ratio of a gradient to the state that it makes from zeros.
        defenses: those on the state.
    """

    gradient: Mapping[str, Tensor]
    seq: int
    scale: float
    defenses: tuple[Mapping[str, Any], ...]


def state_gradient(view: View, upload: Message, origin: Message, target: str) -> StateGradient | str | None:
    """Return the gradient that a client's state shows, or why it shows none; None if no state is in view.

    Args:
        view: the adversary's view.
        upload: the client's upload of the same round.
        origin: the model that it started from.
        target: the client.
    """
    states = with_payload(view.select(kind=_KIND, sender=target, round=upload.round))
    if not states or upload.kind == "gradient":
        return None
    read = _SteppedState.of(view, states[0], upload, origin)
    if isinstance(read, str):
        return f"{read}: the state, message {states[0].seq}, was not read"
    candidates = _states_before(view, min(states[0].seq, upload.seq), upload, target)
    if isinstance(candidates, str):
        return candidates
    reasons = list[str]()
    for before in candidates:
        reason = read.refuted(before)
        if not reason:
            return read.shown(before)
        reasons.append(reason)
    return f"the state, message {states[0].seq}, was not believed: {reasons[0]}"


def _states_before(view: View, first: int, upload: Message, target: str) -> list[_Moments] | str:
    """Return the states that a client may have stepped from, the likeliest first; an empty one stands for zeros."""
    states: list[Message] = []
    for message in with_payload(view.select(kind=_KIND)):
        of_target = message.sender == target or target in message.receivers
        if of_target and message.seq < first:
            states.append(message)
    kept = view.hyperparameters.get("optimizer_kept")
    trained = any(m.sender == target and m.kind in MODELS and m.round < upload.round for m in view.messages)
    if not states:
        if kept and trained:
            return "the clients keep their optimiser's state, and the one before this round is not in view"
        return [{}]
    last = _moments(view.tensors(states[-1]))
    received = target in states[-1].receivers
    if (
        "momentum_buffer" in last or kept is not None
    ):  # only Adam's states tell which of the two they follow from
        return [last] if received or kept else [{}]
    return [last, {}] if received else [{}, last]


@dataclass(frozen=True, kw_only=True, eq=False)
class _SteppedState:
    """A client's state after its step, with the upload beside it."""

    state: Message
    moments: _Moments
    start: Mapping[str, Tensor]
    change: Mapping[str, Tensor]
    optimizer: OptimizerName
    betas: tuple[float, float]
    momentum: float
    weight_decay: float
    lr: float | None
    rounding: float
    upload_rounding: float
    defenses: tuple[Mapping[str, Any], ...]
    upload_defended: bool = field(default=False)

    @classmethod
    def of(cls, view: View, state: Message, upload: Message, origin: Message) -> _SteppedState | str:
        settings, start = view.hyperparameters, view.tensors(origin)
        moments = _moments(view.tensors(state))
        stated, optimizer = settings.get("optimizer"), optimizer_in(settings)
        if "exp_avg" in moments:
            optimizer = "adam" if optimizer == "sgd" else optimizer
        elif optimizer != "sgd":
            return f"{optimizer} keeps exp_avg, which the state has not"
        if stated is not None and stated != optimizer:
            return f"it is a state of Adam, and the clients' optimiser is {stated}"
        end = after(view, upload, start)
        betas = settings.get("betas") or BETAS
        change = dict[str, Tensor]()
        for name in _first(moments):
            change[name] = end[name] - start[name]
        return cls(
            state=state,
            moments=moments,
            start=start,
            change=change,
            optimizer=optimizer,
            betas=(float(betas[0]), float(betas[1])),
            momentum=float(settings.get("momentum") or 0),
            weight_decay=float(settings.get("weight_decay") or 0),
            lr=rate_in(settings, upload.round),
            rounding=_rounding(state),
            upload_rounding=_rounding(upload),
            defenses=view.defenses_of(state),
            upload_defended=bool(view.defenses_of(upload)),
        )

    def shown(self, before: _Moments) -> StateGradient:
        """Return the gradient of the step from the state before."""
        decay = 0.0 if self.optimizer == "adamw" else self.weight_decay
        gradient = dict[str, Tensor]()
        for name, g in self._applied(before).items():
            gradient[name] = g - decay * self.start[name]
        scale = 1.0 if self.optimizer == "sgd" else 1 / (1 - self.betas[0])
        return StateGradient(gradient=gradient, seq=self.state.seq, scale=scale, defenses=self.defenses)

    def refuted(self, before: _Moments) -> str:
        """Return what shows that the state is not one step after the state before, or not the upload's; or nothing."""
        if before and self.optimizer == "sgd" and not self.momentum:
            return "the clients' momentum is not known"
        if self.defenses:  # they change the state in ways that no relation outlasts
            return ""
        return self._other_count(before) or self._other_square(before) or self._other_update(before)

    def _applied(self, before: _Moments) -> dict[str, Tensor]:
        """Return the gradients that the optimiser added to the state before, with weight decay."""
        share = self.momentum if self.optimizer == "sgd" else self.betas[0]
        weight = 1.0 if self.optimizer == "sgd" else 1 - share
        found, earlier = {}, _first(before)
        for name, moment in _first(self.moments).items():
            found[name] = ((moment - share * earlier[name]) if name in earlier else moment) / weight
        return found

    def _other_count(self, before: _Moments) -> str:
        counted = _count(self.moments)
        if counted is None or (before and _count(before) is None):
            return ""
        steps = counted - (_count(before) or 0)
        return "" if steps == 1 else f"it counts {steps} steps since the state before, not 1"

    def _other_square(self, before: _Moments) -> str:
        second, earlier = self.moments.get("exp_avg_sq"), before.get("exp_avg_sq")
        if second is None or (before and earlier is None):
            return ""
        applied, decay = self._applied(before), self.betas[1]
        sent, expected, whole = [], [], []
        for name, g in applied.items():
            old = decay * earlier[name] if earlier is not None else torch.zeros_like(g)
            sent.append((second[name] - old).flatten())
            expected.append(((1 - decay) * g.square()).flatten())
            whole.append(second[name].flatten())
        if _close(torch.cat(sent), torch.cat(expected), 2 * self.rounding * torch.cat(whole).norm()):
            return ""
        return f"its exp_avg_sq does not follow from its exp_avg by one step with betas of {list(self.betas)}"

    def _other_update(self, before: _Moments) -> str:
        """Return why the upload is not the step that the state makes."""
        if self.upload_defended:
            return ""
        names = list(self.change)
        change = torch.cat([self.change[n].flatten() for n in names])
        second = self.moments.get("exp_avg_sq")
        if second is None and not before:
            # After one step from zeros Adam's second moment follows from the first.
            from_zeros = dict[str, Tensor]()
            for name, g in self._applied(before).items():
                from_zeros[name] = (1 - self.betas[1]) * g.square()
            second = from_zeros
        if self.optimizer != "sgd" and second is None:
            # The second moment is not on record.
            first = torch.cat([moment.flatten() for moment in _first(self.moments).values()])
            against = (first.sign() == -change.sign()).double() @ first.abs().double()
            if float(against) >= _LEAST_AGREEMENT * float(first.abs().double().sum()):
                return ""
            return "the upload beside it does not move against its exp_avg"
        steps, lengths = list[Tensor](), list[Tensor]()
        for name in names:
            steps.append(self._step(name, before, second).flatten())
            lengths.append(self.start[name].norm())
        step = torch.cat(steps)
        rate = self.lr
        # Adam's length depends on the step's number.
        counted = self.optimizer == "sgd" or not before or _count(self.moments) is not None
        if rate is None or not counted:  # then the step is known up to a factor
            rate = float(-(change @ step) / step.square().sum().clamp_min(1e-30))
        length = torch.stack(lengths).norm()
        if rate > 0 and _close(change, -rate * step, 2 * self.upload_rounding * length):
            return ""
        at = "any rate" if self.lr is None else f"a rate of {self.lr:g}"
        return f"the upload beside it is not the step that it makes at {at}"

    def _step(self, name: str, before: _Moments, second: Mapping[str, Tensor] | None) -> Tensor:
        """Return a parameter's step before the learning rate."""
        first = _first(self.moments)[name]
        if self.optimizer == "sgd" or second is None:
            return first
        t = _count(self.moments) if _count(self.moments) is not None or before else 1
        biases = (1.0, 1.0) if t is None else tuple(1 - beta**t for beta in self.betas)
        step = first / biases[0] / ((second[name] / biases[1]).sqrt() + _EPSILON)
        return step + self.weight_decay * self.start[name] if self.optimizer == "adamw" else step


def _moments(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return a state's tensors on the CPU, by the name of the state and of the parameter."""
    moments: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        state, _, parameter = name.partition("/")
        moments.setdefault(state, {})[parameter] = tensor.cpu()
    return moments


def _first(moments: _Moments) -> Mapping[str, Tensor]:
    """Return Adam's first moment, or SGD's buffer; empty for a state of zeros."""
    return moments.get("exp_avg") or moments.get("momentum_buffer") or {}


def _count(moments: _Moments) -> int | None:
    """Return the number of steps that a state counts, or None if it does not say."""
    counts = set[int]()
    for step in moments.get("step", {}).values():
        if step.numel() == 1:
            counts.add(int(step))
    return counts.pop() if len(counts) == 1 else None


def _rounding(message: Message) -> float:
    """Return the largest relative rounding error of a message's numbers."""
    rounding = 0.0
    for info in message.tensors.values():
        rounding = max(rounding, _ROUNDING.get(info.dtype, 2.0**-24))
    return rounding


def _close(sent: Tensor, expected: Tensor, slack: Tensor) -> bool:
    return bool((sent - expected).norm() <= _TOLERANCE * sent.norm() + slack)
