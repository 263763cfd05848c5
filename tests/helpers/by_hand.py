"""What a run sent, and models trained by plain gradient descent, for tests that work a protocol out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fdaudit.models import Architecture
from fdaudit.testing.federation import network
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.messages import Message, role

Parameters = Mapping[str, Tensor]


def sent(
    ran: ProtocolRun, kind: str | None = None, sender: str | None = None, round: int | None = None
) -> list[Message]:
    """Return the messages of a kind, of a party or of all parties of a role, in a round."""
    return [
        m
        for m in ran.messages
        if kind in (None, m.kind) and sender in (None, m.sender, role(m.sender)) and round in (None, m.round)
    ]


def tensors(ran: ProtocolRun, *which: Any, **named: Any) -> list[dict[str, Tensor]]:
    """Return the tensors of the messages that `sent` names."""
    return [ran.tensors(m) for m in sent(ran, *which, **named)]


def by_sender(ran: ProtocolRun, *which: Any, **named: Any) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of the messages that `sent` names, by sender."""
    return {m.sender: ran.tensors(m) for m in sent(ran, *which, **named)}


def module_of(parameters: Parameters, architecture: Architecture | None = None) -> nn.Module:
    """Return a module of its own with these parameters."""
    module = (architecture or network()).build(torch.Generator().manual_seed(0))
    module.load_state_dict(dict(parameters))
    return module


def descended(
    parameters: Parameters, loss_of: Callable[[nn.Module], Tensor], steps: int, lr: float
) -> dict[str, Tensor]:
    """Return parameters after steps of plain gradient descent, written out."""
    module = module_of(parameters)
    for _ in range(steps):
        gradients = torch.autograd.grad(loss_of(module), list(module.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter -= lr * gradient
    return dict(module.state_dict())


def close(one: Parameters, two: Parameters, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Check that two models have the same parameters, up to rounding."""
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=rtol, atol=atol)


def equal(one: Parameters, two: Parameters) -> bool:
    """Return whether two models are the same bit for bit."""
    return one.keys() == two.keys() and all(torch.equal(t, two[n]) for n, t in one.items())
