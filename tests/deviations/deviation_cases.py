"""Deviations as a party carries them out, and messages that they change; shared by the tests of deviations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fdaudit.deviations.attached import DeviatingParty
from fdaudit.protocols import REGISTRY as PROTOCOLS
from torch import Tensor

from fdaudit.audit.run import Run
from fdaudit.models import Architecture
from fdaudit.result import Cell
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.wire import Outgoing

from ..helpers.by_hand import equal
from ..helpers.protocol_cases import run
from ..helpers.run_cases import finished

Drafts = Mapping[str, Any]


def draft(kind: str, tensors: Mapping[str, Tensor], round: int = 0, step: int = 0) -> Outgoing:
    """Return what the server would send client/0."""
    return Outgoing(
        round=round, step=step, sender="server", receivers=("client/0",), kind=kind, tensors=tensors
    )


def received(deviation: Any, network: Architecture, round: int = 0) -> dict[str, Tensor]:
    """Return the model that a client receives in place of an untrained one."""
    module = network.build(torch.Generator().manual_seed(4))
    model = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    (sent,) = deviation.sends(draft("model_parameters", model, round), torch.Generator().manual_seed(5))
    return dict(sent.tensors)


def party(name: str, deviation: Any, protocol: str) -> DeviatingParty:
    kinds = PROTOCOLS.describe(protocol).copies[name.partition("/")[0]]
    return DeviatingParty(name, deviation.card.name, deviation, 5, kinds)


def same(first: Sequence[Mapping[str, Tensor]], second: Sequence[Mapping[str, Tensor]]) -> bool:
    """Whether messages have the same tensors, bit for bit."""
    return len(first) == len(second) and all(equal(a, b) for a, b in zip(first, second, strict=True))


def check_resume(
    folder: Path,
    name: str,
    deviants: Callable[[], Drafts],
    params: Mapping[str, Any] | None = None,
    *,
    rounds: int,
    after: int = 0,
) -> ProtocolRun:
    """Check that a run that is resumed after a round ends the same; return the run."""

    def ran(label: str, **more: Any) -> ProtocolRun:
        return run(folder / label, name, params, rounds=rounds, deviants=deviants(), **more)

    whole, part = ran("whole"), ran("part", stop_after=after)
    resumed = ran("part", resume=(after + 1, part.states[-1], part.positions[-1]))
    assert resumed.log == whole.log
    assert resumed.states[-1] == whole.states[-1]
    return whole


def attacked(folder: Path, attack: str, **changes: Any) -> Cell:
    """Return the cell of an attack in a run of three clients, all of them victims."""
    given = {"clients": 3, "victims": 3, "attacks": [{"name": attack}], **changes}
    (cell,) = [c for c in Run(finished(folder, **given)).result.cells if c.attack == attack]
    return cell
